"""What happens once a minute: everything that is learned, and what is expected for the minutes ahead.

Does: close a minute: costs, errors, seasons, what a unit bears, how much risk is left. Does not: read telemetry.
Invariant: a minute is closed once; state stays bounded.
"""

import math
from array import array
from typing import Final

import msgspec

from policies._headroom import PLACES
from policies._history import RING_COUNT, SEASON_COUNT, WAYS, History
from policies._packing import pack, unpack
from policies.slo import capacity
from policies.slo.judge import COUNT, SUMS, Judge
from policies.slo.state import Hold, Minute, Missed, State, Tables
from policies.slo.work import Row, learn

MINUTE_S: Final = 60.0
#: Minutes of expectations that are kept: the longest lead that can be judged.
_PENDING: Final = 42
#: Minutes between two times that headrooms and bearable loads are worked out anew; every minute in the first half hour.
_SELDOM: Final = 5
_YOUNG: Final = 30
#: Of what may be missed, the share that is aimed at; and of a bad tick's requests, the share taken to have missed.
_AIM: Final = 0.4
_BAD_SHARE: Final = 0.5
#: Headroom covers a share 1 - exp(-x) of the work: x with nothing missed, and what it grows by with all of the aim.
_RISK_LEAST, _RISK_STEP, _RISK_MOST = 2.2, 1.2, 6.0
#: A fall of the last minutes below this share of the last half hour is abrupt; for so long the load may come back at
#: once.
_FALL, _BACK, _HOLD_S = 0.3, 0.6, 3600.0
#: Headroom on what is held.
_HOLD_MORE: Final = 1.2

_DECODER: Final = msgspec.json.Decoder(Tables)
_ENCODER: Final = msgspec.json.Encoder()


def close(state: State, probability: float, lead_s: float, held_s: float) -> None:
    """End the minute of `state`. `lead_s`: a cold start and a tick; `held_s`: how long the pool keeps what it has."""
    minute = state.minute
    _learn_requests(state, minute.row)
    state.row.add(minute.row)
    if state.minutes % _SELDOM == _SELDOM - 1:
        state.costs = learn(state.costs, state.row)
        state.row = Row()
    requests = minute.row.requests / minute.row.ticks
    bad = sum(1 for place in minute.seen if place >= capacity.PLACES) / max(1, len(minute.seen))
    state.missed.add(requests, _BAD_SHARE * max(0.0, bad - state.unavoidable))
    state.level = _level(state, probability)
    tables = _tables(state)
    _look_ahead(state, tables, lead_s, held_s)
    _count_loads(state, tables)
    state.tables = msgspec.Raw(_ENCODER.encode(tables))
    state.minutes += 1
    passed = max(1, int((state.at - minute.began) / MINUTE_S))
    state.minute = Minute(began=minute.began + MINUTE_S * passed)


def _tables(state: State) -> Tables:
    try:
        return _DECODER.decode(state.tables)
    except msgspec.DecodeError:
        return Tables()


def _learn_requests(state: State, row: Row) -> None:
    if row.requests <= 0:
        return
    share = max(0.02, 1.0 / (state.minutes + 1))
    state.prompt_mean += share * (row.prompt / row.requests - state.prompt_mean)
    state.output_mean += share * (row.output / row.requests - state.output_mean)


def _level(state: State, probability: float) -> float:
    """The share of work that headroom covers: more when more was missed, so that what is missed stays near the aim."""
    aim = _AIM * (1.0 - probability)
    risk = _RISK_LEAST + _RISK_STEP * state.missed.share(aim) / aim
    return 1.0 - math.exp(-min(_RISK_MOST, risk))


def _look_ahead(state: State, tables: Tables, lead_s: float, held_s: float) -> None:
    history = History(tables.numbers, unpack(tables.rings, RING_COUNT), unpack(tables.seasons, SEASON_COUNT))
    judge = Judge(unpack(tables.errors, COUNT * PLACES), unpack(tables.sums, COUNT * SUMS), state.chosen)
    pending = unpack(tables.pending, _PENDING * COUNT)
    came, age_s = state.minute.peak, state.minute.began - state.origin
    old = min(_PENDING - 1, max(1, math.ceil(lead_s / MINUTE_S)))
    young = min(_PENDING - 1, max(old, int(held_s / MINUTE_S)))
    if state.minutes >= old:
        judge.take(_had(pending, state.minutes - young, state.minutes - old), came, state.level)
    history.take(age_s, came)
    ahead = history.ahead(age_s, lead_s)
    for way in range(COUNT):
        pending[way * _PENDING + state.minutes % _PENDING] = ahead[way]
    if state.minutes % _SELDOM == 0 or state.minutes < _YOUNG:
        judge.weigh(state.level)
    state.chosen = judge.chosen
    _hold(state, history)
    state.expected = judge.bought(judge.chosen, ahead[judge.chosen])
    if state.hold.until >= state.at:
        state.expected = max(state.expected, _HOLD_MORE * state.hold.work)
    tables.numbers = tuple(history.numbers)
    tables.rings, tables.seasons = pack(history.rings), pack(history.seasons)
    tables.errors, tables.sums, tables.pending = pack(judge.errors), pack(judge.sums), pack(pending)


def _had(pending: "array[float]", first: int, last: int) -> list[float]:
    """The most that each way expected in the minutes from `first` to `last`."""
    begin, end = max(0, first) % _PENDING, last % _PENDING + 1
    found = []
    for base in range(0, len(WAYS) * _PENDING, _PENDING):
        if begin < end:
            found.append(max(pending[base + begin : base + end]))
        else:
            found.append(max(*pending[base + begin : base + _PENDING], *pending[base : base + end]))
    return found


def _hold(state: State, history: History) -> None:
    """A load that falls abruptly is often an outage before us: it comes back as it was, at once."""
    hold = state.hold
    if hold.until < 0 and state.minutes >= _YOUNG and history.fast < _FALL * history.level:
        state.hold = Hold(state.at + _HOLD_S, history.level)
    elif hold.until >= 0 and (history.fast > _BACK * hold.work or state.at > hold.until + _HOLD_S):
        state.hold = Hold()


def _count_loads(state: State, tables: Tables) -> None:
    if not state.minute.seen:
        return
    loads = unpack(tables.loads, 2 * capacity.PLACES)
    for place in state.minute.seen:
        loads[place] += 1.0
    bad = max(state.minute.seen) >= capacity.PLACES
    if state.minutes % _SELDOM == 0:
        capacity.fade(loads, _SELDOM)
    if bad or state.minutes % _SELDOM == 0 or state.minutes < _YOUNG:
        state.bears, unavoidable = capacity.bearable(loads)
        if unavoidable > 0.0 and state.unavoidable == 0.0:
            state.missed = Missed()  # what was missed so far lay in the requests, not in the size
        state.unavoidable = unavoidable
    tables.loads = pack(loads)
