"""Quantiles of merged histograms, against exact arithmetic."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers._shared.buckets import merged, quantile

EDGES = (0.1, 0.5, 1.0, 2.5, 10.0, math.inf)
SAMPLES = st.lists(st.floats(0.0, 20.0), max_size=60)


def counted(samples: list[float]) -> dict[float, float]:
    return {edge: float(sum(sample <= edge for sample in samples)) for edge in EDGES}


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        # 100 samples, 40 below 1 s, 100 below 2 s: rank 95 is (95 - 40) / 60 of the way from 1 to 2.
        ({1.0: 40, 2.0: 100, math.inf: 100}, Fraction(95, 100), 1 + Fraction(55, 60)),
        # All in the first bucket: it begins at 0.
        ({0.3: 20, math.inf: 20}, Fraction(95, 100), Fraction(95, 100) * Fraction(3, 10)),
        # Rank exactly on an edge is that edge.
        ({1.0: 95, 2.0: 100, math.inf: 100}, Fraction(95, 100), Fraction(1)),
        # An empty bucket in between does not matter.
        ({1.0: 0, 2.0: 0, 4.0: 10, math.inf: 10}, Fraction(1, 2), Fraction(3)),
    ],
)
def test_a_quantile_is_interpolated_inside_its_bucket(
    counts: dict[float, float], share: Fraction, value: Fraction
) -> None:
    found = quantile(counts, float(share))
    assert found is not None
    assert found[0] == pytest.approx(float(value), rel=1e-12)


def test_beyond_the_highest_edge_that_edge_is_told_as_a_lower_bound() -> None:
    assert quantile({1.0: 10, math.inf: 100}, 0.95) == (1.0, "above the highest edge, 1")


@pytest.mark.parametrize("counts", [{}, {math.inf: 50.0}, {1.0: 0.0, math.inf: 0.0}, {1.0: 5.0}])
def test_without_samples_or_edges_there_is_no_quantile(counts: dict[float, float]) -> None:
    assert quantile(counts, 0.95) is None


@given(replicas=st.lists(SAMPLES, min_size=1, max_size=4), share=st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_a_merged_quantile_lies_in_the_bucket_of_the_true_one(replicas: list[list[float]], share: float) -> None:
    everything = sorted(sample for samples in replicas for sample in samples)
    found = quantile(merged([counted(samples) for samples in replicas]), share)
    if not everything:
        assert found is None
        return
    # The sample with that rank, by exact arithmetic: the first of which at least share * n are not larger.
    rank = max(1, math.ceil(Fraction(str(share)) * len(everything)))
    true = everything[rank - 1]
    high = next(edge for edge in EDGES if true <= edge)
    low = max((edge for edge in EDGES if edge < true), default=0.0)
    assert found is not None
    if math.isinf(high):
        assert found[0] == EDGES[-2]
    else:
        assert low <= found[0] <= high * (1 + 1e-9)


@given(replicas=st.lists(SAMPLES, min_size=1, max_size=4))
def test_merging_is_the_histogram_of_all_samples(replicas: list[list[float]]) -> None:
    assert merged([counted(samples) for samples in replicas]) == counted([s for samples in replicas for s in samples])


def test_unlike_buckets_are_merged_over_the_edges_in_common() -> None:
    one, other = {1.0: 2.0, 2.0: 3.0, math.inf: 4.0}, {0.5: 1.0, 2.0: 5.0, math.inf: 6.0}
    assert merged([one, other]) == {2.0: 8.0, math.inf: 10.0}
    assert merged([{1.0: 2.0, math.inf: 4.0}, {3.0: 1.0, math.inf: 1.0}]) == {math.inf: 5.0}
    assert merged([]) == {}
