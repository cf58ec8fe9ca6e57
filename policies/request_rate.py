"""So many requests a second a unit: the plain rule that most people begin with.

    wanted = mean of request_rate over `window` / per_replica

Units: `per_replica` requests a second a unit of capacity, sizes in units. Source: SkyServe's request rate autoscaler
(requests in a window of 60 s / window / target_qps_per_replica); it waits for agreeing turns, here the engine does.
Assumes: requests cost alike. They do not where prompts are long: the same rate may be ten times the work; `slo` counts
tokens. Where a server counts only completions, what waits inside is not seen: put a queue beside it.
Does not: bound, pace or smooth further; the engine does. From nothing held, any rate wants at least one unit.
Invariant: more load never lowers the target.

Reason codes (facts): `request_rate` (rate, per_replica, wanted, window_s); and those of `_readings`.
"""

from typing import Final

import msgspec

from autoscaler.domain.base import Duration
from autoscaler.domain.decision import Calendar, Fact, Reason, Recommendation, Situation
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Pool
from policies._memory import Sample, average, recall, with_sample
from policies._readings import reading_of, whole

_VERSION: Final = 1


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`per_replica`: requests a second that one unit shall have. `window`: seconds over which the rate is averaged."""

    per_replica: float
    window: Duration = Duration(60.0)

    def __post_init__(self) -> None:
        if not 0 < self.per_replica < float("inf"):
            raise ValueError(f"per_replica: found {self.per_replica:g}, allowed is a number above 0")
        if not 0 < self.window < float("inf"):
            raise ValueError(f"window: found {self.window:g} s, allowed is above 0")


class _Carry(msgspec.Struct, frozen=True, kw_only=True):
    v: int = _VERSION
    samples: tuple[Sample, ...] = ()


_DECODER: Final = msgspec.json.Decoder(_Carry)


class RequestRate:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = "request_rate"

    def signals(self) -> frozenset[Signal]:
        return frozenset({Signal.REQUEST_RATE})

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        settings = self._settings
        reading = reading_of(situation, Signal.REQUEST_RATE)
        if isinstance(reading, Reason):
            return Recommendation(target=None, reason=reading, carry=carry)
        measured = whole(reading, situation.capacity.in_service, busy=settings.per_replica)
        before = recall(carry, _DECODER, _VERSION) or _Carry()
        samples = with_sample(before.samples, situation.now, measured.low, settings.window)
        rate = average(samples, situation.now, settings.window)
        # Replicas that did not answer are idle on the way up and busy on the way down, as everywhere.
        low, held = rate / settings.per_replica, situation.capacity.held
        missing = (measured.high - measured.low) / settings.per_replica
        wanted = low if low >= held else min(held, low + missing)
        wanted = max(wanted, 1.0) if held <= 0 and rate > 0 else wanted
        facts: dict[str, Fact] = {
            "rate": rate,
            "per_replica": settings.per_replica,
            "wanted": wanted,
            "window_s": settings.window,
        }
        kept = msgspec.json.encode(_Carry(samples=samples)).decode()
        return Recommendation(target=round(wanted, 9), reason=Reason(code="request_rate", facts=facts), carry=kept)


def build(settings: Settings) -> RequestRate:
    """The policy of these settings."""
    return RequestRate(settings)
