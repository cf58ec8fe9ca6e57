"""Durations as written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.durations import LONGEST, format_duration, parse_duration
from autoscaler.domain.base import Duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("250ms", 0.25),
        ("1h30m", 5400),
        ("1.5h", 5400),
        (" 20s ", 20),
        ("45", 45),
        (45, 45),
        (0.5, 0.5),
        (0, 0),
        ("0s", 0),
    ],
)
def test_these_are_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "-1s",
        -1,
        "1w",
        "5 m",
        "1m30",
        "1e3s",
        "nan",
        math.nan,
        math.inf,
        "inf",
        True,
        None,
        [],
        {},
        "5M",
        "٣s",
        "9" * 400,
        10**400,
        "4000d",
        "1s" * 100,
    ],
)
def test_these_are_not(text: object) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        parse_duration(text)


@given(st.integers(0, int(LONGEST)) | st.floats(0, 1e6).map(lambda each: round(each, 6)))
def test_what_is_written_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-6)


@given(st.text(max_size=20))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        found = parse_duration(text)
    except ValueError as error:
        found, said = Duration(0.0), str(error)
    else:
        said = "allowed"
    assert 0 <= found <= LONGEST
    assert "allowed" in said
