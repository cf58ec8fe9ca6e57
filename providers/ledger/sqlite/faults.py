"""SQLite's errors in the words of the loop.

Does: turn each error into Unreachable (may end by itself: locked, full, gone, I/O) or Refused (until a person acts: no
permission, a directory in the way, not a ledger, damaged), with the file, what was found and what is allowed.
Does not: retry.
Invariant: no error of SQLite or of the file system leaves the ledger as anything but a PortFault.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoscaler.domain.faults import PortFault, Refused, Unreachable

_FULL = "allowed: free space for it"
_RESTORE = "put a backup back with `autoscaler ledger restore`, or move the file away to begin anew"


def code_of(error: BaseException) -> int | None:
    """The primary result code of SQLite behind an error, None when there is none."""
    origin = getattr(error, "orig", None) or error
    code = getattr(origin, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


def _obstacle(file: Path) -> PortFault | None:
    """What stands in the way of opening the file, looked at after it could not be opened."""
    folder = file.parent
    if file.is_dir():
        return Refused(f"ledger {file}: found a directory, allowed: a file that this program makes itself")
    if not folder.is_dir():
        return Unreachable(f"ledger {file}: found no directory {folder}, allowed: a directory that can be written to")
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        return Refused(f"ledger {file}: found no permission to read and write it, allowed: a file of this user")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Refused(f"ledger {file}: found no permission to write to {folder}, allowed: a directory of this user")
    return None


def of_sqlite(file: Path, error: BaseException, busy_timeout: float) -> PortFault:
    """The fault for an error that SQLite gave while it worked on `file`."""
    said = str(getattr(error, "orig", None) or error)
    match code_of(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unreachable(
                f"ledger {file}: found it locked by another process, waited {busy_timeout:g} s, "
                "allowed: locks shorter than that"
            )
        case sqlite3.SQLITE_FULL:
            return Unreachable(f"ledger {file}: found the disk or its own size limit full, {_FULL}")
        case sqlite3.SQLITE_CORRUPT:
            return Refused(f"ledger {file}: found it damaged ({said}), allowed: a sound ledger; {_RESTORE}")
        case sqlite3.SQLITE_NOTADB:
            return Refused(f"ledger {file}: found a file that is no SQLite database, allowed: a ledger; {_RESTORE}")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return Refused(f"ledger {file}: found it not writable ({said}), allowed: a file and directory of this user")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_IOERR:
            return _obstacle(file) or Unreachable(
                f"ledger {file}: found that the system could not open, read or write it ({said}), {_FULL}"
            )
        case _:
            return Refused(f"ledger {file}: found {said}, allowed: a ledger made by this program; {_RESTORE}")


def of_system(file: Path, error: OSError) -> PortFault:
    """The fault for an error of the file system about `file`."""
    found = error.strerror or str(error)
    if isinstance(error, PermissionError):
        return Refused(f"ledger {file}: found {found}, allowed: a file and directory of this user")
    return _obstacle(file) or Unreachable(f"ledger {file}: found {found}, allowed: a directory that can be written to")


@contextmanager
def translated(file: Path, busy_timeout: float) -> Iterator[None]:
    """Raise what goes wrong inside as a PortFault about `file`."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (sqlite3.Error, SQLAlchemyError) as error:
        raise of_sqlite(file, error, busy_timeout) from error
    except OSError as error:
        raise of_system(file, error) from error
