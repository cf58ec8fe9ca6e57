"""What is old is forgotten, a little at a time, and the file does not grow for ever."""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from autoscaler.domain.base import Duration, Instant
from autoscaler.domain.directives import Directives
from autoscaler.ports.ledger import Ledger
from providers.ledger.sqlite import Settings
from providers.ledger.sqlite.writing import DIRECTIVES_KEPT, _forget
from tests.support.ledger import POOL, START, HandClock, a_memory, a_record, an_outcome

Opener = Callable[..., Ledger]
HOUR = 3600.0


class Ticks:
    """Saves one tick after another."""

    def __init__(self, ledger: Ledger, clock: HandClock) -> None:
        self.ledger = ledger
        self.clock = clock
        self.number = 0

    async def tick(self, at: float, carry: str = "") -> None:
        """One tick at `at` seconds after the start, with an outcome."""
        self.clock.at = Instant(START + at)
        self.number += 1
        memory = a_memory(self.number, carry=carry)
        await self.ledger.save(POOL, self.number - 1, memory, a_record(memory, at=self.clock.at))
        await self.ledger.append(POOL, self.number, [an_outcome(self.number, at=self.clock.at)])
        await self.settled()

    async def settled(self) -> None:
        """Wait until upkeep has run after the last write, so that it ran by the clock of that write."""
        await asyncio.wait({self.ledger._writes._flusher})  # type: ignore[attr-defined]

    async def short(self) -> list[int]:
        return [each.sequence for each in await self.ledger.summaries(POOL, Instant(0.0), 1000)]


@pytest.fixture
def ticks(opened: Opener, clock: HandClock) -> Ticks:
    return Ticks(opened(), clock)


async def test_full_records_go_after_two_days_and_their_summaries_stay(ticks: Ticks) -> None:
    for at in (0.0, 1 * HOUR, 47.9 * HOUR, 49.5 * HOUR):
        await ticks.tick(at)
    assert [await ticks.ledger.record(POOL, number) is not None for number in (1, 2, 3, 4)] == [
        False,
        False,
        True,
        True,
    ]
    assert await ticks.short() == [4, 3, 2, 1]


async def test_summaries_and_outcomes_go_after_35_days(ticks: Ticks) -> None:
    for day in (0, 1, 34, 35.5):
        await ticks.tick(day * 24 * HOUR)
    assert await ticks.short() == [4, 3, 2]
    assert min(sequence for sequence, _ in await ticks.ledger.outcomes(POOL, 100)) == 2
    assert (await ticks.ledger.load(POOL)).memory.sequence == 4  # memory is never forgotten


async def test_the_bounds_are_settings(opened: Opener, settings: Settings, clock: HandClock) -> None:
    short = msgspec.structs.replace(settings, full_records_for=Duration(60.0), summaries_for=Duration(200.0))
    ticks = Ticks(opened(short), clock)
    for at in (0.0, 100.0, 199.0, 270.0):
        await ticks.tick(at)
    assert await ticks.short() == [4, 3, 2]
    assert [await ticks.ledger.record(POOL, number) is not None for number in (2, 3, 4)] == [False, False, True]


async def test_a_clock_that_leaps_ahead_deletes_nothing(ticks: Ticks) -> None:
    await ticks.tick(0.0)
    ticks.clock.at = Instant(START + 1e9)
    await ticks.ledger.append(POOL, 1, [an_outcome(1)])
    await ticks.settled()
    assert await ticks.short() == [1]
    assert await ticks.ledger.record(POOL, 1) is not None


async def test_not_every_save_looks_for_old_rows(ticks: Ticks) -> None:
    """After one look nothing is looked for within the minute, so what becomes old meanwhile is still there."""
    await ticks.tick(0.0)
    await ticks.tick(48 * HOUR - 30)
    await ticks.tick(48 * HOUR + 10)
    assert await ticks.ledger.record(POOL, 1) is not None
    await ticks.tick(48 * HOUR + 60)
    assert await ticks.ledger.record(POOL, 1) is None


async def test_a_backlog_is_worked_off_in_small_batches(ticks: Ticks, file: Path) -> None:
    for at in range(7):
        await ticks.tick(float(at))
    site = ticks.ledger._site  # type: ignore[attr-defined]
    with site.writer.transaction() as connection:
        assert _forget(connection, START + 100, START + 100, 3) == 3
    assert await ticks.short() == [7, 6, 5, 4]  # the oldest went first
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("SELECT count(*) FROM bodies").fetchall() == [(4,)]


async def test_the_file_gives_space_back(ticks: Ticks, file: Path) -> None:
    for at in range(60):
        await ticks.tick(float(at), carry=os.urandom(40_000).hex())
    with closing(sqlite3.connect(file)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        before = file.stat().st_size
        assert before > 4_000_000
        await ticks.tick(50 * HOUR)
        for minute in range(5):
            await ticks.tick(50 * HOUR + 60.0 * minute)
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert file.stat().st_size < before * 0.6


async def test_the_history_of_directives_is_bounded(opened: Opener, file: Path) -> None:
    ledger = opened()
    for number in range(DIRECTIVES_KEPT + 10):
        await ledger.direct(POOL, Directives(), f"operator {number}")
    with closing(sqlite3.connect(file)) as other:
        kept = [by for (by,) in other.execute('SELECT "by" FROM directives ORDER BY id')]
    assert kept == [f"operator {number}" for number in range(10, DIRECTIVES_KEPT + 10)]
