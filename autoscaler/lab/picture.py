"""Pictures of runs: one run over time, and several as cost against objective, as PNG.

Does: draw what a Run holds. Does not: compute a figure of its own but sums over bins of time.
Invariant: equal runs make equal pictures; what was missed is shown as missed. Needs matplotlib (the extra `lab`).
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.lab.extra import require_lab
from autoscaler.lab.result import Requests
from autoscaler.lab.saved import Run
from autoscaler.lab.scorecard import Part

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _MUTED, _GRID = "#1f2933", "#5b6672", "#e3e8ee"
_BLUE, _LIGHT_BLUE, _AMBER, _GREEN, _RED, _COMING = "#2166ac", "#a9cbe8", "#b86e00", "#2a7f4f", "#b2182b", "#f2c46d"
#: Told apart by form as well as by colour.
_MARKS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_COLOURS: Final = (_BLUE, _RED, _GREEN, _AMBER, "#6a3d9a", "#1f2933", "#0b7a75", "#c2185b", "#7f5539", "#5b6672")
_STYLE: Final[dict[Any, Any]] = {
    "font.family": "sans-serif", "font.size": 9.5, "axes.edgecolor": _MUTED, "axes.labelcolor": _INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "xtick.color": _MUTED,
    "ytick.color": _MUTED, "text.color": _INK,
}  # fmt: skip
_LEGEND: Final[dict[str, Any]] = {
    "loc": "upper left", "ncols": 4, "fontsize": 8.5, "facecolor": "white", "edgecolor": "none", "framealpha": 0.85,
}  # fmt: skip
_BINS: Final = 240
_STEPS: Final = 1200
_UNITS: Final = ((2.0 * 86400, 86400.0, "days"), (3.0 * 3600, 3600.0, "hours"), (0.0, 60.0, "minutes"))


class Axis(NamedTuple):
    """The axis of time: seconds of a bin, seconds of a unit, and the unit's name."""

    bin_s: float
    unit_s: float
    unit: str


def axis_of(duration_s: float) -> Axis:
    """Whole minutes a bin and a readable unit."""
    least = duration_s / _BINS
    bin_s = next(
        (one for one in (15.0, 60.0, 300.0, 900.0, 3600.0) if one >= least), 3600.0 * math.ceil(least / 3600.0)
    )
    _, unit_s, unit = next(one for one in _UNITS if duration_s >= one[0])
    return Axis(bin_s, unit_s, unit)


def draw_run(run: Run) -> bytes:
    """One run over time: load, capacity, latency and what missed the objective."""
    figure, rows = _figure((2, 3, 2.2, 2), (11.5, 9.2), one_axis=True)
    result, axis = run.result, axis_of(run.result.duration_s)
    edges = np.arange(0.0, result.ended_s + axis.bin_s, axis.bin_s)
    which = np.clip((result.requests.arrival_s / axis.bin_s).astype(np.int64), 0, len(edges) - 2)
    _load(rows[0], result.requests, edges, axis)
    _capacity(rows[1], run, axis)
    _latency(rows[2], run, (edges, which), axis)
    _misses(rows[3], run, (edges, which), axis)
    for row in rows:
        row.set_xlim(0, result.duration_s / axis.unit_s)
        _shade(row, run.part, result.duration_s, axis)
    rows[-1].set_xlabel(f"{axis.unit} of the workload")
    title = f"{run.label} on {result.workload}" + (f" ({run.partial})" if run.partial else "")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return _png(figure)


def _figure(heights: Sequence[float], size: tuple[float, float], *, one_axis: bool) -> tuple[Figure, list[Axes]]:
    require_lab(("matplotlib",))
    import matplotlib as mpl
    from matplotlib.figure import Figure as Made

    with mpl.rc_context(_STYLE):
        figure = Made(figsize=size, layout="constrained")
        made = figure.subplots(len(heights), 1, sharex=one_axis, gridspec_kw={"height_ratios": heights})
    rows: list[Axes] = list(np.atleast_1d(made))
    for row in rows:
        row.grid(color=_GRID, linewidth=0.8)
    return figure, rows


def _png(figure: Figure) -> bytes:
    import matplotlib as mpl

    found = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(found, format="png", dpi=110, metadata={"Software": None})
    return found.getvalue()


def _shade(row: Axes, part: Part, duration_s: float, axis: Axis) -> None:
    """What is not judged lies in grey."""
    for start, end in ((0.0, part.start_s), (part.end_s, duration_s)):
        if end - start > axis.bin_s / 2:
            row.axvspan(start / axis.unit_s, end / axis.unit_s, color="#8a94a0", alpha=0.18, linewidth=0, zorder=3)


def _load(row: Axes, requests: Requests, edges: NDArray[np.float64], axis: Axis) -> None:
    counts, _ = np.histogram(requests.arrival_s, edges)
    row.stairs(counts / axis.bin_s, edges / axis.unit_s, fill=True, color=_LIGHT_BLUE, label="requests/s")
    row.set_ylabel("requests/s")
    row.set_ylim(bottom=0)
    other = row.twinx()
    work, _ = np.histogram(requests.arrival_s, edges, weights=requests.input_tokens + requests.output_tokens)
    other.stairs(work / axis.bin_s / 1000.0, edges / axis.unit_s, color=_AMBER, linewidth=1.1, label="1000 tokens/s")
    other.set_ylabel("1000 tokens/s", color=_AMBER)
    other.set_ylim(bottom=0)
    other.tick_params(colors=_AMBER)
    other.spines["top"].set_visible(False)


def _capacity(row: Axes, run: Run, axis: Axis) -> None:
    ticks = run.result.ticks
    if not len(ticks.at_s):
        return
    # A picture is a thousand dots wide: of a long run the most in each stretch of ticks is drawn.
    firsts = np.arange(0, len(ticks.at_s), max(1, len(ticks.at_s) // _STEPS))
    at = np.append(ticks.at_s[firsts], max(run.result.ended_s, ticks.at_s[-1] + 1e-3)) / axis.unit_s
    serving, target, wanted, coming = (
        np.fmax.reduceat(column, firsts)
        for column in (ticks.in_service, ticks.target, ticks.wanted, ticks.in_service + ticks.on_the_way)
    )
    row.stairs(coming, at, fill=True, color=_COMING, label="on the way")
    row.stairs(serving, at, fill=True, color=_LIGHT_BLUE, label="in service")
    row.stairs(target, at, color=_BLUE, linewidth=1.3, baseline=None, label="target")
    row.stairs(wanted, at, color=_GREEN, linewidth=0.9, linestyle=":", baseline=None, label="wanted by policies")
    row.set_ylim(0, 1.28 * max(1.0, float(coming.max()), float(target.max())))
    row.set_ylabel("units")
    row.legend(**_LEGEND)


Binned = tuple[NDArray[np.float64], NDArray[np.int64]]


def _latency(row: Axes, run: Run, binned: Binned, axis: Axis) -> None:
    edges, which = binned
    ttft = run.result.requests.ttft_s
    highest = np.full(len(edges) - 1, np.nan)
    order = np.argsort(which, kind="stable")
    starts = np.searchsorted(which[order], np.arange(len(edges)))
    for index, (first, last) in enumerate(itertools.pairwise(starts)):
        here = ttft[order[first:last]]
        here = here[np.isfinite(here)]
        if len(here):
            highest[index] = np.quantile(here, 0.95)
    row.plot((edges[:-1] + axis.bin_s / 2) / axis.unit_s, highest, ".", markersize=4, color=_BLUE, label="TTFT p95")
    if run.slo.ttft is not None:
        row.axhline(run.slo.ttft, color=_RED, linewidth=1.1, linestyle="--", label=f"objective {run.slo.ttft:g} s")
    row.set_yscale("log")
    row.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    row.set_ylabel("seconds")
    row.legend(**_LEGEND)


def _misses(row: Axes, run: Run, binned: Binned, axis: Axis) -> None:
    edges, which = binned
    requests = run.result.requests
    outside = ~run.slo.inside(requests)
    lost = requests.status > 1
    late = np.bincount(which, weights=outside & ~lost, minlength=len(edges) - 1) / axis.bin_s * 60.0
    gone = np.bincount(which, weights=outside & lost, minlength=len(edges) - 1) / axis.bin_s * 60.0
    row.stairs(late + gone, edges / axis.unit_s, fill=True, color=_COMING, label="late or unfinished")
    row.stairs(gone, edges / axis.unit_s, fill=True, color=_RED, label="failed or cut")
    row.set_ylabel("outside, /min")
    row.set_ylim(0, max(1.0, 1.25 * float((late + gone).max(initial=0.0))))
    row.legend(**_LEGEND)


class Point(NamedTuple):
    """One policy on one workload: what it cost and what it kept, as means over seeds."""

    label: str
    workload: str
    cost: float
    attainment: float


def frontier(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats in both, by rising cost."""
    best, found = -1.0, []
    for one in sorted(points, key=lambda one: (one.cost, -one.attainment)):
        if one.attainment > best:
            found.append(one)
            best = one.attainment
    return found


def draw_frontier(points: Sequence[Point], goal: float, cost_words: str) -> bytes:
    """Cost against share outside the objective, one chart a workload, with the frontier as a line."""
    workloads = list(dict.fromkeys(one.workload for one in points))
    labels = list(dict.fromkeys(one.label for one in points))
    figure, rows = _figure([1.0] * len(workloads), (9.0, 1.2 + 4.0 * len(workloads)), one_axis=False)
    for row, workload in zip(rows, workloads, strict=True):
        here = [one for one in points if one.workload == workload]
        line = frontier(here)
        row.plot([one.cost for one in line], [_missed(one) for one in line], color=_MUTED, linewidth=1.2, zorder=1)
        for one in here:
            style = labels.index(one.label)
            row.scatter(
                one.cost, _missed(one), s=52, marker=_MARKS[style % len(_MARKS)],
                color=_COLOURS[style % len(_COLOURS)], zorder=2, label=one.label,
            )  # fmt: skip
        row.axhline(100.0 * (1.0 - goal), color=_RED, linewidth=1.0, linestyle="--")
        row.set_yscale("log")
        row.set_ylim(top=max(100.0, row.get_ylim()[1]))
        row.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        row.set_title(workload, loc="left", fontsize=10)
        row.set_ylabel("requests outside the objective")
    rows[-1].set_xlabel(f"{cost_words} (grey line: the frontier; red: the goal of {100 * goal:g} % inside)")
    handles: dict[str, Any] = {}
    for row in rows:
        handles |= {
            name: one for one, name in zip(*row.get_legend_handles_labels(), strict=True) if name not in handles
        }
    shown = [one for one in labels if one in handles]
    figure.legend(
        [handles[one] for one in shown], shown, loc="outside upper left", ncols=3, fontsize=8.5, frameon=False
    )
    return _png(figure)


def _missed(point: Point) -> float:
    """Percent outside; a logarithm has no place for none, so that stands at a hundredth of a percent."""
    return max(0.01, 100.0 * (1.0 - point.attainment))
