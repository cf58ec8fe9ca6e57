"""The loop of one pool, in virtual time, with the real engine and in-memory providers."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import msgspec
import pytest

from autoscaler.domain.base import Instant, instance_of
from autoscaler.domain.decision import Calendar, Decision, Launch, Observation
from autoscaler.domain.directives import Directives, Pause
from autoscaler.domain.faults import InvariantBroken, Unreachable
from autoscaler.domain.memory import Memory
from autoscaler.domain.pool import Mode, Pool
from autoscaler.engine.decide import decide
from autoscaler.ports.policy import Policy
from autoscaler.runtime.loop import PoolLoop
from autoscaler.runtime.parts import PoolParts, Services
from tests.support.memory_ledger import MemoryLedger
from tests.support.pool_world import PoolWorld, a_pool, services
from tests.support.virtual_time import START, VirtualClock, run_virtual


@asynccontextmanager
async def running(parts: PoolParts, shared: Services) -> AsyncIterator[PoolLoop]:
    loop = PoolLoop(parts, shared)
    tasks = [asyncio.create_task(loop.run()), asyncio.create_task(loop.prober.run())]
    try:
        yield loop
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await loop.executor.finish(loop.parts.pool.pace.tick)


class Ticks:
    """The real decide(), noting each observation it was given."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def __call__(
        self, pool: Pool, policies: tuple[Policy, ...], memory: Memory, observation: Observation, calendar: Calendar
    ) -> Decision:
        self.seen.append(observation)
        return decide(pool, policies, memory, observation, calendar)

    @property
    def at(self) -> list[float]:
        return [round(one.now - START, 3) for one in self.seen]


class Scene:
    """One pool, its loop not yet running. `log` gets the journal."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.world = PoolWorld(self.clock)
        self.ledger = MemoryLedger()
        self.ticks = Ticks()
        self.log = io.StringIO()
        self.shared = services(self.clock, self.ledger, decide_with=self.ticks, log=self.log)

    def logged(self, event: str) -> list[dict[str, object]]:
        records = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [record for record in records if record["event"] == event]


def test_a_pool_grows_to_what_is_wanted_and_shrinks_again_without_an_early_end() -> None:
    async def scenario() -> None:
        scene = Scene()
        world = scene.world
        async with running(world.parts(), scene.shared) as loop:
            world.asks.units = 3
            await asyncio.sleep(120)
            assert len(world.balancer.admitted()) == 3
            world.asks.units = 1
            await asyncio.sleep(900)
            assert len(world.balancer.admitted()) == 1
            assert len(world.compute.machines(world.name)) == 1
            assert loop.status.fine
        admitted = {name for _, verb, name in world.balancer.log if verb == "admit"}
        drained = {name: at for at, verb, name in world.balancer.log if verb == "drain"}
        assert len(drained) == 2
        assert sorted(name for _, name in world.probe.generated) == sorted(admitted)
        ended = {machine: at for at, machine in world.compute.terminated}
        for name, at in drained.items():
            assert ended[instance_of(name)] > at + world.balancer.traits().settle

    run_virtual(scenario)


def test_a_ready_replica_is_in_traffic_within_two_seconds() -> None:
    async def scenario() -> None:
        scene = Scene()
        world = scene.world
        async with running(world.parts(), scene.shared):
            await asyncio.sleep(200)
        first_look = {name: at for at, name in reversed(world.probe.looks)}
        admitted = {name: at for at, verb, name in world.balancer.log if verb == "admit"}
        assert len(admitted) == 2
        assert all(at - (first_look[name] + world.probe.load_s) <= 2.0 for name, at in admitted.items())

    run_virtual(scenario)


def test_two_ticks_of_one_pool_at_once_are_refused() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.world.compute.faults.delay["observe"] = 5.0
        loop = PoolLoop(scene.world.parts(), scene.shared)
        first = asyncio.create_task(loop.tick())
        await asyncio.sleep(1)
        with pytest.raises(InvariantBroken):
            await loop.tick()
        await first

    run_virtual(scenario)


def test_a_pool_whose_every_port_hangs_delays_no_other() -> None:
    async def scenario() -> None:
        scene = Scene()
        stuck = PoolWorld(scene.clock, a_pool("stuck"))
        for faults in (stuck.compute.faults, stuck.balancer.faults, stuck.telemetry.faults):
            for name in ("observe", "launch", "members", "sample", "admit"):
                faults.delay[name] = 1e6
        seen = Ticks()
        async with (
            running(stuck.parts(), scene.shared._replace(decide=seen)) as hung,
            running(scene.world.parts(), scene.shared),
        ):
            await asyncio.sleep(300)
            assert hung.status.decision is not None
            assert hung.status.decision.capacity.existing == 0
        regular = [at for at in scene.ticks.at if at % 15 == 0]
        assert regular == [15.0 * number for number in range(20)]
        assert seen.at == [10.0 + 15.0 * number for number in range(20)]
        assert {fault.source for fault in seen.seen[-1].faults} == {"compute:memory", "balancer:front", "telemetry"}
        assert (seen.seen[-1].computes, seen.seen[-1].balancers, seen.seen[-1].load) == ({}, {}, None)

    run_virtual(scenario)


def test_a_tick_that_takes_too_long_is_counted_and_named_and_never_made_up() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.world.asks.units = 1
        scene.world.probe.load_s = 1e6  # nothing becomes ready: no early ticks
        scene.world.telemetry.faults.delay["sample"] = 9.0
        scene.ledger.faults.delay["save"] = 9.5
        async with running(scene.world.parts(), scene.shared) as loop:
            await asyncio.sleep(89)
            assert loop.status.overruns == 3
        # Each tick takes 18.5 s, so every second slot of 15 s is left out.
        assert [at for at in scene.ticks.at if at % 30 == 9] == [9.0, 39.0, 69.0]
        assert {(record["part"], record["missed"]) for record in scene.logged("tick overran")} == {("save", 1)}
        assert b'autoscaler_ticks_missed_total{pool="p"} 3.0' in scene.shared.metrics.text()

    run_virtual(scenario)


def test_a_storm_of_wakes_is_an_early_tick_a_second_that_reads_no_machine_again() -> None:
    async def scenario() -> None:
        scene = Scene()
        async with running(scene.world.parts(), scene.shared) as loop:
            await asyncio.sleep(211)  # the pool is at rest
            before, ticks = scene.world.compute.faults.calls["observe"], len(scene.ticks.seen)
            loads = scene.world.telemetry.faults.calls["sample"]
            for _ in range(600):
                loop.wake("again")
                await asyncio.sleep(0.005)  # 3 s of wakes, all between two regular ticks
            assert scene.world.compute.faults.calls["observe"] == before
            assert scene.world.telemetry.faults.calls["sample"] == loads
            early = scene.ticks.at[ticks:]
        assert len(early) in (3, 4)
        assert all(later - sooner >= 1.0 for sooner, later in pairwise(early))

    run_virtual(scenario)


def test_a_wake_does_not_move_the_regular_tick() -> None:
    async def scenario() -> None:
        scene = Scene()
        async with running(scene.world.parts(), scene.shared) as loop:
            await asyncio.sleep(305)
            loop.wake("once")
            await asyncio.sleep(41)
        assert [at for at in scene.ticks.at if at >= 300] == [300.0, 305.0, 315.0, 330.0, 345.0]

    run_virtual(scenario)


def test_whoever_lost_the_compare_and_set_does_not_act_and_reads_memory_again() -> None:
    async def scenario() -> None:
        scene = Scene()
        loop = PoolLoop(scene.world.parts(), scene.shared)
        scene.world.asks.units = 1
        await loop.tick()
        await asyncio.sleep(31)  # past the cooldown
        scene.ledger.steal(scene.world.name)
        scene.world.asks.units = 3
        decision = await loop.tick()
        assert decision is not None
        assert any(isinstance(action, Launch) for action in decision.plan)
        assert scene.world.compute.faults.calls["launch"] == 1  # of the first tick
        assert "someone else saved" in loop.status.trouble
        await loop.tick()
        assert loop.status.fine
        assert scene.ledger.faults.calls["load"] == 2
        assert len(scene.world.compute.machines(scene.world.name)) == 3

    run_virtual(scenario)


@pytest.mark.scenario("Its database is locked, full, read-only or gone")
@pytest.mark.parametrize("broken", [("save",), ("load", "save", "directives", "append")])
def test_with_the_ledger_gone_it_watches_says_so_does_not_act_and_recovers(broken: tuple[str, ...]) -> None:
    async def scenario() -> None:
        scene = Scene()
        world = scene.world
        async with running(world.parts(), scene.shared) as loop:
            await asyncio.sleep(120)
            for name in broken:
                scene.ledger.faults.fail(name, Unreachable("database is locked"))
            changes, launches = list(world.balancer.log), world.compute.faults.calls["launch"]
            world.asks.units = 6
            observed = world.compute.faults.calls["observe"]
            await asyncio.sleep(120)
            assert "database is locked" in loop.status.trouble
            assert world.compute.faults.calls["observe"] >= observed + 7
            assert (world.balancer.log, world.compute.faults.calls["launch"]) == (changes, launches)
            for name in broken:
                scene.ledger.faults.mend(name)
            await asyncio.sleep(120)
            assert loop.status.fine
            assert len(world.balancer.admitted()) == 6

    run_virtual(scenario)


def test_a_save_whose_answer_was_lost_launches_nothing_twice() -> None:
    async def scenario() -> None:
        scene = Scene()
        loop = PoolLoop(scene.world.parts(), scene.shared)
        real = scene.ledger.save

        async def saves_and_hangs(*args: object) -> int:
            await real(*args)  # type: ignore[arg-type]
            await asyncio.sleep(1e6)
            return 0

        scene.ledger.save = saves_and_hangs  # type: ignore[assignment]
        await loop.tick()
        assert scene.world.compute.launched == {}
        scene.ledger.save = real  # type: ignore[method-assign]
        await loop.tick()
        assert len(scene.world.compute.machines(scene.world.name)) == 2
        await loop.tick()
        assert len(scene.world.compute.machines(scene.world.name)) == 2

    run_virtual(scenario)


def test_without_any_memory_it_looks_and_decides_nothing() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.ledger.faults.fail("load", Unreachable("no such host"))
        loop = PoolLoop(scene.world.parts(), scene.shared)
        assert await loop.tick() is None
        assert scene.world.compute.faults.calls["observe"] == 1
        assert "no such host" in loop.status.trouble

    run_virtual(scenario)


def test_directives_that_were_never_read_are_not_taken_for_none() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.ledger.said[scene.world.name] = Directives(pause=Pause.OUT)
        scene.ledger.faults.fail("directives", Unreachable("torn page"), times=1)
        loop = PoolLoop(scene.world.parts(), scene.shared)
        await loop.tick()
        assert scene.world.compute.launched == {}
        await loop.tick()
        assert scene.ticks.seen[-1].directives.pause is Pause.OUT
        scene.ledger.faults.fail("directives", Unreachable("torn page"), times=1)
        await loop.tick()
        assert scene.ticks.seen[-1].directives.pause is Pause.OUT

    run_virtual(scenario)


@pytest.mark.law(14)
def test_advice_writes_nothing_changes_nothing_and_repeats_itself() -> None:
    async def scenario() -> None:
        scene = Scene()
        world = scene.world
        world.asks.units = 3
        async with running(world.advise(), scene.shared) as loop:
            for _ in range(40):
                await asyncio.sleep(15)
                assert loop.status.decision is not None
                plan = loop.status.decision.plan
                assert sum(action.count for action in plan if isinstance(action, Launch)) == 3
            sequence = loop.status.decision.sequence if loop.status.decision else 0
            assert sequence >= 40
        assert scene.ledger.touched == set()
        assert set(scene.ledger.faults.calls) <= {"load", "directives"}
        assert set(world.compute.faults.calls) == {"observe"}
        assert set(world.balancer.faults.calls) == {"members"}
        assert all(record["note"] == "advice only" for record in scene.logged("decision"))

    run_virtual(scenario)


def test_from_advice_to_action_begins_with_the_memory_of_the_ledger() -> None:
    async def scenario() -> None:
        scene = Scene()
        async with running(scene.world.advise(), scene.shared) as loop:
            await asyncio.sleep(100)
            loop.exchange(scene.world.parts(mode=Mode.ACT))
            await asyncio.sleep(100)
            assert len(scene.world.compute.machines(scene.world.name)) == 2
        assert scene.ledger.records[scene.world.name][0].memory_before == Memory(epoch="e1")

    run_virtual(scenario)


def test_the_present_is_never_before_what_was_saved() -> None:
    async def scenario() -> None:
        scene = Scene()
        loop = PoolLoop(scene.world.parts(), scene.shared)
        await loop.tick()
        scene.clock.jump(-3600)
        again = PoolLoop(scene.world.parts(), scene.shared)
        await again.tick()
        first, second = (one.now for one in scene.ticks.seen)
        assert second == first

    run_virtual(scenario)


def test_telemetry_is_asked_about_those_in_service_only_also_right_after_a_restart() -> None:
    async def scenario() -> None:
        scene = Scene()
        world = scene.world
        async with running(world.parts(), scene.shared):
            await asyncio.sleep(12)
            assert world.telemetry.asked == [()]
            await asyncio.sleep(110)
        assert {one.replica for one in world.telemetry.asked[-1]} == world.balancer.admitted()
        await PoolLoop(world.parts(), scene.shared).tick()
        assert {one.replica for one in world.telemetry.asked[-1]} == world.balancer.admitted()

    run_virtual(scenario)


def test_a_second_loop_over_the_same_ledger_goes_on_where_the_first_was_cut() -> None:
    async def scenario() -> None:
        scene = Scene()
        world = scene.world
        for seconds in (1, 3, 9, 20, 100):
            async with running(world.parts(), scene.shared):
                await asyncio.sleep(seconds)
        assert len(world.balancer.admitted()) == 2
        assert len(world.compute.machines(world.name)) == 2
        assert world.compute.terminated == []
        assert [verb for _, verb, _ in world.balancer.log] == ["admit", "admit"]

    run_virtual(scenario)


def test_a_machine_that_one_look_missed_is_looked_for_before_it_is_called_gone() -> None:
    async def scenario() -> None:
        scene = Scene()
        world = scene.world
        async with running(world.parts(), scene.shared) as loop:
            await asyncio.sleep(130)
            (machine, *_) = world.compute.machines(world.name)
            world.compute.vanish(machine)
            await asyncio.sleep(6)  # the regular tick at 135 s has missed it
            looks = world.compute.faults.calls["observe"]
            loop.wake("now")
            await asyncio.sleep(3)
            assert world.compute.faults.calls["observe"] > looks

    run_virtual(scenario)


def test_outcomes_reach_the_next_decision_once_and_the_ledger() -> None:
    async def scenario() -> None:
        scene = Scene()
        loop = PoolLoop(scene.world.parts(), scene.shared)
        scene.world.compute.faults.fail("launch", Unreachable("no route"), times=1)
        await loop.tick()
        scene.ledger.faults.fail("save", Unreachable("locked"), times=1)
        await loop.tick()
        await loop.tick()
        await loop.tick()
        counts = [len(one.outcomes) for one in scene.ticks.seen]
        assert counts[:3] == [0, 1, 1]  # kept while it could not be saved
        assert [one.detail for one in scene.ticks.seen[1].outcomes if one.fault] == [""]
        ((sequence, outcome), *_) = reversed(await scene.ledger.outcomes(scene.world.name, 10))
        assert sequence == 1
        assert outcome.fault is not None
        assert outcome.fault.detail == "no route"

    run_virtual(scenario)


def test_an_outcome_that_came_after_its_tick_reaches_the_ledger_too() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.world.probe.load_s = 1e6
        scene.world.compute.faults.delay["launch"] = 20.0
        async with running(scene.world.parts(), scene.shared):
            await asyncio.sleep(50)
        kept = await scene.ledger.outcomes(scene.world.name, 10)
        assert [(one.action.key.partition(":")[0], len(one.ids)) for _, one in kept] == [("launch", 2)]
        assert scene.ticks.seen[1].in_flight == {kept[0][1].action.key}

    run_virtual(scenario)


def test_a_policy_that_may_block_is_decided_in_a_thread() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.world.asks.blocking = True  # type: ignore[attr-defined]
        loop = PoolLoop(scene.world.parts(), scene.shared)
        await loop.tick()
        assert loop.status.fine

    run_virtual(scenario)


def test_the_record_holds_what_is_needed_to_decide_again() -> None:
    async def scenario() -> None:
        scene = Scene()
        loop = PoolLoop(scene.world.parts(), scene.shared)
        await loop.tick()
        record = await scene.ledger.record(scene.world.name)
        assert record is not None
        again = decide(scene.world.pool, (scene.world.asks,), record.memory_before, record.observation, record.calendar)
        hashed = msgspec.structs.replace(again.memory, config_hash="c1")
        assert msgspec.structs.replace(again, memory=hashed) == record.decision
        assert record.calendar.utc == "2023-11-14T22:13:20+00:00"
        assert record.at == Instant(START)

    run_virtual(scenario)


def test_the_journal_has_one_decision_a_tick_with_its_launch_tokens() -> None:
    async def scenario() -> None:
        scene = Scene()
        loop = PoolLoop(scene.world.parts(), scene.shared)
        await loop.tick()
        await loop.tick()
        first, second = scene.logged("decision")
        assert first["tokens"] == list(scene.world.compute.launched)
        assert (first["target"], first["saved"], first["pool"]) == (2, True, "p")
        assert "tokens" not in second

    run_virtual(scenario)
