"""The figures of a scorecard in words: their names, units and how many digits tell something.

Does: one row a figure, for terminals and pages alike. Does not: print or judge.
Invariant: every figure of a Scorecard has exactly one row here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from autoscaler.lab.scorecard import FLAP_WINDOW_S, Scorecard, Slo


class Row(NamedTuple):
    """A figure: its name in `--assert` and JSON, its name for people, how it is shown, and what it means."""

    metric: str
    name: str
    form: str
    means: str


ROWS: Final = (
    Row("slo_attainment", "inside the objective", "{:.3%}", "of the requests; failed, cut and unfinished are outside"),
    Row("requests", "requests", "{:,}", "that arrived in the part that is judged"),
    Row("ttft_s_p50", "first token p50", "{:.2f} s", "time to first token, of requests that got one"),
    Row("ttft_s_p95", "first token p95", "{:.2f} s", ""),
    Row("ttft_s_p99", "first token p99", "{:.2f} s", ""),
    Row("e2e_s_p50", "end to end p50", "{:.2f} s", "of requests that finished"),
    Row("e2e_s_p95", "end to end p95", "{:.2f} s", ""),
    Row("e2e_s_p99", "end to end p99", "{:.2f} s", ""),
    Row("failed", "failed", "{:,}", "no replica took them in time, or their machine was taken away"),
    Row("cut", "cut", "{:,}", "inside a machine that the autoscaler ended"),
    Row("unfinished", "unfinished", "{:,}", "still inside when the run ended"),
    Row("minutes_over_slo", "minutes over", "{:,}", "minutes of arrival that missed the goal"),
    Row("gpu_hours", "GPU hours", "{:,.2f}", "paid, from the machine's start to its end"),
    Row("machine_hours", "machine hours", "{:,.2f}", ""),
    Row("cost_usd", "cost", "${:,.2f}", "at the offers' usd_per_hour; 0 where they have none"),
    Row("launches", "launches", "{:,}", "machines ordered that came"),
    Row("scale_moves", "scale moves", "{:,}", "changes of the target"),
    Row("flaps", "flaps", "{:,}", f"moves that took the last one back within {FLAP_WINDOW_S / 60:g} min"),
    Row("size_mean", "mean size", "{:.2f}", "units in service"),
    Row("size_max", "largest size", "{:g}", ""),
    Row("idle_share", "idle", "{:.1%}", "of the paid replicas' time without a step, loading included"),
    Row("hours", "hours judged", "{:.2f}", ""),
)  # fmt: skip

BY_METRIC: Final = {row.metric: row for row in ROWS}


def shown(metric: str, card: Scorecard) -> str:
    """One figure as text; a dash where there is none."""
    value = getattr(card, metric)
    return "-" if value is None else BY_METRIC[metric].form.format(value)


def verdict(card: Scorecard, slo: Slo) -> str:
    """The run in one sentence."""
    if card.slo_attainment is None:
        return "No request arrived in the part that is judged."
    kept = card.slo_attainment >= slo.goal
    price = f"${card.cost_usd:,.2f} and " if card.cost_usd else ""
    return (
        f"{'Kept' if kept else 'Missed'} the goal: {card.slo_attainment:.2%} of {card.requests:,} requests had "
        f"{slo.words()} (goal {slo.goal:.4g}), for {price}{card.gpu_hours:,.1f} GPU hours."
    )
