"""Counters over time: growth, restarts, windows, and memory that stays small."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.domain.base import Duration, Instant
from providers._shared.meter import Meter

WINDOW = Duration(30.0)


def counter(value: float) -> dict[str, dict[float, float]]:
    return {"c": {math.inf: value}}


def grown(meter: Meter, family: str = "c") -> tuple[float, float] | None:
    growth = meter.growth(family)
    return None if growth is None else (growth.buckets[math.inf], growth.over)


def test_a_replica_that_is_new_has_not_grown() -> None:
    meter = Meter(WINDOW)
    assert not meter.advance(Instant(0), counter(1000), None)
    assert grown(meter) is None
    assert not meter.advance(Instant(10), counter(1005), None)
    assert grown(meter) == (5, 10)


def test_growth_is_over_the_window_and_not_over_all_time() -> None:
    meter = Meter(WINDOW)
    for at in range(0, 101, 10):
        meter.advance(Instant(at), counter(at), None)
    assert grown(meter) == (30, 30)


def test_ticks_further_apart_than_the_window_are_compared_with_the_last_one() -> None:
    meter = Meter(WINDOW)
    for at, value in ((0, 0), (60, 6), (120, 18)):
        meter.advance(Instant(at), counter(value), None)
    assert grown(meter) == (12, 60)


def test_a_counter_that_went_back_has_grown_by_what_it_shows() -> None:
    meter = Meter(WINDOW)
    meter.advance(Instant(0), counter(100), None)
    meter.advance(Instant(10), counter(107), None)
    assert meter.advance(Instant(20), counter(3), None)
    assert grown(meter) == (7 + 3, 20)
    assert not meter.advance(Instant(30), counter(4), None)
    assert grown(meter) == (7 + 3 + 1, 30)


def test_a_new_start_of_the_process_is_a_restart_though_the_counter_is_higher() -> None:
    meter = Meter(WINDOW)
    meter.advance(Instant(0), counter(100), 5000.0)
    assert meter.advance(Instant(10), counter(150), 5008.0)
    assert grown(meter) == (150, 10)


def test_a_start_that_moves_with_the_clock_is_no_restart() -> None:
    meter = Meter(WINDOW)
    meter.advance(Instant(0), counter(100), 5000.0)
    assert not meter.advance(Instant(10), counter(101), 5001.0)
    assert grown(meter) == (1, 10)


def test_a_histogram_restarts_as_a_whole() -> None:
    meter = Meter(WINDOW)
    meter.advance(Instant(0), {"h": {1.0: 10, math.inf: 20}}, None)
    # More below 1 s than before, fewer in all: all of it is of the new process.
    assert meter.advance(Instant(10), {"h": {1.0: 12, math.inf: 12}}, None)
    growth = meter.growth("h")
    assert growth is not None
    assert growth.buckets == {1.0: 12, math.inf: 12}


def test_other_edges_are_another_process() -> None:
    meter = Meter(WINDOW)
    meter.advance(Instant(0), {"h": {1.0: 10, math.inf: 20}}, None)
    meter.advance(Instant(10), {"h": {1.0: 15, math.inf: 25}}, None)
    assert meter.advance(Instant(20), {"h": {1.0: 1, 2.0: 3, math.inf: 4}}, None)
    growth = meter.growth("h")
    assert growth is not None
    assert growth.buckets == {1.0: 1, 2.0: 3, math.inf: 4}


def test_a_series_that_appears_with_its_first_event_has_grown_by_it() -> None:
    meter = Meter(WINDOW)
    meter.advance(Instant(0), {}, None)
    meter.advance(Instant(10), counter(4), None)
    assert grown(meter) == (4, 10)


def test_a_counter_that_is_missing_once_loses_nothing() -> None:
    meter = Meter(WINDOW)
    meter.advance(Instant(0), counter(10), None)
    meter.advance(Instant(10), {}, None)
    meter.advance(Instant(20), counter(16), None)
    assert grown(meter) == (6, 20)


def test_after_a_long_silence_it_is_a_new_replica() -> None:
    meter = Meter(WINDOW)
    meter.advance(Instant(0), counter(10), None)
    assert not meter.advance(Instant(301), counter(5), None)
    assert grown(meter) is None


def test_two_looks_at_one_instant_are_no_rate() -> None:
    meter = Meter(WINDOW)
    meter.advance(Instant(0), counter(10), None)
    meter.advance(Instant(0), counter(12), None)
    assert grown(meter) is None


def test_memory_is_bounded_however_often_we_look() -> None:
    meter = Meter(WINDOW)
    for step in range(5000):
        meter.advance(Instant(step * 0.01), counter(step), None)
        assert len(meter._marks) <= 34
    growth = grown(meter)
    assert growth is not None
    assert growth[1] == pytest.approx(30, abs=1.1)
    assert growth[0] == pytest.approx(growth[1] * 100)


STEPS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 50), st.booleans()), min_size=2, max_size=40)


@given(steps=STEPS)
def test_growth_is_what_happened_since_its_mark_but_for_what_a_restart_hid(steps: list[tuple[int, int, bool]]) -> None:
    """A model of a server: events in each step; a restart forgets the counter, then counts the step's events."""
    meter, at, shown = Meter(WINDOW), 0, 0
    happened = {0: 0}
    meter.advance(Instant(0), counter(0), None)
    total = 0
    for wait, events, restart in steps:
        at += wait
        before, shown = shown, events if restart else shown + events
        went_back = meter.advance(Instant(at), counter(shown), None)
        assert went_back is (shown < before)
        if restart and shown >= before:  # nobody could see this restart
            total += shown - before
        else:
            total += events
        happened[at] = total
        growth = grown(meter)
        assert growth is not None
        since = at - round(growth[1])
        assert growth[0] == total - happened[since]
        assert growth[1] >= min(30, at) or since == 0
