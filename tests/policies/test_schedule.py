"""The clock's policy: windows, several of them, and the two days a year when the clock jumps."""

import msgspec
import pytest

from autoscaler.domain.decision import Calendar, Recommendation
from policies import schedule
from policies.schedule import Settings, Window
from tests.policies.conftest import POOL, a_situation

OFFICE = Window(start="0 8 * * 1-5", stop="0 18 * * 1-5", size=4)


def at(utc: str, *windows: Window, timezone: str = "Europe/Berlin", otherwise: float = 1.0) -> Recommendation:
    policy = schedule.build(Settings(windows=windows or (OFFICE,), timezone=timezone, otherwise=otherwise))
    return policy.recommend(POOL, a_situation(), "", Calendar(utc=utc))


@pytest.mark.parametrize(
    ("utc", "size"),
    [
        ("2026-12-01T06:59:59+00:00", 1.0),  # winter: 08:00 in Berlin is 07:00 UTC
        ("2026-12-01T07:00:00+00:00", 4.0),
        ("2026-12-01T16:59:59+00:00", 4.0),
        ("2026-12-01T17:00:00+00:00", 1.0),
        ("2026-07-01T05:59:59+00:00", 1.0),  # summer: an hour earlier
        ("2026-07-01T06:00:00+00:00", 4.0),
        ("2026-07-04T10:00:00+00:00", 1.0),  # a Saturday
    ],
)
def test_a_window_is_open_by_the_wall_clock_of_its_zone(utc: str, size: float) -> None:
    found = at(utc)
    assert found.target == size
    assert found.reason.code == ("scheduled" if size == 4 else "unscheduled")


@pytest.mark.parametrize(
    ("utc", "size"),
    [
        ("2026-03-29T00:59:00+00:00", 1.0),  # 01:59; 02:30 does not exist on this day
        ("2026-03-29T01:00:00+00:00", 4.0),  # 03:00: the skipped line fires here
        ("2026-03-29T03:00:00+00:00", 1.0),
        ("2026-10-25T00:29:59+00:00", 1.0),
        ("2026-10-25T00:30:00+00:00", 4.0),  # the first of two 02:30
        ("2026-10-25T01:30:00+00:00", 4.0),  # the second
        ("2026-10-25T04:00:00+00:00", 1.0),  # 05:00 in winter
    ],
)
def test_a_line_inside_the_hour_that_jumps_fires_once(utc: str, size: float) -> None:
    assert at(utc, Window(start="30 2 * * *", stop="0 5 * * *", size=4)).target == size


def test_open_and_shut_within_the_hour_that_comes_twice() -> None:
    """Every 10 minutes at :00 for 5: in the second pass the wall clock shows what it showed an hour before."""
    blinking = Window(start="*/10 * * * *", stop="5-55/10 * * * *", size=4)
    minutes = [at(f"2026-10-25T01:{minute:02}:30+00:00", blinking).target for minute in (1, 6, 11, 16, 51, 56)]
    assert minutes == [4, 1, 4, 1, 4, 1]


def test_of_several_open_windows_the_largest_holds() -> None:
    night = Window(start="0 22 * * *", stop="0 6 * * *", size=2)
    report = Window(start="0 23 * * *", stop="30 23 * * *", size=9)
    sizes = [at(f"2026-12-01T{clock}+00:00", night, report).target for clock in ("20:59:00", "21:30:00", "22:15:00")]
    assert sizes == [1, 2, 9]
    assert at("2026-12-01T22:45:00+00:00", night, report).target == 2  # the report is done, the night is not


def test_it_needs_no_telemetry_but_a_calendar() -> None:
    found = at("")
    assert (found.target, found.reason.code) == (None, "no_calendar")
    assert schedule.build(Settings(windows=(OFFICE,))).signals() == frozenset()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"windows": []}, "windows: found none"),
        ({"windows": [{"start": "0 25 * * *", "stop": "0 1 * * *", "size": 1}]}, "start: found '0 25"),
        ({"windows": [{"start": "0 5 * * *", "stop": "0 0 30 2 *", "size": 1}]}, "stop: found '0 0 30 2"),
        ({"windows": [{"start": "0 5 * * *", "stop": "0 6 * * *", "size": -1}]}, "size: found -1"),
        ({"windows": [{"start": "0 5 * * *", "stop": "0 6 * * *", "size": 1}], "timezone": "Mars"}, "timezone: found"),
        (
            {"windows": [{"start": "0 5 * * *", "stop": "0 6 * * *", "size": 1}], "timezone": "../x"},
            "timezone: found",
        ),
        ({"windows": [{"start": "0 5 * * *", "stop": "0 6 * * *", "size": 1}], "otherwise": -1}, "otherwise: found -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(settings: dict[str, object], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert(settings, Settings)
