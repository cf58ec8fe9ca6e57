"""From looks at replicas to readings of a pool.

Does: add up, average and merge, and say what is missing and why. Does not: fetch or keep anything.
Invariant: a replica that did not answer, or whose page lacks the family, is not covered and adds nothing, not even 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from autoscaler.domain.base import Duration, Instant, ReplicaId
from autoscaler.domain.load import QUANTILE_SAMPLES_MIN, Idleness, Kind, Reading, ReadingState, ReplicaLoad, Signal
from providers._shared.buckets import merged, quantile
from providers._shared.looks import ARRIVALS, COMPLETIONS, E2E, PROMPT_TOKENS, TOKENS, TTFT, Look
from providers._shared.meter import Growth, Meter
from providers._shared.presets import Preset

KINDS: Final = {
    Signal.QUEUE_LENGTH: Kind.TOTAL,
    Signal.RUNNING: Kind.TOTAL,
    Signal.GPU_UTILIZATION: Kind.MEAN,
    Signal.KV_CACHE_USE: Kind.MEAN,
    Signal.TTFT_S_P95: Kind.QUANTILE,
    Signal.E2E_S_P95: Kind.QUANTILE,
    Signal.REQUEST_RATE: Kind.TOTAL,
    Signal.TOKEN_RATE: Kind.TOTAL,
    Signal.INPUT_TOKEN_RATE: Kind.TOTAL,
}
_QUANTILES: Final = {Signal.TTFT_S_P95: TTFT, Signal.E2E_S_P95: E2E}
_RATES: Final = {Signal.TOKEN_RATE: TOKENS, Signal.INPUT_TOKEN_RATE: PROMPT_TOKENS}
_SHARE: Final = 0.95
_SHOWN: Final = 3


class Looks(msgspec.Struct, frozen=True, kw_only=True):
    """All looks of one sample, with each replica's counters over time.

    `source`: who looked. `went_back`: a counter started again.
    """

    preset: Preset
    at: Instant
    looks: Sequence[Look]
    meters: Mapping[ReplicaId, Meter]
    source: str
    went_back: bool = False

    @property
    def answered(self) -> list[Look]:
        """Those that said something."""
        return [look for look in self.looks if not look.fault]


def reading_of(signal: Signal, seen: Looks) -> Reading:
    """One signal over all replicas."""
    if not seen.looks:
        return _absent(signal, seen, "no replica to ask")
    if not seen.answered:
        return _absent(signal, seen, f"no replica answered: {faults_of(seen.looks)}")
    if signal in _QUANTILES:
        return _quantile(signal, seen)
    if signal is Signal.REQUEST_RATE or signal in _RATES:
        return _rate(signal, seen)
    return _instant(signal, seen)


def replica_loads(seen: Looks) -> dict[ReplicaId, ReplicaLoad]:
    """Requests inside each replica that answered."""
    return {
        look.replica: ReplicaLoad(running=look.gauges.get(Signal.RUNNING), waiting=look.gauges.get(Signal.QUEUE_LENGTH))
        for look in seen.answered
    }


def idleness_of(signals: frozenset[Signal], seen: Looks) -> Idleness:
    """What is needed to believe a zero: over the window, and over the replicas that answered.

    `completions` may exceed `arrivals`: requests that were inside when the window began have ended in it.
    """
    present = bool(seen.answered) and all(
        _has_family(signal, look, seen) for signal in signals for look in seen.answered
    )
    return Idleness(
        families_present=present,
        counter_went_back=seen.went_back,
        arrivals=_grown(ARRIVALS, seen) if seen.preset.arrivals else None,
        completions=_grown(COMPLETIONS, seen) if seen.preset.completions else None,
    )


def _has_family(signal: Signal, look: Look, seen: Looks) -> bool:
    family = _family(signal, seen.preset)
    return signal in look.gauges if family is None else family in look.counters


def _family(signal: Signal, preset: Preset) -> str | None:
    """The counter behind a signal; None for a signal that is a gauge. Arrivals are load, completions its echo."""
    if signal is Signal.REQUEST_RATE:
        return ARRIVALS if preset.arrivals else COMPLETIONS
    return _RATES.get(signal) or _QUANTILES.get(signal)


def _growths(family: str, seen: Looks) -> list[tuple[Look, Growth]]:
    pairs = [(look, seen.meters[look.replica].growth(family)) for look in seen.answered if family in look.counters]
    return [(look, growth) for look, growth in pairs if growth is not None]


def _grown(family: str, seen: Looks) -> float | None:
    growths = _growths(family, seen)
    return math.fsum(growth.buckets[math.inf] for _, growth in growths) if growths else None


def _instant(signal: Signal, seen: Looks) -> Reading:
    values = [(look, look.gauges[signal]) for look in seen.answered if signal in look.gauges]
    if not values:
        return _absent(signal, seen, _not_exported(signal, seen))
    value = math.fsum(value for _, value in values)
    return _ok(signal, seen, [look for look, _ in values], value / len(values) if KINDS[signal] is Kind.MEAN else value)


def _rate(signal: Signal, seen: Looks) -> Reading:
    family = _family(signal, seen.preset) or TOKENS
    growths = _growths(family, seen)
    if not growths:
        return _absent(signal, seen, _no_growth(signal, family, seen))
    # Each replica over its own time: one that came half a window ago is not diluted by the time before.
    rate = math.fsum(growth.buckets[math.inf] / growth.over for _, growth in growths)
    reading = _ok(signal, seen, [look for look, _ in growths], rate)
    return msgspec.structs.replace(reading, window=_window(growths))


def _quantile(signal: Signal, seen: Looks) -> Reading:
    family = _QUANTILES[signal]
    growths = _growths(family, seen)
    if not growths:
        return _absent(signal, seen, _no_growth(signal, family, seen))
    buckets = merged([growth.buckets for _, growth in growths])
    samples = round(buckets.get(math.inf, 0.0))
    found = quantile(buckets, _SHARE)
    covered = [look for look, _ in growths]
    if samples >= QUANTILE_SAMPLES_MIN and found is None:
        return _absent(signal, seen, "the replicas' histograms have no bucket edge in common")
    quiet = samples < QUANTILE_SAMPLES_MIN or found is None
    value, detail = (None, f"{samples} samples, {QUANTILE_SAMPLES_MIN} are needed") if quiet or found is None else found
    reading = _ok(signal, seen, covered, value)
    return msgspec.structs.replace(
        reading,
        state=ReadingState.QUIET if quiet else ReadingState.OK,
        samples=samples,
        window=_window(growths),
        detail="; ".join(filter(None, (detail, reading.detail))),
    )


def _ok(signal: Signal, seen: Looks, covered: Sequence[Look], value: float | None) -> Reading:
    covering = {look.replica for look in covered}
    missing = [look for look in seen.looks if look.replica not in covering]
    return Reading(
        signal=signal,
        kind=KINDS[signal],
        state=ReadingState.OK,
        at=max(look.at for look in covered),
        value=value,
        covered=len(covered),
        expected=len(seen.looks),
        source=seen.source,
        detail=f"not covered: {faults_of(missing)}" if missing else "",
    )


def _absent(signal: Signal, seen: Looks, detail: str) -> Reading:
    return Reading(
        signal=signal,
        kind=KINDS[signal],
        state=ReadingState.ABSENT,
        at=seen.at,
        expected=len(seen.looks),
        source=seen.source,
        detail=detail,
    )


def _window(growths: Sequence[tuple[Look, Growth]]) -> Duration:
    return Duration(max(growth.over for _, growth in growths))


def _no_growth(signal: Signal, family: str, seen: Looks) -> str:
    if any(family in look.counters for look in seen.answered):
        return "seen once only: a second look is needed to compare"
    return _not_exported(signal, seen)


def _not_exported(signal: Signal, seen: Looks) -> str:
    faults = {look.gpu_fault for look in seen.answered if look.gpu_fault and signal is Signal.GPU_UTILIZATION}
    why = f": {min(faults)}" if faults else ""
    return f"{signal} is not exported by these {seen.preset.name} servers, or has no usable value{why}"


def faults_of(looks: Sequence[Look]) -> str:
    """Why these say nothing, replicas with one and the same reason together; the first few of many."""
    by_fault: dict[str, list[ReplicaId]] = {}
    for look in looks:
        by_fault.setdefault(look.fault or "no such value", []).append(look.replica)
    shown = [f"{_some(names)}: {fault}" for fault, names in list(by_fault.items())[:_SHOWN]]
    left = sum(len(names) for names in list(by_fault.values())[_SHOWN:])
    return ", ".join(shown) + (f" and {left} more" if left else "")


def _some(names: Sequence[ReplicaId]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
