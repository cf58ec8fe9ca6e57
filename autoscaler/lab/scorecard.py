"""What a run was worth: one row of figures, judged by the user's own objective.

Figures of requests are of those that arrived in the part that is judged, wherever they ended; money, GPUs and moves are
of the part itself. A request that failed, was cut or had not finished when the run ended is outside the objective, like
one that was late. After an interruption, requests that could still have been in time are left out instead.

- scale move: a decision whose target differs from the one before it. `flaps`: moves against the direction of the last
  one, within `FLAP_WINDOW_S` of it: the pool took back what it had just decided.
- `minutes_over_slo`: minutes of arrival of which less than `goal` of the requests were inside the objective.
- `idle_share`: share of the paid replicas' time in which they ran no step, loading included; seen at the ticks.
- quantiles are of the requests that got that far; what did not is counted under failed, cut and unfinished.

Does: add up and judge one Result. Does not: compare or print. Invariant: pure; equal Result and Slo, equal Scorecard.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import ConfigError
from autoscaler.lab.result import CUT, FAILED, OK, UNFINISHED, Requests, Result, Ticks

#: A move against the last one counts as a flap within this time of it: the default scale-in window and half as much.
FLAP_WINDOW_S: Final = 900.0
_MINUTE_S: Final = 60.0


class Slo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The objective of one request: `ttft` seconds to its first token, and `e2e` + `per_token` x output tokens in all.

    None: that side is not judged. `goal`: the share of requests that shall be inside.
    """

    ttft: Duration | None = Duration(2.0)
    e2e: Duration | None = Duration(2.0)
    per_token: Duration = Duration(0.1)
    goal: float = 0.99

    def __post_init__(self) -> None:
        """Raise ValueError with what is wrong."""
        if not 0 < self.goal <= 1:
            raise ValueError(f"goal: found {self.goal:g}, allowed is above 0 and at most 1")
        if self.ttft is None and self.e2e is None:
            raise ValueError("ttft: found nothing, and e2e nothing too; allowed is one of the two or both")

    def inside(self, requests: Requests) -> NDArray[np.bool_]:
        """Which of these kept it."""
        kept: NDArray[np.bool_] = requests.status == OK
        if self.ttft is not None:
            kept &= requests.ttft_s <= np.float32(self.ttft)
        if self.e2e is not None:
            kept &= requests.e2e_s <= self.e2e_of(requests.output_tokens)
        return kept

    def e2e_of(self, output_tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Seconds that a request may take in all; infinite where that is not judged."""
        base = math.inf if self.e2e is None else self.e2e
        found: NDArray[np.float64] = base + self.per_token * output_tokens.astype(np.float64)
        return found

    def words(self) -> str:
        """The objective in a few words."""
        parts = [] if self.ttft is None else [f"first token within {self.ttft:g} s"]
        if self.e2e is not None:
            parts.append(f"done within {self.e2e:g} s + {self.per_token:g} s a token")
        return " and ".join(parts)


class Scorecard(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. None: nothing to say it by (no request, or none that got that far). Sizes in units."""

    requests: int
    slo_attainment: float | None
    ttft_s_p50: float | None
    ttft_s_p95: float | None
    ttft_s_p99: float | None
    e2e_s_p50: float | None
    e2e_s_p95: float | None
    e2e_s_p99: float | None
    failed: int
    cut: int
    unfinished: int
    minutes_over_slo: int
    gpu_hours: float
    machine_hours: float
    cost_usd: float
    launches: int
    scale_moves: int
    flaps: int
    size_mean: float
    size_max: float
    idle_share: float | None
    hours: float


#: Every figure by name, as `--assert` and --json have it.
METRICS: Final = tuple(field.name for field in msgspec.structs.fields(Scorecard))


class Part(NamedTuple):
    """The part of a run that is judged: seconds of the workload, [start, end)."""

    start_s: float
    end_s: float


def part_of(result: Result, start_share: float = 0.0) -> Part:
    """From a share of the workload's duration on. Raises ConfigError when the run was interrupted before that."""
    start_s = start_share * result.duration_s
    if start_s >= result.ended_s:
        ended = f"{result.ended_s / result.duration_s:.0%}"
        raise ConfigError([f"from: found {start_share:.0%}, the run ended at {ended}; allowed: what was run"])
    return Part(start_s, result.ended_s)


def judged(result: Result, slo: Slo, part: Part) -> Requests:
    """The requests of the part, less those of an interrupted run that could still have been in time."""
    requests = result.requests
    first, last = np.searchsorted(requests.arrival_s, (part.start_s, np.nextafter(part.end_s, math.inf)))
    found = _picked(requests, slice(int(first), int(last)))
    if result.complete:
        return found
    allowed_s = np.minimum(slo.e2e_of(found.output_tokens), 3600.0)
    open_yet = (found.status == UNFINISHED) & (result.ended_s - found.arrival_s <= allowed_s)
    return _picked(found, ~open_yet)


def _picked(requests: Requests, which: slice | NDArray[np.bool_]) -> Requests:
    return Requests(
        requests.arrival_s[which], requests.input_tokens[which], requests.output_tokens[which],
        requests.ttft_s[which], requests.e2e_s[which], requests.status[which],
    )  # fmt: skip


def score(result: Result, slo: Slo | None = None, part: Part | None = None) -> Scorecard:
    """The figures of a run, or of a part of it."""
    slo, part = slo or Slo(), part or part_of(result)
    requests = judged(result, slo, part)
    inside = slo.inside(requests)
    count = len(inside)
    moves, flaps = _moves(result.ticks, part)
    size_mean, size_max, idle = _sizes(result.ticks, part)
    ttft, e2e = _quantiles(requests.ttft_s), _quantiles(requests.e2e_s[requests.status == OK])
    return Scorecard(
        requests=count,
        slo_attainment=float(np.count_nonzero(inside)) / count if count else None,
        ttft_s_p50=ttft[0], ttft_s_p95=ttft[1], ttft_s_p99=ttft[2],
        e2e_s_p50=e2e[0], e2e_s_p95=e2e[1], e2e_s_p99=e2e[2],
        failed=_count(requests, FAILED), cut=_count(requests, CUT), unfinished=_count(requests, UNFINISHED),
        minutes_over_slo=_minutes_over(requests.arrival_s, inside, slo.goal),
        gpu_hours=result.gpu_hours(*part), machine_hours=result.machine_hours(*part), cost_usd=result.cost_usd(*part),
        launches=sum(part.start_s <= one.ordered_s < part.end_s for one in result.lives),
        scale_moves=moves, flaps=flaps, size_mean=size_mean, size_max=size_max, idle_share=idle,
        hours=(part.end_s - part.start_s) / 3600.0,
    )  # fmt: skip


def _count(requests: Requests, status: int) -> int:
    return int(np.count_nonzero(requests.status == status))


def _quantiles(values: NDArray[np.float32]) -> tuple[float | None, ...]:
    """p50, p95 and p99 of the values that there are: each a value that did occur, so that a p99 is not made up."""
    known = values[np.isfinite(values)]
    if not len(known):
        return (None, None, None)
    return tuple(float(one) for one in np.quantile(known, (0.5, 0.95, 0.99), method="inverted_cdf"))


def _minutes_over(arrival_s: NDArray[np.float64], inside: NDArray[np.bool_], goal: float) -> int:
    minute = (arrival_s / _MINUTE_S).astype(np.int64)
    if not len(minute):
        return 0
    minute -= minute[0]
    came = np.bincount(minute)
    kept = np.bincount(minute, weights=inside)
    return int(np.count_nonzero(kept < goal * came - 1e-9))


def _within(ticks: Ticks, part: Part) -> slice:
    first, last = np.searchsorted(ticks.at_s, (part.start_s, part.end_s))
    return slice(int(first), int(last))


def _moves(ticks: Ticks, part: Part) -> tuple[int, int]:
    """Changes of the target, and how many of them took the last one back within the window."""
    here = _within(ticks, part)
    targets, at_s = ticks.target[here], ticks.at_s[here]
    steps = np.diff(targets)
    moved = np.nonzero(steps)[0]
    signs, when = np.sign(steps[moved]), at_s[moved + 1]
    against = (signs[1:] != signs[:-1]) & (np.diff(when) <= FLAP_WINDOW_S)
    return len(moved), int(np.count_nonzero(against))


def _sizes(ticks: Ticks, part: Part) -> tuple[float, float, float | None]:
    """Mean and largest units in service, and the share of the paid replicas that ran nothing, weighted by time."""
    here = _within(ticks, part)
    at_s = ticks.at_s[here]
    if not len(at_s):
        return 0.0, 0.0, None
    lasts = np.diff(np.append(at_s, part.end_s))
    whole = float(lasts.sum())
    size = ticks.in_service[here]
    paid = float((ticks.replicas[here] * lasts).sum())
    busy = float((ticks.busy[here] * lasts).sum())
    mean = float((size * lasts).sum()) / whole if whole > 0 else float(size.mean())
    return mean, float(size.max()), None if paid <= 0 else 1.0 - busy / paid
