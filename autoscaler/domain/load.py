"""What telemetry says: typed readings, each with its age, coverage and state.

Does: make "absent", "quiet" and "zero" three different values. Does not: judge them (engine.trust does).
Invariant: a reading has a value exactly when its state is OK; a quantile from fewer than 20 samples is QUIET.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from autoscaler.domain.base import Duration, Instant, ReplicaId

#: Fewest samples in its window for a quantile to count.
QUANTILE_SAMPLES_MIN: Final = 20


class Signal(StrEnum):
    """The signals that a policy may name."""

    QUEUE_LENGTH = "queue_length"
    RUNNING = "running"
    GPU_UTILIZATION = "gpu_utilization"  # 0..1
    KV_CACHE_USE = "kv_cache_use"  # 0..1
    TTFT_S_P95 = "ttft_s_p95"
    E2E_S_P95 = "e2e_s_p95"
    REQUEST_RATE = "request_rate"  # per second
    TOKEN_RATE = "token_rate"  # generated tokens per second
    INPUT_TOKEN_RATE = "input_token_rate"  # prompt tokens processed per second


class Kind(StrEnum):
    """How a reading sums up the replicas."""

    TOTAL = "total"  # sum over the covered replicas
    MEAN = "mean"  # mean over the covered replicas
    MAX = "max"  # largest of the covered replicas
    QUANTILE = "quantile"  # of merged buckets, never a mean of quantiles


class ReadingState(StrEnum):
    """OK has a value; QUIET had too few samples; ABSENT could not be read."""

    OK = "ok"
    QUIET = "quiet"
    ABSENT = "absent"


class Reading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One signal of one pool.

    `at`: when the youngest of its data was true. `covered`, `expected`: replicas that answered, and that should have.
    `samples`: observations inside the window (quantiles). `window`: seconds summed up, 0 for an instant value.
    """

    signal: Signal
    kind: Kind
    state: ReadingState
    at: Instant
    value: float | None = None
    covered: int = 0
    expected: int = 0
    samples: int = 0
    window: Duration = Duration(0.0)
    source: str = ""
    detail: str = ""


class Idleness(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is needed to believe a zero: law 5. `arrivals`, `completions`: None where the server does not count."""

    families_present: bool = True
    counter_went_back: bool = False
    arrivals: float | None = None
    completions: float | None = None


class ReplicaLoad(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Requests inside one replica, for choosing victims; None when not known."""

    running: float | None = None
    waiting: float | None = None


class LoadSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All readings of a pool at one instant; a signal that is missing here was not asked for.

    `partial`: the source's own word that this may not be all (a store of which a part did not answer); empty: it is.
    """

    at: Instant
    readings: dict[Signal, Reading] = {}
    replicas: dict[ReplicaId, ReplicaLoad] = {}
    idleness: Idleness = Idleness()
    detail: str = ""
    partial: str = ""


class Trust(StrEnum):
    """One verdict a tick on what telemetry may cause."""

    TRUST = "trust"  # both directions
    UP_ONLY = "up_only"  # out yes, in no
    HOLD = "hold"  # neither
    FALLBACK = "fallback"  # blind for long: size becomes max(current, fallback)


class TrustVerdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The verdict, why, which signals are usable, and since when telemetry has been blind (None: it is not)."""

    level: Trust
    why: str
    usable: frozenset[Signal] = frozenset()
    blind_since: Instant | None = None
