"""Builders: a situation in the words of the domain, with only what a test is about."""

from collections.abc import Callable

import pytest

from autoscaler.domain.base import Duration, Instant, PoolName
from autoscaler.domain.decision import Calendar, Capacity, Recommendation, Situation
from autoscaler.domain.load import Kind, LoadSample, Reading, ReadingState, Signal, Trust, TrustVerdict
from autoscaler.domain.pool import Bounds, Offer, Pool
from autoscaler.ports.policy import Policy

NOW = Instant(1_000_000.0)
POOL = Pool(
    installation="here",
    name=PoolName("p"),
    bounds=Bounds(min=0, max=100),
    offers=(Offer(name="only", compute="local_process"),),
)
KINDS = {
    Signal.QUEUE_LENGTH: Kind.TOTAL,
    Signal.RUNNING: Kind.TOTAL,
    Signal.REQUEST_RATE: Kind.TOTAL,
    Signal.TOKEN_RATE: Kind.TOTAL,
    Signal.INPUT_TOKEN_RATE: Kind.TOTAL,
    Signal.GPU_UTILIZATION: Kind.MEAN,
    Signal.KV_CACHE_USE: Kind.MEAN,
    Signal.TTFT_S_P95: Kind.QUANTILE,
    Signal.E2E_S_P95: Kind.QUANTILE,
}


def a_reading(
    signal: Signal,
    value: float | None,
    *,
    kind: Kind | None = None,
    state: ReadingState = ReadingState.OK,
    covered: int = 1,
    expected: int = 1,
    at: Instant = NOW,
    window: float = 0.0,
) -> Reading:
    return Reading(
        signal=signal,
        kind=kind or KINDS[signal],
        state=state,
        at=at,
        value=value,
        covered=covered,
        expected=expected,
        samples=100,
        window=Duration(window),
    )


def a_situation(
    *readings: Reading,
    in_service: float = 1.0,
    on_the_way: float = 0.0,
    unusable: frozenset[Signal] = frozenset(),
    now: Instant = NOW,
) -> Situation:
    return Situation(
        now=now,
        capacity=Capacity(in_service=in_service, taking=in_service, on_the_way=on_the_way),
        load=LoadSample(at=now, readings={reading.signal: reading for reading in readings}),
        trust=TrustVerdict(
            level=Trust.TRUST, why="all is well", usable=frozenset(r.signal for r in readings) - unusable
        ),
        replicas=(),
    )


Ask = Callable[..., Recommendation]


@pytest.fixture
def ask() -> Ask:
    def it(policy: Policy, situation: Situation, carry: str = "") -> Recommendation:
        return policy.recommend(POOL, situation, carry, Calendar())

    return it
