"""Files that several processes share: written in one step, changed under a lock.

Does: turn what the file system says into faults. Does not: know what is in the files.
Invariant: whoever reads a file sees the old content or the new one, never a part.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from autoscaler.domain.faults import PortFault, Refused, Unreachable
from providers._shared.detached import write_atomically

_POLL_S = 0.01

__all__ = ["fault_of", "locked", "make_folder", "write", "write_atomically"]


def fault_of(error: OSError, doing: str) -> PortFault:
    """Name what a file error means: no permission needs a person, the rest (full, stale) may pass."""
    text = f"{doing}: {error.strerror or error} ({error.filename})" if error.filename else f"{doing}: {error}"
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}:
        return Refused(text)
    return Unreachable(text)


def make_folder(path: Path) -> Path:
    """Make `path` with its parents, readable by its owner and group only. Raises Refused or Unreachable."""
    try:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise fault_of(error, "cannot make a folder for state") from error
    return path


def write(path: Path, content: bytes) -> None:
    """Replace a file in one step. Raises Refused or Unreachable."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise fault_of(error, f"cannot write {path.name}") from error


@contextlib.contextmanager
def locked(path: Path, wait_s: float) -> Iterator[int]:
    """Hold the lock file `path`; yields its descriptor, which children may inherit. Blocks: call it in a thread.

    Raises Unreachable when it was not free within `wait_s` seconds.
    """
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    except OSError as error:
        raise fault_of(error, f"cannot open the lock {path.name}") from error
    try:
        _take(lock, path, time.monotonic() + wait_s)
        yield lock
    finally:
        os.close(lock)  # not LOCK_UN: a child that inherited it may still need it


def _take(lock: int, path: Path, until: float) -> None:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise Unreachable(f"another process holds {path}; looking again later") from None
            time.sleep(_POLL_S)
        else:
            return
