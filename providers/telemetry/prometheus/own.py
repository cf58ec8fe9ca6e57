"""A signal in the user's own PromQL: from a result to a typed reading.

Does: tell one value from values by replica, date it, and count whom it covers. Does not: ask, or judge.
Invariant: an empty, infinite or ambiguous result is ABSENT and NaN is too, save for a quantile, where it is QUIET:
nothing was observed in its window. None of them is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from autoscaler.domain.base import Instant, ReplicaId
from autoscaler.domain.load import QUANTILE_SAMPLES_MIN, Kind, Reading, ReadingState, Signal
from providers._shared.looks import Look
from providers._shared.readings import faults_of
from providers.telemetry.prometheus.settings import SHARES, Coverage, Query

if TYPE_CHECKING:
    from providers.telemetry.prometheus.session import Row

_SHARE_MAX: Final = 1.01


class Results(NamedTuple):
    """What the server gave for one query: its rows, the newest sample's time by `age_of`, and the count of samples."""

    rows: Sequence[Row]
    dated: Sequence[Row]
    counted: Sequence[Row]


class Around(NamedTuple):
    """What else is known: the pool's replicas by the value of their label, whether each is scraped, and the time."""

    label: str
    replicas: Mapping[str, ReplicaId]
    looks: Mapping[ReplicaId, Look]
    now: Instant


def own_reading(signal: Signal, query: Query, results: Results, around: Around) -> Reading:
    """The reading of one query."""
    reading = _valued(signal, query, results, around)
    if reading.state is ReadingState.ABSENT:
        return reading
    if query.age_of:
        dates = _numbers(results.dated)
        if not dates or not math.isfinite(max(dates)):
            return _absent(reading, "age_of gives nothing, so the value has no date")
        reading = msgspec.structs.replace(reading, at=Instant(max(dates)))
    if query.kind is not Kind.QUANTILE:
        return reading
    samples = round(sum(count for count in _numbers(results.counted) if math.isfinite(count)))
    if reading.value is not None and samples >= QUANTILE_SAMPLES_MIN:
        return msgspec.structs.replace(reading, samples=samples)
    detail = f"{samples} samples, {QUANTILE_SAMPLES_MIN} are needed"
    return msgspec.structs.replace(reading, state=ReadingState.QUIET, value=None, samples=samples, detail=detail)


def _valued(signal: Signal, query: Query, results: Results, around: Around) -> Reading:
    """The value, whom it covers, and the time of the youngest scrape among them."""
    base = Reading(
        signal=signal, kind=query.kind, state=ReadingState.ABSENT, at=around.now, window=query.window,
        source="prometheus",
    )  # fmt: skip
    if query.coverage is Coverage.UP:
        base = msgspec.structs.replace(base, expected=len(around.looks))
        if not around.looks:
            return _absent(base, "no replica to ask about")
        if all(look.fault for look in around.looks.values()):
            return _absent(base, f"no replica is scraped: {faults_of(list(around.looks.values()))}")
    if not results.rows:
        return _absent(base, "the query gives nothing")
    by_replica = query.coverage is Coverage.UP and any(around.label in row.metric for row in results.rows)
    if not by_replica and len(results.rows) > 1:
        allowed = f"one value, or one for each {around.label}"
        return _absent(base, f"the query gives {len(results.rows)} values without the label {around.label}: {allowed}")
    if by_replica and query.kind is Kind.QUANTILE:
        return _absent(base, "a quantile for each replica cannot be made one: take the quantile of the summed buckets")
    found = _by_replica(results.rows, query.kind, around) if by_replica else dict.fromkeys(_scraped(around), 0.0)
    value = _one(list(found.values()), query.kind) if by_replica else _numbers(results.rows)[0]
    if by_replica and not found:
        return _absent(base, "the query gives no value for a replica of this pool")
    return _checked(base, value, found, around)


def _checked(base: Reading, value: float, covered: Mapping[ReplicaId, float], around: Around) -> Reading:
    if math.isnan(value) and base.kind is not Kind.QUANTILE:
        return _absent(base, "the query gives NaN")
    if math.isinf(value) or value < 0:
        return _absent(base, f"the query gives {value:g}, allowed is a number from 0")
    if base.signal in SHARES and value > _SHARE_MAX:
        return _absent(base, f"the query gives {value:g}, allowed is 0 to 1: divide by 100")
    missing = [look for name, look in around.looks.items() if name not in covered]
    times = [around.looks[name].at for name in covered]
    counts = base.expected > 0
    return msgspec.structs.replace(
        base,
        state=ReadingState.OK,
        value=None if math.isnan(value) else value,
        at=max(times, default=around.now),
        covered=len(covered) if counts else 0,
        detail=f"not covered: {faults_of(missing)}" if missing and counts else "",
    )


def _scraped(around: Around) -> list[ReplicaId]:
    return [name for name, look in around.looks.items() if not look.fault]


def _by_replica(rows: Sequence[Row], kind: Kind, around: Around) -> dict[ReplicaId, float]:
    """The values of those replicas that are scraped; several of one replica (its engines) become one as `kind` says."""
    scraped = set(_scraped(around))
    found: dict[ReplicaId, list[float]] = {}
    for row, value in zip(rows, _numbers(rows), strict=True):
        replica = around.replicas.get(row.metric.get(around.label, ""))
        if replica is not None and replica in scraped and math.isfinite(value):
            found.setdefault(replica, []).append(value)
    return {replica: _one(values, kind) for replica, values in found.items()}


def _one(values: Sequence[float], kind: Kind) -> float:
    if not values:
        return math.nan
    if kind is Kind.MAX:
        return max(values)
    return math.fsum(values) / len(values) if kind is Kind.MEAN else math.fsum(values)


def _numbers(rows: Sequence[Row]) -> list[float]:
    numbers = []
    for row in rows:
        text = row.value[1] if row.value is not None else row.values[-1][1] if row.values else "NaN"
        try:
            numbers.append(float(text))
        except ValueError:
            numbers.append(math.nan)
    return numbers


def _absent(reading: Reading, detail: str) -> Reading:
    return msgspec.structs.replace(reading, state=ReadingState.ABSENT, value=None, detail=detail)
