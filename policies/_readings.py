"""What several policies ask of a reading: may it be used, what does it add up to, and what do missing replicas mean.

Does: turn a typed reading into a `Measured` pair of bounds, or into the reason why there is none. Does not: judge trust
(engine.trust does) or choose a size.
Invariant: `low <= high`; they differ only where replicas are missing, which are counted as idle in `low` and as busy in
`high` (the rule of Kubernetes' horizontal pod autoscaler).

Reason codes (facts): `signal_unusable` (signal, why), `signal_quiet` (signal, samples), `signal_absent` (signal, why),
`nothing_in_service` (signal, on_the_way).
"""

import math
from typing import Final

import msgspec

from autoscaler.domain.decision import Reason, Situation
from autoscaler.domain.load import Kind, Reading, ReadingState, Signal

#: Signals that are quantiles of latency: not proportional to size, whatever the telemetry.
LATENCY: Final = frozenset({Signal.TTFT_S_P95, Signal.E2E_S_P95})
#: Signals that cannot pass 1: at the cap a reading is a lower bound of the load.
CAPPED: Final = frozenset({Signal.GPU_UTILIZATION, Signal.KV_CACHE_USE})
#: A capped signal from here on says "at least this much".
CAP: Final = 0.99
# A name of this module is found many times faster than the attribute of an enum, and these are asked for in each tick.
_QUIET: Final = ReadingState.QUIET
_ABSENT: Final = ReadingState.ABSENT
_TOTAL: Final = Kind.TOTAL
_MEAN: Final = Kind.MEAN


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A reading made whole. `value`: as read. `low`, `high`: summed over the units in service, missing idle or busy."""

    value: float
    low: float
    high: float
    missing: int


def reading_of(situation: Situation, signal: Signal) -> Reading | Reason:
    """The reading, if it has a value that trust lets be used; else why not."""
    reading = situation.load.readings.get(signal) if situation.load is not None else None
    if reading is None:
        return Reason(code="signal_absent", facts={"signal": signal, "why": "it was not sampled"})
    if reading.state is _QUIET:
        return Reason(code="signal_quiet", facts={"signal": signal, "samples": reading.samples})
    if signal not in situation.trust.usable:
        return Reason(code="signal_unusable", facts={"signal": signal, "why": situation.trust.why})
    if reading.state is _ABSENT or reading.value is None:
        return Reason(code="signal_absent", facts={"signal": signal, "why": reading.detail or "it could not be read"})
    if not (math.isfinite(reading.value) and reading.value >= 0.0):
        return Reason(code="signal_absent", facts={"signal": signal, "why": f"its value is {reading.value}"})
    if reading.expected > 0 and reading.covered == 0:
        return Reason(code="signal_absent", facts={"signal": signal, "why": "no replica answered"})
    return reading


def whole(reading: Reading, in_service: float, busy: float) -> Measured:
    """The load of all that is in service. `busy`: what a missing replica is taken to have a unit."""
    value = reading.value or 0.0
    answered = 1.0 if reading.expected <= 0 else min(1.0, reading.covered / reading.expected)
    missing_load = busy * in_service * (1.0 - answered)
    if reading.kind is _TOTAL:
        low, high = value, value + missing_load
    elif reading.kind is _MEAN:
        low = value * in_service * answered
        high = low + missing_load
    else:  # the largest, or a quantile: an idle replica does not lower it, a busy one may raise it
        low = value * in_service
        high = low if answered >= 1.0 else max(value, busy) * in_service
    return Measured(value=value, low=low, high=high, missing=max(0, reading.expected - reading.covered))
