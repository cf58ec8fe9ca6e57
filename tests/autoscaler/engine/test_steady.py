"""The short way for steady replicas comes to the same decision as the long way, in every world of the laws."""

from collections import Counter

import pytest
from typing_extensions import override

from autoscaler.domain.base import Instant
from autoscaler.domain.decision import Calendar, Decision, Observation
from autoscaler.domain.directives import Directives
from autoscaler.domain.faults import InvariantBroken
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import DrainWhy, Memory
from autoscaler.domain.pool import BalancerTraits
from autoscaler.domain.replica import InstanceState, MemberState, Notice, ProbeVerdict, Traffic
from autoscaler.engine import reconcile
from autoscaler.engine.decide import decide
from autoscaler.engine.steady import Steady
from tests.support.builders import (
    NOW,
    Seen,
    a_look,
    a_machine,
    a_member,
    a_memory,
    a_pool,
    an_intent,
    an_observation,
    in_service,
    replace,
    rid,
)
from tests.support.campaign import EVERYTHING, SHAPES, a_script
from tests.support.judge import Laws
from tests.support.world import World, pools

WORLDS = 40


class Twice(Laws):
    """Decides each case again with nobody steady, and counts what was compared."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    @override
    def decided(self, world: World, before: Memory, observation: Observation, decision: Decision) -> None:
        super().decided(world, before, observation, decision)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Steady, "replica", lambda *_: None)
            long_way = decide(world.pool, world.policies, before, observation, Calendar(utc="2026-12-01"))
        assert decision == long_way
        joined = reconcile.join(world.pool, before, observation)
        self.seen["steady"] += len(joined.replicas) - len(joined.restless)
        self.seen["restless"] += len(joined.restless)
        self.seen["restless in service"] += sum(one.phase is Phase.IN_SERVICE for one in joined.restless)


def test_the_short_way_and_the_long_way_decide_alike() -> None:
    seen: Counter[str] = Counter()
    shapes = (*SHAPES, pools(balancers=2, ports=2), pools(counts=False), pools(counts=False, zones=2))
    for seed in range(WORLDS):
        World(a_script(seed, EVERYTHING, shapes, 0, 10), Twice(seen)).run()
    assert min(seen["steady"], seen["restless"], seen["restless in service"]) > 300, seen


POOL = a_pool(balancers=(BalancerTraits(name="b", counts_active=True, weights=True),))
FAILED = ProbeVerdict(alive=False, loaded=False, detail="refused")
DRAIN = DrainWhy(why="scale_in", since=Instant(NOW - 60.0), deadline=Instant(NOW + 60.0))
NEIGHBOUR_LOST = {rid("r1", 81): an_intent(Phase.DRAINING, drain=replace(DRAIN, why="lost"))}
SERVES = in_service("r1")
INTENT = an_intent(Phase.IN_SERVICE, ready_at=Instant(NOW - 600.0), admitted_at=Instant(NOW - 600.0), host="host-r1")


def restless(seen: Seen, memory: Memory | None = None, **observation: object) -> bool:
    looked = an_observation(seen, **observation)  # type: ignore[arg-type]
    joined = reconcile.join(POOL, memory or a_memory(seen), looked)
    return [one.id for one in joined.restless] == [rid("r1")]


def test_one_that_serves_and_passes_is_steady() -> None:
    assert SERVES.intent == INTENT
    assert not restless(SERVES)
    assert not restless(SERVES.but(machine=a_machine(protected=True), member=a_member(weight=100)))


@pytest.mark.parametrize(
    "seen",
    [
        SERVES.but(machine=a_machine(state=InstanceState.STOPPING)),
        SERVES.but(machine=a_machine(state=InstanceState.PENDING)),
        SERVES.but(machine=a_machine(address=None)),
        SERVES.but(machine=a_machine(address="host-elsewhere")),
        SERVES.but(look=None),
        SERVES.but(look=a_look(boot="b2|")),
        SERVES.but(look=a_look(boot="b1|process-2")),
        SERVES.but(look=a_look(passes=1)),
        SERVES.but(look=a_look(hung=True)),
        SERVES.but(look=a_look(last=FAILED, failing_since=Instant(NOW - 1.0))),
        SERVES.but(member=None),
        SERVES.but(member=a_member(state=MemberState.DRAINING)),
        SERVES.but(member=a_member(traffic=Traffic.NO)),
        SERVES.but(member=a_member(weight=50)),
        SERVES.but(intent=None),
        *(
            SERVES.but(intent=replace(INTENT, **changes))
            for changes in (
                {"phase": Phase.READY}, {"phase": Phase.GONE}, {"units": 2.0}, {"boot": "b0"}, {"ready_at": None},
                {"admitted_at": None}, {"out_since": NOW}, {"replace": True}, {"drain": DRAIN}, {"idle_at": (NOW,)},
                {"inside": 1}, {"failing_since": NOW}, {"missing_since": NOW},
            )
        ),
    ],
)  # fmt: skip
def test_whoever_has_anything_about_it_goes_the_long_way(seen: Seen) -> None:
    assert restless(seen)


def test_a_memory_that_contradicts_itself_is_told() -> None:
    with pytest.raises(InvariantBroken):
        restless(SERVES.but(intent=replace(INTENT, terminating_since=NOW)))


def test_what_others_say_of_it_sends_it_the_long_way() -> None:
    name = a_machine().id
    views = an_observation(SERVES)
    assert restless(SERVES, directives=Directives(drain=frozenset({rid("r1")})))
    assert restless(SERVES, directives=Directives(replace=frozenset({rid("r1")})))
    assert restless(SERVES, computes={"c": replace(views.computes["c"], notices=(Notice(instance=name, kind="spot"),))})
    assert restless(SERVES, replace(a_memory(SERVES), intents={**a_memory(SERVES).intents, **NEIGHBOUR_LOST}))
    assert restless(SERVES, balancers={})
    assert restless(SERVES, balancers={**views.balancers, "other": views.balancers["b"]})
