"""Who runs on this ledger: one daemon at a time.

Does: hold a lock on a small file beside the ledger, with the holder's process id in it. Does not: open the ledger.
Invariant: the system drops the lock when the holder ends, however it ends, so a stale file never keeps anybody out; a
POSIX record lock, not flock, because a child that was forked and lives on must not keep it.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from autoscaler.domain.faults import Refused
from providers.ledger.sqlite.faults import of_system

# A record lock does not keep the same process out, and closing the file anywhere in it would drop the lock.
_mine: set[str] = set()
_guard = threading.Lock()


class Hold:
    """The claim on a ledger, until released."""

    def __init__(self, name: str, handle: int) -> None:
        self._name = name
        self._handle: int | None = handle

    def release(self) -> None:
        """Let go; a second call does nothing. The lock file stays: deleting it would race with its next holder."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.ftruncate(handle, 0)
            os.close(handle)
            with _guard:
                _mine.discard(self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _refuse(file: Path, holder: str) -> Refused:
    return Refused(
        f"ledger {file}: found it held by process {holder}, "
        "allowed: one daemon or restore at a time; stop that one first"
    )


def hold_file(file: Path) -> Hold:
    """Claim the ledger at `file`.

    Raises Refused, naming the process that holds it; Unreachable or Refused when there can be no lock file beside it.
    """
    name = os.path.realpath(file)
    with _guard:
        if name in _mine:
            raise _refuse(file, str(os.getpid()))
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise of_system(file, error) from error
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(handle, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise _refuse(file, holder) from error
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(handle)
            raise of_system(file, error) from error
        _mine.add(name)
    return Hold(name, handle)
