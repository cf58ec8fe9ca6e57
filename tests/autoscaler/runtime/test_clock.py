"""The real clock never goes back and never stands still, whatever is done to the machine's."""

import time

import pytest

from autoscaler.domain.base import Duration, Instant
from autoscaler.runtime.clock import SystemClock, calendar_at


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    hands = {"wall": 1000.0, "ticking": 5.0}
    monkeypatch.setattr(time, "time", lambda: hands["wall"])
    monkeypatch.setattr(time, "monotonic", lambda: hands["ticking"])
    return hands


def test_a_wall_clock_that_is_set_back_does_not_stop_time(hands: dict[str, float]) -> None:
    clock = SystemClock()
    assert clock.now() == 1000.0
    hands.update(wall=400.0, ticking=15.0)
    assert clock.now() == 1010.0
    hands.update(wall=410.0, ticking=25.0)
    assert clock.now() == 1020.0


def test_a_wall_clock_that_is_set_forward_is_followed(hands: dict[str, float]) -> None:
    clock = SystemClock()
    hands.update(wall=5000.0, ticking=6.0)
    assert clock.now() == 5000.0
    hands.update(wall=5001.0, ticking=7.0)
    assert clock.now() == 5001.0


async def test_a_wait_that_is_over_already_returns() -> None:
    await SystemClock().sleep(Duration(-5.0))


def test_the_calendar_is_a_function_of_the_instant() -> None:
    assert calendar_at(Instant(0.0)).utc == "1970-01-01T00:00:00+00:00"
