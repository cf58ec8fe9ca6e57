"""One size, whatever the load: a floor beside other policies, a pool under manual control, a baseline to compare with.

Formula: wanted = size, in units of capacity. Source: an ASG's desired capacity. Assumes nothing.
Does not: need telemetry; it holds its size when all signals are gone.
Invariant: the target is always `size`.

Reason codes (facts): `fixed` (size).
"""

import msgspec

from autoscaler.domain.decision import Calendar, Reason, Recommendation, Situation
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Pool


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`size`: units of capacity."""

    size: float

    def __post_init__(self) -> None:
        if not 0 <= self.size < float("inf"):
            raise ValueError(f"size: found {self.size:g}, allowed is a number from 0")


class Fixed:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        self._size = settings.size
        self.name = "fixed"

    def signals(self) -> frozenset[Signal]:
        return frozenset()

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        return Recommendation(target=self._size, reason=Reason(code="fixed", facts={"size": self._size}))


def build(settings: Settings) -> Fixed:
    """The policy of these settings."""
    return Fixed(settings)
