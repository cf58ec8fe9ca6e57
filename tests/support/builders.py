"""Builders for the engine's tests: a pool, machines, members and looks in the words of the domain, with few words."""

from collections.abc import Iterable
from importlib import import_module

import msgspec

from autoscaler.domain.base import Duration, InstanceId, Instant, PoolName, ReplicaId, Token, replica_id
from autoscaler.domain.decision import Calendar, Decision, Observation, Outcome, Reason, Recommendation, Situation
from autoscaler.domain.directives import Directives
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.load import Kind, LoadSample, Reading, ReadingState, Signal
from autoscaler.domain.memory import Intent, Memory
from autoscaler.domain.pool import BalancerTraits, Bounds, DrainRule, Offer, Pace, Pool, ReadyRule, ScaleIn, ScaleOut
from autoscaler.domain.replica import (
    BalancerView,
    ComputeView,
    Instance,
    InstanceState,
    Member,
    MemberState,
    ProbeRecord,
    ProbeVerdict,
    Traffic,
)
from autoscaler.engine.decide import decide
from autoscaler.ports.policy import Policy

replace = msgspec.structs.replace

NOW = Instant(1_000_000.0)
PORT = 80
EPOCH = "e1"


def a_pool(least: int = 1, most: int = 6, **changes: object) -> Pool:
    """One offer in one zone behind one balancer; the pace is the default's divided by about five."""
    pool = Pool(
        installation="here",
        name=PoolName("p"),
        bounds=Bounds(min=least, max=most),
        offers=(Offer(name="o", compute="c", ports=(PORT,), usd_per_h=2.0),),
        balancers=(BalancerTraits(name="b", counts_active=True),),
        ready=ReadyRule(passes=2, give_up_after=Duration(240.0)),
        drain=DrainRule(deadline=Duration(120.0), lost_deadline=Duration(30.0)),
        pace=a_pace(),
    )
    return replace(pool, **changes)


def a_pace(**changes: object) -> Pace:
    """Quick enough for a test of an hour to have some of everything."""
    pace = Pace(
        scale_in=ScaleIn(cooldown=Duration(60.0), stabilization=Duration(120.0), max_step=1),
        scale_out=ScaleOut(cooldown=Duration(30.0), max_step=2),
        fallback_after=Duration(120.0),
        launch_deadline=Duration(120.0),
        no_capacity_memory=Duration(90.0),
        orphan_grace=Duration(300.0),
        backoff_first=Duration(30.0),
        backoff_max=Duration(480.0),
        min_age=Duration(60.0),
    )
    return replace(pace, **changes)


class Asks:
    """A policy that wants what a test says; None is no opinion."""

    name = "asks"

    def __init__(self, target: object, *, veto: bool = False, signals: Iterable[Signal] = ()) -> None:
        self.target = target
        self.veto = veto
        self._signals = frozenset(signals)

    def signals(self) -> frozenset[Signal]:
        return self._signals

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        if isinstance(self.target, Exception):
            raise self.target
        return Recommendation(target=self.target, reason=Reason(code="asked"), veto_in=self.veto)  # type: ignore[arg-type]


def tracking(target: float = 4.0, signal: Signal = Signal.QUEUE_LENGTH) -> Policy:
    """The built-in policy that keeps `signal` at `target` a unit."""
    module = import_module("policies.target_tracking")
    policy: Policy = module.build(module.Settings(signal=signal, target=target))
    return policy


def rid(name: str, port: int = PORT) -> ReplicaId:
    return replica_id(InstanceId(name), port)


def a_machine(name: str = "r1", **changes: object) -> Instance:
    """A machine that runs, launched an hour ago by this very ledger."""
    machine = Instance(
        id=InstanceId(name), token=Token(f"{EPOCH}-0-{name}"), offer="o", zone="local", state=InstanceState.RUNNING,
        launched_at=Instant(NOW - 3600.0), address=f"host-{name}", ports=(PORT,), boot="b1",
    )  # fmt: skip
    return replace(machine, **changes)


def a_member(name: str = "r1", **changes: object) -> Member:
    member = Member(
        endpoint=f"host-{name}:{PORT}", replica=rid(name), state=MemberState.ADMITTED, traffic=Traffic.YES, active=0
    )
    return replace(member, **changes)


def a_look(name: str = "r1", **changes: object) -> ProbeRecord:
    """Passed often enough, idle, looked at one second ago."""
    record = ProbeRecord(
        replica=rid(name), boot="b1|", passes=5, last_at=Instant(NOW - 1.0),
        last=ProbeVerdict(alive=True, loaded=True, running=0, waiting=0),
    )  # fmt: skip
    return replace(record, **changes)


def an_intent(phase: Phase, **changes: object) -> Intent:
    intent = Intent(
        phase=phase, since=Instant(NOW - 600.0), launched_at=Instant(NOW - 3600.0), offer="o", zone="local", units=1.0,
        host="host-r1", boot="b1|",
    )  # fmt: skip
    return replace(intent, **changes)


def ready(name: str) -> "Seen":
    """A replica that passed its checks and is in no balancer yet."""
    return Seen(a_machine(name), a_look(name), None, an_intent(Phase.READY, ready_at=NOW, host=f"host-{name}"))


def in_service(name: str, **member: object) -> "Seen":
    """A replica that serves, and has for ten minutes."""
    intent = an_intent(
        Phase.IN_SERVICE, ready_at=Instant(NOW - 600.0), admitted_at=Instant(NOW - 600.0), host=f"host-{name}"
    )
    return Seen(a_machine(name), a_look(name), a_member(name, **member), intent)


def loading(name: str, **machine: object) -> "Seen":
    """A machine that runs and whose model has not loaded yet."""
    verdict = ProbeVerdict(alive=True, loaded=False)
    look = a_look(name, passes=0, last=verdict, failing_since=Instant(NOW - 10.0))
    return Seen(
        a_machine(name, launched_at=Instant(NOW - 30.0), **machine), look, None,
        an_intent(Phase.LOADING, host=f"host-{name}", launched_at=Instant(NOW - 30.0), out_since=Instant(NOW - 30.0)),
    )  # fmt: skip


class Seen(msgspec.Struct):
    """One replica as each side shows it, and as memory has it. None: that side does not know it."""

    machine: Instance | None
    look: ProbeRecord | None
    member: Member | None
    intent: Intent | None

    def but(self, **changes: object) -> "Seen":
        """The same with some sides changed."""
        return replace(self, **changes)

    @property
    def id(self) -> ReplicaId:
        for side in (self.look, self.member):
            if side is not None and side.replica is not None:
                return side.replica
        return replica_id(self.machine.id, PORT) if self.machine is not None else rid("r1")


def a_memory(*seen: Seen, **changes: object) -> Memory:
    """A memory with a long history, last saved one tick ago."""
    memory = Memory(
        epoch=EPOCH, sequence=7, last_at=Instant(NOW - 15.0), history_since=Instant(NOW - 7200.0),
        intents={one.id: one.intent for one in seen if one.intent is not None},
    )  # fmt: skip
    return replace(memory, **changes)


def a_sample(value: float | None = 0.0, covered: int = 1, **changes: object) -> LoadSample:
    state = ReadingState.ABSENT if value is None else ReadingState.OK
    reading = Reading(
        signal=Signal.QUEUE_LENGTH, kind=Kind.TOTAL, state=state, at=NOW, value=value, covered=covered, expected=covered
    )
    return LoadSample(at=NOW, readings={Signal.QUEUE_LENGTH: replace(reading, **changes)})


def an_observation(*seen: Seen, load: LoadSample | None = None, **changes: object) -> Observation:
    """Every source answers and shows these replicas."""
    machines = tuple(one.machine for one in seen if one.machine is not None)
    members = tuple(one.member for one in seen if one.member is not None)
    observation = Observation(
        now=NOW,
        computes={"c": ComputeView(compute="c", instances=machines, as_of=NOW)},
        balancers={"b": BalancerView(balancer="b", members=members, as_of=NOW)},
        probes={one.look.replica: one.look for one in seen if one.look is not None},
        load=load,
    )
    return replace(observation, **changes)


def decided(pool: Pool, *seen: Seen, wants: object = None, **changes: object) -> Decision:
    """The decision about these replicas when the one policy, which needs no telemetry, wants this size."""
    memory = changes.pop("memory", None)
    directives = changes.pop("directives", Directives())
    outcomes: tuple[Outcome, ...] = changes.pop("outcomes", ())  # type: ignore[assignment]
    observation = replace(an_observation(*seen), directives=directives, outcomes=outcomes, **changes)
    if memory is None:
        memory = a_memory(*seen)
    assert isinstance(memory, Memory)
    return decide(pool, [Asks(wants)], memory, observation, Calendar())
