"""Copies of a whole ledger: out to a backup, and back.

Does: copy through SQLite's online backup, check what is copied, keep what is replaced. Does not: take the hold
(`restore` does) or choose names of backups.
Invariant: a file appears under the asked name only when it is complete, checked and on the disk; a restore either puts
the backup in place or leaves the ledger as it was; no launch token can be used twice because of one.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import PortFault, Refused, Unreachable
from providers.ledger.sqlite import codec
from providers.ledger.sqlite.faults import of_sqlite, translated
from providers.ledger.sqlite.link import connect
from providers.ledger.sqlite.schema import SCHEMA

#: More decisions a second than any pool ever makes: see `_skip_used_tokens`.
_DECISIONS_PER_S_MAX: Final = 10


def _open_sound(file: Path, busy_timeout: float) -> sqlite3.Connection:
    """Open a ledger that must be there, sound and of a schema that this program knows."""
    if not file.exists():
        raise Unreachable(f"ledger {file}: found no such file, allowed: a ledger made by this program")
    with translated(file, busy_timeout):
        raw = connect(file, mode="rw", busy_timeout=busy_timeout)
        try:
            _check(raw, file)
        except BaseException:
            raw.close()
            raise
    return raw


def _check(raw: sqlite3.Connection, file: Path) -> None:
    (verdict,) = raw.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise Refused(f"ledger {file}: found it damaged ({verdict}), allowed: a sound ledger")
    names = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"meta", "memory"} <= names:
        raise Refused(f"ledger {file}: found a database without a ledger in it, allowed: a ledger")
    (found,) = raw.execute("SELECT schema FROM meta").fetchone() or (0,)
    if not 1 <= found <= SCHEMA:
        raise Refused(
            f"ledger {file} has schema {found}, this program knows 1 to {SCHEMA}: use the program that made it"
        )


def _copy(source: sqlite3.Connection, file: Path, busy_timeout: float) -> None:
    """Copy into the new file `file`: one file without a log beside it, checked."""
    with translated(file, busy_timeout), closing(connect(file, mode="rwc", busy_timeout=busy_timeout)) as copy:
        source.backup(
            copy
        )  # all pages in one step: a reader of the log, so a busy writer neither waits nor restarts it
        copy.execute("PRAGMA journal_mode = DELETE")
        _check(copy, file)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _publish(temporary: Path, file: Path) -> None:
    _sync(temporary)
    temporary.replace(file)
    _sync(file.parent)


def back_up(file: Path, path: Path, busy_timeout: Duration) -> int:
    """Copy the ledger `file` to the new file `path`; returns its size in bytes. Raises Refused, Unreachable."""
    if path.exists():
        raise Refused(f"backup {path}: found a file of that name, allowed: a name that is free")
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    with closing(_open_sound(file, busy_timeout)) as source, translated(path, busy_timeout):
        try:
            _copy(source, temporary, busy_timeout)
            _publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return path.stat().st_size


def put_back(file: Path, backup: Path, busy_timeout: Duration) -> Path | None:
    """Put the checked `backup` in the place of `file`, which the caller holds; returns where the old one was kept."""
    temporary = file.with_name(f"{file.name}.partial-{os.getpid()}")
    with closing(_open_sound(backup, busy_timeout)) as source, translated(file, busy_timeout):
        try:
            _copy(source, temporary, busy_timeout)
            _skip_used_tokens(temporary, backup, busy_timeout)
            kept = _set_aside(file, busy_timeout)
            _publish(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)
    return kept


def _skip_used_tokens(file: Path, origin: Path, busy_timeout: float) -> None:
    """Move each pool's sequence past any that was used since the backup was made.

    Launch tokens come from (epoch, sequence, index) and must never name two launches (law 6). No pool decides more
    often than `_DECISIONS_PER_S_MAX`, so the age of the ledger bounds the sequences that any copy of it has used.
    """
    with closing(connect(file, mode="rw", busy_timeout=busy_timeout)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        (created_at,) = raw.execute("SELECT created_at FROM meta").fetchone()
        unused = int(max(0.0, time.time() - created_at) * _DECISIONS_PER_S_MAX) + 1
        for pool, text in raw.execute("SELECT pool, json FROM memory").fetchall():
            memory = codec.decode_memory(text, f"backup {origin}, pool {pool}: memory")
            memory = msgspec.structs.replace(memory, sequence=max(memory.sequence + 1, unused))
            changed = (codec.encode_memory(memory), pool)
            raw.execute("UPDATE memory SET json = ?, version = version + 1 WHERE pool = ?", changed)
        raw.execute("COMMIT")


def _set_aside(file: Path, busy_timeout: float) -> Path | None:
    """Move what stands at `file` to a free name, with its log folded in where it can be read."""
    if not file.exists():
        return None
    if file.is_dir():
        raise Refused(f"ledger {file}: found a directory, allowed: a file or nothing")
    logs = [file.with_name(file.name + suffix) for suffix in ("-wal", "-shm")]
    try:
        with closing(connect(file, mode="rw", busy_timeout=busy_timeout)) as raw:
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            raw.execute("PRAGMA journal_mode = DELETE")  # fails while another process reads it
    except sqlite3.Error as error:
        fault: PortFault = of_sqlite(file, error, busy_timeout)
        if isinstance(fault, Unreachable):
            raise fault from error
    number = 1
    while (kept := file.with_name(f"{file.name}.replaced-{number}")).exists():
        number += 1
    for log in logs:  # of a ledger too damaged to fold them in; its successor must not meet them
        if log.exists():
            log.rename(kept.with_name(kept.name + log.name.removeprefix(file.name)))
    kept.hardlink_to(file)  # a second name: there is a ledger under the first one until its successor replaces it
    return kept
