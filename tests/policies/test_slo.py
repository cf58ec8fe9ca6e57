"""The policy that tunes itself: what must hold whatever the load, on a pool of words and on one that answers."""

import functools
import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.base import Duration, InstanceId, Instant, ReplicaId
from autoscaler.domain.decision import Calendar, Capacity, Recommendation, Situation
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.load import Kind, LoadSample, Reading, ReadingState, Signal, Trust, TrustVerdict
from autoscaler.domain.replica import Replica
from policies import slo
from policies.slo import Settings
from policies.slo.state import State
from tests.policies.conftest import NOW, POOL, a_reading, a_situation

POLICY = slo.build(Settings())
#: A GPU of the tests: seconds a step, a sequence, a prompt token.
ALPHA, BETA, PREFILL = 0.015, 0.0001, 1 / 15_000
PROMPT, OUTPUT = 900.0, 150.0
#: Requests a second that one unit can do at all with these lengths and a batch of 128.
FULL = 1.0 / (PROMPT * PREFILL + OUTPUT * (ALPHA / 128 + BETA))


def a_look(rate: float, units: float, now: float, *, prompt: float = PROMPT, ttft: float | None = None) -> Situation:
    """What telemetry tells of so many requests a second on so many units, by the equation of a batching server."""
    done = min(rate, 0.98 * units / (prompt * PREFILL + OUTPUT * (ALPHA / 128 + BETA)))
    busy = (done / units) * (prompt * PREFILL + OUTPUT * BETA)
    inside = units * min(128.0, ALPHA * done / units * OUTPUT / (1.0 - busy))
    values = {
        Signal.INPUT_TOKEN_RATE: done * prompt,
        Signal.TOKEN_RATE: done * OUTPUT,
        Signal.REQUEST_RATE: done,
        Signal.RUNNING: inside,
        Signal.QUEUE_LENGTH: 60.0 * max(0.0, rate - done),
        Signal.TTFT_S_P95: (0.3 if rate <= done else 8.0) if ttft is None else ttft,
    }
    readings = [a_reading(signal, value, at=Instant(now)) for signal, value in values.items()]
    return a_situation(*readings, in_service=units, now=Instant(now))


def play(
    rates: Sequence[float], *, units: float = 8.0, carry: str = "", tick: float = 15.0, prompt: float = PROMPT
) -> list[Recommendation]:
    """One tick a rate, on a pool that follows at once."""
    found: list[Recommendation] = []
    for step, rate in enumerate(rates):
        found.append(POLICY.recommend(POOL, a_look(rate, units, NOW + step * tick, prompt=prompt), carry, Calendar()))
        carry = found[-1].carry
        units = max(1.0, float(math.ceil(found[-1].target or units)))
    return found


def sizes(found: Sequence[Recommendation]) -> list[float]:
    assert all(one.target is not None for one in found)
    return [one.target or 0.0 for one in found]


STEADY = [3.0 * FULL] * 1200  # three units' worth of work, for five hours


@functools.cache
def steady() -> list[Recommendation]:
    return play(STEADY)


def test_a_steady_load_gets_what_it_needs_and_little_more() -> None:
    found = steady()
    assert 3.0 <= sizes(found)[-1] <= 4.2
    assert found[-1].reason.code == "slo_work"


def test_it_learns_what_tokens_cost_from_the_pool_itself() -> None:
    costs = msgspec.json.decode(steady()[-1].carry, type=State).costs
    work = costs.prompt * PROMPT + costs.output * OUTPUT
    assert work == pytest.approx(1.0 / FULL, rel=0.35)


def test_prompts_ten_times_as_long_are_ten_times_the_work_at_the_same_rate() -> None:
    carry = steady()[-1].carry
    rate, later = 0.5 * FULL, NOW + len(STEADY) * 15.0
    short = POLICY.recommend(POOL, a_look(rate, 8.0, later), carry, Calendar()).reason.facts["work"]
    long = POLICY.recommend(POOL, a_look(rate, 8.0, later, prompt=10 * PROMPT), carry, Calendar()).reason.facts["work"]
    assert float(long) > 4.0 * float(short)


def test_before_it_has_seen_ten_minutes_it_wants_at_least_what_is_held() -> None:
    found = play([0.1 * FULL] * 30)
    assert all(size >= 8.0 for size in sizes(found))
    assert found[0].reason.code == "slo_learning"


def test_with_no_history_it_errs_high() -> None:
    """More than the work over what a unit can do, from the first opinion on."""
    assert sizes(play([20.0 * FULL], units=24.0))[0] >= 20.0


def test_a_backlog_is_counted_until_it_is_drained() -> None:
    carry = steady()[-1].carry
    later = NOW + len(STEADY) * 15.0
    calm = POLICY.recommend(POOL, a_look(3.0 * FULL, 4.0, later), carry, Calendar()).target or 0.0
    situation = a_look(3.0 * FULL, 4.0, later)
    assert situation.load is not None
    queue = a_reading(Signal.QUEUE_LENGTH, 2000.0, at=Instant(later))
    load = msgspec.structs.replace(situation.load, readings={**situation.load.readings, Signal.QUEUE_LENGTH: queue})
    waiting = POLICY.recommend(POOL, msgspec.structs.replace(situation, load=load), carry, Calendar()).target or 0.0
    assert waiting > calm + 1.0


def test_a_daily_wave_is_foreseen_after_it_was_seen() -> None:
    """From 2 units' worth to 10 within a tick each day: on the third most of it is there before, not long before."""
    day = [2.0] * 720 + [10.0] * 360 + [2.0] * 360
    found = play([level * FULL for level in day * 3], tick=60.0)
    before = sizes(found)[2 * 1440 + 720 - 2]  # two minutes before the wave
    calm = sizes(found)[2 * 1440 + 360]
    assert before >= 8.0
    assert calm <= 3.0


def test_after_an_abrupt_fall_it_holds_what_was_there_for_an_hour() -> None:
    found = play([6.0 * FULL] * 1000 + [0.01 * FULL] * 600)
    assert sizes(found)[1000 + 200] >= 6.0
    assert sizes(found)[-1] <= 3.0


def test_a_latency_that_no_size_cures_does_not_buy_the_whole_cloud() -> None:
    carry, opinion = "", play([FULL])[0]
    for step in range(800):
        opinion = POLICY.recommend(POOL, a_look(3.0 * FULL, 8.0, NOW + 15.0 * step, ttft=5.0), carry, Calendar())
        carry = opinion.carry
    assert (opinion.target or 0.0) <= 6.0


def a_replica(name: str, phase: Phase, launched_at: float, since: float) -> Replica:
    return Replica(
        id=ReplicaId(f"{name}:1"), instance=InstanceId(name), phase=phase, since=Instant(since), offer="only", zone="z",
        units=1.0, host=None, port=1, launched_at=Instant(launched_at),
    )  # fmt: skip


def test_the_lead_is_the_cold_start_measured_on_the_pool() -> None:
    carry, now = "", float(NOW)

    def lead(*replicas: Replica) -> float:
        nonlocal carry
        situation = msgspec.structs.replace(a_look(FULL, 8.0, now), replicas=replicas)
        opinion = POLICY.recommend(POOL, situation, carry, Calendar())
        carry = opinion.carry
        return float(opinion.reason.facts["lead_s"])

    tick = POOL.pace.tick
    assert lead() == POOL.pace.launch_deadline + tick  # nothing measured yet
    assert lead(a_replica("a", Phase.LOADING, now, now)) == POOL.pace.launch_deadline + tick
    begun, now = now, now + 90.0
    assert lead(a_replica("a", Phase.IN_SERVICE, begun, begun + 80.0)) == 80.0 + tick
    # One that has been under way for longer than anything measured counts as at least that long.
    assert lead(a_replica("b", Phase.LOADING, now - 400.0, now)) == 400.0 + tick


@pytest.mark.parametrize("signal", sorted(POLICY.signals() - {Signal.TTFT_S_P95}))
@pytest.mark.parametrize("how", ["absent", "unusable", "not sampled"])
def test_a_signal_that_is_missing_is_no_opinion_and_keeps_what_is_known(signal: Signal, how: str) -> None:
    carry = play([FULL] * 50)[-1].carry
    situation = a_look(FULL, 8.0, NOW + 51 * 15.0)
    assert situation.load is not None
    readings = dict(situation.load.readings)
    unusable = frozenset({signal}) if how == "unusable" else frozenset()
    if how == "absent":
        readings[signal] = a_reading(signal, None, state=ReadingState.ABSENT)
    if how == "not sampled":
        del readings[signal]
    blind = a_situation(*readings.values(), in_service=8.0, unusable=unusable, now=situation.now)
    found = POLICY.recommend(POOL, blind, carry, Calendar())
    assert found.target is None
    assert msgspec.json.decode(found.carry, type=State) == msgspec.json.decode(carry, type=State)


def test_with_nothing_in_service_what_a_gateway_tells_wakes_the_pool() -> None:
    carry = play([FULL] * 50)[-1].carry
    now = Instant(NOW + 800.0)
    rate = a_reading(Signal.INPUT_TOKEN_RATE, 5000.0, at=now, covered=0, expected=0)
    found = POLICY.recommend(POOL, a_situation(rate, in_service=0.0, now=now), carry, Calendar())
    assert (found.target or 0.0) > 0
    assert POLICY.recommend(POOL, a_situation(in_service=0.0, now=now), carry, Calendar()).target is None


def test_the_carry_round_trips_and_stays_small() -> None:
    wave = [FULL * (3 + 2 * math.sin(step / 300)) for step in range(2500)]
    found = play(wave)
    assert max(len(one.carry) for one in found) < 32_768
    assert msgspec.json.encode(msgspec.json.decode(found[-1].carry, type=State)).decode() == found[-1].carry


def test_equal_input_gives_an_equal_answer() -> None:
    carry = steady()[200].carry
    situation = a_look(FULL, 4.0, NOW + 3000.0)
    assert POLICY.recommend(POOL, situation, carry, Calendar()) == slo.build(Settings()).recommend(
        POOL, situation, carry, Calendar()
    )


def test_moving_all_instants_changes_nothing() -> None:
    rates = [FULL * (3 + 2 * math.sin(step / 50)) for step in range(700)]

    def targets(shift: float) -> list[float | None]:
        carry, found = "", list[float | None]()
        for step, rate in enumerate(rates):
            opinion = POLICY.recommend(POOL, a_look(rate, 8.0, NOW + shift + 15.0 * step), carry, Calendar())
            carry = opinion.carry
            found.append(opinion.target)
        return found

    assert targets(0.0) == targets(1_048_576.0)


@pytest.mark.parametrize("carry", ["{", '{"v": 99}', "[]", '{"v": 1, "rings": "%%%", "errors": "AAAA"}'])
def test_a_carry_that_is_broken_or_of_another_version_is_as_none(carry: str) -> None:
    found = POLICY.recommend(POOL, a_look(FULL, 8.0, NOW), carry, Calendar())
    assert found.target == POLICY.recommend(POOL, a_look(FULL, 8.0, NOW), "", Calendar()).target


def test_after_a_silence_it_goes_on_with_what_it_knows() -> None:
    carry = steady()[-1].carry
    later = NOW + len(STEADY) * 15.0 + 5 * 3600.0
    found = POLICY.recommend(POOL, a_look(3.0 * FULL, 4.0, later), carry, Calendar())
    assert 3.0 <= (found.target or 0.0) <= 4.5


@settings(max_examples=30)
@given(
    before=st.lists(st.floats(0.1, 12), min_size=1, max_size=60),
    rates=st.tuples(st.floats(0.01, 20), st.floats(0.01, 20)),
)
def test_more_load_never_lowers_the_target(before: list[float], rates: tuple[float, float]) -> None:
    """Within a tick, while no minute is closed: what closes a minute also learns from it."""
    steps = len(before) - len(before) % 4 + 1
    carry = play([(before * 4)[step] * FULL for step in range(steps)])[-1].carry
    now = NOW + steps * 15.0

    def size(rate: float) -> float:
        return POLICY.recommend(POOL, a_look(rate * FULL, 30.0, now), carry, Calendar()).target or 0.0

    assert size(min(rates)) <= size(max(rates))


def test_a_quiet_latency_is_neither_good_nor_bad_news_while_few_wait() -> None:
    carry, opinion = "", play([FULL])[0]
    for step in range(400):
        situation = a_look(2.0 * FULL, 4.0, NOW + 15.0 * step)
        assert situation.load is not None
        quiet = Reading(
            signal=Signal.TTFT_S_P95, kind=Kind.QUANTILE, state=ReadingState.QUIET, at=situation.now, samples=3
        )
        load = LoadSample(at=situation.now, readings={**situation.load.readings, Signal.TTFT_S_P95: quiet})
        opinion = POLICY.recommend(POOL, msgspec.structs.replace(situation, load=load), carry, Calendar())
        carry = opinion.carry
    assert 2.0 <= (opinion.target or 0.0) <= 4.5


def test_a_pool_that_is_partly_seen_teaches_nothing_about_what_a_unit_bears() -> None:
    situation = a_look(2.0 * FULL, 4.0, NOW)
    assert situation.load is not None
    partly = {
        signal: msgspec.structs.replace(one, covered=2, expected=4) for signal, one in situation.load.readings.items()
    }
    seen = Situation(
        now=situation.now, capacity=Capacity(in_service=4.0), load=LoadSample(at=situation.now, readings=partly),
        trust=TrustVerdict(level=Trust.UP_ONLY, why="half", usable=frozenset(partly)), replicas=(),
    )  # fmt: skip
    found = POLICY.recommend(POOL, seen, "", Calendar())
    assert msgspec.json.decode(found.carry, type=State).minute.seen == ()


@pytest.mark.parametrize(
    ("settings_", "says"),
    [
        ({"signal": "queue_length"}, "signal: found queue_length"),
        ({"objective": 0}, "objective: found 0"),
        ({"token_objective": 0}, "token_objective: found 0"),
        ({"probability": 1}, "probability: found 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(settings_: dict[str, object], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert(settings_, Settings)


def test_it_says_what_it_needs() -> None:
    assert POLICY.name == "slo"
    assert Signal.E2E_S_P95 in slo.build(Settings(signal=Signal.E2E_S_P95, objective=Duration(30.0))).signals()
