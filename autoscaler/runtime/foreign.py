"""A policy from another package, run in a process of its own with a deadline.

Does: ask the worker, check its answer, kill it when it is late and start it again when it is next asked. Does not:
repair an answer, or fall back to another policy: decide() takes PolicyBroken as a broken opinion and says so.
Invariant: `recommend` returns within the deadline (plus the first start's), or raises PolicyBroken.

`recommend` blocks its caller; the loop sees `blocking` and decides in a thread, so that no other pool waits.

The worker is shown no more than it needs: an environment without the daemon's secrets, a pool without the requests of
its offers. It runs as the same user, and the daemon itself imports the package to read its Settings, so this is against
accidents (a policy that reports what it sees), not against a package that means harm: never install such.
"""

import atexit
import importlib
import math
import os
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import entry_points
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final

import msgspec

from autoscaler.domain.base import Duration
from autoscaler.domain.decision import Calendar, Recommendation, Situation
from autoscaler.domain.faults import AutoscalerError
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Pool

#: Seconds in which an answer must come.
ANSWER_WITHIN: Final = Duration(1.0)
#: Seconds in which a new worker must have imported its package.
START_WITHIN: Final = Duration(20.0)
#: A policy's own state, in bytes of JSON text.
CARRY_MAX: Final = 64 * 1024
#: Of the daemon's environment: what Python and libraries need to start. Tokens, addresses and keys are elsewhere in it.
_INHERITED: Final = frozenset(
    {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONHASHSEED", "TMPDIR", "TZ", "VIRTUAL_ENV"}
)
_BEGIN: Final = "import sys; from autoscaler.runtime.foreign import serve; serve(int(sys.argv[1]))"


class PolicyBroken(AutoscalerError):
    """A policy was late, raised, or answered with something that is no recommendation."""


class WorkerPolicy:
    """A policy in a worker process. `kind`: its entry point in `autoscaler.policy`, or the name of its module.

    `settings`: its Settings as JSON. The worker starts when it is first asked, and ends with `close` or the daemon.
    """

    blocking = True

    def __init__(self, kind: str, settings: str, *, within: Duration = ANSWER_WITHIN) -> None:
        self.name = kind
        self._settings = settings
        self._within = within
        self._worker: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._signals: frozenset[Signal] | None = None

    def signals(self) -> frozenset[Signal]:
        """The signals it names, asked once; raises PolicyBroken."""
        if self._signals is None:
            self._signals = frozenset(self._decoded(self._ask(("signals",)), list[Signal]))
        return self._signals

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        """Its opinion; raises PolicyBroken."""
        asked = self._ask(("recommend", _shown(pool), situation, carry, calendar))
        answer: Recommendation = self._decoded(asked, Recommendation)
        if why := mistake_in(answer):
            raise PolicyBroken(f"policy {self.name}: {why}")
        return answer

    def close(self) -> None:
        """End the worker."""
        worker, pipe, self._worker, self._pipe = self._worker, self._pipe, None, None
        if pipe is not None:
            pipe.close()
        if worker is not None:
            worker.kill()
            worker.wait()
        atexit.unregister(self.close)

    def _decoded(self, answer: bytes, kind: Any) -> Any:
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.MsgspecError as error:
            raise PolicyBroken(f"policy {self.name}: no recommendation: {error}") from error

    def _ask(self, question: tuple[object, ...]) -> bytes:
        pipe = self._pipe or self._start()
        try:
            pipe.send(question)
            return self._answer(pipe, self._within)
        except (OSError, EOFError) as error:
            self.close()
            raise PolicyBroken(f"policy {self.name}: its worker ended") from error

    def _answer(self, pipe: Connection, within: Duration) -> bytes:
        if not pipe.poll(within):
            self.close()
            raise PolicyBroken(f"policy {self.name}: no answer within {within:g} s; its worker was ended")
        fine, answer = pipe.recv_bytes(1), pipe.recv_bytes(4 * CARRY_MAX)
        if fine == b"e":
            self.close()
        if fine != b"y":
            raise PolicyBroken(f"policy {self.name}: {answer.decode(errors='replace')[:300]}")
        return answer

    def _start(self) -> Connection:
        pipe, theirs = Pipe()
        try:
            self._worker = subprocess.Popen(
                [sys.executable, "-P", "-c", _BEGIN, str(theirs.fileno())],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C is for the daemon, which ends it
            )
        except OSError as error:
            pipe.close()
            raise PolicyBroken(f"policy {self.name}: its worker cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
        self._pipe = pipe
        atexit.register(self.close)
        try:
            with suppress(OSError):  # a worker that is gone already has left its reason, or none: that is told below
                pipe.send((self.name, self._settings))
            self._answer(pipe, START_WITHIN)
        except PolicyBroken:
            self.close()
            raise
        return pipe


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _INHERITED}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _shown(pool: Pool) -> Pool:
    """The pool less its offers' requests, in which are commands and their environment."""
    offers = tuple(msgspec.structs.replace(offer, request="") for offer in pool.offers)
    return msgspec.structs.replace(pool, offers=offers)


def mistake_in(answer: Recommendation) -> str:
    """What is wrong with a recommendation, in words; empty when nothing is."""
    for name, value in (("target", answer.target), ("ceiling", answer.ceiling)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            return f"{name} is {value:g}; a finite number from 0 is allowed"
    if len(answer.carry.encode()) > CARRY_MAX:
        return f"carry has more than {CARRY_MAX} bytes"
    return ""


def serve(descriptor: int) -> None:
    """The worker: build the policy, then answer until the pipe ends. Every answer is a mark and JSON or a reason.

    An error ends the worker with its traceback; the daemon is told what it was before.
    """
    pipe = Connection(descriptor)
    try:
        kind, settings = pipe.recv()
        policy = _built(kind, settings)
        _say(pipe, b"y", b"null")
        while True:
            try:
                question = pipe.recv()
            except EOFError:
                return
            _say(pipe, *_answered(policy, question))
    finally:
        if (error := sys.exception()) is not None:
            _say(pipe, b"e", f"{type(error).__name__}: {error}"[:300].encode())


def _built(kind: str, settings: str) -> Any:
    entry = next(iter(entry_points(group="autoscaler.policy", name=kind)), None)
    loaded: Any = entry.load() if entry is not None else importlib.import_module(kind)
    return loaded.build(msgspec.json.decode(settings, type=loaded.Settings))


def _answered(policy: Any, question: tuple[Any, ...]) -> tuple[bytes, bytes]:
    """A mark ("y" or "n") and the JSON or the reason. JSON has no NaN, so numbers are checked on this side too."""
    if question[0] == "signals":
        return b"y", msgspec.json.encode(sorted(policy.signals()))
    answer = policy.recommend(*question[1:])
    if not isinstance(answer, Recommendation):
        return b"n", f"it answered {type(answer).__name__}, not a Recommendation".encode()
    for value in (answer.target, answer.ceiling):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            return b"n", f"target and ceiling are numbers, not {type(value).__name__}".encode()
    if why := mistake_in(answer):
        return b"n", why.encode()
    return b"y", msgspec.json.encode(answer)


def _say(pipe: Connection, mark: bytes, answer: bytes) -> None:
    pipe.send_bytes(mark)
    pipe.send_bytes(answer)
