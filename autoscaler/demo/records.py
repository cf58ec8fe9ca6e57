"""What the load client writes down: one record a request, and a snapshot of how it is going.

These are values and their files. Nothing here measures or judges.

Invariant: a record exists for every request that was scheduled and started, whatever became of it.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

# stopped: the client itself was told to end before the answer did.
Outcome = Literal["ok", "failed", "cut", "stopped"]


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request as its client saw it. *Units*: stamps `_at` are wall clock seconds since the epoch."""

    index: int
    scheduled_at: float
    sent_at: float
    first_token_at: float | None = None
    ended_at: float = 0.0
    status: int | None = None
    input_tokens: int
    output_tokens: int
    tokens_received: int = 0
    outcome: Outcome = "failed"
    why: str = ""

    @property
    def ttft_s(self) -> float | None:
        """Wall seconds from sending to the first token."""
        return None if self.first_token_at is None else self.first_token_at - self.sent_at

    @property
    def send_lag_s(self) -> float:
        """Wall seconds by which the client sent too late: its own fault, not the pool's."""
        return self.sent_at - self.scheduled_at


class Progress(msgspec.Struct, kw_only=True):
    """How the replay is going. *Units*: trace seconds, but wall seconds where the name says so."""

    at: float
    elapsed_s: float
    scheduled: int
    sent: int = 0
    in_flight: int = 0
    in_flight_peak: int = 0
    ok: int = 0
    failed: int = 0
    cut: int = 0
    stopped: int = 0
    requests_per_s: float = 0.0
    requests_per_wall_s: float = 0.0
    ttft_s_p95: float | None = None  # over the last 30 s; nothing while fewer than 20 samples are in them
    ttft_wall_s_p95: float | None = None
    send_lag_wall_s_p95: float | None = None  # over the whole replay
    send_lag_wall_s_max: float | None = None
    done: bool = False


def quantile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed (nearest rank), if any."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else None


def progress_path(out: Path) -> Path:
    """Where the snapshot lies, beside the records."""
    return out.with_name(out.name + ".progress.json")


def write_whole(path: Path, document: bytes) -> None:
    """Replace a file at once, so that a reader never sees half of it. Raises OSError."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(document)
    beside.replace(path)


def read_progress(out: Path) -> Progress | None:
    """The latest snapshot, or nothing before the first. Raises OSError, msgspec.DecodeError."""
    path = progress_path(out)
    return msgspec.json.decode(path.read_bytes(), type=Progress) if path.exists() else None


def read_records(out: Path) -> list[RequestRecord]:
    """Every record, in the order in which the requests ended. Raises OSError, msgspec.DecodeError."""
    decoder = msgspec.json.Decoder(RequestRecord)
    return [decoder.decode(line) for line in out.read_bytes().splitlines() if line]
