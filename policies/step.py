"""Steps: so much load a unit adds so many units, little load takes some away.

Formula, in units of capacity; x is the load a unit in service (a TOTAL divided by it, a MEAN, MAX or quantile as read):

    x >= at_least     wanted = max(held, in_service + add)     the highest step that applies
    x <  below        wanted = held - remove, at least 1 while there is load
    else              wanted = held

What is on its way for a step counts as that step: it is not added again each tick. After `remove` units are gone the
same load makes x larger by n / (n - remove), at worst (remove + 1) times; a pair of thresholds closer than that would
flap between two sizes, and is refused when it is built (Azure's VMSS checks the same at run time). Replicas that did
not answer count as idle for a step out and as at the lowest step for the way in.

Source: ASG step scaling, Azure VMSS rules. Assumes: the load stays when the size changes, and spreads evenly.
Does not: bound, pace or smooth; the engine does. A latency may add, never remove: it does not say what fewer would do.
Invariant: more load never lowers the target.

Reason codes (facts): `step_out` (signal, value, at_least, add, held), `step_waits` (the same, on_the_way),
`step_in` (signal, value, below, remove, held), `between_steps` (signal, value, held); and those of `_readings`.
"""

from itertools import pairwise

import msgspec

from autoscaler.domain.decision import Calendar, Fact, Reason, Recommendation, Situation
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Pool
from policies._readings import LATENCY, reading_of, whole


class StepOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From `at_least` (the signal a unit) on, `add` units."""

    at_least: float
    add: float


class StepIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Below `below` (the signal a unit), `remove` units."""

    below: float
    remove: float = 1.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`steps` ascend in both numbers. `scale_in` left out: it never asks for less than is held."""

    signal: Signal
    steps: tuple[StepOut, ...]
    scale_in: StepIn | None = None

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("steps: found none, needed is at least one {at_least, add}")
        for step in self.steps:
            if not (0 < step.at_least < float("inf") and 0 < step.add < float("inf")):
                raise ValueError(f"steps: found {step.at_least:g}, {step.add:g}, allowed are numbers above 0")
        for lower, upper in pairwise(self.steps):
            if not (lower.at_least < upper.at_least and lower.add <= upper.add):
                found = f"{lower.at_least:g} adds {lower.add:g} before {upper.at_least:g} adds {upper.add:g}"
                raise ValueError(f"steps: found {found}, allowed is that more load adds no less, in rising order")
        if self.scale_in is not None:
            _check_way_in(self.signal, self.steps[0], self.scale_in)


def _check_way_in(signal: Signal, lowest: StepOut, way_in: StepIn) -> None:
    if signal in LATENCY:
        raise ValueError(f"scale_in: {signal} is a latency and does not say what fewer replicas would do: leave it out")
    if not (way_in.below > 0 and way_in.remove > 0):
        raise ValueError(f"scale_in: found {way_in.below:g}, {way_in.remove:g}, allowed are numbers above 0")
    highest = lowest.at_least / (way_in.remove + 1.0)
    if way_in.below > highest:
        raise ValueError(
            f"scale_in.below: found {way_in.below:g}, allowed is at most {highest:g}: with {way_in.remove:g} fewer the "
            f"same load could reach the step at {lowest.at_least:g}, and the pool would flap"
        )


class Step:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = f"step:{settings.signal}"

    def signals(self) -> frozenset[Signal]:
        return frozenset({self._settings.signal})

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        settings, capacity = self._settings, situation.capacity
        reading = reading_of(situation, settings.signal)
        if isinstance(reading, Reason):
            return Recommendation(target=None, reason=reading)
        held = capacity.held
        if capacity.in_service <= 0 and held > 0:
            facts: dict[str, Fact] = {"signal": settings.signal, "on_the_way": capacity.on_the_way}
            return Recommendation(target=None, reason=Reason(code="nothing_in_service", facts=facts))
        # With nothing there at all, the whole load is what the first unit would have.
        units = capacity.in_service or 1.0
        measured = whole(reading, units, busy=settings.steps[0].at_least)
        low, high = measured.low / units, measured.high / units
        facts = {"signal": settings.signal, "value": low, "held": held}
        reached = [step for step in settings.steps if low >= step.at_least]
        if reached:
            return self._out(reached[-1], capacity.in_service, held, facts)
        way_in = settings.scale_in
        if way_in is not None and high < way_in.below:
            floor = 1.0 if measured.value > 0 else 0.0
            target = min(held, max(floor, held - way_in.remove)) if held > 0 else floor
            facts = {**facts, "below": way_in.below, "remove": way_in.remove}
            return Recommendation(target=target, reason=Reason(code="step_in", facts=facts))
        target = held if held > 0 or measured.value <= 0 else 1.0
        return Recommendation(target=target, reason=Reason(code="between_steps", facts=facts))

    @staticmethod
    def _out(step: StepOut, in_service: float, held: float, facts: dict[str, Fact]) -> Recommendation:
        facts = {**facts, "at_least": step.at_least, "add": step.add}
        target = in_service + step.add
        if target <= held:
            facts = {**facts, "on_the_way": held - in_service}
            return Recommendation(target=held, reason=Reason(code="step_waits", facts=facts))
        return Recommendation(target=target, reason=Reason(code="step_out", facts=facts))


def build(settings: Settings) -> Step:
    """The policy of these settings."""
    return Step(settings)
