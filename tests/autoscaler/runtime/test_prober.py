"""The prober beside the ticks: how often, how many at once, with which kind of look, and when it wakes the loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from autoscaler.domain.base import InstanceId, Instant, ReplicaId, instance_of
from autoscaler.domain.faults import Unreachable
from autoscaler.domain.replica import Endpoint
from autoscaler.runtime.prober import BOUND, SHALLOW_S, Prober, Target
from tests.support.memory_probe import MemoryProbe
from tests.support.pool_world import a_pool
from tests.support.virtual_time import START, VirtualClock, run_virtual

A = ReplicaId("a:8000")


def target(name: ReplicaId = A, *, boot: str = "b1", admitted: bool = False) -> Target:
    machine: InstanceId = instance_of(name)
    return Target(Endpoint(replica=name, instance=machine, host="h", port=8000), boot, admitted)


class Scene:
    def __init__(self, load_s: float = 10.0) -> None:
        self.clock = VirtualClock()
        self.probe = MemoryProbe(self.clock, load_s=load_s)
        self.wakes: list[tuple[float, str]] = []
        self.prober = Prober(a_pool(), self.probe, self.clock, self._woken)

    def _woken(self, why: str) -> None:
        self.wakes.append((self.clock.now() - START, why))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.prober.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_a_loading_replica_is_looked_at_each_second_confirmed_fast_and_wakes_the_loop_once() -> None:
    async def scenario() -> None:
        scene = Scene()
        async with scene.running():
            scene.prober.watch([target()])
            await asyncio.sleep(60)
        looks = [round(when - START, 3) for when, _ in scene.probe.looks]
        assert looks[:11] == [float(second) for second in range(11)]
        assert looks[11] == 10.5  # one pass is there: the second comes sooner
        assert looks[12:15] == [15.5, 20.5, 25.5]  # loaded: every third of a tick
        assert [round(when - START, 3) for when, _ in scene.probe.generated] == [10.5]
        assert [(round(at, 3), why) for at, why in scene.wakes] == [(10.5, "a:8000 is ready")]
        record = scene.prober.record(A)
        assert record is not None
        assert record.loaded_at == START + 10.5

    run_virtual(scenario)


def test_a_member_is_never_asked_for_a_generation() -> None:
    async def scenario() -> None:
        scene = Scene(load_s=0)
        async with scene.running():
            scene.prober.watch([target(admitted=True)])
            await asyncio.sleep(60)
        assert scene.probe.generated == []
        assert scene.prober.records()[A].passes > 2
        assert scene.wakes == []

    run_virtual(scenario)


def test_a_restart_of_the_machine_asks_for_everything_again() -> None:
    async def scenario() -> None:
        scene = Scene(load_s=0)
        async with scene.running():
            scene.prober.watch([target()])
            await asyncio.sleep(20)
            scene.prober.watch([target(boot="b2")])
            assert scene.prober.records() == {}
            await asyncio.sleep(20)
        assert len(scene.probe.generated) == 2

    run_virtual(scenario)


def test_a_member_that_refuses_wakes_the_loop_at_once_and_again_when_its_time_is_up() -> None:
    async def scenario() -> None:
        scene = Scene(load_s=0)
        async with scene.running():
            scene.prober.watch([target(admitted=True)])
            await asyncio.sleep(12)
            scene.probe.set(A, alive=False, loaded=False)
            await asyncio.sleep(60)
        (first, why), (second, _) = scene.wakes
        assert why == "a:8000 fails its check"
        assert first - 12 <= 5
        assert 15 <= second - first <= 16

    run_virtual(scenario)


def test_a_saturated_member_whose_scrape_answers_is_never_failing() -> None:
    async def scenario() -> None:
        scene = Scene(load_s=0)
        async with scene.running():
            scene.prober.watch([target(admitted=True)])
            await asyncio.sleep(12)
            scene.probe.silent.add(A)
            for _ in range(60):
                await asyncio.sleep(10)
                scene.prober.answered([A], scene.clock.now())
                assert scene.prober.records()[A].failing_since is None
        assert scene.wakes == []

    run_virtual(scenario)


def test_a_member_that_answers_nobody_fails_within_its_time() -> None:
    async def scenario() -> None:
        scene = Scene(load_s=0)
        async with scene.running():
            scene.prober.watch([target(admitted=True)])
            await asyncio.sleep(12)
            scene.probe.silent.add(A)
            await asyncio.sleep(60)
        assert scene.wakes[0][1] == "a:8000 fails its check"
        # The next regular look begins within 5 s; 15 s of silence; a look lasts up to 5 s.
        assert 15 <= scene.wakes[0][0] - 12 <= 5 + 15 + 5 + 1

    run_virtual(scenario)


def test_many_replicas_are_looked_at_a_bounded_number_at_once_and_none_is_forgotten() -> None:
    async def scenario() -> None:
        scene = Scene(load_s=0)
        scene.probe.faults.delay["check"] = 0.3
        names = [ReplicaId(f"m{number}:8000") for number in range(5 * BOUND)]
        async with scene.running():
            scene.prober.watch([target(name, admitted=True) for name in names])
            await asyncio.sleep(10)
        assert scene.probe.most_at_once == BOUND
        assert set(scene.prober.records()) == set(names)

    run_virtual(scenario)


def test_a_slow_look_is_not_doubled() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.probe.silent.add(A)
        async with scene.running():
            scene.prober.watch([target()])
            await asyncio.sleep(60)
        assert scene.probe.most_at_once == 1
        assert scene.prober.looking == 0

    run_virtual(scenario)


def test_a_look_that_never_ends_is_ended_at_its_deadline_though_nobody_is_watched_any_more() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.probe.silent.add(A)
        async with scene.running():
            scene.prober.watch([target(admitted=True)])
            await asyncio.sleep(0.1)
            scene.prober.watch([])
            await asyncio.sleep(SHALLOW_S - 0.2)
            assert scene.prober.looking == 1
            scene.clock.jump(3600.0)  # a wall clock that is set ends nothing early, and nothing late
            await asyncio.sleep(0.2)
            assert scene.prober.looking == 0
        assert scene.prober.records() == {}

    run_virtual(scenario)


def test_a_fault_of_the_probe_is_an_uncertain_look() -> None:
    async def scenario() -> None:
        scene = Scene(load_s=0)
        scene.probe.faults.fail("check", Unreachable("no socket left"))
        async with scene.running():
            scene.prober.watch([target()])
            await asyncio.sleep(5)
        record = scene.prober.record(A)
        assert record is not None
        assert (record.last.certain, record.last.detail) == (False, "no socket left")

    run_virtual(scenario)


def test_what_is_not_watched_any_more_has_no_record_and_is_left_alone() -> None:
    async def scenario() -> None:
        scene = Scene(load_s=0)
        async with scene.running():
            scene.prober.watch([target()])
            await asyncio.sleep(5)
            scene.prober.watch([])
            assert scene.prober.record(A) is None
            seen = len(scene.probe.looks)
            await asyncio.sleep(60)
            scene.prober.answered([A], Instant(START))
        assert len(scene.probe.looks) == seen

    run_virtual(scenario)


def test_an_error_of_ours_in_a_look_ends_the_prober_aloud() -> None:
    class Buggy:
        async def check(self, endpoint: Endpoint, *, generate: bool) -> None:
            raise ZeroDivisionError

        async def aclose(self) -> None: ...

    async def scenario() -> None:
        prober = Prober(a_pool(), Buggy(), VirtualClock(), lambda why: None)  # type: ignore[arg-type]
        prober.watch([target()])
        with pytest.raises(ZeroDivisionError):
            await prober.run()

    run_virtual(scenario)
