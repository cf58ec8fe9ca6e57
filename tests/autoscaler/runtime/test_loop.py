"""The loop of one pool, in virtual time, with the real engine and in-memory providers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from autoscaler.domain.base import instance_of
from autoscaler.runtime.loop import PoolLoop
from autoscaler.runtime.parts import PoolParts, Services
from tests.support.memory_ledger import MemoryLedger
from tests.support.pool_world import PoolWorld, services
from tests.support.virtual_time import VirtualClock, run_virtual


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


def test_a_pool_grows_to_what_is_wanted_and_shrinks_again_without_an_early_end() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        world, ledger = PoolWorld(clock), MemoryLedger()
        async with running(world.parts(), services(clock, ledger)) as loop:
            world.asks.units = 3
            await asyncio.sleep(120)
            assert len(world.balancer.admitted()) == 3
            world.asks.units = 1
            await asyncio.sleep(900)
            assert len(world.balancer.admitted()) == 1
            assert len(world.compute.machines(world.name)) == 1
            assert loop.status.fine
        admitted = {name: at for at, verb, name in world.balancer.log if verb == "admit"}
        drained = {name: at for at, verb, name in world.balancer.log if verb == "drain"}
        assert len(drained) == 2
        assert all(world.probe.generated.count((at, name)) <= 1 for at, name in world.probe.generated)
        assert {name for _, name in world.probe.generated} == set(admitted)
        ended = {machine: at for at, machine in world.compute.terminated}
        for name, at in drained.items():
            assert ended[instance_of(name)] > at + world.balancer.traits().settle

    run_virtual(scenario)
