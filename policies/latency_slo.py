"""Hold a latency objective: step out while load explains the latency, and never go in while it is near the objective.

Latency is not proportional to size: half of it does not need twice the replicas, and a slow prompt, a cold cache or a
bad machine is not cured by more of them. So a breach moves the pool only while the load agrees, and by steps:

    p95 > objective, confirmed       wanted = max(held, in_service + n)   n = step, twice that from 2 x objective on
    p95 > objective, not confirmed   no opinion, and no scale-in
    p95 > veto_below x objective     no opinion, and no scale-in
    else                             no opinion

Confirmed means: one of `confirm` is above its mark, a TOTAL counted a unit in service. What is on its way counts as
the step that it was launched for. A quantile looks back over a window: for that long after capacity came into
service it still holds what was slow before, and does not step again (`carry` keeps the instant).

Units: `objective` in seconds, sizes in units of capacity. Source: Dynamo's planner (out when all estimates are above
the SLA, in only below 80 % of it, one at a time); the marks are stricter than WVA's (queue 5, KV 0.8), since they are
asked only after the objective is broken: a queue of 1 a unit (vLLM admits at once while it has room) and a
utilisation of 0.7 (Clusterman's and Knative's set point).
Assumes: the signal is a quantile of what clients wait for. Does not: bound or pace; ask for less.
Invariant: it never asks for less than is held, and never for more than 2 x step beyond what is in service.

Reason codes (facts): `slo_breach` (signal, value, objective, by, at, above, add, held), `slo_breach_waits` (the same,
on_the_way), `slo_breach_settling` (signal, value, objective, wait_s), `slo_breach_unconfirmed` (signal, value,
objective), `slo_near` (the same), `slo_kept` (the same); and those of `_readings`.
"""

from typing import Final

import msgspec

from autoscaler.domain.base import Duration, Instant
from autoscaler.domain.decision import Calendar, Capacity, Fact, Reason, Recommendation, Situation
from autoscaler.domain.load import Kind, Reading, Signal
from autoscaler.domain.pool import Pool
from policies._readings import LATENCY, reading_of

#: From this many times the objective on, the step is doubled.
_FAR = 2.0


class Confirm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signal that must be above its mark; a TOTAL a unit in service."""

    signal: Signal
    above: float


DEFAULT_CONFIRM: Final = (
    Confirm(signal=Signal.QUEUE_LENGTH, above=1.0),
    Confirm(signal=Signal.GPU_UTILIZATION, above=0.7),
)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`objective`: seconds. `step`: units. `veto_below`: share of the objective from which on nothing goes in."""

    signal: Signal
    objective: Duration
    confirm: tuple[Confirm, ...] = DEFAULT_CONFIRM
    step: float = 1.0
    veto_below: float = 0.8

    def __post_init__(self) -> None:
        if self.signal not in LATENCY:
            allowed = ", ".join(sorted(LATENCY))
            raise ValueError(f"signal: found {self.signal}, allowed are {allowed}: use target_tracking for the others")
        if not 0 < self.objective < float("inf"):
            raise ValueError(f"objective: found {self.objective:g} s, allowed is above 0")
        if not 0 < self.step < float("inf"):
            raise ValueError(f"step: found {self.step:g}, allowed is a number above 0")
        if not 0 < self.veto_below <= 1:
            raise ValueError(f"veto_below: found {self.veto_below:g}, allowed is above 0 and at most 1")
        if not self.confirm:
            raise ValueError("confirm: found none, needed is a signal of load: latency alone must not buy machines")
        for confirm in self.confirm:
            if confirm.signal in LATENCY:
                raise ValueError(f"confirm: {confirm.signal} is a latency too, needed is a signal of load")
            if not 0 <= confirm.above < float("inf"):
                raise ValueError(f"confirm: {confirm.signal}: found {confirm.above:g}, allowed is a number from 0")


class _Carry(msgspec.Struct, frozen=True, kw_only=True):
    """`joined_at`: when capacity last came into service; `in_service`: how much there was at the last look."""

    v: int = 1
    in_service: float | None = None
    joined_at: Instant | None = None


class LatencySlo:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = f"latency_slo:{settings.signal}"

    def signals(self) -> frozenset[Signal]:
        return frozenset({self._settings.signal, *(confirm.signal for confirm in self._settings.confirm)})

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        memory = _remember(carry, situation)
        target, reason, veto = self._judge(situation, memory)
        return Recommendation(target=target, reason=reason, veto_in=veto, carry=msgspec.json.encode(memory).decode())

    def _judge(self, situation: Situation, memory: _Carry) -> tuple[float | None, Reason, bool]:
        settings, capacity = self._settings, situation.capacity
        reading = reading_of(situation, settings.signal)
        if isinstance(reading, Reason):
            return None, reading, False
        value = reading.value or 0.0
        facts: dict[str, Fact] = {"signal": settings.signal, "value": value, "objective": settings.objective}
        if value <= settings.objective:
            near = value > settings.veto_below * settings.objective
            return None, Reason(code="slo_near" if near else "slo_kept", facts=facts), near
        confirmed = self._confirmed(situation)
        if confirmed is None:
            return None, Reason(code="slo_breach_unconfirmed", facts=facts), True
        wait_s = _settling_s(reading, memory)
        if wait_s > 0:
            return capacity.held, Reason(code="slo_breach_settling", facts={**facts, "wait_s": wait_s}), True
        add = settings.step * (2.0 if value >= _FAR * settings.objective else 1.0)
        facts = {**facts, **confirmed, "add": add, "held": capacity.held}
        return _step(capacity, add, facts)

    def _confirmed(self, situation: Situation) -> dict[str, Fact] | None:
        """The first signal of load that agrees, or nothing."""
        for confirm in self._settings.confirm:
            reading = reading_of(situation, confirm.signal)
            if isinstance(reading, Reason):
                continue
            value = reading.value or 0.0
            if reading.kind is Kind.TOTAL:
                value /= situation.capacity.in_service or 1.0
            if value > confirm.above:
                return {"by": confirm.signal, "at": value, "above": confirm.above}
        return None


def _step(capacity: Capacity, add: float, facts: dict[str, Fact]) -> tuple[float, Reason, bool]:
    target = capacity.in_service + add
    if target <= capacity.held:
        waits = {**facts, "on_the_way": capacity.on_the_way}
        return capacity.held, Reason(code="slo_breach_waits", facts=waits), True
    return target, Reason(code="slo_breach", facts=facts), True


def _remember(carry: str, situation: Situation) -> _Carry:
    """What is carried on: a carry of another version, or a broken one, is as none."""
    try:
        before = msgspec.json.decode(carry, type=_Carry) if carry else _Carry()
    except msgspec.DecodeError:
        before = _Carry()
    before = before if before.v == 1 else _Carry()
    in_service = situation.capacity.in_service
    joined = before.in_service is not None and in_service > before.in_service
    return _Carry(in_service=in_service, joined_at=situation.now if joined else before.joined_at)


def _settling_s(reading: Reading, memory: _Carry) -> float:
    """Seconds until the window of the quantile lies wholly after the last capacity that came."""
    if memory.joined_at is None:
        return 0.0
    return memory.joined_at - (reading.at - reading.window)


def build(settings: Settings) -> LatencySlo:
    """The policy of these settings."""
    return LatencySlo(settings)
