"""One verdict a tick on telemetry, as a table: what is known, and what it may cause."""

import pytest

from autoscaler.domain.base import Instant
from autoscaler.domain.load import LoadSample, Reading, ReadingState, Signal, Trust
from autoscaler.engine import trust
from tests.support.builders import NOW, a_pool, a_sample, an_observation, replace

QUEUE = frozenset({Signal.QUEUE_LENGTH})
BOTH = QUEUE | {Signal.RUNNING}
OLD = Instant(NOW - 46.0)  # stale after 45 s
FRESH = a_sample(3.0, covered=10)


def with_running(**changes: object) -> LoadSample:
    base = FRESH.readings[Signal.QUEUE_LENGTH]
    second: Reading = replace(base, signal=Signal.RUNNING, **changes)
    return replace(FRESH, readings={**FRESH.readings, Signal.RUNNING: second})


@pytest.mark.parametrize(
    ("sample", "needed", "serving", "level"),
    [
        (FRESH, QUEUE, 10, Trust.TRUST),
        (None, frozenset(), 10, Trust.TRUST),  # nobody asks
        (None, QUEUE, 10, Trust.HOLD),
        (replace(FRESH, at=OLD), QUEUE, 10, Trust.HOLD),
        (a_sample(3.0, covered=10, at=OLD), QUEUE, 10, Trust.HOLD),  # fresh paper, old news
        (a_sample(None), QUEUE, 10, Trust.HOLD),
        (a_sample(float("nan"), covered=10), QUEUE, 10, Trust.HOLD),
        (a_sample(-1.0, covered=10), QUEUE, 10, Trust.HOLD),
        # 9 of 10 are enough, 8 are not; nor are 8 that the source takes for all
        (a_sample(3.0, covered=9, expected=10), QUEUE, 10, Trust.TRUST),
        (a_sample(3.0, covered=8, expected=10), QUEUE, 10, Trust.UP_ONLY),
        (a_sample(3.0, covered=8), QUEUE, 10, Trust.UP_ONLY),
        (replace(FRESH, partial="a store did not answer"), QUEUE, 10, Trust.UP_ONLY),  # the source's own word
        (a_sample(3.0, covered=0), QUEUE, 10, Trust.TRUST),  # a source that is not asked replica by replica
        # two signals: quiet is neither absent nor 0; one that fails forbids the way in
        (with_running(), BOTH, 10, Trust.TRUST),
        (with_running(state=ReadingState.QUIET, value=None), BOTH, 10, Trust.TRUST),
        (with_running(state=ReadingState.ABSENT, value=None), BOTH, 10, Trust.UP_ONLY),
        (with_running(value=float("nan")), BOTH, 10, Trust.UP_ONLY),
        (with_running(at=OLD), BOTH, 10, Trust.UP_ONLY),
        (FRESH, BOTH, 10, Trust.UP_ONLY),  # one was not sampled
        # nothing serves: only load that is there may wake the pool
        (FRESH, QUEUE, 0, Trust.UP_ONLY),
        (a_sample(0.0), QUEUE, 0, Trust.HOLD),
        (None, QUEUE, 0, Trust.HOLD),
    ],
)
def test_what_telemetry_may_cause(
    sample: LoadSample | None, needed: frozenset[Signal], serving: int, level: Trust
) -> None:
    found = trust.judge(a_pool(), an_observation(load=sample), needed, serving, None)
    assert found.level is level
    assert found.why


def test_blindness_is_timed_from_its_first_tick_and_not_forgotten_while_nothing_serves() -> None:
    blind = an_observation()
    assert trust.judge(a_pool(), blind, QUEUE, 1, None).blind_since == NOW
    since = Instant(NOW - 100.0)
    assert trust.judge(a_pool(), blind, QUEUE, 1, since).blind_since == since
    assert trust.judge(a_pool(), blind, QUEUE, 0, since).blind_since == since
    assert trust.judge(a_pool(), an_observation(load=FRESH), QUEUE, 1, since).blind_since is None


def test_a_signal_with_a_flaw_is_not_usable() -> None:
    found = trust.judge(a_pool(), an_observation(load=with_running(value=float("inf"))), BOTH, 10, None)
    assert found.usable == QUEUE
