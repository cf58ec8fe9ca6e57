"""What a person sees, with and without a terminal."""

import dataclasses
import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from autoscaler.demo.summary import Summary
from autoscaler.demo.view import Frame, LiveScreen, PlainScreen, clock, spark, summary_view

SUMMARY = Summary(
    trace="azure",
    time_scale=25.0,
    seed=3,
    requests=4000,
    failed=0,
    cut=0,
    stopped=0,
    sent_before_ready=0,
    retried=0,
    replicas_peak=6,
    replicas_end=1,
    machines_peak=6,
    scale_outs=3,
    scale_ins=5,
    ttft_s_p50=0.4,
    ttft_s_p95=18.0,
    ttft_objective_s=2.0,
    slo_attainment=0.871,
    slo_met=False,
    duration_s=3540.0,
    gpu_seconds=20000.0,
    fixed_peak_gpu_seconds=40000.0,
    ready_to_first_request_s=[0.7, 0.9, 1.1],
    ready_in_quiet=0,
    ready_never_asked=0,
    send_lag_wall_s_p95=0.01,
    wall_s=142.0,
)
FRAME = Frame(
    stage="replaying",
    wall_s=3.0,
    trace_s=75.0,
    trace_length_s=1718.0,
    left_wall_s=120.0,
    requests_per_s=4.5,
    in_flight=33,
    sent=100,
    ok=67,
    phases={"in_service": 2, "loading": 1, "draining": 1},
    desired=3.0,
    ttft_s_p95=3.2,
    trust="trust: all answer",
    sentence="wants 3 because the queue is long",
)


def changed(frame: Frame, **changes: Any) -> Frame:
    return dataclasses.replace(frame, **changes)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def paper(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, height=40, color_system=None)


def test_bars_are_as_high_as_their_values() -> None:
    assert spark([0.0, 1.0, 4.0, 8.0]) == "▁▁▄█"
    assert spark([0.0, 0.0]) == "▁▁"
    assert spark([]) == ""


def test_trace_time_reads_as_minutes_and_seconds() -> None:
    assert [clock(s) for s in (-3.0, 59.9, 60.0, 3540.0)] == ["00:00", "00:59", "01:00", "59:00"]


def test_without_a_terminal_it_prints_news_at_once_and_moments_now_and_then() -> None:
    console = paper(terminal=False)
    with PlainScreen(console, "the title", 2.0) as screen:
        screen.show(FRAME)
        screen.show(changed(FRAME, wall_s=4.0))
        screen.tell("01:15  1 -> 3  queue [52], aim 4", "yellow")
        screen.show(changed(FRAME, wall_s=8.1, ttft_s_p95=None, phases={}))
    start, end = "01:15 replaying: 4.5 requests/s, 33 in flight", "(objective 2 s); failed 0, cut 0; about 120 s left"
    assert printed(console).splitlines() == [
        "the title",
        f"{start}; 2 in service, 1 loading, 1 draining; TTFT p95 3.2 s {end}",
        "01:15  1 -> 3  queue [52], aim 4",
        f"{start}; no replica; TTFT p95 - {end}",
    ]


def test_a_terminal_shows_the_replicas_as_bars_and_the_decision_in_words() -> None:
    console = paper(terminal=True)
    with LiveScreen(console, "the title", 2.0, 6) as screen:
        screen.tell("01:15  1 -> 3  queue 52, aim 4", "yellow")
        screen.show(FRAME)
    shown = printed(console)
    assert "██ ██ ▒▒ ▞▞ __ __" in shown
    assert "2 in service, 1 loading, 1 draining" in shown
    assert "wants 3 because the queue is long" in shown
    assert "objective 2 s" in shown
    assert "1 -> 3  queue 52, aim 4" in shown


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("words", ["short", "words " * 200, ""])
def test_the_panel_never_changes_its_height(words: str, width: int) -> None:
    console = paper(terminal=False)
    console.width = width
    screen = LiveScreen(console, "the title", 2.0, 6)
    console.print(screen._panel(changed(FRAME, sentence=words, trust=words)))
    lines = printed(console).splitlines()
    assert len(lines) == 12
    assert {len(line) for line in lines} == {width}


def test_a_missed_objective_is_shown_as_missed() -> None:
    console = paper(terminal=False)
    console.print(summary_view(SUMMARY))
    shown = printed(console)
    assert "SLO MISSED: TTFT p95 18.00 s, objective 2 s; 87.1% within it" in shown
    assert "1 to 6 and back to 1: 3 steps out, 5 in" in shown
    assert "0 failed, 0 cut, 0 sent before ready, 0 retried" in shown
    assert "median 0.90 s" in shown
    assert "20,000, 50% less than the peak all the time" in shown


def test_an_objective_that_was_met_is_shown_as_met() -> None:
    console = paper(terminal=False)
    console.print(summary_view(msgspec.structs.replace(SUMMARY, slo_met=True, ttft_s_p95=1.5)))
    assert "SLO met: TTFT p95 1.50 s" in printed(console)
