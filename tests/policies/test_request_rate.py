"""Requests a second a unit, averaged by time."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.domain.base import Instant
from autoscaler.domain.decision import Calendar
from autoscaler.domain.load import ReadingState, Signal
from policies import request_rate
from policies.request_rate import Settings
from tests.policies.conftest import NOW, POOL, a_reading, a_situation

RATE = Signal.REQUEST_RATE


def targets(*looks: tuple[float, float], in_service: float = 4.0, per_replica: float = 2.0) -> list[float | None]:
    """What is wanted after each (seconds since the last, requests a second)."""
    policy = request_rate.build(Settings(per_replica=per_replica))
    now, carry, found = NOW, "", list[float | None]()
    for wait, rate in looks:
        now = Instant(now + wait)
        situation = a_situation(a_reading(RATE, rate, at=now), in_service=in_service, now=now)
        opinion = policy.recommend(POOL, situation, carry, Calendar())
        carry = opinion.carry
        found.append(opinion.target)
    return found


def test_the_size_is_the_mean_rate_of_a_minute_by_time_not_by_sample() -> None:
    # 30 s at 4, then 10 s at 20: (30 x 4 + 10 x 20) / 40 = 8 a second, 2 a unit.
    assert targets((0, 4), (30, 4), (10, 20))[-1] == pytest.approx(4.0)
    # The same in ticks of 5 s.
    assert targets((0, 4), *[(5, 4)] * 6, (5, 20), (5, 20))[-1] == pytest.approx(4.0)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    assert targets((0, 100), (15, 100), (60, 2))[-1] == pytest.approx(1.0)


def test_from_nothing_any_rate_wants_one() -> None:
    assert targets((0, 0.1), in_service=0.0) == [1.0]
    assert targets((0, 0.0), in_service=0.0) == [0.0]


def test_replicas_that_did_not_answer_are_idle_on_the_way_out_and_busy_on_the_way_in() -> None:
    def wanted(rate: float) -> float | None:
        situation = a_situation(a_reading(RATE, rate, covered=3, expected=4), in_service=4.0)
        return request_rate.build(Settings(per_replica=2)).recommend(POOL, situation, "", Calendar()).target

    assert wanted(10) == 5.0
    assert wanted(4) == 3.0  # 2 units of load seen, and one that may be full


def test_what_cannot_be_read_is_no_opinion_and_keeps_the_carry() -> None:
    policy = request_rate.build(Settings(per_replica=2))
    kept = policy.recommend(POOL, a_situation(a_reading(RATE, 4)), "", Calendar()).carry
    blind = policy.recommend(POOL, a_situation(a_reading(RATE, None, state=ReadingState.ABSENT)), kept, Calendar())
    assert (blind.target, blind.reason.code, blind.carry) == (None, "signal_absent", kept)


@pytest.mark.parametrize("carry", ["{", '{"v": 99}', "[]"])
def test_a_carry_that_is_broken_or_of_another_version_is_as_none(carry: str) -> None:
    policy, situation = request_rate.build(Settings(per_replica=2)), a_situation(a_reading(RATE, 4))
    assert policy.recommend(POOL, situation, carry, Calendar()) == policy.recommend(POOL, situation, "", Calendar())


def test_the_carry_stays_small_however_often_it_is_asked() -> None:
    policy, carry = request_rate.build(Settings(per_replica=2)), ""
    for step in range(2000):
        now = Instant(NOW + step / 20)
        carry = policy.recommend(POOL, a_situation(a_reading(RATE, 4, at=now), now=now), carry, Calendar()).carry
    assert len(carry) < 8_000


@given(rates=st.tuples(st.floats(0, 50), st.floats(0, 50)), covered=st.integers(1, 4))
def test_more_load_never_lowers_the_target(rates: tuple[float, float], covered: int) -> None:
    def size(rate: float) -> float:
        situation = a_situation(a_reading(RATE, rate, covered=covered, expected=4), in_service=4.0)
        return request_rate.build(Settings(per_replica=3)).recommend(POOL, situation, "", Calendar()).target or 0.0

    assert size(min(rates)) <= size(max(rates))


@pytest.mark.parametrize(
    ("settings", "says"), [({"per_replica": 0}, "per_replica: found 0"), ({"per_replica": 1, "window": 0}, "window")]
)
def test_settings_that_make_no_sense_are_refused_in_words(settings: dict[str, object], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert(settings, Settings)
