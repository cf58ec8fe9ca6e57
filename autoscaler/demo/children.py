"""The demo's processes: started with a mark, and ended to the last one.

Does: start the daemon and the load client in sessions of their own (a Ctrl-C in the terminal is for the demo alone,
which then ends all in order), and find what the daemon started in its turn by the mark that every child inherits.
Does not: know what a process is for.
Invariant: only processes that carry this run's mark are ever signalled, and each by its number and start time together,
so never a later process with the same number.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

#: In the environment of everything that a run starts: the folder of its world, which no other run has.
MARK = "LLM_POOL_DEMO_WORLD"
_POLL_S = 0.05
_ROUNDS = 4
_TAIL_BYTES = 4096


class Child:
    """One process that the demo itself started; its output goes to a file."""

    def __init__(self, command: Sequence[str], *, world: Path, log: Path) -> None:
        """Start it. Raises OSError."""
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, MARK: str(world), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended, or nothing while it runs."""
        return self._process.poll()

    def stop(self, patience_s: float) -> int:
        """SIGTERM, then SIGKILL after `patience_s`. Returns its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()

    def last_words(self, lines: int = 6) -> list[str]:
        """The end of its output."""
        with contextlib.suppress(OSError):
            text = self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
            return [line for line in text.splitlines() if line.strip()][-lines:]
        return []


def marked(world: Path) -> list[psutil.Process]:
    """Every living process of this user that carries the mark of this world, but for this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            ours = process.pid != os.getpid() and process.uids().real == os.getuid()
            if ours and process.environ().get(MARK) == str(world) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def sweep(world: Path, patience_s: float = 5.0) -> int:
    """End everything that carries the mark, SIGTERM first; returns how many would not end (0, as far as is known).

    Looks again after each round: what was just being started when the daemon died is there a moment later.
    """
    for _ in range(_ROUNDS):
        there = marked(world)
        if not there:
            return 0
        for process in there:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        for process in _wait(there, patience_s):
            with contextlib.suppress(psutil.Error):
                process.kill()
        _wait(there, patience_s)
    return len(marked(world))


def _wait(processes: Sequence[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """Those that still run when all have ended or the patience has."""
    until = time.monotonic() + patience_s
    left = list(processes)
    while left and time.monotonic() < until:
        left = [process for process in left if _runs(process)]
        time.sleep(_POLL_S if left else 0.0)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
