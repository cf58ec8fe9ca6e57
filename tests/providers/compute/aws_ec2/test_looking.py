"""One look of aws_ec2 serves all pools, and so does its failure; what did not change stays the same object."""

import asyncio

import pytest

from autoscaler.domain.base import Instant
from autoscaler.domain.faults import PortFault, Throttled
from providers._shared.shared_look import SharedLook
from tests.support.aws_ec2_world import MovedClock, World, order
from tests.support.aws_quirks import Failure


async def test_one_look_serves_all_pools_of_a_tick(world: World) -> None:
    compute, pools = world.build(), [world.pool(f"p{n}") for n in range(20)]
    at = world.clock.now()
    views = await asyncio.gather(*(compute.observe(pool, (), at) for pool in pools))
    assert world.quirks.calls == ["DescribeInstances"]
    assert {view.as_of for view in views} == {at}
    world.clock.at += 15
    await asyncio.gather(*(compute.observe(pool, (), world.clock.now()) for pool in pools))
    assert world.quirks.calls == ["DescribeInstances"] * 2


async def test_a_look_that_fails_is_not_repeated_by_each_pool(world: World) -> None:
    """Twenty pools that each ask again would throttle the account further."""
    compute, pools = world.build(), [world.pool(f"p{n}") for n in range(20)]
    world.quirks.failures.append(Failure("RequestLimitExceeded", 503))
    at = world.clock.now()
    found = await asyncio.gather(*(compute.observe(pool, (), at) for pool in pools), return_exceptions=True)
    assert {type(one) for one in found} == {Throttled}
    for pool in pools:
        with pytest.raises(Throttled):
            await compute.observe(pool, (), at)
    assert len(world.quirks.calls) <= 2  # the SDK's own second attempt of a look
    world.quirks.failures.clear()
    world.clock.at += 15
    assert (await compute.observe(pools[0], (), world.clock.now())).instances == ()


async def test_what_did_not_change_is_the_same_object_and_what_changed_is_not(world: World) -> None:
    compute, pool = world.build(), world.pool()
    state = await compute.launch(pool, order(pool, count=2))
    first = {one.id: one for one in (await world.look(compute, pool)).instances}
    world.clock.at += 15
    world.ec2.create_tags(Resources=[state.ids[0]], Tags=[{"Key": "autoscaler:protected", "Value": "true"}])
    second = {one.id: one for one in (await world.look(compute, pool)).instances}
    assert second[state.ids[1]] is first[state.ids[1]]
    assert (first[state.ids[0]].protected, second[state.ids[0]].protected) == (False, True)


async def test_who_stops_waiting_does_not_end_the_look_of_the_others() -> None:
    clock, asked, go_on = MovedClock(), list[Instant](), asyncio.Event()

    async def look(begun: Instant) -> int:
        asked.append(begun)
        await go_on.wait()
        return len(asked)

    shared = SharedLook(clock, look)
    at = clock.now()
    waiting = [asyncio.create_task(shared.get(at)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    clock.at += 1
    later = asyncio.create_task(shared.get(clock.now()))  # wants a younger one: waits for the first to end
    await asyncio.sleep(0.01)
    assert asked == [at]
    go_on.set()
    assert await asyncio.gather(*waiting[1:], later) == [1, 1, 2]
    shared.close()


async def test_a_look_that_nobody_waits_for_fails_in_silence() -> None:
    clock = MovedClock()

    async def look(_: Instant) -> int:
        await asyncio.sleep(0)
        raise Throttled("slow down")

    shared = SharedLook(clock, look)
    asker = asyncio.create_task(shared.get(clock.now()))
    await asyncio.sleep(0)
    asker.cancel()
    await asyncio.sleep(0.01)
    with pytest.raises(PortFault, match="slow down"):
        await shared.get(Instant(clock.at - 1))
