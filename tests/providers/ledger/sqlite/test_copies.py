"""Backup, restore, and the hold that keeps a second daemon out."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autoscaler.domain.base import Instant
from autoscaler.domain.faults import Refused, Unreachable
from autoscaler.ports.ledger import Ledger
from providers.ledger import sqlite
from providers.ledger.sqlite import Settings
from tests.support.ledger import POOL, HandClock, a_memory, a_record

Opener = Callable[..., Ledger]
ROOT = Path(__file__).parents[4]
HOLDER = """
import sys, time
from providers.ledger import sqlite
sqlite.hold(sqlite.Settings(url=sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


async def save(ledger: Ledger, number: int, version: int | None = None) -> int:
    memory = a_memory(number)
    return await ledger.save(POOL, number - 1 if version is None else version, memory, a_record(memory))


@pytest.fixture
def holder(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the ledger."""
    command = [sys.executable, "-c", HOLDER, settings.url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


async def test_a_backup_of_a_running_ledger_is_one_sound_file(
    opened: Opener, settings: Settings, tmp_path: Path
) -> None:
    ledger, copy = opened(), tmp_path / "copy.db"
    await save(ledger, 1)
    saving = asyncio.create_task(asyncio.to_thread(sqlite.backup, settings, copy))
    version = 1
    while not saving.done():
        version = await save(ledger, version + 1)
    assert await saving == copy.stat().st_size
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["copy.db"]
    with closing(sqlite3.connect(copy)) as other:
        ((saved,),) = other.execute("SELECT version FROM memory").fetchall()
        assert other.execute("SELECT max(sequence), count(*) FROM records").fetchall() == [(saved, saved)]
    assert await save(ledger, version + 1) == version + 1


async def test_a_backup_overwrites_nothing(opened: Opener, settings: Settings, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_text("precious")
    await save(opened(), 1)
    with pytest.raises(Refused, match=rf"backup {copy}: found a file of that name"):
        sqlite.backup(settings, copy)
    assert copy.read_text() == "precious"


def test_there_is_no_backup_of_nothing(settings: Settings, file: Path, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=rf"{file}: found no such file"):
        sqlite.backup(settings, tmp_path / "copy.db")
    assert list(tmp_path.iterdir()) == []


async def test_a_backup_into_no_folder_is_told(opened: Opener, settings: Settings, tmp_path: Path) -> None:
    await save(opened(), 1)
    with pytest.raises(Unreachable, match="found no directory"):
        sqlite.backup(settings, tmp_path / "nowhere" / "copy.db")


async def test_a_restored_ledger_goes_on_and_never_uses_a_token_twice(
    opened: Opener, settings: Settings, file: Path, tmp_path: Path, clock: HandClock
) -> None:
    """Launch tokens come from (epoch, sequence, index): what was decided after the backup must not be named again."""
    clock.at = Instant(time.time() - 3600.0)
    ledger, copy = opened(), tmp_path / "copy.db"
    await save(ledger, 1)
    sqlite.backup(settings, copy)
    for number in range(2, 30):
        await save(ledger, number)
    epoch = (await ledger.load(POOL)).memory.epoch
    await ledger.aclose()
    for _ in range(2):
        kept = sqlite.restore(settings, copy)
        assert kept is not None
        again = opened()
        memory, version = await again.load(POOL)
        assert memory.epoch == epoch
        assert memory.sequence > 3600
        assert version == 2
        assert memory.intents == a_memory(1).intents
        assert await save(again, memory.sequence + 1, version) == 3
        assert (await again.summaries(POOL, Instant(0.0), 1))[0].sequence == memory.sequence + 1
        await again.aclose()
    with closing(sqlite3.connect(file.with_name("ledger.db.replaced-1"))) as other:
        assert other.execute("SELECT version FROM memory").fetchall() == [(29,)]
    assert file.with_name("ledger.db.replaced-2").exists()


def test_restore_makes_a_ledger_where_there_is_none(settings: Settings, file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    made = Settings(url=f"sqlite:///{tmp_path}/other.db")
    asyncio.run(_one_save(made))
    sqlite.backup(made, copy)
    assert sqlite.restore(settings, copy) is None
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("SELECT pool FROM memory").fetchall() == [(POOL,)]


async def _one_save(settings: Settings) -> None:
    from autoscaler.ports.build import Context

    ledger = sqlite.build(settings, Context(installation="test", state_dir="", clock=HandClock()))
    await save(ledger, 1)
    await ledger.aclose()


async def test_restore_takes_the_place_of_a_damaged_ledger_and_keeps_it(
    opened: Opener, settings: Settings, file: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    ledger = opened()
    await save(ledger, 1)
    sqlite.backup(settings, copy)
    await ledger.aclose()
    file.write_bytes(b"no ledger any more" * 300)
    file.with_name("ledger.db-wal").write_bytes(b"nor its log")
    kept = sqlite.restore(settings, copy)
    assert kept is not None
    assert kept.read_bytes().startswith(b"no ledger any more")
    assert not file.with_name("ledger.db-wal").exists()
    assert (await opened().load(POOL)).memory.intents == a_memory(1).intents


@pytest.mark.parametrize("what", ["noise", "other", "newer", "absent", "damaged"])
async def test_only_a_sound_backup_of_a_known_schema_is_restored(
    opened: Opener, settings: Settings, file: Path, tmp_path: Path, what: str
) -> None:
    ledger, copy = opened(), tmp_path / "copy.db"
    await save(ledger, 1)
    sqlite.backup(settings, copy)
    await ledger.aclose()
    expected = {
        "noise": "no SQLite database",
        "other": "without a ledger",
        "newer": "has schema 9, this program knows 1 to 1",
        "absent": "found no such file",
        "damaged": "damaged",
    }[what]
    if what in {"noise", "damaged", "absent"}:
        content = copy.read_bytes()
        copy.unlink()
        if what == "noise":
            copy.write_bytes(b"noise" * 3000)
        elif what == "damaged":
            copy.write_bytes(content[:8192] + b"\xa5" * (len(content) - 8192))
    else:
        with closing(sqlite3.connect(copy)) as other, other:
            other.execute("UPDATE meta SET schema = 9" if what == "newer" else "DROP TABLE memory")
    before = file.read_bytes()
    with pytest.raises((Refused, Unreachable), match=expected):
        sqlite.restore(settings, copy)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir() if "lock" not in path.name] == [file.name]


async def test_restore_waits_for_nobody_who_still_reads(
    opened: Opener, settings: Settings, file: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    await save(opened(), 1)
    sqlite.backup(settings, copy)
    with pytest.raises(Unreachable, match="locked"):
        sqlite.restore(settings, copy)  # the ledger above is open, though it holds nothing
    assert not list(file.parent.glob("*replaced*"))


def test_a_second_daemon_is_refused_by_the_name_of_the_first(
    settings: Settings, holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    said = rf"found it held by process {holder.pid}, allowed: one daemon or restore"
    with pytest.raises(Refused, match=said):
        sqlite.hold(settings)
    with pytest.raises(Refused, match=said):
        sqlite.restore(settings, tmp_path / "copy.db")


def test_a_holder_that_is_killed_holds_nothing(settings: Settings, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with sqlite.hold(settings):
        pass


def test_a_child_that_outlives_the_holder_does_not_hold(settings: Settings) -> None:
    script = HOLDER.replace("time.sleep(60)", "import os\nif os.fork() == 0:\n    time.sleep(60)\nos._exit(0)")
    script = script.replace('print("held", flush=True)', "print(0, flush=True)")
    script = script.replace("if os.fork() == 0:", "child = os.fork()\nif child:\n    print(child, flush=True)\nelse:")
    command = [sys.executable, "-c", script, settings.url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        child = int(process.stdout.readline())
        process.wait()
        try:
            os.kill(child, 0)  # it lives
            with sqlite.hold(settings):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_one_process_does_not_hold_twice_and_can_hold_again(settings: Settings, file: Path) -> None:
    with sqlite.hold(settings) as held:
        for _ in range(2):  # a failed claim must not drop the lock of the first
            with pytest.raises(Refused, match=f"held by process {os.getpid()}"):
                sqlite.hold(settings)
        assert Path(f"{file}.lock").read_text() == f"{os.getpid()}\n"
        held.release()
        held.release()
        with sqlite.hold(settings):
            pass


def test_a_hold_where_no_file_can_be_is_told(settings: Settings, file: Path) -> None:
    file.parent.write_text("in the way")
    with pytest.raises((Refused, Unreachable), match="allowed: a directory"):
        sqlite.hold(settings)


async def test_readers_need_no_hold(opened: Opener, settings: Settings, holder: subprocess.Popen[str]) -> None:
    await save(opened(), 1)
    assert (await opened(reader=True).load(POOL)).version == 1
