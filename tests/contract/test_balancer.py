"""What every balancer adapter must do, against the real balancer and real streams. One row in HARNESSES an adapter."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import aiohttp
import msgspec
import pytest

from autoscaler.domain.base import PoolName, ReplicaId, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.pool import Bounds, Offer, Placement, Pool
from autoscaler.domain.replica import Endpoint, MemberState, Traffic
from autoscaler.lab.adapters import Present, SimulatedBalancer
from autoscaler.lab.world import endpoint_of
from autoscaler.ports.balancer import Balancer
from autoscaler.ports.build import Context
from providers.balancer import envoy, haproxy
from tests.support.haproxy import someone_elses
from tests.support.lab_world import quiet_world
from tests.support.streaming import Seen, WallClock, ask, ask_many, backends, clients, free_ports

pytestmark = pytest.mark.e2e

#: The contract's bound from admission to the first request, with clients asking all the time.
FIRST_REQUEST_WITHIN_S = 2.0


class Running(NamedTuple):
    """A balancer that runs: its adapter, where clients send, and how many requests it repeated."""

    balancer: Balancer
    url: str
    retried: Callable[[], Awaitable[int]]
    again: Callable[[], Balancer]


class Backing(Protocol):
    """A replica that can be admitted."""

    def endpoint(self, weight: int = 100) -> Endpoint: ...


class Told(NamedTuple):
    """A balancer whose members are all that is asked for. `backends`: makes replicas that work."""

    balancer: Balancer
    again: Callable[[], Balancer]
    backends: Callable[[int], AbstractAsyncContextManager[Sequence[Backing]]]


Harness = Callable[[Path], AbstractAsyncContextManager[Running]]


@asynccontextmanager
async def _envoy(folder: Path) -> AsyncGenerator[Running]:
    listen, admin = free_ports(2)
    settings = envoy.Settings(
        listen=f"127.0.0.1:{listen}",
        admin=f"127.0.0.1:{admin}",
        strategy="round_robin",
    )
    context = Context(installation="test", state_dir=str(folder), clock=WallClock(), pool=PoolName("p"), name="main")

    async def retried() -> int:
        return (await envoy.stats(settings)).retried

    balancer = envoy.build(settings, context)
    try:
        yield Running(
            balancer,
            f"http://127.0.0.1:{listen}",
            retried,
            lambda: envoy.build(settings, context),
        )
    finally:
        await balancer.aclose()
        await envoy.stop(settings, str(folder), "main")


@asynccontextmanager
async def _haproxy(folder: Path) -> AsyncGenerator[Running]:
    (listen,) = free_ports(1)
    settings = haproxy.Settings(embedded=True, listen=f"127.0.0.1:{listen}", strategy="round_robin")
    context = Context(installation="t.1", state_dir=str(folder), clock=WallClock(), pool=PoolName("p"), name="main")

    async def retried() -> int:
        return (await haproxy.stats(settings, str(folder), "main")).retried

    balancer = haproxy.build(settings, context)
    try:
        yield Running(balancer, f"http://127.0.0.1:{listen}", retried, lambda: haproxy.build(settings, context))
    finally:
        await balancer.aclose()
        await haproxy.stop(settings, str(folder), "main")


@asynccontextmanager
async def _haproxy_of_others(folder: Path) -> AsyncGenerator[Running]:
    with someone_elses() as theirs:
        # Nobody reloads it here, so what it counts is all there is.
        settings = msgspec.convert(theirs.settings(reload_grace=0.0), haproxy.Settings)
        context = Context(installation="t", state_dir=str(folder), clock=WallClock(), pool=PoolName("p"), name="main")

        async def retried() -> int:
            return (await haproxy.stats(settings)).retried

        balancer = haproxy.build(settings, context)
        yield Running(balancer, theirs.url, retried, lambda: haproxy.build(settings, context))
        await balancer.aclose()


class Simulated:
    """A replica of the lab's world that is loaded and that no balancer has heard of yet."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def endpoint(self, weight: int = 100) -> Endpoint:
        return msgspec.structs.replace(self._endpoint, weight=weight)


@asynccontextmanager
async def _lab(_: Path) -> AsyncGenerator[Told]:
    """The lab's simulated balancer, on the machine's clock.

    Its requests are the kernel's and not HTTP's, so it has the rows that ask members and calls alone. What the others
    state of streams is shown of it elsewhere: that a drain stops new requests and those inside finish, weights and the
    choice of a replica in tests/autoscaler/lab (test_fleet, test_fast). Two rows do not hold by design: where nobody
    takes requests it holds them for its patience instead of an answer of 503, and it repeats none.
    """
    offer = Offer(name="o", compute="lab", ports=(8000,))
    world = quiet_world(Pool(installation="t", name=PoolName("p"), bounds=Bounds(min=0, max=9), offers=(offer,)))
    present = Present(world, WallClock())

    @asynccontextmanager
    async def made(count: int) -> AsyncGenerator[list[Simulated]]:
        endpoints = []
        for number in range(count):
            now = present.world()
            now.cloud.launch(Launch(token=Token(f"e-{number}"), placement=Placement(offer="o", zone="local"), count=1,
                                    total_after=1, request=""))  # fmt: skip
            (machine,) = [one for one in now.cloud.living.values() if one.shown.token == f"e-{number}"]
            endpoints.append(Simulated(endpoint_of(machine.id, machine.shown.address or "", 8000, offer)))
        yield endpoints

    yield Told(SimulatedBalancer(present), lambda: SimulatedBalancer(present), made)


HARNESSES: dict[str, Harness] = {"envoy": _envoy, "haproxy": _haproxy, "haproxy of others": _haproxy_of_others}


@pytest.fixture(params=[*HARNESSES, "lab"])
async def told(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Told]:
    """Any balancer, for what is asked of its calls and members alone."""
    if request.param == "lab":
        async with _lab(tmp_path) as one:
            yield one
        return
    async with HARNESSES[request.param](tmp_path) as running:
        await running.balancer.members()
        yield Told(running.balancer, running.again, backends)


@pytest.fixture(params=HARNESSES)
async def running(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Running]:
    async with HARNESSES[request.param](tmp_path) as one:
        await one.balancer.members()
        yield one


async def until(wanted: Callable[[], bool], within_s: float, what: str) -> float:
    """Wait until something is so; returns how long it took."""
    begun = time.monotonic()
    while not wanted():
        assert time.monotonic() - begun < within_s, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.01)
    return time.monotonic() - begun


async def until_traffic(balancer: Balancer, wanted: dict[ReplicaId, Traffic], within_s: float = 5.0) -> None:
    """Wait until members() shows exactly these replicas with that traffic."""
    end = time.monotonic() + within_s
    while True:
        found = {one.replica: one.traffic for one in (await balancer.members()).members}
        if found == wanted:
            return
        assert time.monotonic() < end, f"wanted {wanted}, found {found}"
        await asyncio.sleep(0.02)


async def test_a_fresh_balancer_has_no_members_and_answers_503(running: Running) -> None:
    assert (await running.balancer.members()).members == ()
    assert (await ask_many(running.url, 2)).statuses == {503: 2}


async def test_every_call_done_twice_is_as_done_once(told: Told) -> None:
    async with told.backends(2) as made:
        one, other = (backend.endpoint() for backend in made)
        for _ in range(2):
            await told.balancer.admit([one, other])
        await until_traffic(told.balancer, {one.replica: Traffic.YES, other.replica: Traffic.YES})
        for _ in range(2):
            await told.balancer.reweigh([made[0].endpoint(weight=300)])
        view = await told.balancer.members()
        assert {one.replica: one.weight for one in view.members} == {one.replica: 300, other.replica: 100}
        for _ in range(2):
            await told.balancer.drain([one])
        await until_traffic(told.balancer, {one.replica: Traffic.NO, other.replica: Traffic.YES})
        for _ in range(2):
            await told.balancer.evict([one])
        await until_traffic(told.balancer, {other.replica: Traffic.YES})


async def test_strangers_are_neither_added_nor_touched_by_reweigh_drain_and_evict(told: Told) -> None:
    async with told.backends(2) as made:
        one, stranger = (backend.endpoint() for backend in made)
        await told.balancer.admit([one])
        await told.balancer.reweigh([stranger])
        await told.balancer.drain([stranger])
        await told.balancer.evict([stranger])
        await until_traffic(told.balancer, {one.replica: Traffic.YES})


async def test_a_member_is_shown_with_what_it_was_told_and_what_it_does(running: Running) -> None:
    async with backends(1, chunks=40, every_s=0.05) as (backend,):
        endpoint = backend.endpoint(weight=200)
        await running.balancer.admit([endpoint])
        await until_traffic(running.balancer, {endpoint.replica: Traffic.YES})
        async with aiohttp.ClientSession() as session:
            tasks = [asyncio.create_task(ask(session, running.url, Seen())) for _ in range(3)]
            await until(lambda: backend.active == 3, 5, "three running")
            (member,) = (await running.balancer.members()).members
            assert (member.replica, member.endpoint) == (endpoint.replica, endpoint.address)
            assert (member.state, member.weight) == (MemberState.ADMITTED, 200)
            assert member.active == (3 if running.balancer.traits().counts_active else None)
            await asyncio.gather(*tasks)
        (member,) = (await running.balancer.members()).members
        assert member.active == (0 if running.balancer.traits().counts_active else None)


async def test_the_first_request_comes_soon_after_admission(running: Running) -> None:
    async with backends(2) as (old, new):
        await running.balancer.admit([old.endpoint()])
        await until_traffic(running.balancer, {old.endpoint().replica: Traffic.YES})
        async with clients(running.url, 5) as seen:
            await running.balancer.admit([new.endpoint()])
            await until(lambda: new.received > 0, FIRST_REQUEST_WITHIN_S, "a first request")
    assert (seen.refused, seen.cut) == (0, 0)


async def test_a_drain_stops_new_requests_and_running_streams_finish(running: Running) -> None:
    async with backends(2, chunks=20, every_s=0.05) as (leaving, staying):
        await running.balancer.admit([leaving.endpoint(), staying.endpoint()])
        both = {leaving.endpoint().replica: Traffic.YES, staying.endpoint().replica: Traffic.YES}
        await until_traffic(running.balancer, both)
        async with clients(running.url, 8) as seen:
            await until(lambda: leaving.active >= 2, 5, "streams on the one that leaves")
            await running.balancer.drain([leaving.endpoint()])
            await until_traffic(running.balancer, {**both, leaving.endpoint().replica: Traffic.NO})
            received = leaving.received
            assert leaving.active > 0, "the drain must be seen while streams run, or this proves nothing"
            await until(lambda: leaving.active == 0, 5, "empty")
            await asyncio.sleep(0.3)
            assert leaving.received == received
    assert (seen.refused, seen.cut) == (0, 0)
    assert seen.by_backend["b0"] == leaving.received


async def test_an_eviction_under_load_lets_running_streams_end(running: Running) -> None:
    async with backends(2, chunks=20, every_s=0.05) as (leaving, staying):
        await running.balancer.admit([leaving.endpoint(), staying.endpoint()])
        async with clients(running.url, 8) as seen:
            await until(lambda: leaving.active >= 2, 5, "streams on the one that leaves")
            await running.balancer.evict([leaving.endpoint()])
            await until_traffic(running.balancer, {staying.endpoint().replica: Traffic.YES})
            assert leaving.active > 0, "the eviction must meet streams, or this proves nothing"
            await until(lambda: leaving.active == 0, 5, "empty")
    assert seen.cut == 0
    assert seen.by_backend["b0"] == leaving.received


async def test_when_all_drain_clients_are_refused_and_nobody_draining_gets_a_request(running: Running) -> None:
    async with backends(2) as made:
        endpoints = [backend.endpoint() for backend in made]
        await running.balancer.admit(endpoints)
        await until_traffic(running.balancer, dict.fromkeys([one.replica for one in endpoints], Traffic.YES))
        await running.balancer.drain(endpoints)
        await until_traffic(running.balancer, dict.fromkeys([one.replica for one in endpoints], Traffic.NO))
        assert (await ask_many(running.url, 20)).statuses == {503: 20}
        assert sum(backend.received for backend in made) == 0


async def test_a_drain_can_be_recalled_by_admitting(running: Running) -> None:
    async with backends(1) as (backend,):
        endpoint = backend.endpoint()
        await running.balancer.admit([endpoint])
        await running.balancer.drain([endpoint])
        await until_traffic(running.balancer, {endpoint.replica: Traffic.NO})
        await running.balancer.admit([endpoint])
        await until_traffic(running.balancer, {endpoint.replica: Traffic.YES})
        assert (await ask_many(running.url, 5)).complete == 5


async def test_weights_are_honoured(running: Running) -> None:
    if not running.balancer.traits().weights:
        return
    async with backends(2, chunks=1, every_s=0.0) as (small, large):
        await running.balancer.admit([small.endpoint(weight=100), large.endpoint(weight=300)])
        both = {small.endpoint().replica: Traffic.YES, large.endpoint().replica: Traffic.YES}
        await until_traffic(running.balancer, both)
        assert (await ask_many(running.url, 200)).complete == 200
        # 150 of 200 for three units of four; the rotation of each worker may be off by a few.
        assert 135 <= large.received <= 165


async def test_another_adapter_of_the_same_binding_sees_and_changes_the_same_members(told: Told) -> None:
    """As after a restart of the daemon: nothing is kept in the adapter."""
    async with told.backends(2) as (one, other):
        await told.balancer.admit([one.endpoint(), other.endpoint()])
        await told.balancer.drain([other.endpoint()])
        second = told.again()
        try:
            want = {one.endpoint().replica: Traffic.YES, other.endpoint().replica: Traffic.NO}
            await until_traffic(second, want)
            await second.evict([other.endpoint()])
        finally:
            await second.aclose()
        await until_traffic(told.balancer, {one.endpoint().replica: Traffic.YES})


async def test_calls_at_the_same_time_do_not_undo_one_another(told: Told) -> None:
    async with told.backends(6) as made:
        await asyncio.gather(*(told.balancer.admit([backend.endpoint()]) for backend in made))
        await until_traffic(told.balancer, {backend.endpoint().replica: Traffic.YES for backend in made})


async def test_twenty_rounds_of_changes_under_load_lose_no_request(running: Running) -> None:
    async with backends(4, chunks=8, every_s=0.02) as made:
        base = made[0]
        await running.balancer.admit([base.endpoint()])
        await until_traffic(running.balancer, {base.endpoint().replica: Traffic.YES})
        async with clients(running.url, 20) as seen:
            for number in range(20):
                backend = made[1 + number % 3]
                received = backend.received
                await running.balancer.admit([backend.endpoint()])
                await until(lambda b=backend, r=received: b.received > r, FIRST_REQUEST_WITHIN_S, "a request")  # type: ignore[misc]
                await running.balancer.reweigh([backend.endpoint(weight=100 + 50 * (number % 4))])
                await running.balancer.drain([backend.endpoint()])
                await asyncio.sleep(0.05)
                await running.balancer.evict([backend.endpoint()])
    assert seen.complete > 100
    assert (seen.refused, seen.cut) == (0, 0)
    assert await running.retried() == 0
    assert sum(backend.received for backend in made) == seen.complete
