"""The load that a season and a trend foresee for when a cold start ends: a floor beside policies that react.

    wanted = most of the season within [now, now + lead + tick] x headroom / target

- The season is a day's, from the second day on, and a week's, from the second week on, each scaled to the present
  level; before the first day is over it is the trend of the last minutes, drawn on over the lead
  (policies/_history.py).
- The lead is the cold start measured on the pool; before the first it is the pool's launch deadline
  (policies/_lead.py).
- Headroom is the `quantile` of what came over what was expected a lead before (policies/_headroom.py).

A forecast only ever raises the floor: put it beside a policy that reacts, and the highest target holds. It never vetoes
a scale-in, and while it has learned for less than an hour it has no opinion.

Units: `target` is the signal of one unit, sizes in units of capacity. Source: Holt and Winters; ASG's predictive
scaling (it only adds; at least a day of data), Dynamo's planner (a predicted load as the floor).
Assumes: load repeats by the day or week, and the signal adds up over replicas (a TOTAL). Does not: react; bound or
pace.
Invariant: pure, state in `carry` below 16 KiB; a signal that cannot be read is no opinion.

Reason codes (facts): `forecast` (signal, expected, lead_s, headroom, way), `forecast_learning` (signal, minutes); and
those of `_readings`.
"""

import math
from typing import Final

import msgspec

from autoscaler.domain.base import Instant
from autoscaler.domain.decision import Calendar, Fact, Reason, Recommendation, Situation
from autoscaler.domain.load import Kind, Signal
from autoscaler.domain.pool import Pool
from policies._headroom import BELIEF, PLACES, add, quantile
from policies._history import RING_COUNT, SEASON_COUNT, WAYS, History
from policies._lead import Lead, lead_s, watch
from policies._memory import recall
from policies._packing import pack, unpack
from policies._readings import CAPPED, LATENCY, reading_of

_VERSION: Final = 1
_MINUTE_S: Final = 60.0
_DAY_S: Final = 86_400.0
_WEEK_S: Final = 7 * _DAY_S
#: Minutes of expectations that are kept: the longest lead that can be judged.
_PENDING: Final = 42
_LEARNING_MIN: Final = 60
#: A silence of so many seconds: the minute in the making is dropped.
_GAP_S: Final = 600.0
#: Of a unit's target, what is added to both sides of a ratio: a little load is nothing.
_SMALL: Final = 0.25


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`target`: of the signal for one unit. `quantile`: share of the load that shall not lie above the forecast."""

    signal: Signal
    target: float
    quantile: float = 0.9

    def __post_init__(self) -> None:
        if self.signal in LATENCY | CAPPED:
            allowed = ", ".join(sorted(set(Signal) - LATENCY - CAPPED))
            raise ValueError(f"signal: found {self.signal}, which does not add up over replicas; allowed are {allowed}")
        if not 0 < self.target < float("inf"):
            raise ValueError(f"target: found {self.target:g}, allowed is a number above 0")
        if not 0.5 <= self.quantile < 1:
            raise ValueError(f"quantile: found {self.quantile:g}, allowed is from 0.5 to below 1")


class _Carry(msgspec.Struct):
    """`began`, `peak`: of the minute in the making. `scale`: of the table of errors. The texts are packed arrays."""

    v: int = _VERSION
    origin: float = 0.0
    at: float = -1.0
    began: float = 0.0
    peak: float = 0.0
    minutes: int = 0
    lead: Lead = Lead()
    numbers: tuple[float, ...] = ()
    rings: str = ""
    seasons: str = ""
    errors: str = ""
    pending: str = ""
    scale: float = 1.0
    judged: float = 0.0
    expected: float = 0.0
    headroom: float = BELIEF
    way: str = ""


_DECODER: Final = msgspec.json.Decoder(_Carry)


class Forecast:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = f"forecast:{settings.signal}"

    def signals(self) -> frozenset[Signal]:
        return frozenset({self._settings.signal})

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        state, now, signal = recall(carry, _DECODER, _VERSION) or _Carry(), situation.now, self._settings.signal
        state.lead, oldest = watch(state.lead, situation.replicas, now)
        reading = reading_of(situation, signal)
        if not isinstance(reading, Reason) and reading.kind is not Kind.TOTAL:
            reading = Reason(code="signal_unusable", facts={"signal": signal, "why": "it does not add up"})
        if isinstance(reading, Reason):
            return _said(None, reading, state)
        lead = lead_s(state.lead, oldest, pool.pace.launch_deadline, pool.ready.give_up_after) + pool.pace.tick
        _begin(state, now)
        state.at, state.peak = now, max(state.peak, reading.value or 0.0)
        if now - state.began >= _MINUTE_S - 1e-6:
            self._close(state, lead)
        if state.minutes < _LEARNING_MIN:
            facts: dict[str, Fact] = {"signal": signal, "minutes": state.minutes}
            return _said(None, Reason(code="forecast_learning", facts=facts), state)
        facts = {
            "signal": signal, "expected": state.expected, "lead_s": lead, "headroom": state.headroom, "way": state.way,
        }  # fmt: skip
        wanted = state.expected * state.headroom / self._settings.target
        return _said(round(wanted, 6), Reason(code="forecast", facts=facts), state)

    def _close(self, state: _Carry, lead: float) -> None:
        """End a minute: judge what was expected of it, take it in, look ahead."""
        history = History(state.numbers, unpack(state.rings, RING_COUNT), unpack(state.seasons, SEASON_COUNT))
        errors, pending = unpack(state.errors, PLACES), unpack(state.pending, _PENDING)
        small = _SMALL * self._settings.target
        back = min(_PENDING - 1, max(1, math.ceil(lead / _MINUTE_S)))
        if state.minutes >= back:
            ratio = (state.peak + small) / (pending[(state.minutes - back) % _PENDING] + small)
            state.scale = add(errors, 0, state.scale, ratio, max(state.peak, small))
            state.judged += 1.0
            state.headroom = quantile(errors, 0, state.judged, self._settings.quantile)
        age_s = state.began - state.origin
        history.take(age_s, state.peak)
        state.way = "trend" if age_s < _DAY_S else "day_scaled" if age_s < _WEEK_S else "week_scaled"
        state.expected = history.ahead(age_s, lead)[WAYS.index(state.way)]
        pending[state.minutes % _PENDING] = state.expected
        state.minutes += 1
        state.numbers = tuple(history.numbers)
        state.rings, state.seasons = pack(history.rings), pack(history.seasons)
        state.errors, state.pending = pack(errors), pack(pending)
        state.began += _MINUTE_S * max(1, int((state.at - state.began) / _MINUTE_S))
        state.peak = 0.0


def _begin(state: _Carry, now: Instant) -> None:
    """Start, or go on after a gap."""
    if state.at < 0:
        state.origin = now
    if state.at < 0 or not 0 < now - state.at <= _GAP_S:
        state.began, state.peak = now, 0.0


def _said(target: float | None, reason: Reason, state: _Carry) -> Recommendation:
    return Recommendation(target=target, reason=reason, carry=msgspec.json.encode(state).decode())


def build(settings: Settings) -> Forecast:
    """The policy of these settings."""
    return Forecast(settings)
