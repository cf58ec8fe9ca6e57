"""The daemon of a config, with one thing added: it kills itself, as `kill -9` would, when it passes a named point.

    python tests/support/crashing_daemon.py CONFIG LOG POINT[,POINT...] PASSES

Does: build the very daemon of `autoscaler run`, and hand it a checkpoint. Does not: change anything else of it.
Invariant: the point at which it died is on disk, in LOG, before it dies; so whoever waits for it knows where it was.
"""

import os
import signal
import sys
from pathlib import Path

from autoscaler.cli.run import serve


class Crash:
    """A checkpoint that ends the process at the `passes`th time that one of the points is passed."""

    def __init__(self, log: Path, points: frozenset[str], passes: int) -> None:
        self._log = log
        self._points = points
        self._left = passes

    def __call__(self, name: str) -> None:
        if name not in self._points:
            return
        self._left -= 1
        if self._left > 0:
            return
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{name}\n")
            log.flush()
            os.fsync(log.fileno())
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> None:
    config, log, points, passes = arguments
    serve(Path(config), Crash(Path(log), frozenset(points.split(",")), int(passes)))


if __name__ == "__main__":
    main(sys.argv[1:])
