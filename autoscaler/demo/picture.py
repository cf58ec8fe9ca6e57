"""One picture of a run: load, capacity, latency and decisions on one time axis.

It draws what the records and samples say; it computes no verdict of its own and takes the summary's. The
drawing library is loaded when a picture is asked for, and its absence is an error with the remedy in it.

Invariant: all four rows share one axis of trace time, and a missed objective is shown as missed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler.demo.records import RequestRecord, quantile
from autoscaler.demo.summary import DaemonSample, SizeChange, Summary, size_changes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BIN_S = 15.0  # trace seconds a bin: the daemon's own tick
_MINUTE_S = 60.0
_INK, _MUTED, _GRID = "#1f2933", "#6b7785", "#e3e8ee"
_BLUE, _LIGHT_BLUE, _AMBER, _GREEN, _RED = "#2166ac", "#a9cbe8", "#d98e04", "#2a7f4f", "#b2182b"
_COMING, _GOING = "#f2c46d", "#c9d1d9"
_LABEL_SHARE_A_LETTER = 0.0062  # of the axis' length, at the label's size
_LANES = 3
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": _MUTED,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "text.color": _INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "autoscaler",
}
_LEGEND: dict[str, Any] = {
    "loc": "upper right",
    "ncols": 5,
    "fontsize": 8.5,
    "facecolor": "white",
    "edgecolor": "none",
    "framealpha": 0.9,
}
_ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.9}


class PictureError(RuntimeError):
    """No picture can be drawn; the message says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is drawn."""

    summary: Summary
    records: Sequence[RequestRecord]
    samples: Sequence[DaemonSample]
    prefill_tokens_per_s: float
    subtitle: str = ""

    @cached_property
    def began_at(self) -> float:
        """The wall clock at the left edge: the daemon's first sample or the first request."""
        stamps = [sample.at for sample in self.samples[:1]]
        return min([*stamps, *(record.sent_at for record in self.records)])

    def minute(self, at: float) -> float:
        """Where an instant lies on the axis: trace minutes."""
        return (at - self.began_at) * self.summary.time_scale / _MINUTE_S


def draw(run: Run, path: Path) -> None:
    """Write the picture; the suffix (.png or .svg) decides the format. Raises PictureError, OSError."""
    if path.suffix not in {".png", ".svg"}:
        raise PictureError(f"{path}: found {path.suffix or 'no suffix'}, allowed are .png and .svg")
    if not run.samples:
        raise PictureError("nothing to draw: the daemon was never seen")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PictureError("a picture needs matplotlib: install llm-pool-autoscaler[local]") from error
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11.5, 8.6), layout="constrained")
        ratios = [1.0, 1.25, 1.15, 0.75]
        load, capacity, latency, decisions = figure.subplots(4, 1, sharex=True, gridspec_kw={"height_ratios": ratios})
        _draw_load(run, load)
        _draw_capacity(run, capacity)
        _draw_latency(run, latency)
        _draw_decisions(run, decisions, [load, capacity, latency])
        _frame(run, figure, [load, capacity, latency, decisions])
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=140, metadata=metadata, facecolor="white")


def _draw_load(run: Run, axes: "Axes") -> None:
    bins = _binned(run, [(record.sent_at, 1.0) for record in run.records])
    edges = [index * _BIN_S / _MINUTE_S for index in range(len(bins) + 1)]
    per_s = [sum(found) / _BIN_S for found in bins]
    axes.stairs(per_s, edges, fill=True, color=_LIGHT_BLUE)
    axes.stairs(per_s, edges, color=_BLUE, linewidth=1.0)
    axes.set_ylabel("requests / s")
    _title(axes, "Load", f"{run.summary.requests:,} recorded requests, mean of {_BIN_S:g} s")


def _draw_capacity(run: Run, axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    minutes = [run.minute(sample.at) for sample in run.samples]

    def of(*phases: str) -> list[int]:
        return [sum(n for phase, n in sample.phases.items() if phase.lower() in phases) for sample in run.samples]

    serving, draining = of("in_service"), of("draining", "terminating")
    coming = of("requested", "booting", "loading", "ready")
    axes.stackplot(
        minutes,
        [serving, coming, draining],
        step="post",
        colors=[_LIGHT_BLUE, _COMING, _GOING],
        labels=["in service", "on its way", "draining"],
        linewidth=0,
    )
    wanted = [sample.desired for sample in run.samples]
    axes.step(minutes, wanted, where="post", color=_INK, linewidth=1.4, linestyle=(0, (4, 2)), label="desired")
    needed = _replicas_worth_of_work(run)
    axes.stairs(needed, [i * _BIN_S / _MINUTE_S for i in range(len(needed) + 1)], color=_RED, linewidth=1.1)
    top = max(*wanted, *(a + b + c for a, b, c in zip(serving, coming, draining, strict=True)), *needed, 1)
    axes.set_ylim(0, top * 1.25)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.set_ylabel("replicas")
    axes.plot([], [], color=_RED, linewidth=1.1, label="prompts arriving, in replicas")
    axes.legend(**_LEGEND)
    peak, end = run.summary.replicas_peak, run.summary.replicas_end
    _title(axes, "Capacity", f"peak {peak}, {end} at the end")


def _draw_latency(run: Run, axes: "Axes") -> None:
    scale, objective_s = run.summary.time_scale, run.summary.ttft_objective_s
    samples = [(r.sent_at, r.ttft_s * scale) for r in run.records if r.ttft_s is not None]
    points = [(run.minute(at), max(seconds, 0.01)) for at, seconds in samples]
    late = [point for point in points if point[1] > objective_s]
    kept = [point for point in points if point[1] <= objective_s]
    for chosen, colour in ((kept, _BLUE), (late, _RED)):
        axes.plot(*_columns(chosen), ".", markersize=2.2, alpha=0.35, color=colour, markeredgewidth=0)
    p95 = [  # nan where nothing was asked: no line across a silence
        ((index + 0.5) * _BIN_S / _MINUTE_S, quantile(found, 0.95) or math.nan)
        for index, found in enumerate(_binned(run, samples))
    ]
    axes.plot(*_columns(p95), "o-", color=_INK, markersize=2.6, linewidth=0.7, label="p95 of 15 s")
    axes.axhline(objective_s, color=_GREEN, linewidth=1.3, label=f"objective {objective_s:g} s")
    bad = [run.minute(r.sent_at) for r in run.records if r.outcome in {"failed", "cut"}]
    if bad:
        axes.plot(bad, [objective_s] * len(bad), "x", color=_RED, markersize=7, label="failed or cut")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("TTFT, s")
    axes.legend(**_LEGEND)
    _title(axes, "Latency", "time to first token, one dot a request")


def _draw_decisions(run: Run, axes: "Axes", others: Sequence["Axes"]) -> None:
    axes.set_ylim(-1.0, 1.0)
    axes.set_yticks([0.5, -0.5], ["out", "in"])
    changes = size_changes(run.samples)
    for out in (True, False):
        chosen = [change for change in changes if (change.after > change.before) == out]
        colour, sign = (_AMBER, 1) if out else (_GREEN, -1)
        minutes = [run.minute(change.at) for change in chosen]
        for axis in (axes, *others):
            for minute in minutes:
                axis.axvline(minute, color=colour, linewidth=0.8, alpha=0.55, zorder=0)
        axes.plot(minutes, [sign * 0.12] * len(minutes), "^" if out else "v", color=colour, markersize=7)
        words = _short_words(chosen)
        span = run.minute(run.samples[-1].at)
        for minute, text, lane in zip(minutes, words, _lanes(minutes, words, span), strict=True):
            at_edge = _ends_outside(minute, text, span)
            axes.annotate(
                text,
                (minute, sign * (0.36 + 0.27 * lane)),
                xytext=(-5 if at_edge else 5, 0),
                textcoords="offset points",
                va="center",
                ha="right" if at_edge else "left",
                fontsize=8,
                bbox=_ON_WHITE,
            )
    _title(axes, "Decisions", f"{run.summary.scale_outs} out, {run.summary.scale_ins} in")


def _short_words(changes: Sequence[SizeChange]) -> list[str]:
    """What each mark says: the sizes, and the reason where it differs from the last one's."""
    words, last = [], ""
    for change in changes:
        sizes = f"{change.before} \N{RIGHTWARDS ARROW} {change.after}"
        words.append(f"{sizes}  {change.why}" if change.why and change.why != last else sizes)
        last = change.why
    return words


def _lanes(minutes: Sequence[float], words: Sequence[str], span: float) -> list[int]:
    """The first lane in which each label meets no earlier one; the last lane takes what is left over."""
    ends = [-math.inf] * _LANES
    found = []
    for minute, text in zip(minutes, words, strict=True):
        length = _length(text, span)
        begin = minute - length if _ends_outside(minute, text, span) else minute
        lane = next((i for i, end in enumerate(ends) if end <= begin), _LANES - 1)
        ends[lane] = begin + length
        found.append(lane)
    return found


def _length(text: str, span: float) -> float:
    """About how many minutes of the axis a label covers."""
    return (len(text) + 3) * _LABEL_SHARE_A_LETTER * span


def _ends_outside(minute: float, text: str, span: float) -> bool:
    return minute + _length(text, span) > span


def _frame(run: Run, figure: "Figure", rows: Sequence["Axes"]) -> None:
    summary = run.summary
    for axes in rows:
        axes.grid(axis="both", color=_GRID, linewidth=0.8)
        axes.tick_params(which="both", length=0)
    figure.align_ylabels(rows)
    rows[-1].set_xlim(0, run.minute(run.samples[-1].at) * 1.004)
    rows[-1].grid(visible=False, axis="y")
    rows[-1].set_xlabel(
        f"trace time, minutes (replayed {summary.time_scale:g} times as fast, in {summary.wall_s:.0f} s)"
    )
    met = "SLO met" if summary.slo_met else "SLO MISSED"
    p95 = "more than 5 % unanswered" if summary.ttft_s_p95 is None else f"{summary.ttft_s_p95:.2f} s"
    verdict = (
        f"{met}: TTFT p95 {p95}, objective {summary.ttft_objective_s:g} s; "
        f"{summary.slo_attainment:.1%} of requests within it"
    )
    counts = (
        f"failed {summary.failed}   cut {summary.cut}   sent before ready {summary.sent_before_ready}   "
        f"retried {summary.retried}   GPU seconds {summary.gpu_seconds:,.0f} "
        f"(fixed at peak: {summary.fixed_peak_gpu_seconds:,.0f})   seed {summary.seed}"
    )
    figure.suptitle(verdict, x=0.012, ha="left", fontsize=13, color=_GREEN if summary.slo_met else _RED, weight="bold")
    figure.supxlabel(f"{counts}\n{run.subtitle}".rstrip(), x=0.012, ha="left", fontsize=8.5, color=_MUTED)


def _title(axes: "Axes", what: str, more: str) -> None:
    axes.set_title(what, loc="left", fontsize=10.5, weight="bold", pad=5)
    axes.set_title(more, loc="right", fontsize=8.5, color=_MUTED, pad=5)


def _replicas_worth_of_work(run: Run) -> list[float]:
    """Prompt tokens that arrived in each bin, in replicas that would prefill just that."""
    bins = _binned(run, [(record.sent_at, float(record.input_tokens)) for record in run.records])
    return [sum(found) / _BIN_S / run.prefill_tokens_per_s for found in bins]


def _binned(run: Run, values: Sequence[tuple[float, float]]) -> list[list[float]]:
    bins: list[list[float]] = [[] for _ in range(int(run.minute(run.samples[-1].at) * _MINUTE_S / _BIN_S) + 1)]
    for at, value in values:
        index = int(run.minute(at) * _MINUTE_S / _BIN_S)
        if index < len(bins):
            bins[index].append(value)
    return bins


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
