"""The ledger in one SQLite file: for one daemon on one host, and for whoever reads beside it.

Does: offer `build` to the daemon, `reader` to commands that only look, `hold`, `backup` and `restore` to the command
line. Does not: serve several daemons (PostgreSQL will), or decide anything.
Invariant: what a call has answered is on the disk; what it has refused is not in the file.
"""

from __future__ import annotations

from pathlib import Path

from autoscaler.ports.build import Context
from autoscaler.ports.ledger import Ledger
from providers.ledger.sqlite.hold import Hold, hold_file
from providers.ledger.sqlite.settings import Settings, file_of

__all__ = ["Hold", "Settings", "backup", "build", "hold", "reader", "restore"]


def build(settings: Settings, context: Context) -> Ledger:
    """The ledger for reading and writing; the file is made at the first call that needs it.

    Raises ConfigError for a url that names no file.
    """
    from providers.ledger.sqlite.ledger import SqliteLedger

    return SqliteLedger(file_of(settings), settings, context.clock)


def reader(settings: Settings, context: Context) -> Ledger:
    """The same for reading only: makes no file, and each write is Refused (`plan`, `status`, `explain`).

    Where there is no file yet, memory is fresh with an empty epoch, and everything else is empty.
    """
    from providers.ledger.sqlite.ledger import SqliteLedger

    return SqliteLedger(file_of(settings), settings, context.clock, read_only=True)


def hold(settings: Settings) -> Hold:
    """Claim the ledger for this process until `release()` or its end; a context manager.

    Raises Refused, naming the process that holds it, when another daemon or a restore does.
    """
    return hold_file(file_of(settings))


def backup(settings: Settings, path: Path) -> int:
    """Copy the ledger to the new file `path` while a daemon may be running; returns its size in bytes.

    Raises Refused when `path` exists or the ledger cannot be used, Unreachable when it is locked or the disk is full.
    """
    from providers.ledger.sqlite.copies import back_up

    return back_up(file_of(settings), path, settings.busy_timeout)


def restore(settings: Settings, path: Path) -> Path | None:
    """Put a backup in the ledger's place; returns where the ledger that stood there was kept, None if there was none.

    The backup is checked first (integrity, schema). Raises Refused when it fails that, or when a daemon holds the
    ledger; what stood there is then untouched.
    """
    from providers.ledger.sqlite.copies import put_back

    with hold(settings):
        return put_back(file_of(settings), path, settings.busy_timeout)
