"""A ledger that cannot be used says so in the loop's words, loses nothing, and recovers when the condition ends.

Every condition is a real one that stops root too: a lock, a size limit, a directory in the way, damaged bytes.
"""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from autoscaler.domain.base import Instant, PoolName
from autoscaler.domain.directives import Directives
from autoscaler.domain.faults import Conflict, PortFault, Refused, Unreachable
from autoscaler.ports.ledger import Ledger
from providers.ledger.sqlite import Settings
from providers.ledger.sqlite.faults import of_sqlite, of_system
from tests.support.ledger import POOL, START, a_memory, a_record, an_outcome

Opener = Callable[..., Ledger]


async def save(ledger: Ledger, number: int, pool: PoolName = POOL, detail: str = "") -> int:
    memory = a_memory(number)
    return await ledger.save(pool, number - 1, memory, a_record(memory, pool=pool, detail=detail))


async def test_a_lock_beyond_the_timeout_is_unreachable_and_ends_by_itself(opened: Opener, file: Path) -> None:
    ledger = opened()
    await save(ledger, 1)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unreachable, match=rf"{file}: found it locked .* waited 0.05 s, allowed: "):
            await save(ledger, 2)
        with pytest.raises(Unreachable, match="locked"):
            await ledger.direct(POOL, Directives(), "ada")
        assert (await ledger.load(POOL)).version == 1  # reading goes on
        other.execute("ROLLBACK")
    assert await save(ledger, 2) == 2


async def test_a_lock_at_the_first_use_is_unreachable_and_ends_by_itself(opened: Opener, file: Path) -> None:
    await save(opened(), 1)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        late = opened()
        with pytest.raises(Unreachable, match="locked"):
            await save(late, 2)
        other.execute("ROLLBACK")
    assert await save(late, 2) == 2


async def test_a_short_lock_is_waited_for(opened: Opener, settings: Settings, file: Path) -> None:
    ledger = opened(msgspec.structs.replace(settings, busy_timeout=30.0))
    await save(ledger, 1)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        saving = asyncio.create_task(save(ledger, 2))
        await asyncio.sleep(0.05)
        assert not saving.done()
        other.execute("ROLLBACK")
    assert await saving == 2


async def test_a_full_ledger_is_unreachable_keeps_what_it_has_and_recovers(
    opened: Opener, settings: Settings, file: Path
) -> None:
    ledger = opened(msgspec.structs.replace(settings, max_mib=1))
    saved = 0

    async def fill() -> None:
        nonlocal saved
        for number in range(1, 60):
            saved = await save(ledger, number, detail=os.urandom(30_000).hex())  # not to be compressed away

    with pytest.raises(Unreachable, match=rf"{file}: found the disk or its own size limit full, allowed: free space"):
        await fill()
    assert 1 < saved < 59
    assert (await ledger.load(POOL)).version == saved
    newest = await ledger.record(POOL)
    assert newest is not None
    assert newest.sequence == saved
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("DELETE FROM bodies")
    assert await save(ledger, saved + 1) == saved + 1


async def test_all_that_share_a_commit_are_told_when_it_fails(opened: Opener, file: Path) -> None:
    ledger = opened()
    await save(ledger, 1)
    pools = [PoolName(f"pool-{number}") for number in range(20)]
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        told = await asyncio.gather(*(save(ledger, 1, pool) for pool in pools), return_exceptions=True)
        assert {type(answer) for answer in told} == {Unreachable}
        other.execute("ROLLBACK")
    assert [(await ledger.load(pool)).version for pool in pools] == [0] * 20
    assert await asyncio.gather(*(save(ledger, 1, pool) for pool in pools)) == [1] * 20


async def test_a_directory_in_its_place_is_refused_until_it_is_gone(opened: Opener, file: Path) -> None:
    file.mkdir(parents=True)
    ledger = opened()
    for call in (ledger.load(POOL), save(ledger, 1), ledger.summaries(POOL, START, 1)):
        with pytest.raises(Refused, match=rf"{file}: found a directory, allowed: a file"):
            await call
    file.rmdir()
    assert await save(ledger, 1) == 1


async def test_a_file_where_its_folder_should_be_is_told_until_it_is_gone(opened: Opener, file: Path) -> None:
    file.parent.write_text("in the way")
    ledger = opened()
    with pytest.raises(PortFault, match=rf"{file}: found .*, allowed: a directory"):
        await save(ledger, 1)
    file.parent.unlink()
    assert await save(ledger, 1) == 1


@pytest.mark.parametrize("content", [b"this is no database at all, " * 50, b"SQLite format 3\0" + b"\xff" * 8192])
async def test_a_file_that_is_no_ledger_is_refused_and_left_as_it_was(
    opened: Opener, file: Path, content: bytes
) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    ledger = opened()
    for call in (ledger.load(POOL), save(ledger, 1)):
        with pytest.raises(Refused, match=rf"{file}: found .*, allowed: a .*ledger"):
            await call
    assert file.read_bytes() == content
    file.unlink()
    assert await save(ledger, 1) == 1


async def test_a_database_of_another_program_is_refused_and_left_as_it_was(opened: Opener, file: Path) -> None:
    file.parent.mkdir()
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("CREATE TABLE songs (title)")
    content = file.read_bytes()
    ledger = opened()
    for call in (ledger.load(POOL), save(ledger, 1)):
        with pytest.raises(Refused, match=r"found a database of something else \(tables songs\), allowed: a ledger"):
            await call
    assert file.read_bytes() == content


async def test_damage_inside_is_refused_with_the_way_out(opened: Opener, file: Path) -> None:
    ledger = opened()
    for number in range(1, 30):
        await save(ledger, number)
    await ledger.aclose()
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    file.write_bytes(content)
    with pytest.raises(Refused, match=rf"{file}: found it damaged .*allowed: a sound ledger; .*ledger restore"):
        await save(opened(), 30)


async def test_a_damaged_row_costs_its_own_pool_only(opened: Opener, file: Path) -> None:
    ledger, other_pool = opened(), PoolName("other")
    await save(ledger, 1)
    await save(ledger, 1, other_pool)
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("UPDATE memory SET json = '{' WHERE pool = ?", (POOL,))
    broken, sound = await asyncio.gather(ledger.load(POOL), ledger.load(other_pool), return_exceptions=True)
    assert isinstance(broken, Refused)
    assert f"pool {POOL}: memory cannot be read" in str(broken)
    assert sound == (a_memory(1), 1)


async def test_a_file_that_is_gone_is_never_made_anew_and_is_used_again_when_it_returns(
    opened: Opener, file: Path
) -> None:
    ledger = opened()
    await save(ledger, 1)
    away = file.with_name("away.db")
    file.rename(away)
    for call in (ledger.load(POOL), save(ledger, 2), ledger.append(POOL, 1, [an_outcome()])):
        with pytest.raises(Unreachable, match=rf"{file}: found it gone"):
            await call
    assert not file.exists()
    away.rename(file)
    assert (await ledger.load(POOL)).version == 1
    assert await save(ledger, 2) == 2


async def test_commits_follow_a_file_that_is_moved_away_and_not_its_successor(opened: Opener, file: Path) -> None:
    """SQLite finds its log by name: left behind, it would be mixed into the next ledger of that name."""
    ledger = opened()
    await save(ledger, 1)
    await ledger.load(POOL)
    away = file.with_name("away.db")
    file.rename(away)
    with pytest.raises(Unreachable, match="found it gone"):
        await save(ledger, 2)
    assert {path.name for path in file.parent.iterdir()} == {away.name}
    with closing(sqlite3.connect(away)) as other:
        assert other.execute("SELECT version FROM memory").fetchall() == [(1,)]
    await save(opened(), 1, PoolName("other"))  # the next daemon begins anew; the first one reads what is there now
    assert (await ledger.load(POOL)).version == 0


async def test_a_file_that_was_replaced_decides_who_may_save(opened: Opener, file: Path, tmp_path: Path) -> None:
    ledger = opened()
    await save(ledger, 1)
    await ledger.load(POOL)
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(old)) as copy:
        source.backup(copy)
    assert await save(ledger, 2) == 2
    old.replace(file)
    with pytest.raises(Conflict, match="found version 1, expected 2"):
        await save(ledger, 3)
    assert (await ledger.load(POOL)).version == 1
    assert await save(ledger, 2) == 2
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_an_empty_file_in_its_place_is_not_taken_for_a_new_ledger(opened: Opener, file: Path) -> None:
    ledger = opened()
    await save(ledger, 1)
    away, empty = file.with_name("away.db"), file.with_name("empty.db")
    file.rename(away)
    empty.touch()
    empty.rename(file)
    for call in (ledger.load(POOL), save(ledger, 2)):
        with pytest.raises(Unreachable, match=rf"{file}: found it empty, allowed: "):
            await call
    assert file.stat().st_size == 0
    away.rename(file)
    assert await save(ledger, 2) == 2


async def test_a_folder_that_is_gone_is_unreachable(opened: Opener, file: Path) -> None:
    ledger = opened()
    await save(ledger, 1)
    shutil.rmtree(file.parent)
    with pytest.raises(Unreachable, match="found it gone"):
        await save(ledger, 2)


async def test_after_the_end_it_is_unreachable(opened: Opener) -> None:
    ledger = opened()
    await save(ledger, 1)
    await ledger.aclose()
    await ledger.aclose()
    with pytest.raises(Unreachable, match="is closed"):
        await save(ledger, 2)


async def test_a_reader_makes_no_file_and_writes_nothing(opened: Opener, file: Path) -> None:
    reader = opened(reader=True)
    assert (await reader.load(POOL)).memory.epoch == ""
    assert await reader.directives(POOL) == Directives()
    assert await reader.summaries(POOL, Instant(0.0), 5) == []
    assert await reader.record(POOL) is None
    assert await reader.outcomes(POOL, 5) == []
    assert not file.parent.exists()
    for call in (save(reader, 1), reader.append(POOL, 1, [an_outcome()]), reader.direct(POOL, Directives(), "ada")):
        with pytest.raises(Refused, match="allowed: reading only"):
            await call
    await save(opened(), 1)
    assert await reader.load(POOL) == (a_memory(1), 1)  # it was begun before there was anything to read


async def test_names_that_have_no_form_on_disk_are_refused(opened: Opener) -> None:
    ledger = opened()
    with pytest.raises(Refused, match="cannot be saved"):
        await ledger.direct(POOL, Directives(), "\ud800")
    with pytest.raises(Refused, match=r"found sequence = .*allowed: 64-bit"):
        await ledger.append(POOL, 2**63, [an_outcome()])
    with pytest.raises(Refused, match="found at = nan"):
        await ledger.append(POOL, 1, [an_outcome(at=Instant(float("nan")))])
    with pytest.raises(Refused, match="found at = nan"):
        await ledger.save(POOL, 0, a_memory(1), a_record(a_memory(1), at=Instant(float("nan"))))


async def test_a_size_that_is_not_finite_is_null_in_the_summary_and_nan_again_when_read(opened: Opener) -> None:
    ledger, record = opened(), a_record(a_memory(1))
    capacity = msgspec.structs.replace(record.decision.capacity, in_service=float("nan"))
    decision = msgspec.structs.replace(record.decision, capacity=capacity)
    await ledger.save(POOL, 0, a_memory(1), msgspec.structs.replace(record, decision=decision))
    (short,) = await ledger.summaries(POOL, START, 5)
    assert short.in_service != short.in_service
    assert short.held != short.held


def test_codes_that_no_test_can_bring_about_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"

    def error(code: int) -> sqlite3.Error:
        found = sqlite3.OperationalError("said")
        found.sqlite_errorcode = code
        return found

    assert isinstance(of_sqlite(file, error(sqlite3.SQLITE_READONLY_DBMOVED), 1.0), Refused)
    assert isinstance(of_sqlite(file, error(sqlite3.SQLITE_IOERR_FSYNC), 1.0), Unreachable)
    assert isinstance(of_sqlite(file, error(sqlite3.SQLITE_PERM), 1.0), Refused)
    assert isinstance(of_sqlite(file, sqlite3.ProgrammingError("odd"), 1.0), Refused)
    assert isinstance(of_system(file, PermissionError(13, "Permission denied")), Refused)
    assert isinstance(of_system(file, OSError(28, "No space left on device")), Unreachable)
