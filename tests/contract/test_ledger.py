"""What every ledger promises, whoever keeps it; one row of HARNESSES for each entry point of `autoscaler.ledger`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from importlib import metadata
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from autoscaler.domain.base import Duration, Instant, PoolName
from autoscaler.domain.directives import AtLeast, Directives, Pause
from autoscaler.domain.faults import Conflict, Refused
from autoscaler.ports.build import Context
from autoscaler.ports.ledger import Ledger
from providers.ledger import sqlite
from tests.support.ledger import POOL, START, HandClock, a_memory, a_record, an_outcome

OTHER = PoolName("mistral")


class Harness(Protocol):
    """Opens the same ledger again and again."""

    def __call__(self, folder: Path, clock: HandClock) -> Ledger: ...


def open_sqlite(folder: Path, clock: HandClock) -> Ledger:
    context = Context(installation="test", state_dir=str(folder), clock=clock)
    return sqlite.build(sqlite.Settings(url=f"sqlite:///{folder}/ledger.db"), context)


HARNESSES: dict[str, Harness] = {"sqlite": open_sqlite}


def test_every_ledger_has_a_harness() -> None:
    assert set(HARNESSES) == {entry.name for entry in metadata.entry_points(group="autoscaler.ledger")}


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=sorted(HARNESSES))
def opened(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> Callable[[], Ledger]:
    harness = HARNESSES[request.param]
    return lambda: harness(tmp_path, clock)


@pytest.fixture
async def ledger(opened: Callable[[], Ledger]) -> AsyncIterator[Ledger]:
    found = opened()
    yield found
    await found.aclose()


async def test_an_empty_ledger_gives_fresh_memory_of_one_epoch(ledger: Ledger, opened: Callable[[], Ledger]) -> None:
    first, second = await ledger.load(POOL), await ledger.load(OTHER)
    assert (first.version, second.version) == (0, 0)
    assert first.memory.epoch
    assert first.memory.epoch == second.memory.epoch
    await ledger.aclose()
    again = opened()
    try:
        assert (await again.load(POOL)).memory.epoch == first.memory.epoch
    finally:
        await again.aclose()


async def test_what_is_saved_is_loaded_also_by_the_next_process(ledger: Ledger, opened: Callable[[], Ledger]) -> None:
    memory = a_memory(1)
    assert await ledger.save(POOL, 0, memory, a_record(memory)) == 1
    assert await ledger.load(POOL) == (memory, 1)
    assert await ledger.record(POOL) == a_record(memory)
    await ledger.aclose()
    again = opened()
    try:
        assert await again.load(POOL) == (memory, 1)
        assert await again.record(POOL) == a_record(memory)
    finally:
        await again.aclose()


@pytest.mark.parametrize("version", [0, 1, 3])
async def test_a_save_on_another_version_is_a_conflict_and_changes_nothing(ledger: Ledger, version: int) -> None:
    for number in (1, 2):
        await ledger.save(POOL, number - 1, a_memory(number), a_record(a_memory(number)))
    with pytest.raises(Conflict, match=f"found version 2, expected {version}"):
        await ledger.save(POOL, version, a_memory(9), a_record(a_memory(9)))
    assert await ledger.load(POOL) == (a_memory(2), 2)
    assert await ledger.record(POOL) == a_record(a_memory(2))
    assert await ledger.record(POOL, 9) is None


async def test_of_two_savers_exactly_one_wins(ledger: Ledger, opened: Callable[[], Ledger]) -> None:
    rival = opened()
    try:
        await ledger.load(POOL)
        answers = await asyncio.gather(
            *(
                each.save(POOL, 0, a_memory(number), a_record(a_memory(number)))
                for number in range(1, 11)
                for each in (ledger, rival)
            ),
            return_exceptions=True,
        )
        assert answers.count(1) == 1
        assert sum(isinstance(answer, Conflict) for answer in answers) == 19
    finally:
        await rival.aclose()


async def test_a_conflict_of_one_pool_is_nobody_elses(ledger: Ledger) -> None:
    pools = [PoolName(f"pool-{number}") for number in range(40)]
    answers = await asyncio.gather(
        *(
            ledger.save(pool, number % 2, a_memory(1), a_record(a_memory(1), pool=pool))
            for number, pool in enumerate(pools)
        ),
        return_exceptions=True,
    )
    assert [answer for answer in answers[::2] if answer != 1] == []
    assert [answer for answer in answers[1::2] if not isinstance(answer, Conflict)] == []
    assert [(await ledger.load(pool)).version for pool in pools] == [1, 0] * 20


async def test_memory_that_json_cannot_hold_is_refused_with_its_place_and_hurts_no_neighbour(ledger: Ledger) -> None:
    bad = msgspec.structs.replace(a_memory(1), spend_usd=float("nan"))
    refused, saved = await asyncio.gather(
        ledger.save(POOL, 0, bad, a_record(a_memory(1))),
        ledger.save(OTHER, 0, a_memory(1), a_record(a_memory(1), pool=OTHER)),
        return_exceptions=True,
    )
    assert isinstance(refused, Refused)
    assert "memory.spend_usd = nan" in str(refused)
    assert saved == 1
    assert (await ledger.load(POOL)).version == 0
    assert await ledger.record(POOL) is None


async def test_summaries_are_newest_first_since_an_instant_and_no_more_than_asked(ledger: Ledger) -> None:
    for number in range(1, 6):
        await ledger.save(POOL, number - 1, a_memory(number), a_record(a_memory(number)))
    await ledger.save(OTHER, 0, a_memory(7), a_record(a_memory(7), pool=OTHER))
    found = await ledger.summaries(POOL, Instant(START + 2), 10)
    assert [short.sequence for short in found] == [5, 4, 3, 2]
    assert [short.sequence for short in await ledger.summaries(POOL, START, 2)] == [5, 4]
    assert await ledger.summaries(POOL, START, 0) == []
    newest = found[0]
    assert (newest.at, newest.trust, newest.wanted, newest.target) == (START + 5, "trust", 3, 3)
    assert (newest.held, newest.in_service, newest.reason) == (3.0, 2.0, "recommended")
    assert newest.sentence.startswith("Tick 5")
    assert newest.actions == ("launch:e1-5-0",)


async def test_a_record_is_found_by_its_sequence(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        await ledger.save(POOL, number - 1, a_memory(number), a_record(a_memory(number)))
    assert await ledger.record(POOL, 2) == a_record(a_memory(2))
    assert await ledger.record(POOL) == a_record(a_memory(3))
    assert await ledger.record(POOL, 4) is None
    assert await ledger.record(OTHER) is None


async def test_outcomes_are_kept_newest_first_with_their_tick(ledger: Ledger) -> None:
    await ledger.append(POOL, 1, [an_outcome(1), an_outcome(2)])
    await ledger.append(POOL, 2, [an_outcome(3)])
    await ledger.append(POOL, 3, [])
    await ledger.append(OTHER, 1, [an_outcome(4)])
    assert await ledger.outcomes(POOL, 10) == [(2, an_outcome(3)), (1, an_outcome(2)), (1, an_outcome(1))]
    assert await ledger.outcomes(POOL, 1) == [(2, an_outcome(3))]


async def test_directives_stand_until_replaced_and_never_touch_memory(ledger: Ledger) -> None:
    assert await ledger.directives(POOL) == Directives()
    paused = Directives(pause=Pause.IN, at_least=AtLeast(units=3, until=Instant(START + 60)))
    await ledger.direct(POOL, paused, "ada")
    assert await ledger.directives(POOL) == paused
    assert await ledger.directives(OTHER) == Directives()
    await ledger.direct(POOL, Directives(), "bob")
    assert await ledger.directives(POOL) == Directives()
    assert (await ledger.load(POOL)).version == 0


async def test_closing_finishes_what_is_queued(ledger: Ledger, opened: Callable[[], Ledger]) -> None:
    saving = asyncio.create_task(ledger.save(POOL, 0, a_memory(1), a_record(a_memory(1))))
    await asyncio.sleep(0)
    await ledger.aclose()
    assert await saving == 1
    again = opened()
    try:
        assert (await again.load(POOL)).version == 1
    finally:
        await again.aclose()


async def test_the_loop_runs_while_the_ledger_works(ledger: Ledger, clock: HandClock) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    try:
        memory = a_memory(1, carry="x" * 60_000)
        pools = [PoolName(f"pool-{number}") for number in range(200)]
        before = turns
        await asyncio.gather(*(ledger.save(pool, 0, memory, a_record(memory, pool=pool)) for pool in pools))
        assert turns - before > 10
    finally:
        turning.cancel()
    await clock.sleep(Duration(1.0))
