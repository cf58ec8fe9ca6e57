"""The yardsticks: work by hand, and a look ahead as long as a cold start and no longer."""

import numpy as np
import pytest

from autoscaler.domain.base import Instant, PoolName
from autoscaler.domain.decision import Calendar, Capacity, Situation
from autoscaler.domain.load import Trust, TrustVerdict
from autoscaler.domain.pool import Bounds, Offer, Pool
from autoscaler.lab.cloud import START
from autoscaler.lab.hardware import Hardware
from autoscaler.lab.workload import Workload
from autoscaler.lab.yardsticks import Clairvoyant, relaxed_units_h, work_s

POOL = Pool(
    installation="lab", name=PoolName("p"), bounds=Bounds(min=1, max=9), offers=(Offer(name="o", compute="lab"),)
)
HARDWARE = Hardware(
    alpha_s=0.02, beta_s=0.001, prefill_tokens_per_s=10_000, max_batch=20, kv_tokens=1_000_000, speed=1.0
)


def a_workload(*arrivals: float) -> Workload:
    count = len(arrivals)
    return Workload(
        name="w", arrival_s=np.array(arrivals), input_tokens=np.full(count, 1000, dtype=np.int32),
        output_tokens=np.full(count, 100, dtype=np.int32), duration_s=3600.0,
    )  # fmt: skip


def test_work_is_a_prompt_and_a_share_of_each_step() -> None:
    # 1000 / 10000 s for the prompt, 100 tokens of 0.02 / 20 + 0.001 s.
    assert work_s(a_workload(0.0), HARDWARE)[0] == pytest.approx(0.1 + 100 * 0.002)
    assert work_s(a_workload(0.0), HARDWARE.times(2.0))[0] == pytest.approx(0.15)
    assert relaxed_units_h(a_workload(*np.arange(0.0, 3600.0, 0.3)), HARDWARE) == pytest.approx(1.0)


def test_a_batch_that_the_cache_cannot_hold_makes_each_token_dearer() -> None:
    small = Hardware(alpha_s=0.02, beta_s=0.001, prefill_tokens_per_s=10_000, max_batch=20, kv_tokens=5_500)
    # 5 sequences of 1100 tokens fit: 0.02 / 5 + 0.001 s a token.
    assert work_s(a_workload(0.0), small)[0] == pytest.approx(0.1 + 100 * 0.005)


def test_it_sizes_for_the_most_work_until_a_cold_start_has_passed_and_not_beyond() -> None:
    busy = np.arange(1800.0, 1830.0, 0.1)  # 300 requests of 0.3 s in 30 s: 3 units wholly busy
    yardstick = Clairvoyant(a_workload(*busy), HARDWARE, lead_s=300.0, bears=0.75)

    def target(second: float) -> float | None:
        situation = Situation(
            now=Instant(START + second), capacity=Capacity(), load=None, replicas=(),
            trust=TrustVerdict(level=Trust.TRUST, why="it knows"),
        )  # fmt: skip
        return yardstick.recommend(POOL, situation, "", Calendar()).target

    assert target(1400.0) == 0.0
    assert target(1800.0 - 300.0) == pytest.approx(4.0)  # 3 / 0.75
    assert target(1829.0) == pytest.approx(4.0)
    assert target(1831.0) == 0.0
    assert yardstick.signals() == frozenset()
