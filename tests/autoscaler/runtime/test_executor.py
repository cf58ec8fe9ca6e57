"""The executor: order, grouping, bounds, budget, and what it asserts again before a call."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from autoscaler.domain.base import Duration, InstanceId, Instant, ReplicaId, Token, instance_of
from autoscaler.domain.decision import (
    Action,
    Admit,
    Capacity,
    Decision,
    Drain,
    Evict,
    Launch,
    Outcome,
    OutcomeStatus,
    Reason,
    Recall,
    Reweigh,
    Start,
    Stop,
    Terminate,
    Withdraw,
)
from autoscaler.domain.faults import Conflict, FaultKind, InvariantBroken, NoCapacity, Refused, Throttled, Unreachable
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.load import Trust, TrustVerdict
from autoscaler.domain.memory import DrainWhy, Intent, Memory
from autoscaler.domain.pool import Placement
from autoscaler.domain.replica import Endpoint, Instance, InstanceState, ProbeRecord, ProbeVerdict
from autoscaler.runtime.executor import CALL_DEADLINE, Executor, Facts
from autoscaler.runtime.gate import Gate
from tests.support.pool_world import PoolWorld
from tests.support.virtual_time import START, VirtualClock, run_virtual

HERE = Placement(offer="gpu", zone="local")
TICK = Duration(15.0)


def endpoint(name: str) -> Endpoint:
    replica = ReplicaId(f"{name}:8000")
    return Endpoint(replica=replica, instance=instance_of(replica), host=f"host-{name}", port=8000)


def launch(token: str, count: int = 1) -> Launch:
    return Launch(token=Token(token), placement=HERE, count=count, total_after=count, request="{}")


def admit(name: str, boot: str = "b|") -> Admit:
    return Admit(endpoint=endpoint(name), balancer="front", boot=boot)


def terminate(name: str, **changes: Any) -> Terminate:
    return Terminate(**{"instance": InstanceId(name), "offer": "gpu", "why": "scale_in", **changes})


class Scene:
    """An executor over in-memory providers; `passing` are replicas whose record says they pass in boot "b|"."""

    def __init__(self, *passing: str) -> None:
        self.clock = VirtualClock()
        self.world = PoolWorld(self.clock)
        self.gate = Gate(self.clock)
        self.points: list[str] = []
        self.executor = Executor(self.world.parts(), self.clock, self.gate, self.points.append)
        self.foreign: set[InstanceId] = set()
        self.memory = Memory()
        self.blind = False
        self.records = {
            ReplicaId(f"{name}:8000"): ProbeRecord(
                replica=ReplicaId(f"{name}:8000"),
                boot="b|",
                passes=2,
                last=ProbeVerdict(alive=True, loaded=True),
                last_at=START,
                loaded_at=START,
            )
            for name in passing
        }

    def have(self, *names: str) -> None:
        for name in names:
            machine = Instance(
                id=InstanceId(name),
                token=Token("t"),
                offer="gpu",
                zone="local",
                state=InstanceState.RUNNING,
                launched_at=START,
                address=f"host-{name}",
                ports=(8000,),
            )
            self.world.compute.add(self.world.name, machine)

    def draining(self, name: str, ahead: float) -> None:
        """Memory has it draining with a deadline that lies `ahead` seconds."""
        drain = DrainWhy(why="scale_in", since=START, deadline=Instant(START + ahead))
        intent = Intent(
            phase=Phase.DRAINING, since=START, launched_at=START, offer="gpu", zone="local", units=1.0, drain=drain
        )
        self.memory = Memory(intents={ReplicaId(f"{name}:8000"): intent})

    async def run(self, plan: Sequence[Action], budget: float = TICK) -> list[Outcome]:
        decision = Decision(
            pool=self.world.name,
            at=START,
            sequence=1,
            trust=TrustVerdict(level=Trust.TRUST, why=""),
            opinions=(),
            capacity=Capacity(),
            wanted=None,
            target=0,
            reason=Reason(code="test"),
            blocks=(),
            alarms=(),
            plan=tuple(plan),
            replicas=(),
            sentence="",
            memory=self.memory,
        )
        views = {} if self.blind else {"front": await self.world.balancer.members()}
        facts = Facts(decision, views, frozenset(self.foreign), self.records.get)
        await self.executor.run(facts, Duration(budget))
        return self.executor.take_outcomes()


def statuses(outcomes: Sequence[Outcome]) -> dict[str, OutcomeStatus]:
    return {outcome.action.key: outcome.status for outcome in outcomes}


def test_into_traffic_comes_first_then_out_of_it_then_new_machines_then_ends() -> None:
    async def scenario() -> None:
        scene = Scene("a", "r")
        scene.have("x", "y", "z")
        plan: list[Action] = [
            terminate("x"),
            launch("t1"),
            Drain(endpoint=endpoint("d"), balancer="front", why="scale_in"),
            Withdraw(token=Token("t0"), placement=HERE),
            Stop(instance=InstanceId("y"), offer="gpu"),
            Start(instance=InstanceId("z"), offer="gpu"),
            Evict(endpoint=endpoint("e"), balancer="front", why="lost"),
            Recall(endpoint=endpoint("r"), balancer="front", boot="b|"),
            Reweigh(endpoint=endpoint("w"), balancer="front"),
            admit("a"),
        ]
        outcomes = await scene.run(plan)
        order = [point.removeprefix("before_") for point in scene.points if point.startswith("before_")]
        assert [set(order[:3]), set(order[3:5]), set(order[5:7]), set(order[7:])] == [
            {"admit", "recall", "reweigh"},
            {"drain", "evict"},
            {"launch", "start"},
            {"withdraw", "terminate", "stop"},
        ]
        later = {"terminate:x", "stop:y", "start:z"}
        assert statuses(outcomes) == {
            action.key: OutcomeStatus.ACCEPTED if action.key in later else OutcomeStatus.DONE for action in plan
        }

    run_virtual(scenario)


def test_actions_of_a_kind_on_one_target_are_one_call_and_launches_are_not() -> None:
    async def scenario() -> None:
        names = [f"m{number}" for number in range(20)]
        scene = Scene(*names)
        scene.have(*(f"x{number}" for number in range(5)))
        plan = [admit(name) for name in names]
        ends = [terminate(f"x{number}") for number in range(5)]
        await scene.run([*plan, *ends, launch("t1"), launch("t2")])
        calls, ports = scene.world.compute.faults.calls, scene.world.balancer.faults.calls
        assert (ports["admit"], calls["terminate"], calls["launch"]) == (1, 1, 2)
        assert [name for _, _, name in scene.world.balancer.log] == [one.endpoint.replica for one in plan]

    run_virtual(scenario)


def test_a_launch_reports_its_machines_and_fewer_than_asked_is_no_fault() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.world.compute.room = 2
        (outcome,) = await scene.run([launch("t1", count=3)])
        assert (outcome.status, len(outcome.ids)) == (OutcomeStatus.DONE, 2)

    run_virtual(scenario)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Unreachable("x"), FaultKind.UNREACHABLE),
        (Throttled("x", retry_after_s=7.0), FaultKind.THROTTLED),
        (Conflict("x"), FaultKind.CONFLICT),
        (NoCapacity("x"), FaultKind.NO_CAPACITY),
        (Refused("x"), FaultKind.REFUSED),
    ],
)
def test_a_fault_of_a_port_is_an_outcome(fault: Unreachable, kind: FaultKind) -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.world.compute.faults.fail("launch", fault)
        (outcome,) = await scene.run([launch("t1")])
        assert outcome.status is OutcomeStatus.FAULT
        assert outcome.fault == fault.fault
        assert outcome.fault.kind is kind

    run_virtual(scenario)


@pytest.mark.scenario("A cloud call that never returns is cut at its deadline, and the pool goes on")
def test_a_call_that_outlives_the_budget_stays_in_flight_is_not_repeated_and_ends_at_its_deadline() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.world.compute.faults.delay["launch"] = 1e6
        assert await scene.run([launch("t1")]) == []
        assert scene.clock.now() - START == TICK
        assert scene.executor.in_flight == {"launch:t1"}
        assert await scene.run([launch("t1")]) == []
        assert scene.world.compute.faults.calls["launch"] == 1
        await asyncio.sleep(CALL_DEADLINE)
        (outcome,) = await scene.run([])
        assert outcome.fault is not None
        assert outcome.fault.kind is FaultKind.UNREACHABLE
        assert scene.executor.in_flight == frozenset()

    run_virtual(scenario)


def test_a_stage_that_hangs_does_not_keep_the_later_ones_from_their_turn() -> None:
    async def scenario() -> None:
        scene = Scene("a")
        scene.have("x")
        scene.world.balancer.faults.delay["admit"] = 40.0
        outcomes = await scene.run([admit("a"), launch("t1"), terminate("x")])
        assert set(statuses(outcomes)) == {"launch:t1", "terminate:x"}
        await asyncio.sleep(40)
        assert statuses(scene.executor.take_outcomes()) == {"admit:front:a:8000": OutcomeStatus.DONE}

    run_virtual(scenario)


def test_calls_of_a_kind_are_bounded_and_what_does_not_fit_the_budget_is_dropped() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.world.compute.faults.delay["launch"] = 5.0
        outcomes = await scene.run([launch(f"t{number}") for number in range(20)], budget=12.0)
        counts = list(statuses(outcomes).values())
        # Rounds of four begin at 0, 5 and 10 s; the third is still out when the budget ends.
        assert counts.count(OutcomeStatus.DONE) == 8
        assert len(scene.executor.in_flight) == 4
        assert counts.count(OutcomeStatus.DROPPED) == 8
        await asyncio.sleep(20)
        assert len(scene.world.compute.launched) == 12

    run_virtual(scenario)


def test_calls_still_out_from_an_earlier_tick_count_against_the_bound() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.world.compute.faults.delay["launch"] = 50.0
        await scene.run([launch(f"t{number}") for number in range(4)])
        outcomes = await scene.run([launch(f"u{number}") for number in range(4)])
        assert set(statuses(outcomes).values()) == {OutcomeStatus.DROPPED}
        assert scene.world.compute.faults.calls["launch"] == 4

    run_virtual(scenario)


@pytest.mark.law(1)
@pytest.mark.parametrize("kind", [Admit, Recall])
@pytest.mark.parametrize(
    "change",
    [None, {"boot": "other|"}, {"passes": 1}, {"failing_since": START}, {"hung": True}],
    ids=["no record", "another boot", "too few passes", "failing", "hung"],
)
def test_nothing_is_admitted_that_does_not_pass_at_the_last_moment(
    change: dict[str, Any] | None, kind: type[Admit] | type[Recall]
) -> None:
    async def scenario() -> None:
        scene = Scene("a", "b")
        name = ReplicaId("a:8000")
        if change is None:
            del scene.records[name]
        else:
            scene.records[name] = msgspec.structs.replace(scene.records[name], **change)
        plan = [kind(endpoint=endpoint(one), balancer="front", boot="b|") for one in ("a", "b")]
        outcomes = await scene.run(plan)
        assert [one.status for one in outcomes] == [OutcomeStatus.DROPPED, OutcomeStatus.DONE]
        assert outcomes[0].detail
        assert scene.world.balancer.admitted() == {"b:8000"}

    run_virtual(scenario)


@pytest.mark.law(2)
def test_a_machine_that_a_balancer_still_admits_is_not_ended() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.have("x", "y")
        await scene.world.balancer.admit([endpoint("x"), endpoint("y")])
        await scene.world.balancer.drain([endpoint("y")])
        outcomes = await scene.run([terminate("x"), terminate("y")])
        assert statuses(outcomes) == {"terminate:x": OutcomeStatus.DROPPED, "terminate:y": OutcomeStatus.ACCEPTED}
        assert [name for _, name in scene.world.compute.terminated] == ["y"]
        (stopped,) = await scene.run([Stop(instance=InstanceId("x"), offer="gpu")])
        assert stopped.status is OutcomeStatus.DROPPED

    run_virtual(scenario)


def test_a_machine_that_this_very_plan_admits_is_not_ended() -> None:
    async def scenario() -> None:
        scene = Scene("x")
        scene.have("x")
        outcomes = await scene.run([terminate("x"), admit("x")])
        assert statuses(outcomes)["terminate:x"] is OutcomeStatus.DROPPED

    run_virtual(scenario)


@pytest.mark.parametrize("changes", [{"cut": 2}, {"why": "lost"}, {"why": "notice"}])
def test_what_was_cut_and_told_or_is_lost_may_end_though_a_balancer_lags(changes: dict[str, Any]) -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.have("x")
        await scene.world.balancer.admit([endpoint("x")])
        (outcome,) = await scene.run([terminate("x", **changes)])
        assert outcome.status is OutcomeStatus.ACCEPTED

    run_virtual(scenario)


@pytest.mark.parametrize(("ahead", "status"), [(-1.0, OutcomeStatus.ACCEPTED), (60.0, OutcomeStatus.DROPPED)])
def test_past_its_drain_deadline_a_machine_may_end_whatever_the_balancer_says(
    ahead: float, status: OutcomeStatus
) -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.have("x")
        await scene.world.balancer.admit([endpoint("x")])
        scene.draining("x", ahead)
        (outcome,) = await scene.run([terminate("x")])
        assert outcome.status is status

    run_virtual(scenario)


@pytest.mark.law(2)
@pytest.mark.parametrize(("ahead", "status"), [(-1.0, OutcomeStatus.ACCEPTED), (60.0, OutcomeStatus.DROPPED)])
def test_what_a_balancer_that_could_not_be_read_may_still_admit_is_not_ended(
    ahead: float, status: OutcomeStatus
) -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.have("x")
        scene.draining("x", ahead)
        scene.blind = True
        (outcome,) = await scene.run([terminate("x")])
        assert outcome.status is status

    run_virtual(scenario)


@pytest.mark.law(7)
def test_a_machine_with_tags_of_somebody_else_is_never_ended() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.foreign = {InstanceId("x")}
        (outcome,) = await scene.run([terminate("x", cut=1, why="lost")])
        assert outcome.status is OutcomeStatus.DROPPED
        assert scene.world.compute.faults.calls["terminate"] == 0

    run_virtual(scenario)


@pytest.mark.law(9)
def test_nothing_starts_when_the_gate_is_shut() -> None:
    async def scenario() -> None:
        scene = Scene("a")
        scene.gate.close()
        outcomes = await scene.run([admit("a"), launch("t1")])
        assert {one.status for one in outcomes} == {OutcomeStatus.DROPPED}
        assert {one.detail for one in outcomes} == {"the daemon is stopping"}

    run_virtual(scenario)


def test_stopping_in_the_middle_of_a_plan_ends_it_between_two_actions() -> None:
    async def scenario() -> None:
        scene = Scene("a")
        scene.have("x")
        scene.world.compute.faults.delay["launch"] = 2.0
        running = asyncio.create_task(scene.run([admit("a"), launch("t1"), terminate("x")]))
        await asyncio.sleep(1)
        scene.gate.close()
        assert statuses(await running) == {
            "admit:front:a:8000": OutcomeStatus.DONE,
            "launch:t1": OutcomeStatus.DONE,
            "terminate:x": OutcomeStatus.DROPPED,
        }

    run_virtual(scenario)


def test_the_checkpoints_stand_about_each_call() -> None:
    async def scenario() -> None:
        scene = Scene("a")
        scene.have("x")
        drain = Drain(endpoint=endpoint("d"), balancer="front", why="scale_in")
        await scene.run([admit("a"), drain, launch("t1"), terminate("x")])
        assert scene.points == [
            f"{side}_{what}" for what in ("admit", "drain", "launch", "terminate") for side in ("before", "after")
        ]

    run_virtual(scenario)


def test_an_action_that_names_what_the_pool_lacks_is_a_bug_and_is_raised() -> None:
    async def scenario() -> None:
        scene = Scene()
        with pytest.raises(InvariantBroken):
            await scene.run([Drain(endpoint=endpoint("a"), balancer="nowhere", why="scale_in")])
        two = {"a": scene.world.compute, "b": scene.world.compute}
        scene.executor.parts = scene.world.parts()._replace(computes=two)
        with pytest.raises(InvariantBroken):
            await scene.run([terminate("x", offer="unheard of")])
        assert scene.executor.in_flight == frozenset()

    run_virtual(scenario)


def test_a_machine_of_an_offer_that_the_config_lost_still_ends() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.have("x")
        (outcome,) = await scene.run([terminate("x", offer="gone")])
        assert outcome.status is OutcomeStatus.ACCEPTED

    run_virtual(scenario)


def test_an_adapter_that_breaks_its_contract_is_heard_and_blocks_no_key() -> None:
    async def scenario() -> None:
        scene = Scene()

        async def broken(*args: object) -> None:
            raise KeyError("nobody expected this")

        scene.world.compute.launch = broken  # type: ignore[assignment]
        with pytest.raises(KeyError):
            await scene.run([launch("t1")])
        assert scene.executor.in_flight == frozenset()
        assert await scene.run([]) == []

    run_virtual(scenario)


def test_finish_waits_for_calls_and_then_cuts_them() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.world.compute.faults.delay["launch"] = 20.0
        await scene.run([launch("t1")], budget=1.0)
        await scene.executor.finish(Duration(30.0))
        assert list(scene.world.compute.launched) == ["t1"]
        scene.world.compute.faults.delay["launch"] = 1e6
        await scene.run([launch("t2")], budget=1.0)
        await scene.executor.finish(Duration(5.0))
        assert scene.executor.in_flight == frozenset()

    run_virtual(scenario)
