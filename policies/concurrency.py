"""Requests inside a unit, with a calm and a quick window: Knative's rule.

    stable = mean of (running + queue_length) over `stable_window` / (target x utilization)
    panic  = the same over `panic_share` of that window, at least the last tick
    panic begins when panic >= panic_threshold x in_service, and ends when that was not so for a whole stable window
    wanted = stable; in panic the largest that was wanted since it began: never less

Units: `target` requests that a unit can hold, sizes in units of capacity. Source: Knative Serving's autoscaler (stable
60 s, panic 10 % of it, threshold 200 %, 70 % of the concurrency of 100). Knative ticks every 2 s: with a tick of 15 s
the panic window is the last reading. Its bounds on a step (up x 1000, down / 2) are left to the engine's pace, and so
is what it does at start (panic if there is more than one replica): no scale-in before a full window.
Assumes: requests fill a unit alike. Long prompts fill one at a batch of five, so `target` fits one mix of lengths.
Does not: bound or pace; the engine does. From nothing held, any load wants at least one unit.
Invariant: more load never lowers the target.

Reason codes (facts): `stable` (inside, target, wanted), `panic` (the same, in_service); and those of `_readings`.
"""

from typing import Final

import msgspec

from autoscaler.domain.base import Duration, Instant
from autoscaler.domain.decision import Calendar, Fact, Reason, Recommendation, Situation
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Pool
from policies._memory import Sample, average, recall, with_sample
from policies._readings import reading_of, whole

_VERSION: Final = 1


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`target`: requests that one unit can hold. `utilization`: share of it to aim at. Windows in seconds."""

    target: float
    utilization: float = 0.7
    stable_window: Duration = Duration(60.0)
    panic_share: float = 0.1
    panic_threshold: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.target < float("inf"):
            raise ValueError(f"target: found {self.target:g}, allowed is a number above 0")
        for field, share in (("utilization", self.utilization), ("panic_share", self.panic_share)):
            if not 0 < share <= 1:
                raise ValueError(f"{field}: found {share:g}, allowed is above 0 and at most 1")
        if not 0 < self.stable_window < float("inf"):
            raise ValueError(f"stable_window: found {self.stable_window:g} s, allowed is above 0")
        if not 1 < self.panic_threshold < float("inf"):
            raise ValueError(f"panic_threshold: found {self.panic_threshold:g}, allowed is a number above 1")


class _Carry(msgspec.Struct, frozen=True, kw_only=True):
    """`panic_at`: when the threshold was last passed, None out of panic. `most`: wanted since panic began."""

    v: int = _VERSION
    samples: tuple[Sample, ...] = ()
    panic_at: Instant | None = None
    most: float = 0.0


_DECODER: Final = msgspec.json.Decoder(_Carry)


class Concurrency:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = "concurrency"

    def signals(self) -> frozenset[Signal]:
        return frozenset({Signal.RUNNING, Signal.QUEUE_LENGTH})

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        settings, capacity, now = self._settings, situation.capacity, situation.now
        inside = missing = 0.0
        for signal in (Signal.RUNNING, Signal.QUEUE_LENGTH):
            reading = reading_of(situation, signal)
            if isinstance(reading, Reason):
                return Recommendation(target=None, reason=reading, carry=carry)
            busy = settings.target * settings.utilization if signal is Signal.RUNNING else 0.0
            measured = whole(reading, capacity.in_service, busy=busy)
            inside, missing = inside + measured.low, missing + measured.high - measured.low
        before = recall(carry, _DECODER, _VERSION) or _Carry()
        samples = with_sample(before.samples, now, inside, settings.stable_window)
        state = self._panic(msgspec.structs.replace(before, samples=samples), situation)
        low = self._units(average(samples, now, settings.stable_window))
        low = max(low, state.most) if state.panic_at is not None else low
        wanted = low if low >= capacity.held else min(capacity.held, low + self._units(missing))
        wanted = max(wanted, 1.0) if capacity.held <= 0 and inside > 0 else wanted
        facts: dict[str, Fact] = {"inside": inside, "target": settings.target, "wanted": wanted}
        code = "stable" if state.panic_at is None else "panic"
        facts |= {} if state.panic_at is None else {"in_service": capacity.in_service}
        reason = Reason(code=code, facts=facts)
        return Recommendation(target=round(wanted, 9), reason=reason, carry=msgspec.json.encode(state).decode())

    def _units(self, inside: float) -> float:
        return inside / (self._settings.target * self._settings.utilization)

    def _panic(self, state: _Carry, situation: Situation) -> _Carry:
        """Begin, keep or end panic."""
        settings, now = self._settings, situation.now
        panic = self._units(average(state.samples, now, Duration(settings.panic_share * settings.stable_window)))
        if panic >= settings.panic_threshold * max(1.0, situation.capacity.in_service):
            return msgspec.structs.replace(state, panic_at=now, most=max(state.most, panic))
        if state.panic_at is None or now - state.panic_at >= settings.stable_window:
            return msgspec.structs.replace(state, panic_at=None, most=0.0)
        return msgspec.structs.replace(state, most=max(state.most, panic))


def build(settings: Settings) -> Concurrency:
    """The policy of these settings."""
    return Concurrency(settings)
