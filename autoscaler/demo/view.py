"""What a person sees while the demo runs: a live panel on a terminal, plain lines elsewhere, and a table at the end.

Does: lay out frames that others made. Does not: read files or sockets, or judge a run.
Invariant: what scrolls by (the size changes and their reasons) is the same with and without a terminal.
"""

import math
import textwrap
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from autoscaler.demo.summary import Summary

_PLAIN_EVERY_S = 5.0
_HISTORY = 40
_SPARKS = " ▁▂▃▄▅▆▇█"
_PHASES = (  # from what serves to what goes: phase, sign, style, words
    ("in_service", "█", "green", "in service"),
    ("ready", "▓", "cyan", "ready"),
    ("loading", "▒", "yellow", "loading"),
    ("booting", "░", "yellow", "booting"),
    ("requested", "·", "yellow", "requested"),
    ("draining", "▞", "magenta", "draining"),
    ("terminating", "▚", "bright_black", "ending"),
    ("lost", "x", "red", "lost"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One moment. *Units*: trace seconds, but `left_wall_s`, `wall_s`; rates per trace second."""

    stage: str
    wall_s: float = 0.0
    trace_s: float = 0.0
    trace_length_s: float = 0.0
    left_wall_s: float = 0.0
    requests_per_s: float = 0.0
    in_flight: int = 0
    sent: int = 0
    ok: int = 0
    failed: int = 0
    cut: int = 0
    phases: dict[str, int]
    desired: float = 0.0
    ttft_s_p95: float | None = None
    trust: str = ""
    sentence: str = ""


class Screen(Protocol):
    """Where frames and news go."""

    def show(self, frame: Frame) -> None:
        """The present moment."""
        ...

    def tell(self, line: str, style: str = "") -> None:
        """Something that happened, to stay."""
        ...

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; what was shown last stays."""
        ...


class LiveScreen:
    """A panel that is drawn over and over below the news."""

    def __init__(self, console: Console, title: str, objective_s: float, replicas_max: int) -> None:
        """Draw nothing yet."""
        self._title, self._objective_s, self._max = title, objective_s, replicas_max
        self._load: deque[float] = deque(maxlen=_HISTORY)
        self._ttft: deque[float] = deque(maxlen=_HISTORY)
        self._history_s = -math.inf
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        """Take the bottom of the terminal."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back."""
        self._live.stop()

    def tell(self, line: str, style: str = "") -> None:
        """A line above the panel."""
        self._live.console.print(Text(line, style=style), soft_wrap=True)

    def show(self, frame: Frame) -> None:
        """Draw the panel."""
        if frame.wall_s >= self._history_s + 1.0:
            self._history_s = frame.wall_s
            self._load.append(frame.requests_per_s)
            self._ttft.append(frame.ttft_s_p95 or 0.0)
        self._live.update(self._panel(frame))

    def _panel(self, frame: Frame) -> Panel:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bright_black", no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_row("load", self._load_row(frame))
        grid.add_row("replicas", _replicas(frame, self._max))
        grid.add_row("TTFT p95", self._latency_row(frame))
        style = "green" if frame.trust.startswith("trust") else "yellow"
        grid.add_row("trust", Text(frame.trust or "-", style=style, no_wrap=True, overflow="ellipsis"))
        grid.add_row("decision", _lines(frame.sentence or "-", max(40, self._live.console.width - 20), 3))
        grid.add_row("time", _time(frame))
        return Panel(grid, title=self._title, title_align="left", border_style="blue", padding=(0, 1))

    def _load_row(self, frame: Frame) -> Text:
        row = Text(f"{frame.requests_per_s:5.1f} requests/s  ")
        row.append(spark(self._load), style="blue")
        row.append(f"\n{frame.in_flight:5} in flight   {frame.ok:,} of {frame.sent:,} answered, ")
        bad = frame.failed + frame.cut
        row.append(f"{frame.failed} failed, {frame.cut} cut", style="red" if bad else "green")
        return row

    def _latency_row(self, frame: Frame) -> Text:
        value = frame.ttft_s_p95
        if value is None:
            row = Text("    - s           ")
        else:
            row = Text(f"{value:5.1f} s", style="red" if value > self._objective_s else "green")
            row.append("           ")
        row.append(spark(self._ttft), style="blue")
        return row.append(f"  objective {self._objective_s:g} s", style="bright_black")


class PlainScreen:
    """Lines for a file or a pipe: each piece of news, and the moment every few seconds."""

    def __init__(self, console: Console, title: str, objective_s: float) -> None:
        """Print nothing yet."""
        self._console, self._title, self._objective_s = console, title, objective_s
        self._next_s = -math.inf

    def __enter__(self) -> Self:
        """Say what begins."""
        self.tell(self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to give back."""

    def tell(self, line: str, style: str = "") -> None:
        """One line, without its colour."""
        del style
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def show(self, frame: Frame) -> None:
        """One line, but not more often than every few seconds."""
        if frame.wall_s < self._next_s:
            return
        self._next_s = frame.wall_s + _PLAIN_EVERY_S
        parts = [f"{count} {words}" for phase, _, _, words in _PHASES if (count := frame.phases.get(phase, 0))]
        p95 = "-" if frame.ttft_s_p95 is None else f"{frame.ttft_s_p95:.1f} s"
        self.tell(
            f"{clock(frame.trace_s)} {frame.stage}: {frame.requests_per_s:.1f} requests/s, {frame.in_flight} in flight"
            f"; {', '.join(parts) or 'no replica'}; TTFT p95 {p95} (objective {self._objective_s:g} s); "
            f"failed {frame.failed}, cut {frame.cut}; about {frame.left_wall_s:.0f} s left"
        )


def spark(values: Sequence[float] | deque[float]) -> str:
    """The values as little bars, the largest one full."""
    top = max(values, default=0.0)
    if top <= 0:
        return _SPARKS[1] * len(values)
    return "".join(_SPARKS[max(1, math.ceil(value / top * (len(_SPARKS) - 1)))] for value in values)


def clock(trace_s: float) -> str:
    """Minutes and seconds of trace time."""
    minutes, seconds = divmod(int(max(0.0, trace_s)), 60)
    return f"{minutes:02}:{seconds:02}"


def _replicas(frame: Frame, most: int) -> Text:
    """A bar a replica, then the same in words."""
    there = [(sign, style, words, n) for phase, sign, style, words in _PHASES if (n := frame.phases.get(phase, 0))]
    row = Text()
    for sign, style, _, count in there:
        row.append(f"{sign}{sign} " * count, style=style)
    row.append("__ " * max(0, most - sum(count for *_, count in there)), style="bright_black")
    row.append(f" wanted {frame.desired:g}, at most {most}\n", style="bright_black")
    for index, (_, style, words, count) in enumerate(there):
        row.append(", " if index else "")
        row.append(f"{count} {words}", style=style)
    return row


def _time(frame: Frame) -> Text:
    row = Text(f"{frame.stage}: {clock(frame.trace_s)}", no_wrap=True, overflow="ellipsis")
    if frame.trace_s < frame.trace_length_s:
        row.append(f" of {clock(frame.trace_length_s)} trace time")
    return row.append(f"   about {frame.left_wall_s:.0f} s left   Ctrl-C ends all", style="bright_black")


def _lines(text: str, width: int, count: int) -> Text:
    """Always as many lines, so that the panel does not jump."""
    lines = textwrap.wrap(text, width)
    if len(lines) > count:
        lines = [*lines[: count - 1], textwrap.shorten(" ".join(lines[count - 1 :]), width, placeholder=" ...")]
    return Text("\n".join([*lines, *[""] * (count - len(lines))]))


def summary_view(summary: Summary) -> Group:
    """The verdict and the figures behind it."""
    clean = not (summary.failed or summary.cut or summary.sent_before_ready or summary.retried)
    p95 = "more than 5 % unanswered" if summary.ttft_s_p95 is None else f"{summary.ttft_s_p95:.2f} s"
    slo = "SLO met" if summary.slo_met else "SLO MISSED"
    verdict = Text.assemble(
        (slo, "bold green" if summary.slo_met else "bold red"),
        f": TTFT p95 {p95}, objective {summary.ttft_objective_s:g} s; {summary.slo_attainment:.1%} within it",
    )
    table = Table(box=None, show_header=False, padding=(0, 2), pad_edge=False)
    table.add_column(style="bright_black")
    table.add_column()
    style = "green" if clean else "bold red"
    counts = (
        f"{summary.failed} failed, {summary.cut} cut, {summary.sent_before_ready} sent before ready, "
        f"{summary.retried} retried"
    )
    table.add_row("requests", Text.assemble(f"{summary.requests:,}: ", (counts, style)))
    table.add_row(
        "replicas",
        f"1 to {summary.replicas_peak} and back to {summary.replicas_end}: {summary.scale_outs} steps out, "
        f"{summary.scale_ins} in",
    )
    waits = sorted(summary.ready_to_first_request_s)
    if waits:
        median = waits[len(waits) // 2]
        table.add_row("ready to first request", f"median {median:.2f} s, longest {waits[-1]:.2f} s (wall clock)")
    saved = 1.0 - summary.gpu_seconds / summary.fixed_peak_gpu_seconds if summary.fixed_peak_gpu_seconds else 0.0
    table.add_row(
        "GPU seconds",
        f"{summary.gpu_seconds:,.0f}, {saved:.0%} less than the peak all the time",
    )
    table.add_row("time", f"{clock(summary.duration_s)} of trace time in {summary.wall_s:.0f} s, seed {summary.seed}")
    return Group(verdict, table)
