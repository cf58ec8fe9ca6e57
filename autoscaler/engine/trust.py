"""The telemetry verdict of a tick: what readings may cause (law 5).

Does: turn age, coverage, absence and suspicious zeros into one Trust and the set of usable signals.
Does not: look at values beyond zero, or choose a size.
Invariant: blind, stale, failing or partial telemetry never allows a scale-in.
"""

from __future__ import annotations

import math
from typing import Final

from autoscaler.domain.base import Duration, Instant, elapsed
from autoscaler.domain.decision import Observation
from autoscaler.domain.load import Idleness, Kind, LoadSample, Reading, ReadingState, Signal, Trust, TrustVerdict
from autoscaler.domain.pool import Pool

#: Share of the replicas in service that must have answered for a scale-in to be thinkable.
COVERAGE_MIN: Final = 0.9

# A name of this module is found many times faster than the attribute of an enum, and these are asked for in each tick.
_OK: Final = ReadingState.OK
_ABSENT: Final = ReadingState.ABSENT
_QUANTILE: Final = Kind.QUANTILE
_TRUST: Final = Trust.TRUST


def judge(
    pool: Pool, observation: Observation, needed: frozenset[Signal], serving: int, blind_since: Instant | None
) -> TrustVerdict:
    """One verdict a tick. `needed`: signals that the policies read; `serving`: replicas in service."""
    if not needed:
        return TrustVerdict(level=Trust.TRUST, why="no policy needs telemetry")
    now, sample = observation.now, observation.load
    found = [] if sample is None else [sample.readings[one] for one in sorted(needed) if one in sample.readings]
    flaws = {one.signal: flaw for one in found if (flaw := _flaw(pool, now, one))}
    trouble = _blindness(pool, observation, found, flaws)
    if serving == 0:
        return _nothing_serves([] if trouble else found, flaws, blind_since)
    if trouble or sample is None:
        since = now if blind_since is None else blind_since
        return _blind(pool, now, since, trouble or "telemetry gave no sample")
    return _partial(sample, found, flaws, needed, serving)


def _nothing_serves(readings: list[Reading], flaws: dict[Signal, str], blind_since: Instant | None) -> TrustVerdict:
    """With nothing in service only a source outside the replicas can know of load: it may wake the pool."""
    usable = frozenset(one.signal for one in readings if one.value and one.signal not in flaws)
    if usable:
        return TrustVerdict(level=Trust.UP_ONLY, why="nothing is in service yet", usable=usable)
    why = "nothing is in service yet, so there is nothing to measure"
    return TrustVerdict(level=Trust.HOLD, why=why, blind_since=blind_since)


def _blindness(pool: Pool, observation: Observation, readings: list[Reading], flaws: dict[Signal, str]) -> str:
    """Why telemetry as a whole says nothing; empty when it says something."""
    sample = observation.load
    if sample is None:
        said = [one.fault.detail for one in observation.faults if one.source == "telemetry"]
        return f"telemetry failed: {said[0]}" if said else "telemetry gave no sample"
    age = elapsed(sample.at, observation.now)
    if age > pool.pace.stale_after:
        return f"telemetry is {age:.0f} s old (stale after {pool.pace.stale_after:.0f} s)"
    if len(flaws) == len(readings):
        return f"no signal could be read: {next(iter(flaws.values()), 'none was sampled')}"
    return _outage_of_zeros(readings, sample.idleness)


def _outage_of_zeros(readings: list[Reading], idleness: Idleness) -> str:
    """All zero is idle only when the families are there, no counter went back, and no arrival is unaccounted for."""
    values = [one.value for one in readings if one.state is _OK and one.kind is not _QUANTILE]
    if not values or any(values):
        return ""
    if not idleness.families_present:
        return "every value is 0 and metric families are missing: an outage of the source, not an idle pool"
    if idleness.counter_went_back:
        return "every value is 0 and a counter went back: an outage of the source, not an idle pool"
    arrived, completed = idleness.arrivals, idleness.completions
    if arrived is not None and completed is not None and arrived > completed:
        return f"every value is 0 yet {arrived - completed:.0f} requests arrived that never ended: an outage"
    return ""


def _blind(pool: Pool, now: Instant, since: Instant, why: str) -> TrustVerdict:
    dark: Duration = elapsed(since, now)
    if pool.bounds.fallback is not None and dark >= pool.pace.fallback_after:
        level, why = Trust.FALLBACK, f"{why}; blind for {dark:.0f} s"
    else:
        level = Trust.HOLD
    return TrustVerdict(level=level, why=why, blind_since=since)


def _flaw(pool: Pool, now: Instant, reading: Reading) -> str:
    """Why a reading cannot be used; empty when it can, or when it is only quiet."""
    if reading.state is _ABSENT:
        return reading.detail or "no detail"
    age = elapsed(reading.at, now)
    if age > pool.pace.stale_after:
        return f"{reading.signal.value} is {age:.0f} s old"
    if reading.state is _OK and not (reading.value is not None and 0 <= reading.value < math.inf):
        return f"{reading.signal.value} is {reading.value}"
    return ""


def _partial(
    sample: LoadSample, readings: list[Reading], flaws: dict[Signal, str], needed: frozenset[Signal], serving: int
) -> TrustVerdict:
    """Something is known: all of it allows both directions, a part only the way up."""
    usable = frozenset([one.signal for one in readings if one.state is _OK and one.signal not in flaws])
    if flaws or len(readings) < len(needed):
        failed = sorted(flaws.keys() | (needed - sample.readings.keys()))
        return TrustVerdict(level=Trust.UP_ONLY, why=f"not readable: {', '.join(failed)}", usable=usable)
    # A source that expects fewer replicas than serve has not heard of some: they are missing too.
    thin = [one for one in readings if one.expected and one.covered < COVERAGE_MIN * max(one.expected, serving)]
    if thin:
        worst = min(thin, key=lambda one: (one.covered / max(one.expected, serving), one.signal.value))
        why = f"{worst.signal.value} covers {worst.covered} of {max(worst.expected, serving)} replicas"
        return TrustVerdict(level=Trust.UP_ONLY, why=why, usable=usable)
    if sample.partial:
        return TrustVerdict(level=Trust.UP_ONLY, why=f"the answer may be partial: {sample.partial}", usable=usable)
    return TrustVerdict(level=_TRUST, why="all signals read, fresh and complete", usable=usable)
