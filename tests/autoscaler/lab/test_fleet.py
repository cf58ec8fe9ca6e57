"""The compiled replicas: what every request comes to, who gets it, and what a look at them tells."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.lab import metering as m
from autoscaler.lab.fleet import STRATEGIES, Fleet
from autoscaler.lab.hardware import Hardware
from autoscaler.lab.workload import Lengths, Workload

PLAIN = Hardware(alpha_s=0.01, beta_s=0.001, prefill_tokens_per_s=10_000.0, max_batch=4, kv_tokens=2000, chunk=512)
OK, FAILED, CUT = 1, 2, 3


def workload(*requests: tuple[float, int, int]) -> Workload:
    columns = list(zip(*requests, strict=True))
    return Workload("w", np.array(columns[0], dtype=np.float64), np.array(columns[1], dtype=np.int32),
                    np.array(columns[2], dtype=np.int32), float(columns[0][-1]))  # fmt: skip


def fleet(work: Workload, count: int = 1, strategy: str = "round_robin", hardware: Hardware = PLAIN) -> Fleet:
    made = Fleet(work, strategy, clients=50, seed=1, batch_max=hardware.max_batch)
    for _ in range(count):
        made.open(made.take(hardware, 1.0), 1.0)
    return made


def test_one_request_alone_takes_its_chunks_and_its_tokens() -> None:
    """1,000 prompt tokens are 512 and 488; each step has its alpha; nine more tokens are nine steps of one sequence."""
    one = fleet(workload((1.0, 1000, 10)))
    one.advance(100.0, 60.0)
    first = 2 * 0.01 + 1000 / 10_000.0
    assert one.state.ttft[0] == pytest.approx(first, rel=1e-5)
    assert one.state.e2e[0] == pytest.approx(first + 9 * 0.011, rel=1e-5)
    assert one.empty_since(0) == pytest.approx(1.0 + first + 9 * 0.011)


def test_a_prompt_slows_those_who_decode_and_waits_for_the_step_under_way() -> None:
    alone = fleet(workload((0.0, 0, 100)))
    both = fleet(workload((0.0, 0, 100), (0.5, 1024, 1)))
    alone.advance(100.0, 60.0)
    both.advance(100.0, 60.0)
    # Two whole chunks take their turn in two steps.
    assert both.state.e2e[0] - alone.state.e2e[0] == pytest.approx(1024 / 10_000.0, rel=1e-3)
    waits = 0.506 - 0.5  # steps of 11 ms end at 0.495 and 0.506
    assert both.state.ttft[1] == pytest.approx(waits + 2 * 0.011 + 0.1024, rel=1e-3)


def test_the_batch_and_the_cache_bound_who_is_let_in() -> None:
    full = fleet(workload(*[(0.0, 10, 500)] * 6))
    full.advance(0.5, 60.0)
    assert full.inside(0)[:2] == (3, 3)  # 4 x 510 tokens would not fit into 2,000
    small = fleet(workload(*[(0.0, 10, 50)] * 6))
    small.advance(0.5, 60.0)
    assert small.inside(0)[:2] == (4, 2)
    huge = fleet(workload((0.0, 5000, 10)))
    huge.advance(100.0, 60.0)
    assert huge.state.status[0] == OK  # longer than the cache: alone


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(0, 1500), st.integers(1, 60)), min_size=1, max_size=40),
    st.sampled_from(sorted(STRATEGIES)),
    st.lists(st.floats(0.01, 8), max_size=12),
)
def test_in_how_many_pieces_time_passes_changes_nothing(
    requests: list[tuple[float, int, int]], strategy: str, stops: list[float]
) -> None:
    work = workload(*sorted(requests))
    whole, pieces = fleet(work, 3, strategy), fleet(work, 3, strategy)
    whole.advance(1000.0, 60.0)
    for stop in sorted(stops):
        pieces.advance(stop, 60.0)
        done = pieces.state.status[: pieces.arrived] == OK
        inside = sum(sum(pieces.inside(slot)[:2]) for slot in range(3))
        assert done.sum() + inside + pieces.held == pieces.arrived  # nobody is lost
    pieces.advance(1000.0, 60.0)
    assert (whole.state.status == OK).all()
    assert np.allclose(whole.state.e2e, pieces.state.e2e, atol=1e-4)
    assert (whole.state.e2e >= whole.state.ttft - 1e-6).all()
    steps = 0.01 * np.maximum(1, work.output_tokens) - 1e-4
    assert (whole.state.e2e >= steps).all()


@pytest.mark.parametrize("strategy", ["round_robin", "least_connections", "least_load", "weighted"])
def test_equal_replicas_share_equally(strategy: str) -> None:
    made = fleet(workload(*[(0.01 * n, 100, 20) for n in range(400)]), 4, strategy)
    made.advance(100.0, 60.0)
    got = made.state.tally[:4, 3]
    assert got.sum() == 400
    assert got.min() > 80


def test_weights_share_in_proportion_and_a_client_keeps_its_replica() -> None:
    work = workload(*[(0.05 * n, 10, 5) for n in range(300)])
    weighted = Fleet(work, "weighted", clients=1, seed=1, batch_max=4)
    for weight in (1.0, 2.0):
        weighted.open(weighted.take(PLAIN, weight), weight)
    weighted.advance(100.0, 60.0)
    assert weighted.state.tally[:2, 3].tolist() == [100, 200]
    sticky = Fleet(work, "source_hash", clients=1, seed=1, batch_max=4)
    for _ in range(3):
        sticky.open(sticky.take(PLAIN, 1.0), 1.0)
    sticky.advance(100.0, 60.0)
    assert sorted(sticky.state.tally[:3, 3].tolist()) == [0, 0, 300]


def test_who_is_closed_finishes_and_who_ends_loses_all_that_is_inside() -> None:
    made = fleet(workload(*[(0.0, 10, 50)] * 6, (1.0, 10, 50)), 1)
    made.advance(0.2, 60.0)
    other = made.take(PLAIN, 1.0)
    made.open(other, 1.0)
    made.close(0)
    made.advance(1.0, 60.0)
    assert made.inside(other)[:2] == (1, 0)
    assert made.end(other, CUT) == 1
    made.advance(30.0, 60.0)
    assert made.state.status.tolist() == [OK] * 6 + [CUT]
    assert made.empty_since(0) is not None
    assert made.take(PLAIN, 1.0) == other  # its slot is free again


def test_requests_are_held_for_a_while_when_nobody_takes_any() -> None:
    made = Fleet(workload((0.0, 10, 5), (50.0, 10, 5)), "round_robin", clients=1, seed=0, batch_max=4)
    slot = made.take(PLAIN, 1.0)
    made.advance(59.0, 60.0)
    assert made.held == 2
    made.advance(70.0, 60.0)
    assert made.held == 1
    made.open(slot, 1.0)
    made.advance(80.0, 60.0)
    assert made.state.status.tolist() == [FAILED, OK]
    assert made.state.ttft[1] == pytest.approx(20.0, abs=0.1)


def test_a_look_tells_rates_over_its_window_and_forgets_who_had_the_slot_before() -> None:
    made = fleet(workload(*[(0.1 * n, 100, 20) for n in range(600)]))
    looks, slots = m.new_looks(32), np.array([0])
    for turn in range(4):
        made.advance(15.0 * turn, 60.0)
        m.look(made.state, looks, turn, slots, made.now_s, 30.0)
        assert looks.sums[m.COVERED] == (turn > 0)  # one look alone is no rate
    assert looks.sums[m.OVER_S] == 30.0
    assert looks.sums[m.REQUESTS] == pytest.approx(10.0)
    assert looks.sums[m.PROMPTS] == pytest.approx(1000.0, rel=0.02)
    assert looks.sums[m.TOKENS] == pytest.approx(200.0, rel=0.02)
    assert looks.sums[m.TTFT : m.E2E].sum() == pytest.approx(300, abs=5)
    assert 0.3 < looks.sums[m.UTIL_SUM] <= 1.0
    made.end(0, CUT)
    made.take(PLAIN, 1.0)
    m.look(made.state, looks, 4, slots, made.now_s, 30.0)
    assert looks.sums[m.COVERED] == 0


def test_the_quantile_is_prometheus() -> None:
    edges = np.array([1.0, 2.0, 4.0])
    assert m.quantile(np.array([0.0, 10.0, 10.0, 0.0]), edges, 0.5) == 2.0
    assert m.quantile(np.array([0.0, 10.0, 10.0, 0.0]), edges, 0.75) == 3.0
    assert m.quantile(np.array([0.0, 0.0, 0.0, 5.0]), edges, 0.95) == 4.0


def test_lengths_have_the_quantiles_that_were_asked_for() -> None:
    drawn = Lengths(50, 500).draw(np.random.default_rng(1), 100_000)
    assert np.median(drawn) == pytest.approx(50, rel=0.03)
    assert np.quantile(drawn, 0.95) == pytest.approx(500, rel=0.05)
    assert drawn.min() >= 1
