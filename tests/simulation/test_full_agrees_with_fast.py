"""The daemon's real loop and the fast one decide the same, tick by tick, in worlds where things go wrong.

Compared is all of each decision: sizes, reasons, blocks, alarms, plan, replicas, the sentence and the next memory; then
what became of every request and machine. It holds where the tick is a multiple of 3 s (the default is 15): looks at
replicas, a third of a tick apart, then stand on one grid of half seconds. Otherwise the real prober puts looks together
that fall within a quarter of a second, which the fast loop does not follow.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from autoscaler.domain.base import Duration
from autoscaler.domain.decision import Decision, Drain, Record, Terminate
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Offer, Pool
from autoscaler.lab.fast import Options, simulate
from autoscaler.lab.full import simulate_full
from autoscaler.lab.replay import replay
from autoscaler.lab.settings import FrontSettings, TelemetrySettings, Trouble, TroubleKind, WorldSettings
from autoscaler.lab.workload import Lengths, Tokens, Workload, from_counts
from autoscaler.ports.policy import Policy
from tests.autoscaler.lab.test_fast import QUICK, Wants, a_pool, built, tracking

T = TroubleKind


class Case(NamedTuple):
    """A pool, its policies and a world; `sees`: states that a run must reach, or it proves nothing."""

    pool: Pool
    policies: Sequence[Policy]
    world: WorldSettings
    sees: frozenset[str]


def troubled(*troubles: Trouble, **cloud: float) -> WorldSettings:
    return WorldSettings(cloud=msgspec.structs.replace(QUICK, **cloud), troubles=troubles)


SPOT = a_pool(offers=(Offer(name="gpu", compute="lab", zones=("a", "b"), market="spot", usd_per_h=1.0),))
TWO = a_pool(
    offers=(
        Offer(name="gpu", compute="lab", zones=("a", "b"), ports=(8000, 8001), capacity=2, usd_per_h=3.0),
        Offer(name="spot", compute="other", market="spot", zones=("a",), usd_per_h=1.0),
    )
)
RATES = (tracking(1.0, Signal.REQUEST_RATE), tracking(0.6, Signal.GPU_UTILIZATION))
UP_AND_DOWN = Wants(*[1] * 2, *[4] * 8, *[1] * 20, *[5] * 4, *[1] * 60)

CASES = {
    "no capacity, throttled": Case(
        a_pool(), (tracking(0.3),),
        troubled(Trouble(kind=T.NO_CAPACITY, at_s=0, for_s=300),
                 Trouble(kind=T.THROTTLED, at_s=0, for_s=600, share=0.5),
                 Trouble(kind=T.NO_CAPACITY, at_s=300, for_s=600, where="a")),
        frozenset({"fault"}),
    ),
    "spot": Case(SPOT, (tracking(0.3),), troubled(spot_per_h=6.0), frozenset({"drain", "terminated", "early"})),
    "a crash at the instant of a look": Case(
        a_pool(), (tracking(0.3),),
        troubled(*(Trouble(kind=T.CRASH, at_s=at, share=0.5) for at in (450.0, 605.0, 815.5, 1004.5))),
        frozenset({"crash", "early"}),
    ),
    "slow and failing loads": Case(
        a_pool(), (built("slo"),), troubled(slow_loads=0.4, load_fails=0.3, crashes_per_h=4.0), frozenset({"crash"})
    ),
    "gaps": Case(
        a_pool(), (tracking(0.3),),
        troubled(Trouble(kind=T.TELEMETRY_GAP, at_s=300, for_s=200),
                 Trouble(kind=T.TELEMETRY_PARTIAL, at_s=900, for_s=200, share=0.4)),
        frozenset({"doubt"}),
    ),
    "lies, delay and lag": Case(
        a_pool(), RATES,
        WorldSettings(
            cloud=QUICK, telemetry=TelemetrySettings(delay_s=20, gateway=True), front=FrontSettings(lag_s=7.0),
            troubles=(Trouble(kind=T.TELEMETRY_FROZEN, at_s=400, for_s=200),
                      Trouble(kind=T.TELEMETRY_ZERO, at_s=800, for_s=100),
                      Trouble(kind=T.FRONT_LAG, at_s=300, for_s=900),
                      Trouble(kind=T.SLOW, at_s=500, for_s=200, share=0.5, factor=0.3)),
        ),
        frozenset({"doubt"}),
    ),
    "cloud and balancer dark": Case(
        a_pool(), (tracking(0.3),),
        troubled(Trouble(kind=T.FRONT_DARK, at_s=400, for_s=200),
                 Trouble(kind=T.CLOUD_DARK, at_s=900, for_s=300, where="a"),
                 Trouble(kind=T.CLOUD_DARK, at_s=1300, for_s=200)),
        frozenset({"early"}),
    ),
    "up and down": Case(a_pool(), (UP_AND_DOWN,), troubled(), frozenset({"drain", "terminated", "early"})),
    "two replicas a machine, two computes": Case(
        TWO, (UP_AND_DOWN,),
        troubled(Trouble(kind=T.SPOT_STORM, at_s=300.0), crashes_per_h=2.0, spot_per_h=3.0),
        frozenset({"drain"}),
    ),
    "a tick of 30 s": Case(
        a_pool(pace=msgspec.structs.replace(a_pool().pace, tick=Duration(30.0))), (tracking(0.3),),
        troubled(crashes_per_h=6.0), frozenset({"crash", "early"}),
    ),
}  # fmt: skip


def traffic(seed: int) -> Workload:
    rates = np.random.default_rng(seed).uniform(300, 6000, 6)
    return from_counts("half an hour", 300.0, rates, Tokens(Lengths(300, 600), Lengths(50, 100)), seed)


def reached(decisions: Sequence[Decision], tick_s: float) -> Counter[str]:
    """How often the run came into states in which the two could differ."""
    gaps = [after.at - before.at for before, after in pairwise(decisions)]
    return Counter(
        early=sum(gap < tick_s for gap in gaps),
        doubt=sum(one.trust.level != "trust" for one in decisions[1:]),
        drain=sum(isinstance(action, Drain) for one in decisions for action in one.plan),
        terminated=sum(isinstance(action, Terminate) for one in decisions for action in one.plan),
    )


def assert_equal(one: Mapping[str, npt.NDArray[Any]], other: Mapping[str, npt.NDArray[Any]]) -> None:
    """Equal in every byte."""
    for name in one:
        assert one[name].tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_every_decision_is_the_same(name: str, seed: int) -> None:
    case = CASES[name]
    fast = simulate(case.pool, case.policies, traffic(seed), case.world, seed, Options(keep=True))
    full, records, _ = simulate_full(case.pool, case.policies, traffic(seed), case.world, seed)
    for number, (one, record) in enumerate(zip(fast.decisions, records, strict=False)):
        assert one == record.decision, f"decision {number}: {one.sentence} | {record.decision.sentence}"
    assert len(fast.decisions) == len(records)
    assert (fast.lives, fast.actions, fast.faults) == (full.lives, full.actions, full.faults)
    assert_equal(fast.requests._asdict(), full.requests._asdict())
    assert_equal(fast.ticks._asdict(), full.ticks._asdict())
    seen = reached(fast.decisions, float(case.pool.pace.tick))
    seen.update(one.why for one in fast.lives)
    seen["fault"] = sum(fast.faults.values())
    assert {what for what in case.sees if not seen[what]} == set()


def test_same_seed_same_records_byte_by_byte() -> None:
    case = CASES["spot"]
    runs = [simulate_full(case.pool, case.policies, traffic(1), case.world, seed).records for seed in (1, 1, 2)]
    one, same, other = (msgspec.json.encode(records) for records in runs)
    assert one == same
    assert one != other


def test_records_of_a_full_run_can_be_replayed() -> None:
    case = CASES["gaps"]
    full = simulate_full(case.pool, case.policies, traffic(1), case.world, 1)
    kept = msgspec.json.decode(msgspec.json.encode(full.records), type=tuple[Record, ...])
    again = [*replay(kept, full.pool, case.policies, other=False)]
    assert [one.record.sequence for one in again if one.changes] == []
    assert len(again) == len(full.records) > 100
    assert any(one.changes for one in replay(kept, full.pool, (tracking(5.0),), other=True))
