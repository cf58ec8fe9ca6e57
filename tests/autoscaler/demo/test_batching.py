"""The batch by virtual time: no clock, no sleep."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.demo.batching import ContinuousBatch, Emission, Limits, Sequence
from autoscaler.demo.profile import GpuProfile

# 1,000 prompt tokens a second; a token every 10 ms alone, 1 ms more for each sequence beside it.
GPU = GpuProfile(
    name="test",
    gpu="none",
    gpus=1,
    model="none",
    prefill_tokens_per_s=1000,
    itl_alpha_ms=9,
    itl_beta_ms=1,
    kind="made up",
    source="this test",
)


def a_batch(**limits: int) -> ContinuousBatch:
    return ContinuousBatch(GPU, Limits(**limits), utilization_window_s=10)


def first_token_at(emissions: list[Emission], sequence: Sequence) -> float:
    return next(at_s for found, _, at_s in emissions if found is sequence)


def last_token_at(emissions: list[Emission], sequence: Sequence) -> float:
    return [at_s for found, _, at_s in emissions if found is sequence][-1]


def test_one_request_takes_its_prefill_and_then_a_step_a_token() -> None:
    batch = a_batch()
    alone = batch.submit(500, 11, 0.0)
    emissions = batch.advance(100.0)
    assert first_token_at(emissions, alone) == pytest.approx(0.5)
    assert last_token_at(emissions, alone) == pytest.approx(0.5 + 10 * 0.010)
    assert sum(tokens for _, tokens, _ in emissions) == 11


def test_prompts_are_served_in_turn_and_the_second_waits_for_the_first() -> None:
    batch = a_batch(max_num_batched_tokens=500)
    first, second = batch.submit(500, 1, 0.0), batch.submit(500, 1, 0.0)
    assert (batch.running, batch.waiting) == (1, 1)
    emissions = batch.advance(100.0)
    assert first_token_at(emissions, first) == pytest.approx(0.5)
    assert first_token_at(emissions, second) == pytest.approx(1.0)


def test_a_prefill_delays_the_tokens_of_those_that_decode() -> None:
    batch = a_batch()
    decoding = batch.submit(1, 100, 0.0)
    batch.advance(0.1)
    batch.submit(1000, 1, 0.1)
    gaps = [at_s for found, _, at_s in batch.advance(1.5) if found is decoding]
    assert max(b - a for a, b in pairwise(gaps)) == pytest.approx(1.01, abs=0.01)


def test_a_full_batch_decodes_slower_but_more_in_all() -> None:
    def seconds_for(count: int) -> float:
        batch = a_batch()
        sequences = [batch.submit(1, 101, 0.0) for _ in range(count)]
        emissions = batch.advance(1000.0)
        return max(last_token_at(emissions, s) for s in sequences)

    assert seconds_for(1) == pytest.approx(0.001 + 100 * 0.010)
    # The first prompt is prefilled alone, in a step that began before the others came.
    assert seconds_for(50) == pytest.approx(0.05 + 0.010 + 100 * 0.059, abs=0.002)


def test_beyond_the_slots_requests_wait_first_come_first_served() -> None:
    batch = a_batch(max_num_seqs=2)
    sequences = [batch.submit(10, 5, 0.0) for _ in range(6)]
    batch.advance(0.0)
    emissions = batch.advance(0.03)
    assert (batch.running, batch.waiting) == (2, 4)
    emissions += batch.advance(100.0)
    begun = [first_token_at(emissions, s) for s in sequences]
    assert begun == sorted(begun)
    assert len(set(begun)) >= 3
    assert (batch.running, batch.waiting) == (0, 0)


def test_the_kv_cache_holds_requests_back_and_is_given_back() -> None:
    batch = a_batch(kv_cache_tokens=1000)
    assert batch.fits(900, 100)
    assert not batch.fits(900, 101)
    batch.submit(600, 10, 0.0)
    batch.submit(600, 10, 0.0)
    batch.advance(0.6)
    assert (batch.running, batch.waiting) == (1, 1)
    assert batch.kv_cache_usage == pytest.approx(0.601)
    batch.advance(100.0)
    assert (batch.running, batch.waiting, batch.kv_cache_usage) == (0, 0, 0.0)


def test_utilisation_is_the_share_of_the_window_with_work_in_progress() -> None:
    batch = a_batch()
    batch.submit(3000, 1, 0.0)
    batch.advance(5.0)
    assert batch.gpu_utilization(5.0) == pytest.approx(0.3)
    batch.submit(10_000, 1, 20.0)
    batch.advance(25.0)
    assert batch.gpu_utilization(25.0) == pytest.approx(0.5)
    batch.advance(60.0)
    assert batch.gpu_utilization(60.0) == 0.0


def test_a_cancelled_request_frees_its_slot_and_emits_nothing_more() -> None:
    batch = a_batch(max_num_seqs=1)
    gone, kept = batch.submit(10, 50, 0.0), batch.submit(10, 5, 0.0)
    batch.advance(0.1)
    batch.cancel(gone)
    emissions = batch.advance(100.0)
    assert all(found is kept for found, _, _ in emissions)
    assert sum(tokens for _, tokens, _ in emissions) == 5
    batch.cancel(gone)
    assert (batch.running, batch.waiting) == (0, 0)


@given(
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 1500), st.integers(1, 60)), max_size=12),
    st.lists(st.floats(0, 4), max_size=20),
    st.integers(0, 2**32),
)
def test_how_often_one_looks_changes_nothing(
    requests: list[tuple[float, int, int]], looks: list[float], seed: int
) -> None:
    """Every token comes out exactly once and at the same instant, whatever the caller's wake-ups."""

    def played(at: list[float]) -> list[tuple[float, float]]:
        batch = a_batch(max_num_seqs=4, max_num_batched_tokens=512)
        sequences: list[Sequence] = []
        emissions: list[Emission] = []
        moments = sorted([(t, 0, n, m) for t, n, m in requests] + [(t, 1, 0, 0) for t in at])
        for t, look, tokens_in, tokens_out in moments:
            emissions += batch.advance(t)
            if not look:
                sequences.append(batch.submit(tokens_in, tokens_out, t))
        emissions += batch.advance(1e6)
        for sequence in sequences:
            assert sum(n for found, n, _ in emissions if found is sequence) == sequence.output_tokens
        return [(first_token_at(emissions, s), last_token_at(emissions, s)) for s in sequences]

    dense = looks + [random.Random(seed).uniform(0, 4) for _ in range(10)]
    assert played([]) == [pytest.approx(pair) for pair in played(dense)]
