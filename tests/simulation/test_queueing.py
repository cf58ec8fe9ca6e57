"""The kernel against queueing theory: configurations whose mean response is known exactly.

M/M/c: one queue for c replicas that work on one request at a time; a request's work is a number of tokens of 1 ms, so
geometric instead of exponential, with a mean of a thousand. M/G/1-PS: one replica whose step takes as long as it has
sequences, so each of n gets one nth; any law of the work gives the mean E[S] / (1 - rho).

Means and confidence: batch means over 25 batches, Student's t at 99 %.
"""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from autoscaler.lab.fleet import Fleet
from autoscaler.lab.hardware import Hardware
from autoscaler.lab.workload import Workload

TOKEN_S = 0.001
MEAN_TOKENS = 1000
#: Student's t, 24 degrees of freedom, two-sided 99 %.
T99 = 2.797
BATCHES = 25


def work(rate: float, tokens: NDArray[np.float64], seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1.0 / rate, len(tokens)))
    output = np.maximum(1, np.rint(tokens)).astype(np.int32)
    return Workload("theory", arrival, np.zeros(len(tokens), dtype=np.int32), output, float(arrival[-1]))


def run(workload: Workload, hardware: Hardware, replicas: int) -> Fleet:
    fleet = Fleet(workload, "central", clients=1, seed=0, batch_max=hardware.max_batch)
    for _ in range(replicas):
        fleet.open(fleet.take(hardware, 1.0), 1.0)
    fleet.advance(1e12, math.inf)
    assert (fleet.state.status == 1).all()
    return fleet


def interval(values: NDArray[np.floating]) -> tuple[float, float]:
    """Mean and half-width at 99 %, the first batch left out as warm-up."""
    means = np.array([batch.mean(dtype=np.float64) for batch in np.array_split(values, BATCHES + 1)[1:]])
    return float(means.mean()), float(T99 * means.std(ddof=1) / math.sqrt(BATCHES))


def erlang_c(servers: int, rho: float) -> float:
    """The share of requests that must wait."""
    load = servers * rho
    last = load**servers / math.factorial(servers) / (1 - rho)
    return last / (sum(load**n / math.factorial(n) for n in range(servers)) + last)


def agrees(what: str, mean: float, half: float, theory: float) -> None:
    print(f"{what}: {mean:.4f} +- {half:.4f}, theory {theory:.4f}, off by {mean / theory - 1:+.2%}")
    assert abs(mean / theory - 1) < 0.02
    assert half < 0.02 * theory  # else the two per cent would be luck
    assert abs(mean - theory) < half + 0.002 * theory  # 0.2 %: tokens are whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("servers", "rho", "count"), [(1, 0.5, 700_000), (1, 0.8, 5_000_000), (4, 0.8, 3_000_000), (16, 0.8, 1_500_000)]
)
def test_one_queue_and_batches_of_one_are_m_m_c(servers: int, rho: float, count: int) -> None:
    mean_s = TOKEN_S * MEAN_TOKENS
    rng = np.random.default_rng(servers)
    workload = work(servers * rho / mean_s, rng.exponential(MEAN_TOKENS, count), seed=7)
    one_at_a_time = Hardware(alpha_s=TOKEN_S, beta_s=0.0, prefill_tokens_per_s=1e9, max_batch=1, kv_tokens=10**9)
    fleet = run(workload, one_at_a_time, servers)

    waits = erlang_c(servers, rho)
    agrees("response", *interval(fleet.state.e2e), mean_s + waits * mean_s / (servers * (1 - rho)))
    waited = (fleet.state.ttft > 1.5 * TOKEN_S).astype(np.float64)
    assert float(waited.mean()) == pytest.approx(waits, rel=0.02)


def lognormal(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    return rng.lognormal(math.log(MEAN_TOKENS) - 0.5, 1.0, count)


def mixed(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """A tenth is ten times as long as the rest: five times the squared variation of the exponential."""
    short = MEAN_TOKENS / 1.9
    return np.where(rng.random(count) < 0.1, rng.exponential(10 * short, count), rng.exponential(short, count))


@pytest.mark.slow
@pytest.mark.parametrize("law", [lognormal, mixed])
@pytest.mark.parametrize(("rho", "count"), [(0.5, 1_500_000), (0.8, 7_000_000)])
def test_steps_as_long_as_the_batch_are_m_g_1_processor_sharing(law: object, rho: float, count: int) -> None:
    assert callable(law)
    mean_s = TOKEN_S * MEAN_TOKENS
    workload = work(rho / mean_s, law(np.random.default_rng(3), count), seed=11)
    shared = Hardware(alpha_s=0.0, beta_s=TOKEN_S, prefill_tokens_per_s=1e9, max_batch=1024, kv_tokens=10**12)
    fleet = run(workload, shared, 1)

    true_rho = float(workload.output_tokens.mean()) * TOKEN_S * count / workload.duration_s
    mean, half = interval(fleet.state.e2e)
    agrees("response", mean, half, float(workload.output_tokens.mean()) * TOKEN_S / (1 - true_rho))
    # And in proportion to the work, whatever the law: the mean slowdown of short and long requests is the same.
    slowdown = fleet.state.e2e / (workload.output_tokens * TOKEN_S)
    longer = workload.output_tokens > np.quantile(workload.output_tokens, 0.9)
    assert float(slowdown[longer].mean()) == pytest.approx(1 / (1 - true_rho), rel=0.03)
