"""Many askers, one thread: batches, answers in their places, errors to whom they belong."""

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from autoscaler.domain.base import PoolName
from autoscaler.domain.faults import Unreachable
from autoscaler.ports.ledger import Ledger
from providers.ledger import sqlite
from providers.ledger.sqlite.batches import Batches
from providers.ledger.sqlite.writing import Writer
from tests.support.ledger import a_memory, a_record


def nothing() -> None:
    """Close nothing."""


async def test_what_is_asked_together_is_handled_together_in_one_thread() -> None:
    batches: list[list[int]] = []
    threads: set[int] = set()

    def handle(requests: Sequence[int]) -> Sequence[int]:
        batches.append(list(requests))
        threads.add(threading.get_ident())
        return [request * 2 for request in requests]

    asked: Batches[int, int] = Batches("test", handle, most=40)
    assert await asyncio.gather(*(asked.ask(number) for number in range(100))) == [2 * n for n in range(100)]
    assert await asked.ask(7) == 14
    await asked.aclose(nothing)
    assert [len(batch) for batch in batches] == [40, 40, 20, 1]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_an_answer_that_is_an_error_is_raised_to_its_asker_only() -> None:
    asked: Batches[int, int] = Batches("test", lambda batch: [ValueError("odd") if n % 2 else n for n in batch])
    answers = await asyncio.gather(*(asked.ask(number) for number in range(4)), return_exceptions=True)
    await asked.aclose(nothing)
    assert [type(answer) for answer in answers] == [int, ValueError, int, ValueError]


async def test_a_batch_that_breaks_is_told_to_all_in_it_and_the_next_one_works() -> None:
    def handle(requests: Sequence[int]) -> Sequence[int]:
        if 13 in requests:
            raise ZeroDivisionError
        return list(requests)

    asked: Batches[int, int] = Batches("test", handle)
    answers = await asyncio.gather(*(asked.ask(number) for number in [12, 13]), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ZeroDivisionError, ZeroDivisionError]
    assert await asked.ask(14) == 14
    await asked.aclose(nothing)


async def test_upkeep_that_breaks_costs_nobody_an_answer() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

    def upkeep(handled: int) -> None:
        raise ZeroDivisionError(handled)

    asked: Batches[int, int] = Batches("test", list, upkeep=upkeep)
    assert await asyncio.gather(*(asked.ask(number) for number in [1, 2])) == [1, 2]
    assert await asked.ask(3) == 3
    await asked.aclose(nothing)
    assert [repr(error) for error in told] == ["ZeroDivisionError(2)", "ZeroDivisionError(1)"]


async def test_a_request_that_is_cancelled_before_its_batch_is_not_handled() -> None:
    handled: list[int] = []
    gate = threading.Event()

    def handle(requests: Sequence[int]) -> Sequence[int]:
        gate.wait(10)
        handled.extend(requests)
        return list(requests)

    asked: Batches[int, int] = Batches("test", handle)
    first = asyncio.create_task(asked.ask(1))
    await asyncio.sleep(0.01)
    second, third = asyncio.create_task(asked.ask(2)), asyncio.create_task(asked.ask(3))
    await asyncio.sleep(0)
    second.cancel()
    gate.set()
    assert [await first, await third] == [1, 3]
    await asked.aclose(nothing)
    assert handled == [1, 3]


async def test_nobody_waits_for_ever_when_the_loop_ends() -> None:
    gate = threading.Event()

    def handle(requests: Sequence[int]) -> Sequence[int]:
        gate.wait(10)
        return list(requests)

    asked: Batches[int, int] = Batches("test", handle)
    first = asyncio.create_task(asked.ask(1))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(asked.ask(2))
    await asyncio.sleep(0)
    assert asked._flusher is not None
    asked._flusher.cancel()
    await asyncio.wait({first, second}, timeout=5)
    assert first.cancelled()
    assert second.cancelled()
    gate.set()
    await asked.aclose(nothing)
    with pytest.raises(Unreachable, match="test is closed"):
        await asked.ask(3)


async def test_a_thousand_saves_share_few_commits(
    opened: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch, settings: sqlite.Settings
) -> None:
    commits = 0
    commit = Writer._commit

    def counted(self: Writer, batch: Sequence[object]) -> object:
        nonlocal commits
        commits += 1
        return commit(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(Writer, "_commit", counted)
    ledger = opened()
    memory = a_memory(1)
    pools = [PoolName(f"pool-{number}") for number in range(1000)]
    answers = await asyncio.gather(*(ledger.save(pool, 0, memory, a_record(memory, pool=pool)) for pool in pools))
    assert answers == [1] * 1000
    assert commits <= 2
