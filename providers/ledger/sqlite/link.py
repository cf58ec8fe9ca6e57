"""The connections to the file, and whether it is still the same file.

Does: open on first use, run transactions, notice a file that was moved, deleted or replaced, open again after a fault.
Does not: know what is read or written, beyond preparing the schema.
Invariant: a file that was once there is never silently made anew, and no connection outlives the file it belongs to:
SQLite works by open file and by name, and would otherwise write to a file that nobody can see, or delete or replay the
journal of its successor.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import NullPool

from autoscaler.domain.base import Instant
from autoscaler.domain.faults import PortFault, Refused, Unreachable
from providers.ledger.sqlite import schema
from providers.ledger.sqlite.faults import translated
from providers.ledger.sqlite.settings import Settings

#: The write-ahead log shrinks back to this after a burst, bytes.
_WAL_BYTES: Final = 16 * 1024 * 1024
_MIB: Final = 1024 * 1024

Identity = tuple[int, int]


class NothingThere(Exception):
    """To a reader: the file is empty or absent, and always was. Never leaves this package."""


def connect(file: Path, *, mode: str, busy_timeout: float) -> sqlite3.Connection:
    """Open with SQLite's `mode` (`rw`: must be there, `rwc`: made when absent), transactions begun by hand.

    A new file is for this user only: offers' requests are in it, and in these the commands' environment. SQLite gives
    the log beside it the mode that the file has.
    """
    if mode == "rwc":
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return sqlite3.connect(
        f"file:{quote(str(file.absolute()))}?mode={mode}",
        uri=True,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,
    )


def _set_up(raw: sqlite3.Connection, file: Path, max_mib: int) -> None:
    raw.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect in a new file only
    (mode,) = raw.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise Refused(f"ledger {file}: found a file system without shared memory for SQLite, allowed: a local one")
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    if max_mib:
        (page,) = raw.execute("PRAGMA page_size").fetchone()
        raw.execute(f"PRAGMA max_page_count = {max_mib * _MIB // page}")


def identity(file: Path) -> Identity | None:
    """Which file stands under the name now; None: none."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class Link:
    """One connection of the site, used by one thread."""

    def __init__(self, site: Site, *, writes: bool) -> None:
        self.lock = threading.Lock()  # held while it is in use; site.refresh() closes from whichever thread notices
        self.opened: Identity | None = None
        self._site = site
        self._writes = writes
        self._connection: Connection | None = None
        self._engine = self._make_engine()

    def _make_engine(self) -> Engine:
        engine = create_engine("sqlite://", creator=self._dial, poolclass=NullPool, hide_parameters=True)
        begin = "BEGIN IMMEDIATE" if self._writes else "BEGIN"

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql(begin)

        return engine

    def _dial(self) -> sqlite3.Connection:
        settings, fresh = self._site.settings, self._writes and not self._site.seen
        raw = connect(self._site.file, mode="rwc" if fresh else "rw", busy_timeout=settings.busy_timeout)
        try:
            names = {name for (name,) in raw.execute("SELECT name FROM sqlite_master")}
            # What is about to be refused is not even set up: that would write to it.
            if self._writes and ("meta" in names or not (names or self._site.seen)):
                _set_up(raw, self._site.file, settings.max_mib)
            if not self._writes:
                raw.execute("PRAGMA query_only = ON")
        except BaseException:
            raw.close()
            raise
        return raw

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction: committed when the block ends, undone when it raises. Raises PortFault for what SQLite says.

        Raises Unreachable after a commit into a file that was moved away meanwhile: whether it counts is for the next
        load to tell.
        """
        self._site.refresh()
        with self.lock, translated(self._site.file, self._site.settings.busy_timeout):
            try:
                connection = self._open()
                with connection.begin():
                    yield connection
            except (PortFault, IntegrityError, NothingThere):
                raise
            except BaseException:
                self.close()
                raise
        if identity(self._site.file) != self.opened:
            raise Unreachable(f"ledger {self._site.file}: found it moved or replaced while it was written")

    def _open(self) -> Connection:
        if self._connection is not None:
            return self._connection
        if not self._site.seen:
            if self._writes:
                self._site.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            elif identity(self._site.file) is None:
                raise NothingThere
        connection = self._engine.connect()
        try:
            with connection.begin():
                about = self._about(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self.opened = connection, identity(self._site.file)
        self._site.note_logs()
        self._site.seen = True
        self._site.epoch = about.epoch
        return connection

    def _about(self, connection: Connection) -> schema.About:
        site = self._site
        about = schema.read_about(connection, site.file)
        if about is None and site.seen:
            raise Unreachable(f"ledger {site.file}: found it empty, allowed: the file that was there, or a backup")
        if self._writes:
            return schema.prepare(connection, site.file, site.now())
        if about is None:
            raise NothingThere
        if about.schema < schema.SCHEMA:
            raise Refused(
                f"ledger {site.file} has schema {about.schema}, this program reads {schema.SCHEMA}: "
                "start `autoscaler run` once to bring it up to date"
            )
        return about

    def close(self) -> None:
        """Give the file back; the next transaction opens it again. The lock must be held, or nobody use it any more."""
        connection, self._connection = self._connection, None
        self.opened = None
        if connection is not None:
            connection.invalidate()  # no rollback through a connection that may be broken
            connection.close()

    def leave(self) -> bool:
        """Close for good; whether all that was committed is now in the file itself, wherever that is."""
        folded = False
        raw = None if self._connection is None else self._connection.connection.driver_connection
        if raw is not None and self._writes:
            try:  # past SQLAlchemy, which would begin a transaction, and in one there is no checkpoint
                busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                folded = not busy
            except sqlite3.Error:
                folded = False
        self.close()
        return folded


class Site:
    """The file, and the two connections to it: `writer` and `reader`."""

    def __init__(self, file: Path, settings: Settings, now: Callable[[], Instant]) -> None:
        self.file = file
        self.settings = settings
        self.now = now
        self.seen = False  # whether this process ever found a ledger there: then it is never made anew
        self.logs: dict[Path, Identity] = {}  # which files SQLite keeps beside the one that is open
        self._lock = threading.Lock()
        self.epoch = ""  # of the ledger that was opened last
        self.writer = Link(self, writes=True)
        self.reader = Link(self, writes=False)

    def note_logs(self) -> None:
        """Remember which files stand beside the one that was just opened."""
        names = (self.file.with_name(self.file.name + suffix) for suffix in ("-wal", "-shm"))
        self.logs = {log: which for log in names if (which := identity(log)) is not None}

    def refresh(self) -> None:
        """Leave a file that no longer stands under the name; raises Unreachable when none does.

        What its log holds is folded into it, wherever it was moved to, and the log is removed: SQLite finds a log by
        name, and would mix it into the next file of that name.
        """
        with self._lock, translated(self.file, self.settings.busy_timeout):
            now = identity(self.file)
            if any(link.opened not in {None, now} for link in (self.writer, self.reader)):
                self._leave(replaced=now is not None)
        if now is None and self.seen:
            raise Unreachable(f"ledger {self.file}: found it gone, allowed: the file that was there, or a backup")

    def _leave(self, *, replaced: bool) -> None:
        logs = self.logs
        folded = False
        for link in (self.writer, self.reader):  # both, before either opens the successor
            with link.lock:
                folded = link.leave() or folded
        for log, which in logs.items():
            if (folded or replaced) and identity(log) == which:  # not one that the successor already has
                log.unlink()
