"""What a stand-in replica counts about itself, and the file in which it outlives the replica.

The replica is the witness for "no request reached it before its model was loaded": nobody else can count
that truthfully. It counts clients only; probes, which mark themselves, are counted apart. It does not
judge what it counted: `summary` does.

Invariant: the file always holds one whole document, and the stamps that matter (model loaded, first client
request, a request before ready) are in it before the request is answered.
"""

import contextlib
import os
import time
from pathlib import Path

import msgspec


class ReplicaStats(msgspec.Struct, kw_only=True):
    """Counts and stamps of one process. *Units*: stamps `_at` are wall clock seconds since the epoch."""

    port: int
    pid: int
    model: str
    time_scale: float
    started_at: float
    load_done_at: float | None = None
    first_client_request_at: float | None = None
    received: int = 0
    received_before_ready: int = 0
    completed: int = 0
    cut_by_client: int = 0
    aborted_on_exit: int = 0
    broken_off: int = 0  # by the replica itself, as it was told to
    refused: int = 0  # client requests answered with a 4xx or 5xx, those before ready included
    probes: int = 0
    written_at: float = 0.0
    exited_at: float | None = None


class StatsFile:
    """Writes the stats where the summary finds them after the replica is gone."""

    def __init__(self, stats: ReplicaStats, path: Path | None) -> None:
        """No path: nothing is written."""
        self.stats = stats
        self._path = path

    def write(self) -> None:
        """Replace the file at once and whole. Raises OSError."""
        if self._path is None:
            return
        self.stats.written_at = time.time()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        beside.write_bytes(msgspec.json.encode(self.stats))
        beside.replace(self._path)

    def note_received(self, *, loaded: bool) -> None:
        """Count a client's request; the first one, and each one that came too early, is written at once."""
        self.stats.received += 1
        first = self.stats.first_client_request_at is None
        if first:
            self.stats.first_client_request_at = time.time()
        if not loaded:
            self.stats.received_before_ready += 1
        if first or not loaded:
            self.write_if_possible()

    def note_loaded(self) -> None:
        """Stamp the end of the load."""
        self.stats.load_done_at = time.time()
        self.write_if_possible()

    def write_if_possible(self) -> None:
        """Write; a full disk or a folder that went away must not stop the server."""
        with contextlib.suppress(OSError):
            self.write()


def read_stats(folder: Path) -> list[ReplicaStats]:
    """Every replica that wrote into the folder, oldest first. Raises OSError, msgspec.DecodeError."""
    found = [msgspec.json.decode(path.read_bytes(), type=ReplicaStats) for path in folder.glob("*.json")]
    return sorted(found, key=lambda stats: (stats.started_at, stats.pid))
