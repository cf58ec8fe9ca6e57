"""Keep a signal at its target: the size is proportional to the load.

Formula, in units of capacity:

    wanted = value / target                  a TOTAL: queue_length, running, request_rate (1/s), token_rate (1/s)
    wanted = in_service x value / target     a MEAN or MAX: gpu_utilization, kv_cache_use (0 to 1)

`target` is what one unit shall have. `wanted` is compared with `held`, which counts capacity on its way: a burst that
asked for three replicas is not answered again while they load. Within `tolerance` of held it stays there. Replicas
that did not answer count as idle on the way up and as busy (at the target) on the way down; where the direction
depends on them, the size is held. From nothing held, any load wants at least one unit. A utilisation cannot pass 1,
so a full pool asks for at most 1 / target of what is in service (x 1.33 at 0.75) a step, and at its cap (0.99) it is
a lower bound of the load and no reason to go below what is held: give it a queue beside it.

Source: Kubernetes' HPA (desired = cur x value / target, tolerance 0.1, missing pods), Nomad's target-value.
Assumes: load spreads over what is in service, and more of it raises the signal.
Does not: bound, pace or smooth; the engine does. Latency is refused: `latency_slo` knows that it is not proportional.
Invariant: more load never lowers the target.

Reason codes (facts): `above_target`, `below_target`, `within_tolerance` (signal, value, target, wanted, held),
`missing_replicas` (the same, missing), `at_cap` (the same), `load_from_zero` (signal, value); and those of `_readings`.
"""

import msgspec

from autoscaler.domain.decision import Calendar, Fact, Reason, Recommendation, Situation
from autoscaler.domain.load import Kind, Reading, Signal
from autoscaler.domain.pool import Pool
from policies._readings import CAP, CAPPED, LATENCY, reading_of, whole


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`target`: of the signal for one unit, in the signal's unit. `tolerance`: share of held that is left alone."""

    signal: Signal
    target: float
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        if self.signal in LATENCY:
            raise ValueError(f"signal: {self.signal} is a latency, which is not proportional to size: use latency_slo")
        if not 0 < self.target < float("inf"):
            raise ValueError(f"target: found {self.target:g}, allowed is a number above 0")
        if self.signal in CAPPED and self.target > 1:
            raise ValueError(f"target: found {self.target:g}, allowed for {self.signal} is above 0 and at most 1")
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance: found {self.tolerance:g}, allowed is from 0 to below 1")


class TargetTracking:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = f"target_tracking:{settings.signal}"

    def signals(self) -> frozenset[Signal]:
        return frozenset({self._settings.signal})

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        reading = reading_of(situation, self._settings.signal)
        if isinstance(reading, Reason):
            return Recommendation(target=None, reason=reading)
        if reading.kind is Kind.QUANTILE:
            facts: dict[str, Fact] = {"signal": reading.signal, "why": "a quantile is not proportional to size"}
            return Recommendation(target=None, reason=Reason(code="signal_unusable", facts=facts))
        if situation.capacity.held <= 0:
            return self._from_zero(reading)
        return self._proportional(reading, situation)

    def _from_zero(self, reading: Reading) -> Recommendation:
        value = reading.value or 0.0
        wanted = _units(value / self._settings.target) if reading.kind is Kind.TOTAL else value
        target = max(1.0, wanted) if value > 0 else 0.0
        facts: dict[str, Fact] = {"signal": reading.signal, "value": value}
        return Recommendation(target=target, reason=Reason(code="load_from_zero", facts=facts))

    def _proportional(self, reading: Reading, situation: Situation) -> Recommendation:
        settings, held, in_service = self._settings, situation.capacity.held, situation.capacity.in_service
        if in_service <= 0 and reading.kind is not Kind.TOTAL:
            facts: dict[str, Fact] = {"signal": reading.signal, "on_the_way": situation.capacity.on_the_way}
            return Recommendation(target=None, reason=Reason(code="nothing_in_service", facts=facts))
        measured = whole(reading, in_service, busy=settings.target)
        low, high = _units(measured.low / settings.target), _units(measured.high / settings.target)
        value = measured.value
        facts = {"signal": reading.signal, "value": value, "target": settings.target, "wanted": low, "held": held}
        if low > held * (1 + settings.tolerance):
            return Recommendation(target=low, reason=Reason(code="above_target", facts=facts))
        if high >= held * (1 - settings.tolerance):
            would_go_in = low < held * (1 - settings.tolerance)
            code = "missing_replicas" if would_go_in else "within_tolerance"
            facts = {**facts, "missing": measured.missing} if would_go_in else facts
            return Recommendation(target=held, reason=Reason(code=code, facts=facts))
        if reading.signal in CAPPED and value >= CAP:
            return Recommendation(target=held, reason=Reason(code="at_cap", facts=facts))
        return Recommendation(target=high, reason=Reason(code="below_target", facts={**facts, "wanted": high}))


def _units(wanted: float) -> float:
    """Without the last bits: 3.0000000000000004 must not be rounded up to 4."""
    return round(wanted, 9)


def build(settings: Settings) -> TargetTracking:
    """The policy of these settings."""
    return TargetTracking(settings)
