"""Decorators of ports: what they add comes out as a fault, and nothing else changes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from autoscaler.domain.base import InstanceId, Instant, ReplicaId, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import NoCapacity, Throttled
from autoscaler.domain.pool import Placement
from autoscaler.domain.replica import Endpoint
from autoscaler.runtime.decorate import (
    WRITES_BURST,
    Dresser,
    TokenBucket,
    around_balancer,
    around_compute,
    around_telemetry,
    limited,
    timed,
)
from autoscaler.runtime.metrics import Metrics
from tests.support.pool_world import PoolWorld
from tests.support.virtual_time import START, VirtualClock, run_virtual

T = TypeVar("T")
ORDER = Launch(token=Token("t"), placement=Placement(offer="gpu", zone="local"), count=1, total_after=1, request="{}")


def test_a_decorated_port_passes_every_call_on_and_is_asked_about_each() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        world = PoolWorld(clock)
        seen: list[str] = []

        async def noting(name: str, call: Callable[[], Awaitable[T]]) -> T:
            seen.append(name)
            return await call()

        compute, balancer = around_compute(world.compute, noting), around_balancer(world.balancer, noting)
        telemetry = around_telemetry(world.telemetry, noting)
        state = await compute.launch(world.pool, ORDER)
        (machine,) = state.ids
        view = await compute.observe(world.pool, [], Instant(START))
        assert [one.id for one in view.instances] == [machine]
        await compute.withdraw(world.pool, Token("t"))
        await compute.stop(world.pool, [machine])
        await compute.start(world.pool, [machine])
        assert await compute.precheck(world.pool, [machine]) == {}
        await compute.terminate(world.pool, [machine])
        assert compute.check_offer(world.pool.offers[0]) == []
        one = Endpoint(replica=ReplicaId("a:1"), instance=InstanceId("a"), host="h", port=1)
        await balancer.admit([one])
        await balancer.reweigh([one])
        await balancer.drain([one])
        assert len((await balancer.members()).members) == 1
        await balancer.evict([one])
        assert balancer.traits() == world.balancer.traits()
        await telemetry.sample(frozenset(), [one])
        await asyncio.gather(compute.aclose(), balancer.aclose(), telemetry.aclose())
        assert world.compute.closed
        assert world.balancer.closed
        assert world.telemetry.closed
        assert seen == [
            *("launch", "observe", "withdraw", "stop", "start", "precheck", "terminate"),
            *("admit", "reweigh", "drain", "members", "evict", "sample"),
        ]

    run_virtual(scenario)


def test_calls_are_counted_by_result_and_timed() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        world, metrics = PoolWorld(clock), Metrics()
        world.compute.faults.delay["launch"] = 2.0
        compute = around_compute(world.compute, timed(metrics, "memory", clock))
        await compute.launch(world.pool, ORDER)
        world.compute.faults.fail("launch", NoCapacity("none left"))
        with pytest.raises(NoCapacity):
            await compute.launch(world.pool, ORDER)
        text = metrics.text().decode()
        labels = 'call="launch",result="{}",source="memory"'
        assert f"autoscaler_port_call_seconds_sum{{{labels.format('ok')}}} 2.0" in text
        assert f"autoscaler_port_call_seconds_count{{{labels.format('no_capacity')}}} 1.0" in text

    run_virtual(scenario)


def test_a_bucket_lets_a_burst_through_then_its_rate_and_throttles_what_would_wait_too_long() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        world = PoolWorld(clock)
        bucket = TokenBucket(clock, per_s=2.0, burst=3, patience=1.0)
        compute = around_compute(world.compute, limited(bucket))
        results = await asyncio.gather(
            *(compute.withdraw(world.pool, Token("t")) for _ in range(8)), return_exceptions=True
        )
        # Three at once, then those that have to wait 0.5 s and 1 s; the others are told to come back.
        throttled = [one for one in results if isinstance(one, Throttled)]
        assert len(throttled) == 3
        assert all(one.fault.retry_after_s == pytest.approx(1.5) for one in throttled)
        assert world.compute.faults.calls["withdraw"] == 5
        assert clock.now() - START == pytest.approx(1.0)
        await asyncio.sleep(60)
        for _ in range(3):
            await compute.withdraw(world.pool, Token("t"))
        assert clock.now() - START == pytest.approx(61.0)

    run_virtual(scenario)


def test_pools_that_share_a_compute_share_its_bucket_and_looking_is_never_held_up() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        first = PoolWorld(clock)
        second = PoolWorld(clock, compute=first.compute)
        dresser = Dresser(Metrics(), clock)
        one, two = dresser.dress(first.parts()), dresser.dress(second.parts())
        assert one.computes["memory"] is two.computes["memory"]
        compute = one.computes["memory"]
        calls = (compute.withdraw(first.pool, Token("t")) for _ in range(WRITES_BURST + 20))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert any(isinstance(result, Throttled) for result in results)
        for _ in range(WRITES_BURST + 20):
            await two.computes["memory"].observe(second.pool, [], Instant(START))

    run_virtual(scenario)
