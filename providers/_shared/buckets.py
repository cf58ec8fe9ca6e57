"""Histograms as cumulative counts by upper edge: how they are merged, and a quantile of them.

Does: arithmetic. Does not: know replicas, time or names.
Invariant: a quantile lies within the bucket that holds its rank, so merging never moves it further than one bucket.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from providers._shared.metrics_page import Buckets


def merged(histograms: Sequence[Buckets]) -> Buckets:
    """The sum by edge, over the edges that all have; empty when there is none.

    While a new version with other buckets is rolled out, the edges in common still give exact cumulative counts; a sum
    over unlike edges would not.
    """
    if not histograms:
        return {}
    common = set(histograms[0]).intersection(*histograms[1:])
    return {edge: math.fsum(one[edge] for one in histograms) for edge in sorted(common)}


def quantile(buckets: Buckets, share: float) -> tuple[float, str] | None:
    """The `share` quantile by linear interpolation inside its bucket, and what to know about it.

    As Prometheus does it: the lowest bucket begins at 0 when its edge is above 0, and beyond the highest finite edge
    that edge is the answer, which then is a lower bound. None without a finite edge or without samples.
    """
    edges = sorted(buckets)
    counts = list(_rising(buckets[edge] for edge in edges))
    if len(edges) < 2 or not math.isinf(edges[-1]) or counts[-1] <= 0:
        return None
    rank = share * counts[-1]
    index = next(place for place, count in enumerate(counts) if count >= rank and count > 0)
    if math.isinf(edges[index]):
        return edges[-2], f"above the highest edge, {edges[-2]:g}"
    before = counts[index - 1] if index else 0.0
    low = edges[index - 1] if index else min(0.0, edges[0])
    return low + (edges[index] - low) * (rank - before) / (counts[index] - before), ""


def _rising(counts: Iterable[float]) -> Iterable[float]:
    """Counts that never fall: a page written while a request ends may be off by one."""
    highest = 0.0
    for count in counts:
        highest = max(highest, count)
        yield highest
