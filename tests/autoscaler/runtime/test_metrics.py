"""The daemon's metrics: time to ready, decisions, faults, foreign machines."""

import asyncio

from autoscaler.domain.base import InstanceId, Token
from autoscaler.domain.faults import Throttled
from autoscaler.domain.replica import Instance, InstanceState
from autoscaler.runtime.loop import PoolLoop
from tests.support.memory_ledger import MemoryLedger
from tests.support.pool_world import PoolWorld, services
from tests.support.virtual_time import START, VirtualClock, run_virtual


def test_what_happens_in_ticks_is_counted() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        world, shared = PoolWorld(clock), services(clock, MemoryLedger())
        loop = PoolLoop(world.parts(), shared)
        shared.metrics.watch(lambda: [loop.seen()], clock.now)
        world.telemetry.faults.fail("sample", Throttled("slow down"), times=1)
        world.compute.faults.fail("launch", Throttled("slow down"), times=1)
        world.compute.foreign = [
            Instance(
                id=InstanceId("not-ours"),
                token=Token(""),
                offer="gpu",
                zone="local",
                state=InstanceState.RUNNING,
                launched_at=START,
            )
        ]
        prober = asyncio.create_task(loop.prober.run())
        for _ in range(12):
            await loop.tick()
            await asyncio.sleep(15)
        prober.cancel()
        lines = shared.metrics.text().decode().splitlines()
        assert 'autoscaler_faults_total{kind="throttled",pool="p",source="telemetry"} 1.0' in lines
        assert 'autoscaler_faults_total{kind="throttled",pool="p",source="action:launch"} 1.0' in lines
        assert 'autoscaler_time_to_ready_seconds_count{pool="p"} 2.0' in lines
        assert 'autoscaler_replicas{phase="in_service",pool="p"} 2.0' in lines
        assert 'autoscaler_foreign_machines{pool="p"} 1.0' in lines
        assert 'autoscaler_foreign_usd_per_hour{pool="p"} 2.0' in lines
        decisions = [float(line.split()[-1]) for line in lines if line.startswith("autoscaler_decisions_total{")]
        assert sum(decisions) == 12

    run_virtual(scenario)


def test_gauges_without_a_decision_are_absent_and_not_zero() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        shared = services(clock, MemoryLedger())
        loop = PoolLoop(PoolWorld(clock).parts(), shared)
        shared.metrics.watch(lambda: [loop.seen()], clock.now)
        assert 'autoscaler_desired_units{pool="p"}' not in shared.metrics.text().decode()

    run_virtual(scenario)
