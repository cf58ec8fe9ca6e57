"""The daemon's side of detached.py: start and end processes that outlive it, and recognise them again.

Does: run the script, translate its answers, tell one process from a later one with the same number.
Does not: know tags, pools or Envoy.
Invariant: a process is named by (pid, start), so a number that was given out again is never taken for the old one.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil

from autoscaler.domain.faults import NoCapacity, PortFault, Refused, Unreachable
from providers._shared import detached

_SCRIPT: Final = str(Path(detached.__file__).resolve())
_TIMEOUT_S: Final = 30.0  # each start is a fork and an exec; a disk that hangs is the only thing that takes longer
_SHORTAGE: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


class Mark(msgspec.Struct, frozen=True):
    """One process: its number and when it began, as `start_of` names it."""

    pid: int
    started: str


class Record(msgspec.Struct, frozen=True):
    """What a started process leaves on disk about itself, before it becomes its command."""

    pid: int
    started: str
    tags: dict[str, str] = {}

    @property
    def mark(self) -> Mark:
        """Which process it was."""
        return Mark(self.pid, self.started)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A process to start: `path` is the program, `record` and `log` are files; the folders must exist."""

    path: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: str
    record: str
    tags: Mapping[str, str] = {}


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """A session to end: SIGTERM now, SIGKILL `grace_s` seconds later, then `stamp` (a file) is removed."""

    pid: int
    started: str
    grace_s: float
    stamp: str


class _Answer(msgspec.Struct, frozen=True):
    pid: int = 0
    started: str = ""
    errno: int = 0
    error: str = ""


def start_of(pid: int) -> str:
    """Name the moment at which process `pid` began; empty when it is gone or a zombie, which does nothing any more."""
    if found := detached.start_of(pid):
        return found
    if Path("/proc/self/stat").exists():
        return ""
    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.Error:
        return ""


def is_alive(mark: Mark) -> bool:
    """Whether that very process runs: same number, same start, no zombie."""
    return bool(mark.started) and start_of(mark.pid) == mark.started


def read_record(path: Path) -> Record | None:
    """Read a record; None when there is none or it cannot be read as one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None


def start(commands: Sequence[Command], locks: Sequence[int] = ()) -> list[Mark | PortFault]:
    """Start the commands, each as leader of its own session. Blocks for some 50 ms.

    `locks`: descriptors of held locks, kept until each command runs. Returns, in order, the process or why there is
    none. Raises Unreachable when the script itself did not answer.
    """
    job = {"do": "start", "locks": list(locks), "processes": commands}
    answers = msgspec.json.decode(_run(msgspec.json.encode(job), locks), type=list[_Answer])
    return [_judge(answer) for answer in answers]


def end(endings: Sequence[Ending]) -> None:
    """Ask the sessions to end; returns when that was accepted, and it goes on when the caller dies."""
    _run(msgspec.json.encode({"do": "end", "sessions": endings}), ())


def _run(job: bytes, locks: Sequence[int]) -> bytes:
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", _SCRIPT],
            input=job,
            capture_output=True,
            check=True,
            pass_fds=tuple(locks),
            start_new_session=True,  # a Ctrl-C for the daemon is not for a start that is half done
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"starting or ending processes took longer than {_TIMEOUT_S:.0f} s") from error
    except subprocess.CalledProcessError as error:
        told = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise Unreachable(f"starting or ending processes failed: {told or error}") from error
    except OSError as error:
        raise NoCapacity(f"this machine can start no process: {error.strerror}") from error
    return done.stdout


def _judge(answer: _Answer) -> Mark | PortFault:
    if not answer.error:
        return Mark(answer.pid, answer.started or start_of(answer.pid))
    if answer.errno in _SHORTAGE:
        return NoCapacity(f"this machine can start no process: {answer.error}")
    return Refused(f"the command could not be started: {answer.error}")
