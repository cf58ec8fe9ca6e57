"""One command of the user: run to its end or to its deadline, and never trusted with more.

Does: run a list of words without a shell, keep a bounded part of what it prints, kill its whole process group when it
is late. Does not: know hosts, or what an answer means.
Invariant: when run() returns or raises, the command has ended; what it left behind on purpose (a server in the
background) is killed only with a command that was late.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final, NamedTuple, Self

from autoscaler.domain.faults import Refused, Unreachable

OUTPUT_MAX: Final = 1024 * 1024
_TAIL_MAX: Final = 8 * 1024
_POLL_S: Final = 0.02
_LINE_MAX: Final = 200


class Answer(NamedTuple):
    """How a command ended. `late`: it was killed at its deadline. `told`: the last line of its standard error."""

    code: int
    out: str
    told: str
    late: bool = False

    @property
    def fine(self) -> bool:
        """Whether it says that it did its work."""
        return self.code == 0 and not self.late


def run(command: Sequence[str], env: Mapping[str, str], deadline_s: float) -> Answer:
    """Run to the end; blocks at most `deadline_s` and a moment. Raises Refused when there is no such program."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError, NotADirectoryError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise Refused(f"{command[0]!r} cannot be run: {why}") from error
    except OSError as error:  # no memory, too many processes: this machine's trouble, and it may pass
        raise Unreachable(f"{command[0]!r} cannot be run just now: {error.strerror}") from error
    with process, _Pipes(process) as pipes:
        ends = time.monotonic() + deadline_s
        # Its end counts, not that of its output: a server that it left behind may hold that for good.
        while process.poll() is None and time.monotonic() < ends:
            pipes.read(_POLL_S)
        late = process.poll() is None
        if late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        while pipes.read(0.0):
            pass
        return Answer(process.returncode, pipes.out.decode(errors="replace"), _last_line(pipes.tail), late)


class _Pipes:
    """What a command prints: the beginning of one stream, the end of the other, and never more."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.out, self.tail = b"", b""
        self._streams: list[IO[bytes]] = [stream for stream in (process.stdout, process.stderr) if stream]
        self._selector = selectors.DefaultSelector()
        for stream, name in zip(self._streams, ("out", "tail"), strict=True):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()

    def read(self, wait_s: float) -> bool:
        """Take what is there, waiting at most `wait_s`; whether anything was."""
        if not self._selector.get_map():
            time.sleep(wait_s)
            return False
        got = False
        for key, _ in self._selector.select(wait_s):
            chunk = os.read(key.fd, 65536)
            if not chunk:
                self._selector.unregister(key.fileobj)
            elif key.data == "out":
                self.out += chunk[: OUTPUT_MAX - len(self.out)]
            else:
                self.tail = (self.tail + chunk)[-_TAIL_MAX:]
            got = got or bool(chunk)
        return got


def _last_line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]
    return "".join(char if char.isprintable() else " " for char in lines[-1][:_LINE_MAX]) if lines else ""


def why(name: str, answer: Answer, deadline_s: float) -> str:
    """A failed command in words."""
    told = f": {answer.told}" if answer.told else ""
    if answer.late:
        return f"{name} was killed after {deadline_s:g} s{told}"
    ended = f"signal {-answer.code}" if answer.code < 0 else f"exit {answer.code}"
    return f"{name} ended with {ended}{told}"
