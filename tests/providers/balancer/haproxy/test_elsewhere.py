"""An HAProxy that somebody else runs: what must be so before we begin, and what their hands do to our members."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from autoscaler.domain.base import PoolName
from autoscaler.domain.faults import Refused, Unreachable
from autoscaler.domain.replica import Endpoint, Member, MemberState, Traffic
from autoscaler.ports.build import Context
from providers.balancer import haproxy
from providers.balancer.haproxy import HaproxyBalancer, Settings
from tests.support.haproxy import Someones, a_backend, someone_elses
from tests.support.streaming import Seen, WallClock, ask, ask_many, backends, clients, free_ports

pytestmark = pytest.mark.e2e

NAME = "autoscaler.t.p.i-b0:{}"


def an_adapter(theirs: Someones, **options: object) -> HaproxyBalancer:
    context = Context(installation="t", state_dir="", clock=WallClock(), pool=PoolName("p"), name="main")
    return haproxy.build(msgspec.convert(theirs.settings(**options), Settings), context)


@pytest.fixture
def theirs() -> Iterator[Someones]:
    with someone_elses() as one:
        yield one


async def members(balancer: HaproxyBalancer) -> dict[str, Member]:
    return {one.endpoint: one for one in (await balancer.members()).members}


def endpoint(port: int, weight: int = 100, host: str = "127.0.0.1") -> Endpoint:
    return Endpoint(replica=f"i-{port}:{port}", instance=f"i-{port}", host=host, port=port, weight=weight)  # type: ignore[arg-type]


@asynccontextmanager
async def streaming(url: str, count: int) -> AsyncGenerator[Seen]:
    """Clients with one request each, and its end."""
    seen = Seen()
    async with aiohttp.ClientSession() as session:
        tasks = [asyncio.create_task(ask(session, url, seen)) for _ in range(count)]
        yield seen
        await asyncio.gather(*tasks)


# --- what is told before a start ---


@pytest.mark.parametrize(
    ("balance", "options", "told"),
    [
        (("balance source",), {}, "static algorithm (source), to which no server can be added: write `balance round"),
        (("balance static-rr",), {"strategy": "least_connections"}, "(static-rr)"),
        (("balance leastconn",), {}, "by leastconn, the settings say round_robin: write `balance roundrobin` in"),
        (("balance leastconn",), {}, "in the backend, or set strategy to least_connections"),
        (("balance roundrobin",), {"strategy": "source_hash"}, "write `balance source` and `hash-type consistent` in"),
        (("balance roundrobin",), {"strategy": "source_hash"}, ", or set strategy to round_robin or weighted"),
        (("balance random",), {}, "balances by neither roundrobin, leastconn nor a hash"),
    ],
)  # fmt: skip
async def test_a_backend_that_does_not_fit_is_told(
    balance: tuple[str, ...], options: dict[str, object], told: str
) -> None:
    with someone_elses(balance=balance) as theirs:
        balancer = an_adapter(theirs, **options)
        for call in (balancer.check_start, balancer.members):
            with pytest.raises(Refused) as error:
                await call()
            assert told in str(error.value)
            assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("balance", "strategy"),
    [
        (("balance leastconn",), "least_connections"),
        (("balance roundrobin",), "weighted"),
        (("balance source", "hash-type consistent"), "source_hash"),
        (("balance hdr(x-session)", "hash-type consistent"), "source_hash"),
    ],
)
async def test_a_backend_that_fits_takes_members(balance: tuple[str, ...], strategy: str) -> None:
    async with backends(1, chunks=1) as (one,):
        with someone_elses(balance=balance) as theirs:
            balancer = an_adapter(theirs, strategy=strategy)
            await balancer.check_start()
            await balancer.admit([one.endpoint()])
            assert (await ask_many(theirs.url, 3)).complete == 3


async def test_a_backend_in_which_requests_cannot_be_told_apart_is_told(theirs: Someones) -> None:
    theirs.main.write_text(theirs.main.read_text().replace("mode http", "mode tcp"))
    theirs.restart()
    with pytest.raises(Refused, match=r"backend replicas has mode tcp, .*: mode http"):
        await an_adapter(theirs).check_start()


async def test_a_backend_that_is_not_there_is_told(theirs: Someones) -> None:
    with pytest.raises(Refused, match=r"has no backend 'llama': set `backend` to one that it has"):
        await an_adapter(theirs, backend="llama").check_start()


@pytest.mark.parametrize("level", ["user", "operator"])
async def test_a_socket_without_admin_is_told(level: str) -> None:
    with someone_elses(level=level) as theirs, pytest.raises(Refused, match="does not have level admin: write `stats"):
        await an_adapter(theirs).check_start()


async def test_a_socket_that_is_not_there_is_told_and_one_that_nobody_serves_may_come_back(theirs: Someones) -> None:
    with pytest.raises(Refused, match=r"there is no socket /nowhere/admin\.sock"):
        await an_adapter(theirs, socket="/nowhere/admin.sock").check_start()
    balancer = an_adapter(theirs)
    theirs.end()
    await balancer.check_start()
    with pytest.raises(Unreachable, match=r"nobody answers at .*: HAProxy does not run"):
        await balancer.members()
    theirs.start()
    assert (await balancer.members()).members == ()


async def test_a_servers_file_without_marks_is_told(theirs: Someones) -> None:
    theirs.servers.write_text("backend other\n")
    with pytest.raises(Refused, match=r"servers_file: .*p\.cfg needs the lines"):
        await an_adapter(theirs).check_start()


async def test_a_check_of_the_start_changes_nothing(theirs: Someones) -> None:
    before = (theirs.server_names(), theirs.servers.read_text())
    await an_adapter(theirs).check_start()
    await an_adapter(theirs).members()
    assert (theirs.server_names(), theirs.servers.read_text()) == before == ([], a_backend())


async def test_a_hung_haproxy_is_unreachable_not_empty(theirs: Someones) -> None:
    balancer = an_adapter(theirs, timeout=0.3)
    pid = theirs.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unreachable, match=r"did not answer within 0\.3 s"):
            await balancer.members()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (await balancer.members()).members == ()


async def test_the_runtime_api_over_tcp(theirs: Someones) -> None:
    (port,) = free_ports(1)
    theirs.main.write_text(
        theirs.main.read_text().replace("defaults", f"    stats socket 127.0.0.1:{port} level admin\ndefaults")
    )
    theirs.restart()
    async with backends(1) as (one,):
        balancer = an_adapter(theirs, socket=f"127.0.0.1:{port}")
        await balancer.admit([one.endpoint()])
        assert (await ask_many(theirs.url, 3)).complete == 3


# --- others' servers ---


async def test_servers_of_others_are_told_and_never_touched() -> None:
    async with backends(2, chunks=1) as (ours, other):
        lines = (
            f"server gpu7 127.0.0.1:{other.port} weight 16",
            f"server autoscaler.t.q.x 127.0.0.1:{other.port} disabled",
        )
        with someone_elses(*lines) as theirs:
            balancer = an_adapter(theirs)
            await balancer.admit([ours.endpoint()])
            # One that calls itself by the endpoint of a stranger's server touches only what bears its own name.
            double = other.endpoint()
            await balancer.drain([double])
            await balancer.evict([double])
            view = await balancer.members()
            assert [one.replica for one in view.members] == [ours.endpoint().replica]
            assert [(one.reason, one.traffic, one.state) for one in view.foreign] == [
                ("server gpu7 is not ours", Traffic.YES, MemberState.ADMITTED),
                ("server autoscaler.t.q.x is not ours", Traffic.NO, MemberState.DRAINING),
            ]
            assert (await ask_many(theirs.url, 10)).by_backend == {"b0": 5, "b1": 5}
            await balancer.evict([ours.endpoint()])
            assert theirs.server_names() == ["gpu7", "autoscaler.t.q.x"]
            assert all(line in theirs.servers.read_text() for line in lines)


async def test_a_server_added_by_hand_under_our_name_is_ours_and_gets_the_right_address(theirs: Someones) -> None:
    async with backends(1, chunks=1) as (one,):
        name = NAME.format(one.port)
        theirs.ask(f"add server replicas/{name} 127.0.0.2:1 weight 3")
        balancer = an_adapter(theirs)
        await balancer.admit([one.endpoint()])
        (member,) = (await balancer.members()).members
        assert (member.endpoint, member.weight, member.traffic) == (one.endpoint().address, 100, Traffic.YES)
        assert (await ask_many(theirs.url, 3)).complete == 3


async def test_a_state_set_by_hand_is_shown_for_what_it_is_and_ended_by_admitting(theirs: Someones) -> None:
    async with backends(1, chunks=1) as (one,):
        balancer = an_adapter(theirs)
        await balancer.admit([one.endpoint()])
        theirs.ask(f"set server replicas/{NAME.format(one.port)} state drain")
        (member,) = (await balancer.members()).members
        assert (member.state, member.traffic) == (MemberState.DRAINING, Traffic.NO)
        await balancer.admit([one.endpoint()])
        theirs.ask(f"set server replicas/{NAME.format(one.port)} state maint")
        (member,) = (await balancer.members()).members
        assert (member.state, member.reason) == (MemberState.DRAINING, "only in the servers file, not in HAProxy")
        await balancer.admit([one.endpoint()])
        assert (await ask_many(theirs.url, 3)).complete == 3


# --- reloads and restarts ---


async def test_a_reload_without_a_servers_file_forgets_all_and_admitting_again_brings_them_back(
    theirs: Someones,
) -> None:
    async with backends(2, chunks=1) as (one, other):
        balancer = an_adapter(theirs, servers_file="")
        await balancer.admit([one.endpoint(200), other.endpoint()])
        theirs.reload()
        assert (await balancer.members()).members == ()
        await balancer.admit([one.endpoint(200), other.endpoint()])
        found = await members(balancer)
        assert [found[each.endpoint().address].weight for each in (one, other)] == [200, 100]


@pytest.mark.parametrize("how", ["reload", "restart"])
async def test_with_a_servers_file_nobody_is_lost_and_who_drained_does_not_come_back(
    how: str, theirs: Someones
) -> None:
    async with backends(3, chunks=1) as made:
        balancer = an_adapter(theirs)
        await balancer.admit([one.endpoint(100 * (1 + number)) for number, one in enumerate(made)])
        await balancer.drain([made[2].endpoint()])
        getattr(theirs, how)()
        assert (await ask_many(theirs.url, 9)).by_backend == {"b0": 3, "b1": 6}
        found = await members(balancer)
        assert {address: (one.state, one.weight) for address, one in found.items()} == {
            made[0].endpoint().address: (MemberState.ADMITTED, 100),
            made[1].endpoint().address: (MemberState.ADMITTED, 200),
        }
        await balancer.evict([made[0].endpoint(), made[2].endpoint()])
        assert theirs.server_names() == [f"autoscaler.t.p.i-b1:{made[1].port}"]
        await balancer.evict([made[1].endpoint()])
        assert (theirs.server_names(), theirs.servers.read_text()) == ([], a_backend())


async def test_after_a_reload_a_count_of_nothing_proves_nothing(theirs: Someones) -> None:
    async with backends(1, chunks=40, every_s=0.05) as (one,):
        balancer = an_adapter(theirs)
        at_once = an_adapter(theirs, reload_grace=0.0)
        await balancer.admit([one.endpoint()])
        async with streaming(theirs.url, 2) as seen:
            while one.active < 2:
                await asyncio.sleep(0.01)
            (member,) = (await balancer.members()).members
            assert member.active == 2
            theirs.reload()
            assert one.active == 2
            (member,) = (await balancer.members()).members
            assert member.active is None
            (member,) = (await at_once.members()).members
            assert member.active == 0
        assert (seen.complete, seen.cut) == (2, 0)


async def test_a_servers_file_that_cannot_be_written_stops_no_drain(theirs: Someones) -> None:
    async with backends(1, chunks=1) as (one,):
        balancer = an_adapter(theirs)
        await balancer.admit([one.endpoint()])
        good = theirs.servers.read_text()
        theirs.servers.write_text("backend replicas\n")
        with pytest.raises(Refused, match="needs the lines"):
            await balancer.drain([one.endpoint()])
        assert (await ask_many(theirs.url, 2)).statuses == {503: 2}
        theirs.servers.write_text(good)
        await balancer.evict([one.endpoint()])
        assert (theirs.server_names(), theirs.servers.read_text()) == ([], a_backend())


# --- removal, addresses, weights ---


async def test_one_that_is_evicted_with_streams_inside_is_deleted_by_a_later_change(theirs: Someones) -> None:
    async with backends(2, chunks=20, every_s=0.05) as (leaving, staying):
        balancer = an_adapter(theirs)
        await balancer.admit([leaving.endpoint()])
        async with streaming(theirs.url, 2) as seen:
            while leaving.active < 2:
                await asyncio.sleep(0.01)
            await balancer.evict([leaving.endpoint()])
            assert theirs.server_names() == [NAME.format(leaving.port)]
            assert (await balancer.members()).members == ()
        assert seen.complete == 2
        await balancer.admit([staying.endpoint()])
        assert [str(staying.port) in name for name in theirs.server_names()] == [True]


async def test_one_that_is_evicted_with_streams_inside_may_be_admitted_again(theirs: Someones) -> None:
    async with backends(1, chunks=20, every_s=0.05) as (one,):
        balancer = an_adapter(theirs)
        await balancer.admit([one.endpoint()])
        async with streaming(theirs.url, 2) as seen:
            while one.active < 2:
                await asyncio.sleep(0.01)
            await balancer.evict([one.endpoint()])
            await balancer.admit([one.endpoint()])
            assert (await ask_many(theirs.url, 2)).complete == 2
        assert seen.complete == 2


async def test_a_replica_that_comes_back_at_another_address_is_reached_there(theirs: Someones) -> None:
    async with backends(2, chunks=1) as (old, new):
        balancer = an_adapter(theirs)
        await balancer.admit([old.endpoint()])
        moved = msgspec.structs.replace(old.endpoint(), port=new.port)
        await balancer.admit([moved])
        assert list(await members(balancer)) == [new.endpoint().address]
        assert (await ask_many(theirs.url, 4)).by_backend == {"b1": 4}
        theirs.reload()
        assert (await ask_many(theirs.url, 4)).by_backend == {"b1": 4}


async def test_a_dead_replica_is_out_by_haproxys_own_check(theirs: Someones) -> None:
    (port,) = free_ports(1)
    balancer = an_adapter(theirs, server_options="check inter 50ms fall 2 rise 1")
    async with backends(1, chunks=1) as (one,):
        await balancer.admit([one.endpoint(), endpoint(port)])
        async with clients(theirs.url, 2):
            async with asyncio.timeout(5):
                while (dead := (await members(balancer))[f"127.0.0.1:{port}"]).traffic is not Traffic.NO:
                    await asyncio.sleep(0.02)
        assert dead.state is MemberState.ADMITTED
        assert dead.reason.startswith("DOWN (L4CON")
        assert (await ask_many(theirs.url, 20, at_once=1)).complete == 20


async def test_ipv6_and_what_haproxy_would_not_take(theirs: Someones) -> None:
    balancer = an_adapter(theirs, server_options="")
    await balancer.admit([endpoint(80, host="2001:db8:0::1")])
    assert list(await members(balancer)) == ["2001:db8::1:80"]
    await balancer.admit([endpoint(80, host="2001:db8::1")])
    before = theirs.server_names()
    for bad, told in (
        (endpoint(81, host="gpu-1.internal"), "this adapter takes IP addresses, not 'gpu-1.internal'"),
        (
            endpoint(81, weight=1700),
            "17 units would weigh 272, HAProxy's largest is 256: set unit_weight to 15 or less",
        ),
    ):
        with pytest.raises(Refused) as error:
            await balancer.admit([endpoint(82), bad])
        assert told in str(error.value)
    assert theirs.server_names() == before


async def test_options_that_haproxy_does_not_know_are_told_in_its_words(theirs: Someones) -> None:
    balancer = an_adapter(theirs, server_options="nosuchword")
    with pytest.raises(
        Refused, match=r"HAProxy refused 'add server replicas/.*nosuchword.*: unknown keyword 'nosuchword'"
    ):
        await balancer.admit([endpoint(80)])


async def test_a_weight_between_haproxys_steps_is_asked_for_once(theirs: Someones) -> None:
    balancer = an_adapter(theirs, server_options="")
    await balancer.admit([endpoint(80, weight=33)])
    assert next(iter((await members(balancer)).values())).weight == 33
    again = an_adapter(theirs, server_options="")  # a restarted daemon sees HAProxy's step, and asks once more
    assert next(iter((await members(again)).values())).weight == 31
    await again.reweigh([endpoint(80, weight=33)])
    assert next(iter((await members(again)).values())).weight == 33


async def test_counters_tell_what_no_client_sees(theirs: Someones) -> None:
    (port,) = free_ports(1)
    settings = msgspec.convert(theirs.settings(server_options=""), Settings)
    balancer = an_adapter(theirs, server_options="")
    await balancer.admit([endpoint(port)])
    assert (await ask_many(theirs.url, 3)).statuses == {503: 3}
    found = await haproxy.stats(settings)
    assert (found.requests, found.answered_5xx, found.connect_failed, found.retried) == (3, 3, 3, 0)


def test_the_servers_file_is_the_path_itself_not_a_link_to_it(tmp_path: Path, theirs: Someones) -> None:
    link = tmp_path / "p.cfg"
    link.symlink_to(theirs.servers)
    assert an_adapter(theirs, servers_file=str(link))._layout.servers == theirs.servers
