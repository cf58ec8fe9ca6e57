"""The floor by forecast: it learns a day, looks a cold start ahead, and has no opinion before it knows anything."""

import msgspec
import pytest

from autoscaler.domain.base import Instant
from autoscaler.domain.decision import Calendar, Recommendation
from autoscaler.domain.load import Kind, ReadingState, Signal
from policies import forecast
from policies.forecast import Settings
from tests.policies.conftest import NOW, POOL, a_reading, a_situation

RATE = Signal.REQUEST_RATE
POLICY = forecast.build(Settings(signal=RATE, target=2.0))
#: Ticks of a minute: a day of 4 requests a second with four hours of 20.
DAY = [4.0] * 720 + [20.0] * 240 + [4.0] * 480
#: The launch deadline of the pool, 300 s, and a tick: what the lead is before a cold start was seen.
LEAD_MIN = 5


def opinion(now: float, rate: float, carry: str) -> Recommendation:
    situation = a_situation(a_reading(RATE, rate, at=Instant(now)), in_service=3.0, now=Instant(now))
    return POLICY.recommend(POOL, situation, carry, Calendar())


def play(rates: list[float], carry: str = "") -> list[Recommendation]:
    found: list[Recommendation] = []
    for step, rate in enumerate(rates):
        found.append(opinion(NOW + 60.0 * step, rate, carry))
        carry = found[-1].carry
    return found


def test_it_has_no_opinion_for_an_hour() -> None:
    found = play([4.0] * 62)
    assert [one.target for one in found[:60]] == [None] * 60
    assert found[10].reason.code == "forecast_learning"
    assert found[-1].reason.code == "forecast"


def test_a_steady_load_is_foreseen_with_little_headroom() -> None:
    found = play([4.0] * 600)[-1]
    assert 2.0 <= (found.target or 0.0) <= 2.4  # 4 / 2


def test_a_wave_of_the_day_is_foreseen_by_a_cold_start_and_not_much_earlier() -> None:
    found = play(DAY * 3)
    rise = 2 * 1440 + 720
    assert (found[rise - LEAD_MIN].target or 0.0) >= 9.0  # 20 / 2
    assert (found[rise - 60].target or 0.0) <= 4.0
    assert found[rise].reason.facts["way"] == "day_scaled"


def test_a_trend_is_drawn_on_before_there_is_a_season() -> None:
    found = play([4.0 + step / 20 for step in range(240)])[-1]
    assert (found.target or 0.0) * 2.0 > 4.0 + 240 / 20


def test_missing_data_is_no_opinion_and_keeps_what_is_known() -> None:
    carry = play([4.0] * 100)[-1].carry
    absent = a_reading(RATE, None, state=ReadingState.ABSENT)
    mean = a_reading(RATE, 3.0, kind=Kind.MEAN)
    for reading in (absent, mean):
        found = POLICY.recommend(POOL, a_situation(reading, now=Instant(NOW + 6000.0)), carry, Calendar())
        assert (found.target, found.carry) == (None, carry)


def test_the_carry_stays_small_over_two_days_and_gives_the_same_answer_twice() -> None:
    found = play(DAY * 2)
    assert max(len(one.carry) for one in found) < 16_384
    again = opinion(NOW + 60.0 * len(found), 4.0, found[-1].carry)
    assert again == opinion(NOW + 60.0 * len(found), 4.0, found[-1].carry)


@pytest.mark.parametrize("carry", ["{", '{"v": 99}', "[]", '{"v": 1, "rings": "%%%"}'])
def test_a_carry_that_is_broken_or_of_another_version_is_as_none(carry: str) -> None:
    assert opinion(NOW, 4.0, carry).reason == opinion(NOW, 4.0, "").reason


def test_a_clock_set_back_and_a_long_silence_do_no_harm() -> None:
    carry = play([4.0] * 100)[-1].carry
    for later in (-3600.0, 9 * 3600.0):
        assert (opinion(NOW + later, 4.0, carry).target or 0.0) == pytest.approx(2.2, abs=0.4)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"signal": "ttft_s_p95", "target": 1}, "does not add up"),
        ({"signal": "gpu_utilization", "target": 0.5}, "does not add up"),
        ({"signal": "request_rate", "target": 0}, "target: found 0"),
        ({"signal": "request_rate", "target": 1, "quantile": 1}, "quantile: found 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(settings: dict[str, object], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert(settings, Settings)
