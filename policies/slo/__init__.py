"""The least capacity that keeps a latency objective with a stated probability; one setting everywhere, it tunes itself.

    wanted = max(work expected at most within a cold start + a tick, with headroom; work now) / what a unit bears
             + backlog, drained within a cold start

- Demand is counted in work, not in requests: seconds of a unit for each prompt and output token (work.py), so that long
  prompts that fill a replica at a batch of five count as what they are. Work that came is work done, and what queues
  more.
- The horizon is the cold start as measured on the pool (policies/_lead.py), before the first the pool's launch
  deadline.
- Expected is the best of several ways of looking ahead: level, trend, peaks, the season of an hour, a day, a week
  (policies/_history.py). Each has the headroom that its own errors over that horizon ask for; the way with the least
  loss is used (judge.py). Traffic that no way foresees gets a floor: its price is then in the size, nothing is
  pretended.
- Headroom covers a share of the work that rises with what was missed lately and falls while nothing is (learning.py).
- What a unit bears is learned from ticks that broke the objective and ticks that did not (capacity.py).
- After an abrupt fall, what was there is held for an hour: an outage before us ends as abruptly as it began.

Units: objective in seconds, sizes in units of capacity, all of them alike. Source: work in tokens and the two phases
from Dynamo's planner and Splitwise, itl = alpha + beta x batch from llm-d's autoscaler; headroom for chance from
square-root staffing (Halfin and Whitt 1981), learned here instead of derived; quantiles of residuals, pinball loss and
experts: see _headroom.py and judge.py; a forecast beside a reactive floor from ASG's predictive scaling; tuning
headroom by what was missed from adaptive conformal inference (Gibbs and Candes 2021).
Assumes: ticks of at most a minute, a server that counts prompt and output tokens, load that spreads evenly. The pool's
pace bounds what it can do: with one unit in each five minutes, an evening's thirty units are gone in the morning.
Does not: pace or bound (the engine does), scale to zero, or cure what no size cures.
Invariant: pure, all state in `carry`, which stays below 32 KiB; a signal that cannot be read is no opinion, never a low
one; before ten minutes are seen it wants at least what is held.

Reason codes (facts): `slo_work` (work, expected, way, bears, lead_s, backlog, level), `slo_learning` (the same, held);
and those of `_readings`.
"""

from typing import Final

import msgspec

from autoscaler.domain.base import Duration, Instant
from autoscaler.domain.decision import Calendar, Fact, Reason, Recommendation, Situation
from autoscaler.domain.load import Reading, ReadingState, Signal
from autoscaler.domain.pool import Pool
from policies._history import WAYS
from policies._lead import lead_s, watch
from policies._memory import recall
from policies._readings import LATENCY, reading_of
from policies.slo import capacity
from policies.slo.learning import MINUTE_S, close
from policies.slo.state import VERSION, Minute, State

_NEEDED: Final = (
    Signal.INPUT_TOKEN_RATE, Signal.TOKEN_RATE, Signal.REQUEST_RATE, Signal.RUNNING, Signal.QUEUE_LENGTH,
)  # fmt: skip
#: Seconds over which sequences inside are averaged before their growth is believed: a single look is mostly chance.
_GROWTH_S: Final = 45.0
#: After units came or went, seconds until telemetry's window lies behind that.
_SETTLE_S: Final = 30.0
#: A silence of so many seconds: the minute in the making is dropped.
_GAP_S: Final = 600.0
#: A backlog is never drained faster than in this many seconds: it would ask for units that come when it is gone.
_DRAIN_LEAST_S: Final = 60.0
_LEARNING_MIN: Final = 10
_DECODER: Final = msgspec.json.Decoder(State)
_ENCODER: Final = msgspec.json.Encoder()


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`signal`: the latency, `objective`: its bound, `token_objective`: that of each further output token, seconds.

    `probability`: share of requests that shall keep both.
    """

    objective: Duration = Duration(2.0)
    token_objective: Duration = Duration(0.1)
    signal: Signal = Signal.TTFT_S_P95
    probability: float = 0.99

    def __post_init__(self) -> None:
        if self.signal not in LATENCY:
            raise ValueError(f"signal: found {self.signal}, allowed are {', '.join(sorted(LATENCY))}")
        for field, value in (("objective", self.objective), ("token_objective", self.token_objective)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{field}: found {value:g} s, allowed is above 0")
        if not 0.5 <= self.probability <= 0.9999:
            raise ValueError(f"probability: found {self.probability:g}, allowed is from 0.5 to 0.9999")


class _Tick(msgspec.Struct, frozen=True, gc=False):
    """Tokens and requests a second and sequences, of all units together. `whole`: every replica answered."""

    prompt: float
    output: float
    requests: float
    running: float
    waiting: float
    whole: bool


class Slo:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = "slo"

    def signals(self) -> frozenset[Signal]:
        return frozenset({*_NEEDED, self._settings.signal})

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        state = recall(carry, _DECODER, VERSION) or State()
        now = situation.now
        state.lead, oldest = watch(state.lead, situation.replicas, now)
        tick = _read(situation)
        if isinstance(tick, Reason):
            return Recommendation(target=None, reason=tick, carry=_ENCODER.encode(state).decode())
        lead = lead_s(state.lead, oldest, pool.pace.launch_deadline, pool.ready.give_up_after) + pool.pace.tick
        _begin(state, now, tick, pool.pace.tick, self._settings.token_objective)
        each = state.costs.prompt * state.prompt_mean + state.costs.output * state.output_mean
        came = self._take(state, situation, tick, each)
        if now - state.minute.began >= MINUTE_S - 1e-6:
            close(state, self._settings.probability, lead, pool.pace.scale_in.stabilization)
        backlog = each * tick.waiting
        wanted = max(state.expected, came) / state.bears + backlog / max(_DRAIN_LEAST_S, lead)
        facts: dict[str, Fact] = {
            "work": came, "expected": state.expected, "way": WAYS[state.chosen], "bears": state.bears, "lead_s": lead,
            "backlog": backlog, "level": state.level,
        }  # fmt: skip
        code, held = "slo_work", situation.capacity.held
        if state.minutes < _LEARNING_MIN and wanted < held:
            code, wanted, facts["held"] = "slo_learning", held, held
        text = _ENCODER.encode(state).decode()
        return Recommendation(target=round(wanted, 6), reason=Reason(code=code, facts=facts), carry=text)

    def _take(self, state: State, situation: Situation, tick: _Tick, each: float) -> float:
        """Count a tick: the work a second that came in it."""
        now, units = situation.now, situation.capacity.in_service
        if units != state.units:
            state.settled = now + _SETTLE_S
        done = state.costs.prompt * tick.prompt + state.costs.output * tick.output
        # A sequence that is inside has half of its work before it, on average.
        grew = each * ((tick.waiting - state.waiting) + 0.5 * (tick.running - state.running)) / _GROWTH_S
        came = max(0.0, done + grew)
        minute = state.minute
        if units > 0 and now >= state.settled and tick.whole and tick.requests > 0:
            # Latency is told when it is over: of the last few loads the highest made a bad tick, the lowest a good one.
            state.borne = (*state.borne[-2:], (done + max(0.0, grew)) / units)
            bad = self._is_bad(state, situation, tick)
            place = capacity.place_of(max(state.borne) if bad else min(state.borne))
            minute.seen += (place + (capacity.PLACES if bad else 0),)
        row = minute.row
        row.ticks += 1
        row.prompt += tick.prompt
        row.output += tick.output
        row.requests += tick.requests
        row.running += tick.running
        row.waiting += tick.waiting
        row.units += units
        if units > 0:
            row.add_busy(tick.prompt / units, tick.output / units, tick.running / units)
        minute.peak = max(minute.peak, came)
        state.at, state.units = now, units
        return came

    def _is_bad(self, state: State, situation: Situation, tick: _Tick) -> bool:
        """Whether the objective was broken; where latency is quiet, whether more than half as many wait as run."""
        if state.slow:
            return True
        reading = reading_of(situation, self._settings.signal)
        if isinstance(reading, Reading) and reading.state is ReadingState.OK:
            return (reading.value or 0.0) > self._settings.objective
        return tick.waiting > 0.5 * tick.running


def _read(situation: Situation) -> _Tick | Reason:
    """The signals, or why there is no opinion. With nothing in service, what a gateway tells is enough."""
    empty = situation.capacity.in_service <= 0
    values: list[float] = []
    whole = True
    known = 0
    first: Reason | None = None
    for signal in _NEEDED:
        reading = reading_of(situation, signal)
        if isinstance(reading, Reason):
            if not empty:
                return reading
            first = first or reading
            values.append(0.0)
            continue
        known += 1
        whole &= reading.covered >= reading.expected
        values.append(reading.value or 0.0)
    if first is not None and not known:
        return first
    prompt, output, requests, running, waiting = values
    return _Tick(prompt, output, requests, running, waiting, whole)


def _begin(state: State, now: Instant, tick: _Tick, tick_s: float, token_s: float) -> None:
    """Start, or go on after a gap; and bring the fading means up to this tick."""
    wait = now - state.at
    if state.at < 0:
        state.origin = now
    if state.at < 0 or not 0 < wait <= _GAP_S:
        state.minute = Minute(began=now)
        state.running, state.waiting, state.output, wait = tick.running, tick.waiting, tick.output, tick_s
    share = wait / (wait + _GROWTH_S)
    state.output += share * (tick.output - state.output)
    # Little's law: sequences inside over tokens a second is the time of a token. A rate is of the time behind it, so it
    # is compared with what was inside before.
    state.slow = state.running >= max(1.0, state.units) and state.running > token_s * state.output
    state.running += share * (tick.running - state.running)
    state.waiting += share * (tick.waiting - state.waiting)


def build(settings: Settings) -> Slo:
    """The policy of these settings."""
    return Slo(settings)
