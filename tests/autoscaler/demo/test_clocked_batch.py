import asyncio

from autoscaler.demo.batching import ContinuousBatch, Limits
from autoscaler.demo.clocked_batch import ClockedBatch, TokenStream
from autoscaler.demo.profile import profile

FAST = 1000.0


def a_clocked_batch(time_scale: float = FAST) -> ClockedBatch:
    return ClockedBatch(ContinuousBatch(profile("qwen3-32b-2xh100-vllm"), Limits()), time_scale)


async def all_of(stream: TokenStream) -> list[int]:
    taken = []
    while not stream.finished:
        taken.append(await stream.take())
    return taken


async def test_each_stream_gets_exactly_its_tokens_however_they_are_grouped() -> None:
    clocked = a_clocked_batch()
    streams = [clocked.submit(1000, 1 + 7 * i) for i in range(20)]
    taken = await asyncio.gather(*map(all_of, streams))
    assert [sum(chunks) for chunks in taken] == [1 + 7 * i for i in range(20)]
    assert all(0 not in chunks for chunks in taken)


async def test_tokens_are_grouped_so_that_a_long_stream_costs_few_wake_ups() -> None:
    clocked = a_clocked_batch()
    chunks = await all_of(clocked.submit(10, 5000))
    # 5,000 tokens of 14.6 ms at 1,000 times the speed are 73 ms: the first, two or three of 30 ms, the rest.
    assert len(chunks) < 20


async def test_first_tokens_come_in_the_order_of_submission() -> None:
    clocked = a_clocked_batch()
    order: list[int] = []

    async def first(index: int, stream: TokenStream) -> None:
        await stream.take()
        order.append(index)
        clocked.cancel(stream)

    await asyncio.gather(*(first(i, clocked.submit(2048, 50)) for i in range(10)))
    assert order == sorted(order)


async def test_a_cancelled_stream_leaves_the_batch() -> None:
    clocked = a_clocked_batch(time_scale=1.0)
    stream = clocked.submit(100, 1000)
    assert clocked.batch.running == 1
    clocked.cancel(stream)
    clocked.cancel(stream)
    assert clocked.batch.running + clocked.batch.waiting == 0


async def test_a_stalled_batch_makes_no_progress_until_it_is_let_go() -> None:
    clocked = a_clocked_batch()
    clocked.stall(on=True)
    stream = clocked.submit(100, 5)
    taking = asyncio.ensure_future(all_of(stream))
    await asyncio.sleep(0.05)
    assert stream.taken == 0
    clocked.stall(on=False)
    assert sum(await taking) == 5
