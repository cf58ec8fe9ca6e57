"""All pools of a process: kept alive, stopped between actions, reloaded without losing a clock."""

import asyncio
import io
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psutil
import pytest

from autoscaler.domain.base import Duration, Instant, PoolName
from autoscaler.domain.decision import Calendar, Decision, Observation
from autoscaler.domain.faults import ConfigError, Unreachable
from autoscaler.domain.memory import Memory
from autoscaler.domain.pool import Bounds, Mode, Pool
from autoscaler.engine.decide import decide
from autoscaler.ports.policy import Policy
from autoscaler.runtime.api import ApiSettings
from autoscaler.runtime.clock import SystemClock
from autoscaler.runtime.foreign import WorkerPolicy
from autoscaler.runtime.journal import open_journal
from autoscaler.runtime.loop import PoolLoop
from autoscaler.runtime.parts import PoolParts
from autoscaler.runtime.supervisor import Options, Supervisor, run
from tests.support.memory_ledger import MemoryLedger
from tests.support.pool_world import PoolWorld, a_pool
from tests.support.virtual_time import START, VirtualClock, run_virtual


@asynccontextmanager
async def supervised(
    parts: Sequence[PoolParts], ledger: MemoryLedger, clock: VirtualClock, **options: Any
) -> AsyncIterator[Supervisor]:
    chosen = {"journal": open_journal(stream=io.StringIO()), "handle_signals": False, **options}
    supervisor = Supervisor(ledger, Options(clock=clock, **chosen))
    await supervisor.open(parts)
    serving = asyncio.create_task(supervisor.serve())
    try:
        yield supervisor
    finally:
        await supervisor.close()
        await serving


def test_pools_run_beside_each_other_and_everything_is_closed_at_the_end() -> None:
    async def scenario() -> None:
        clock, ledger = VirtualClock(), MemoryLedger()
        worlds = [PoolWorld(clock, a_pool(name)) for name in ("a", "b", "c")]
        async with supervised([world.parts() for world in worlds], ledger, clock):
            await asyncio.sleep(120)
        for world in worlds:
            assert len(world.balancer.admitted()) == 2
            assert world.compute.closed
            assert world.balancer.closed
            assert world.telemetry.closed
            assert world.probe.closed
        assert ledger.closed
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    run_virtual(scenario)


class FailsIn:
    """decide() with a bug in one pool while `left` is positive."""

    def __init__(self, pool: str, left: int) -> None:
        self.pool, self.left, self.crashes = pool, left, list[float]()

    def __call__(
        self, pool: Pool, policies: tuple[Policy, ...], memory: Memory, observation: Observation, calendar: Calendar
    ) -> Decision:
        if pool.name == self.pool and self.left:
            self.left -= 1
            self.crashes.append(observation.now - START)
            raise ZeroDivisionError("a bug of ours")
        return decide(pool, policies, memory, observation, calendar)


def test_a_pool_that_crashes_is_started_again_with_growing_waits_and_the_others_do_not_notice() -> None:
    async def scenario() -> None:
        clock, ledger, log = VirtualClock(), MemoryLedger(), io.StringIO()
        good, bad = PoolWorld(clock, a_pool("good")), PoolWorld(clock, a_pool("bad"))
        fails = FailsIn("bad", 4)
        journal = open_journal(stream=log)
        parts = [good.parts(), bad.parts()]
        async with supervised(parts, ledger, clock, decide=fails, journal=journal) as supervisor:
            stuck = []
            for wait in (0.5, 2.0, 2.0):
                await asyncio.sleep(wait)
                status = supervisor.loops[PoolName("bad")].status
                stuck.append("crashed: ZeroDivisionError" in status.trouble and status.tick_at is None)
            await asyncio.sleep(195)
            assert fails.crashes == [0.0, 1.0, 3.0, 7.0]
            assert stuck == [True] * 3
            assert supervisor.loops[PoolName("bad")].status.fine
            assert b'autoscaler_pool_crashes_total{pool="bad"} 4.0' in supervisor.services.metrics.text()
        assert len(bad.balancer.admitted()) == 2
        ticks = [round(record.at - START, 3) for record in ledger.records[PoolName("good")]]
        assert [at for at in ticks if at % 15 == 0] == [15.0 * number for number in range(14)]
        assert log.getvalue().count('"pool crashed"') == 4
        assert "ZeroDivisionError" in log.getvalue()

    run_virtual(scenario)


def test_stopping_ends_between_two_actions_and_waits_for_the_call_in_flight() -> None:
    async def scenario() -> None:
        clock, ledger = VirtualClock(), MemoryLedger()
        world = PoolWorld(clock)
        world.compute.faults.delay["launch"] = 8.0
        async with supervised([world.parts()], ledger, clock):
            await asyncio.sleep(1)
            assert world.compute.launched == {}
        assert clock.now() - START == pytest.approx(8.0)
        assert len(world.compute.launched) == 1
        assert world.compute.faults.calls["launch"] == 1
        assert len(ledger.records[world.name]) == 1

    run_virtual(scenario)


def test_stopping_does_not_wait_for_ever() -> None:
    async def scenario() -> None:
        clock, ledger = VirtualClock(), MemoryLedger()
        world = PoolWorld(clock)
        world.compute.faults.delay["launch"] = 1e6
        async with supervised([world.parts()], ledger, clock, stop_within=Duration(6.0)):
            await asyncio.sleep(1)
        assert clock.now() - START <= 1 + 6 + 6
        assert world.compute.closed

    run_virtual(scenario)


def test_a_reload_takes_new_numbers_and_keeps_the_clocks() -> None:
    async def scenario() -> None:
        clock, ledger = VirtualClock(), MemoryLedger()
        old = PoolWorld(clock)
        old.asks.units = 8
        new = PoolWorld(clock, compute=old.compute)
        new.balancer, new.asks = old.balancer, old.asks
        fresh = new.parts(bounds=Bounds(min=1, max=5))
        async with supervised([old.parts()], ledger, clock, reload=lambda: [fresh]) as supervisor:
            await asyncio.sleep(20)
            before = ledger.memories[old.name].memory
            await supervisor.reload()
            await asyncio.sleep(90)
            (loop,) = supervisor.loops.values()
            assert loop.parts.pool is fresh.pool
            after = ledger.memories[old.name].memory
            assert after.sequence > before.sequence
            assert after.history_since == before.history_since
            assert loop.status.decision is not None
            assert loop.status.decision.target == 5
            assert old.telemetry.closed
            assert old.probe.closed
            assert not old.compute.closed
            assert not new.telemetry.closed

    run_virtual(scenario)


def policy_workers() -> set[int]:
    """The processes of this one in which policies of other packages run."""
    children = psutil.Process().children()
    return {one.pid for one in children if "autoscaler.runtime.foreign" in " ".join(one.cmdline())}


async def decided(loop: PoolLoop, wanted: int) -> None:
    """Wait until the pool wants so much: a worker takes real time to start, which virtual time does not wait for."""
    end = time.monotonic() + 30
    while loop.status.decision is None or loop.status.decision.wanted != wanted:
        assert time.monotonic() < end, loop.status
        await asyncio.to_thread(time.sleep, 0.02)
        await asyncio.sleep(1)


@pytest.mark.parametrize("refused", [False, True])
def test_a_reload_ends_the_workers_of_policies_that_are_used_no_more(refused: bool) -> None:
    async def scenario() -> None:
        clock, ledger = VirtualClock(), MemoryLedger()
        world = PoolWorld(clock)
        old, new = (WorkerPolicy("fixed", f'{{"size": {size}}}', within=Duration(10.0)) for size in (3, 4))
        if refused:
            new.signals()  # as a check of the new config may have asked it
        fresh = world.parts([new], **({"identity": "other account"} if refused else {}))
        async with supervised([world.parts([old])], ledger, clock, reload=lambda: [fresh]) as supervisor:
            (loop,) = supervisor.loops.values()
            await decided(loop, 3)
            before = policy_workers()
            assert len(before) == 1 + refused
            await supervisor.reload()
            await decided(loop, 3 if refused else 4)
            after = policy_workers()
            assert len(after) == 1
            assert (after < before) is refused
        assert policy_workers() == set()

    run_virtual(scenario)


def test_a_reload_with_mistakes_changes_nothing_and_tells_them_all() -> None:
    def mistaken() -> Sequence[PoolParts]:
        raise ConfigError(["pools[0].capacity.min: found 9", "pools[0].offers: empty"])

    async def scenario() -> None:
        clock, ledger, log = VirtualClock(), MemoryLedger(), io.StringIO()
        world = PoolWorld(clock)
        journal = open_journal(stream=log)
        async with supervised([world.parts()], ledger, clock, reload=mistaken, journal=journal) as supervisor:
            await asyncio.sleep(20)
            await supervisor.reload()
            await asyncio.sleep(100)
            assert not world.probe.closed
        assert len(world.balancer.admitted()) == 2
        assert "pools[0].capacity.min: found 9" in log.getvalue()
        assert "pools[0].offers: empty" in log.getvalue()

    run_virtual(scenario)


@pytest.mark.parametrize("change", [{"identity": "other account"}, {"installation": "other"}])
def test_a_reload_that_changes_what_a_pool_is_is_refused_for_that_pool(change: dict[str, Any]) -> None:
    async def scenario() -> None:
        clock, ledger = VirtualClock(), MemoryLedger()
        kept, renamed = PoolWorld(clock, a_pool("kept")), PoolWorld(clock, a_pool("other"))
        twin = PoolWorld(clock, a_pool("kept"))
        fresh = [twin.parts(**change), renamed.parts(bounds=Bounds(min=1, max=2))]
        parts = [kept.parts(), renamed.parts()]
        async with supervised(parts, ledger, clock, reload=lambda: fresh) as supervisor:
            await asyncio.sleep(20)
            await supervisor.reload()
            await asyncio.sleep(40)
            assert supervisor.loops[PoolName("kept")].parts.pool is parts[0].pool
            assert supervisor.loops[PoolName("other")].parts.pool is fresh[1].pool
            assert twin.probe.closed
            assert not kept.probe.closed

    run_virtual(scenario)


def test_a_reload_starts_new_pools_and_leaves_the_machines_of_removed_ones() -> None:
    async def scenario() -> None:
        clock, ledger = VirtualClock(), MemoryLedger()
        gone, come = PoolWorld(clock, a_pool("gone")), PoolWorld(clock, a_pool("come"))
        fresh = [come.parts()]
        async with supervised([gone.parts()], ledger, clock, reload=lambda: fresh) as supervisor:
            await asyncio.sleep(100)
            await supervisor.reload()
            ticks = len(ledger.records[gone.name])
            await asyncio.sleep(100)
            assert list(supervisor.loops) == ["come"]
            assert len(ledger.records[gone.name]) == ticks
        assert len(come.balancer.admitted()) == 2
        assert len(gone.compute.machines(gone.name)) == 2
        assert gone.probe.closed

    run_virtual(scenario)


class Lent:
    """A lease that is held until `until`, and that nobody renews when `dead`."""

    def __init__(self, clock: VirtualClock, lasts: float) -> None:
        self.clock, self.lasts, self.dead, self.closed = clock, lasts, False, False
        self.held = True

    async def renew(self) -> Instant | None:
        if self.dead:
            raise Unreachable("the lease's store is gone")
        return Instant(self.clock.now() + self.lasts) if self.held else None

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.law(9)
def test_no_action_starts_within_the_margin_of_the_end_of_the_lease() -> None:
    async def scenario() -> None:
        clock, ledger = VirtualClock(), MemoryLedger()
        world = PoolWorld(clock)
        lease = Lent(clock, lasts=20.0)
        world.asks.units = 1
        async with supervised([world.parts()], ledger, clock, lease=lease):
            await asyncio.sleep(100)
            assert len(world.balancer.admitted()) == 1
            lease.dead = True
            await asyncio.sleep(21)
            world.asks.units = 5
            calls = world.compute.faults.calls["launch"]
            await asyncio.sleep(120)
            assert world.compute.faults.calls["launch"] == calls
            lease.dead = False
            await asyncio.sleep(120)
            assert len(world.balancer.admitted()) == 5
        assert lease.closed

    run_virtual(scenario)


@pytest.mark.law(9)
def test_a_daemon_without_the_lease_watches_only() -> None:
    async def scenario() -> None:
        clock, ledger = VirtualClock(), MemoryLedger()
        world = PoolWorld(clock)
        lease = Lent(clock, lasts=20.0)
        lease.held = False
        async with supervised([world.parts()], ledger, clock, lease=lease):
            await asyncio.sleep(60)
        assert set(world.compute.faults.calls) == {"observe"}

    run_virtual(scenario)


async def test_the_apis_port_in_use_is_told_before_anything_starts() -> None:
    world, ledger = PoolWorld(SystemClock()), MemoryLedger()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        api = ApiSettings(port=port)
        with pytest.raises(Unreachable, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await run([world.parts()], ledger, Options(api=api, journal=open_journal(stream=io.StringIO())))
    assert world.compute.faults.calls == {}
    assert world.compute.closed
    assert ledger.closed


async def test_sigterm_ends_a_real_daemon_in_order_and_sighup_reloads_it() -> None:
    clock, ledger, log = SystemClock(), MemoryLedger(), io.StringIO()
    world = PoolWorld(clock, a_pool(mode=Mode.ACT))
    quick = msgspec.structs.replace(world.pool.pace, tick=Duration(0.05))
    reloads: list[int] = []

    def reload() -> Sequence[PoolParts]:
        reloads.append(1)
        return [world.parts(pace=quick)]

    options = Options(clock=clock, journal=open_journal(stream=log), reload=reload)
    daemon = asyncio.create_task(run([world.parts(pace=quick)], ledger, options))
    try:
        async with asyncio.timeout(20):
            while not ledger.records:
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGHUP)
            while '"reloaded"' not in log.getvalue():
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            await daemon
    finally:
        daemon.cancel()
        await asyncio.gather(daemon, return_exceptions=True)
    assert reloads == [1]
    assert ledger.closed
    assert log.getvalue().strip().endswith("}")
    assert '"stopped"' in log.getvalue()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
