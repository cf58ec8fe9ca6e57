"""Knative's rule: calm over a minute, quick when twice as much is inside, and never down while it panics."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.domain.base import Instant
from autoscaler.domain.decision import Calendar, Recommendation
from autoscaler.domain.load import ReadingState, Signal
from policies import concurrency
from policies.concurrency import Settings
from tests.policies.conftest import NOW, POOL, a_reading, a_situation

#: Ten requests fill a unit, seven are aimed at.
POLICY = concurrency.build(Settings(target=10))


def opinion(now: float, inside: float, carry: str = "", *, in_service: float = 2.0, covered: int = 4) -> Recommendation:
    readings = [
        a_reading(signal, value, at=Instant(now), covered=covered, expected=4)
        for signal, value in ((Signal.RUNNING, inside * 0.75), (Signal.QUEUE_LENGTH, inside * 0.25))
    ]
    return POLICY.recommend(POOL, a_situation(*readings, in_service=in_service, now=Instant(now)), carry, Calendar())


def play(loads: list[float], *, in_service: float = 2.0) -> list[Recommendation]:
    """One tick of 15 s a load."""
    found, carry = list[Recommendation](), ""
    for step, load in enumerate(loads):
        found.append(opinion(NOW + 15.0 * step, load, carry, in_service=in_service))
        carry = found[-1].carry
    return found


def test_calm_is_the_mean_of_a_minute() -> None:
    last = play([14, 14, 14, 14, 21])[-1]
    assert last.target == pytest.approx((14 * 45 + 21 * 15) / 60 / 7)
    assert last.reason.code == "stable"


def test_twice_what_serves_can_hold_is_panic_and_is_answered_at_once() -> None:
    found = play([14, 14, 14, 42])
    assert found[-1].reason.code == "panic"
    assert found[-1].target == pytest.approx(42 / 7)


def test_panic_never_wants_less_until_a_whole_calm_minute_has_passed() -> None:
    found = play([14, 42, 7, 7, 7, 7, 7, 7])
    assert [one.reason.code for one in found] == [
        "stable",
        "panic",
        "panic",
        "panic",
        "panic",
        "stable",
        *["stable"] * 2,
    ]
    assert all(one.target == pytest.approx(6) for one in found[1:5])
    assert found[-1].target == pytest.approx(1)


def test_from_nothing_any_load_wants_one() -> None:
    assert opinion(NOW, 1.0, in_service=0.0).target == 1.0
    assert opinion(NOW, 0.0, in_service=0.0).target == 0.0


def test_a_signal_that_is_missing_is_no_opinion() -> None:
    running = a_reading(Signal.RUNNING, 3.0)
    absent = a_reading(Signal.QUEUE_LENGTH, None, state=ReadingState.ABSENT)
    found = POLICY.recommend(POOL, a_situation(running, absent), "kept", Calendar())
    assert (found.target, found.reason.code, found.carry) == (None, "signal_absent", "kept")
    assert POLICY.signals() == {Signal.RUNNING, Signal.QUEUE_LENGTH}


@pytest.mark.parametrize("carry", ["{", '{"v": 99}', "[]"])
def test_a_carry_that_is_broken_or_of_another_version_is_as_none(carry: str) -> None:
    assert opinion(NOW, 14.0, carry) == opinion(NOW, 14.0)


@given(
    before=st.lists(st.floats(0, 100), max_size=6),
    loads=st.tuples(st.floats(0, 200), st.floats(0, 200)),
    covered=st.integers(1, 4),
)
def test_more_load_never_lowers_the_target(before: list[float], loads: tuple[float, float], covered: int) -> None:
    carry = play(before)[-1].carry if before else ""

    def size(load: float) -> float:
        return opinion(NOW + 15.0 * len(before), load, carry, covered=covered).target or 0.0

    assert size(min(loads)) <= size(max(loads))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"target": 0}, "target: found 0"),
        ({"target": 10, "utilization": 1.5}, "utilization: found 1.5"),
        ({"target": 10, "panic_share": 0}, "panic_share: found 0"),
        ({"target": 10, "panic_threshold": 1}, "panic_threshold: found 1"),
        ({"target": 10, "stable_window": 0}, "stable_window: found 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(settings: dict[str, object], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert(settings, Settings)
