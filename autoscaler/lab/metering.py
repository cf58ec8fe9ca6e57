"""Looks at the replicas' counters over a window, compiled: what a scraper of model servers would add up.

Does: take one look at some slots, and sum what grew since the look a window ago (each replica over its own time).
Does not: make readings of it (scrape does).
Invariant: a replica that was seen once only adds to no rate and no quantile, as a counter without an earlier look.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.lab import kernel as k
from autoscaler.lab.compiling import entry, inner
from autoscaler.lab.kernel import State

#: Looks that are kept; a window never spans more.
LOOKS: Final = 32

# What one look comes to. COVERED: replicas with an earlier look; OVER_S: the longest time since it.
RUNNING, WAITING, KV_SUM, UTIL_SUM, COVERED, REQUESTS, TOKENS, PROMPTS, OVER_S, ARRIVED, COMPLETED, SEEN = range(12)
TTFT: Final = 12
E2E: Final = TTFT + len(k.TTFT_EDGES) + 1
SUMS: Final = E2E + len(k.E2E_EDGES) + 1


class Looks(NamedTuple):
    """A ring of looks: each slot's counters, the number of the replica that had the slot (0: not looked at), when."""

    tally: NDArray[np.float64]
    who: NDArray[np.int64]
    at: NDArray[np.float64]
    sums: NDArray[np.float64]
    gauges: NDArray[np.float64]


def new_looks(slots: int) -> Looks:
    """An empty ring for so many slots."""
    return Looks(
        np.zeros((LOOKS, slots, k.TALLIES)),
        np.zeros((LOOKS, slots), dtype=np.int64),
        np.full(LOOKS, -1e300),
        np.zeros(SUMS),
        np.zeros((slots, 2)),
    )


@inner
def _count(s: State, r: int, now: float, row: NDArray[np.float64]) -> None:
    """A replica's counters now, the run of steps under way included."""
    for n in range(k.TALLIES):
        row[n] = s.tally[r, n]
    c, x = s.cnt[r], s.num[r]
    if c[k.MODE] != k.IDLE:
        row[k.BUSY_S] += now - x[k.T0]
        row[k.TOKENS] += np.floor((now - x[k.T0]) / x[k.STEP_S]) * c[k.DECODING]


@inner
def _base(looks: Looks, turn: int, r: int, now: float, window: float) -> int:
    """The youngest earlier look at this replica that is a window old, else its oldest; -1 when there is none."""
    who, best = looks.who[turn % LOOKS, r], -1
    for back in range(1, min(turn + 1, LOOKS)):
        at = (turn - back) % LOOKS
        if looks.who[at, r] != who:
            if looks.who[at, r] != 0:
                break
            continue
        best = at
        if looks.at[at] <= now - window + 1e-6:
            break
    return best


@entry
def look(s: State, looks: Looks, turn: int, slots: NDArray[np.int64], now: float, window: float) -> None:
    """Look number `turn` (from 0) at these slots; `looks.sums` and `looks.gauges` hold what it comes to."""
    here, sums = turn % LOOKS, looks.sums
    looks.at[here] = now
    looks.who[here, :] = 0
    sums[:] = 0.0
    for n in range(len(slots)):
        r = slots[n]
        c, row = s.cnt[r], looks.tally[here, r]
        _count(s, r, now, row)
        looks.who[here, r] = c[k.USED]
        running = c[k.DECODING] + c[k.PREFILLING]
        looks.gauges[n, 0], looks.gauges[n, 1] = running, c[k.WAITING]
        sums[RUNNING] += running
        sums[WAITING] += c[k.WAITING]
        sums[KV_SUM] += min(1.0, c[k.KV] / c[k.KV_MAX])
        sums[SEEN] += 1
        base = _base(looks, turn, r, now, window)
        over = now - looks.at[base] if base >= 0 else 0.0
        if over <= 0:
            sums[UTIL_SUM] += 1.0 if c[k.MODE] != k.IDLE else 0.0
            continue
        before = looks.tally[base, r]
        sums[COVERED] += 1
        sums[OVER_S] = max(sums[OVER_S], over)
        sums[UTIL_SUM] += min(1.0, (row[k.BUSY_S] - before[k.BUSY_S]) / over)
        sums[REQUESTS] += (row[k.ARRIVALS] - before[k.ARRIVALS]) / over
        sums[TOKENS] += (row[k.TOKENS] - before[k.TOKENS]) / over
        sums[PROMPTS] += (row[k.PROMPT_TOKENS] - before[k.PROMPT_TOKENS]) / over
        sums[ARRIVED] += row[k.ARRIVALS] - before[k.ARRIVALS]
        sums[COMPLETED] += row[k.COMPLETIONS] - before[k.COMPLETIONS]
        for b in range(SUMS - TTFT):
            sums[TTFT + b] += row[k.TTFT_AT + b] - before[k.TTFT_AT + b]


@entry
def quantile(counts: NDArray[np.float64], edges: NDArray[np.float64], share: float) -> float:
    """A quantile of bucket counts by linear interpolation, as Prometheus does it; the last edge beyond it."""
    rank = share * counts.sum()
    below = 0.0
    for n in range(len(edges)):
        if counts[n] > 0 and below + counts[n] >= rank:
            low = edges[n - 1] if n else 0.0
            return float(low + (edges[n] - low) * (rank - below) / counts[n])
        below += counts[n]
    return float(edges[-1])
