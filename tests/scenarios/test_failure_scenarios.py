"""The list of failure scenarios, line by line: those that need no cloud, played on the engine.

Lines about sockets, reconnects, leases, files and processes are played where those live: tests/autoscaler/runtime,
tests/providers, tests/contract and tests/e2e. Lines of clouds wait for the clouds.
"""

from itertools import pairwise

import pytest

from autoscaler.domain.base import Duration, Instant, Token
from autoscaler.domain.decision import (
    Admit,
    Calendar,
    Decision,
    Drain,
    Evict,
    Launch,
    Outcome,
    OutcomeStatus,
    Terminate,
)
from autoscaler.domain.directives import AtLeast, Directives, Pause
from autoscaler.domain.faults import Fault, FaultKind
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.load import Idleness, ReadingState, Signal
from autoscaler.domain.memory import DrainWhy, OpenLaunch, Wanted
from autoscaler.domain.pool import Bounds, Offer, Placement
from autoscaler.domain.replica import MemberState, Notice, ProbeVerdict, Traffic
from autoscaler.engine.decide import decide
from tests.support.builders import (
    NOW,
    Asks,
    Seen,
    a_look,
    a_machine,
    a_member,
    a_memory,
    a_pace,
    a_pool,
    a_sample,
    an_intent,
    an_observation,
    decided,
    in_service,
    loading,
    ready,
    replace,
    rid,
    tracking,
)
from tests.support.judge import Laws
from tests.support.world import Event, Script, World, pools

TWO = (in_service("r1"), in_service("r2"))
THREE = (*TWO, in_service("r3"))
_CALENDAR = Calendar()


def scenario(name: str) -> pytest.MarkDecorator:
    return pytest.mark.scenario(name)


def on_load(load: object, *seen: Seen, pool: object = None, **changes: object) -> Decision:
    """What target tracking (4 waiting a unit) comes to with this sample."""
    memory = changes.pop("memory", None) or a_memory(*seen)
    observation = an_observation(*seen, load=load, **changes)  # type: ignore[arg-type]
    return decide(pool or a_pool(), [tracking(4.0)], memory, observation, _CALENDAR)  # type: ignore[arg-type]


def kinds(decision: Decision) -> list[type]:
    return [type(one) for one in decision.plan]


def ends(decision: Decision) -> list[object]:
    return [one for one in decision.plan if isinstance(one, Terminate | Drain | Evict)]


def codes(decision: Decision) -> set[str]:
    return {one.code for one in (*decision.blocks, *decision.alarms, decision.reason)}


# ------------------------------------------------------------------------------------------ telemetry


@scenario("a source that fails is an error, never 0 and never huge; after a while the fallback applies")
@pytest.mark.parametrize("sample", [None, a_sample(None), a_sample(float("nan")), a_sample(float("inf"))])
def test_a_source_that_fails_holds_and_later_falls_back(sample: object) -> None:
    pool = a_pool(bounds=Bounds(min=1, max=6, fallback=4))
    found = on_load(sample, *TWO, pool=pool)
    assert (found.target, found.plan) == (2, ())
    blind = a_memory(*TWO, blind_since=Instant(NOW - 120.0))
    assert on_load(sample, *TWO, pool=pool, memory=blind).target == 4
    assert on_load(a_sample(0.0, covered=2), *TWO, memory=blind).memory.blind_since is None


@scenario("every value drops to exactly 0 while replicas serve: an outage, not idleness")
@pytest.mark.parametrize(
    ("idleness", "target"),
    [
        (Idleness(families_present=False), 2),
        (Idleness(counter_went_back=True), 2),
        (Idleness(arrivals=9.0, completions=4.0), 2),
        (Idleness(arrivals=9.0, completions=9.0), 1),
        (Idleness(), 1),
    ],
)
def test_all_zero_is_idle_only_when_everything_else_says_so(idleness: Idleness, target: int) -> None:
    assert on_load(replace(a_sample(0.0, covered=2), idleness=idleness), *TWO).target == target


@scenario("half the scrapes fail: missing replicas are busy on the way down and idle on the way up")
def test_half_the_scrapes_fail() -> None:
    """Of four, two answer. 8 waiting in all: the two that are missing may hold as much, so nobody goes."""
    four = (*THREE, in_service("r4"))
    half = {"covered": 2, "expected": 4}
    assert on_load(a_sample(4.0, **half), *four).target == 4
    assert on_load(a_sample(21.0, **half), *four).target == 6  # 21 / 4 counts those that answered alone
    unheard = {"covered": 2, "expected": 2}  # the source has not even heard of the others
    assert on_load(a_sample(4.0, **unheard), *four).target == 4


@scenario("one metric of two fails: the other may scale out and not in")
@pytest.mark.parametrize(("value", "target"), [(0.5, 2), (12.0, 3)])
def test_one_of_two_signals_fails(value: float, target: int) -> None:
    sample = a_sample(value, covered=2)
    lost = replace(sample.readings[Signal.QUEUE_LENGTH], signal=Signal.RUNNING, state=ReadingState.ABSENT, value=None)
    sample = replace(sample, readings={**sample.readings, Signal.RUNNING: lost})
    policies = [tracking(4.0), tracking(8.0, Signal.RUNNING)]
    found = decide(a_pool(), policies, a_memory(*TWO), an_observation(*TWO, load=sample), _CALENDAR)
    assert found.target == target


@scenario("a source that stays down: the operator is told how long the pool has been held")
def test_a_pool_that_is_held_says_since_when() -> None:
    pool = a_pool(bounds=Bounds(min=1, max=6, fallback=2))
    found = on_load(None, *TWO, pool=pool, memory=a_memory(*TWO, blind_since=Instant(NOW - 300.0)))
    assert "blind for 300 s" in found.sentence


@scenario("right after a model has loaded its load is 0: a warming replica causes no scale-in")
def test_a_replica_that_just_loaded_does_not_talk_the_pool_down() -> None:
    """Its own zero lowers no total, and the wait begins at the highest size wanted within the window."""
    window = (Wanted(at=Instant(NOW - 30.0), units=3),)
    found = on_load(a_sample(5.0, covered=3), *THREE, memory=a_memory(*THREE, window=window))
    assert found.target == 3
    assert "stabilising" in codes(found)


# ------------------------------------------------------------------------------------------- deciding


@scenario("a cooldown or a window survives a restart")
def test_clocks_survive_a_restart() -> None:
    cooling = a_memory(*THREE, last_in_at=Instant(NOW - 30.0), last_at=Instant(NOW - 30.0))
    found = decided(a_pool(), *THREE, wants=1, memory=cooling)
    assert (found.target, codes(found) & {"cooldown_in"}) == (3, {"cooldown_in"})
    gap = decided(a_pool(), *THREE, wants=1, memory=a_memory(*THREE, last_at=Instant(NOW - 600.0)))
    assert (gap.target, gap.memory.history_since) == (3, NOW)


@scenario("stabilisation keeps the highest recommendation of the window on the way in")
@pytest.mark.parametrize(("ago", "target"), [(119.0, 3), (121.0, 2)])
def test_the_highest_of_the_window_counts(ago: float, target: int) -> None:
    window = (Wanted(at=Instant(NOW - ago), units=3), Wanted(at=Instant(NOW - 15.0), units=1))
    assert decided(a_pool(), *THREE, wants=1, memory=a_memory(*THREE, window=window)).target == target


@scenario("while replicas load for minutes, each tick must not add more for the same load")
def test_one_spike_is_answered_once() -> None:
    world = World(
        Script(pool=pools(), demand=4, warm=20, events=(Event(0, "slow_boot", lasts=40), Event(0, "load", 3)))
    )
    world.run()
    for _ in range(20):
        world.step()
    assert world.reach["launch"] <= 2
    assert len(world.machines) == 3


@scenario("a burst of four times the load needs more than one replica a tick")
def test_a_burst_is_answered_in_steps_that_double() -> None:
    found = decided(a_pool(1, 20), *THREE, wants=12)
    assert found.target == 6  # 3 + max(2, 100 % of 3)
    assert sum(one.count for one in found.plan if isinstance(one, Launch)) == 3


@scenario("a budget or maximum raised automatically comes back down")
def test_at_least_ends_by_itself() -> None:
    until = {"until": Instant(NOW + 1.0)}
    raised = decided(a_pool(), *TWO, wants=1, directives=Directives(at_least=AtLeast(units=4, **until)))
    assert raised.target == 4
    over = decided(a_pool(), *TWO, wants=1, directives=Directives(at_least=AtLeast(units=4, until=NOW)))
    assert over.target == 1


@scenario("a broken custom policy leaves the pool as it is and tells the operator")
@pytest.mark.parametrize("answer", [ValueError("boom"), float("nan"), -1.0, "three", float("inf"), True])
def test_a_broken_policy_moves_nothing(answer: object) -> None:
    pool, memory = a_pool(), a_memory(*TWO)
    found = decide(pool, [Asks(answer), Asks(6)], memory, an_observation(*TWO), _CALENDAR)
    assert (found.target, found.plan) == (2, ())
    assert "policy 0:asks is broken" in found.sentence
    found = decide(pool, [Asks(1), Asks(answer)], memory, an_observation(*TWO), _CALENDAR)
    assert found.target == 2


@scenario("manual changes are seen and reconciled without a fight")
def test_what_people_do_by_hand_is_settled() -> None:
    detached = decided(a_pool(), in_service("r1").but(member=None), wants=1)
    assert kinds(detached) == [Admit]
    terminated = decided(a_pool(), TWO[0], TWO[1].but(machine=None, look=None, member=None), wants=2)
    assert kinds(terminated) == [Launch]
    added = decided(a_pool(), *TWO, ready("r3").but(intent=None), wants=2, memory=a_memory(*TWO))
    assert not ends(added)  # adopted; the load's window decides later whether it stays


@scenario("pause and resume: no stuck state, right after a restart, paused means neither")
@pytest.mark.parametrize(
    ("pause", "wants", "target"),
    [(Pause.IN, 1, 2), (Pause.IN, 4, 4), (Pause.OUT, 4, 2), (Pause.OUT, 1, 1), (Pause.BOTH, 1, 2), (Pause.NONE, 4, 4)],
)
def test_pause_and_resume(pause: Pause, wants: int, target: int) -> None:
    found = decided(a_pool(), *TWO, wants=wants, directives=Directives(pause=pause))
    assert found.target == target
    resumed = decided(a_pool(), *TWO, wants=wants, memory=a_memory(*TWO, size=found.memory.size))
    assert resumed.target == wants


@scenario("pause and resume: a failed load is not replaced while scale-out is paused")
def test_paused_means_no_machine_whatever_for() -> None:
    stuck = loading("r2").but(machine=a_machine("r2", launched_at=Instant(NOW - 900.0)))
    assert stuck.intent is not None
    known = replace(stuck.intent, launched_at=Instant(NOW - 900.0), failing_since=Instant(NOW - 800.0))
    stuck = stuck.but(intent=known)
    paused = decided(a_pool(), TWO[0], stuck, wants=2, directives=Directives(pause=Pause.OUT))
    assert kinds(paused) == [Terminate]
    assert Launch in kinds(decided(a_pool(offers=two_offers()), TWO[0], stuck, wants=2))


# ------------------------------------------------------------------------------------ getting machines


def two_offers() -> tuple[Offer, ...]:
    offer = a_pool().offers[0]
    return (replace(offer, zones=("a", "b")), replace(offer, name="dear", zones=("a", "b"), usd_per_h=5.0))


def an_open(**changes: object) -> OpenLaunch:
    launch = OpenLaunch(
        token=Token("e1-p-5-0"), placement=Placement(offer="o", zone="a"), count=1, units=1, total_after=3,
        request="{}", at=Instant(NOW - 60.0), expires_at=Instant(NOW + 60.0),
    )  # fmt: skip
    return replace(launch, **changes)


def answered(launch: OpenLaunch, kind: FaultKind, retry: float = 0.0) -> Outcome:
    from autoscaler.engine.launches import order_of

    fault = Fault(kind=kind, detail="no", retry_after_s=retry)
    return Outcome(action=order_of(launch), status=OutcomeStatus.FAULT, at=Instant(NOW - 14.0), fault=fault)


@scenario("a boot of 12 minutes is slow, not failed; past its deadline it is replaced; the wait counts as capacity")
@pytest.mark.parametrize(("age", "replaced"), [(239.0, False), (241.0, True)])
def test_a_slow_boot_is_waited_for_until_its_deadline(age: float, replaced: bool) -> None:
    slow = loading("r2")
    assert slow.intent is not None
    known = replace(slow.intent, launched_at=Instant(NOW - age), failing_since=Instant(NOW - age))
    found = decided(a_pool(), TWO[0], slow.but(intent=known), wants=2)
    assert found.capacity.held == 2.0
    assert (Terminate in kinds(found)) is replaced
    assert bool(found.memory.breakers) is replaced


@scenario("no capacity in a zone: skipped for a while and the next tried; the mark expires; other faults mark nothing")
@pytest.mark.parametrize(
    ("kind", "marks"),
    [
        (FaultKind.NO_CAPACITY, {"o/a"}),
        (FaultKind.QUOTA_REACHED, {"o"}),
        (FaultKind.THROTTLED, set()),
        (FaultKind.REFUSED, set()),
        (FaultKind.UNREACHABLE, set()),
        (FaultKind.CONFLICT, set()),
    ],
)
def test_each_fault_marks_what_it_is_about(kind: FaultKind, marks: set[str]) -> None:
    pool, launch = a_pool(offers=two_offers()), an_open()
    memory = a_memory(*TWO, launches=(launch,))
    found = decided(pool, *TWO, wants=3, memory=memory, outcomes=(answered(launch, kind),))
    assert set(found.memory.marks) == marks
    sent = [one.placement.key for one in found.plan if isinstance(one, Launch)]
    elsewhere = {FaultKind.NO_CAPACITY: ["o/b"], FaultKind.QUOTA_REACHED: ["dear/a"], FaultKind.REFUSED: ["dear/a"]}
    assert sent == elsewhere.get(kind, [])


@scenario("no capacity in a zone: the mark expires")
def test_a_mark_expires() -> None:
    world = World(Script(pool=pools(zones=2), demand=4, warm=20, events=(Event(0, "no_capacity", lasts=6),)), Laws())
    world.run()
    world.demand = 24
    for _ in range(60):
        world.step()
    assert {one.zone for one in world.machines.values()} == {"a", "b"}
    assert world.memory.marks == {}


@scenario("throttled: wait as long as was asked, then ask for the same")
def test_throttling_is_waited_out_with_the_same_token() -> None:
    launch = an_open()
    memory = a_memory(*TWO, launches=(launch,))
    found = decided(a_pool(), *TWO, wants=3, memory=memory, outcomes=(answered(launch, FaultKind.THROTTLED, 40.0),))
    assert found.plan == ()
    assert found.memory.launches[0].resend_after == NOW + 40.0
    later = an_observation(*TWO, now=Instant(NOW + 41.0))
    again = decide(a_pool(), [Asks(3)], found.memory, later, _CALENDAR)
    assert [one.token for one in again.plan if isinstance(one, Launch)] == [launch.token]


@scenario("a crash between asking the cloud and noting it down: no second machine, no lost machine")
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_crash_in_the_middle_of_a_plan(after: int) -> None:
    events = (Event(0, "load", 5), Event(0, "crash", after), Event(3, "crash", after), Event(30, "load", 5))
    world = World(Script(pool=pools(zones=2), demand=4, warm=20, events=events, calm=40), Laws()).run()
    assert world.reach["crash"] == 2
    assert len(world.machines) == 5


@scenario("a preemption notice drains and replaces before the machine dies")
def test_a_notice_drains_and_replaces() -> None:
    view = an_observation(*TWO).computes["c"]
    notice = Notice(instance=a_machine("r1").id, kind="spot", at=Instant(NOW + 120.0))
    found = decided(a_pool(), *TWO, wants=2, computes={"c": replace(view, notices=(notice,))})
    assert kinds(found) == [Drain, Launch]


@scenario("machines with our tags that no memory knows are adopted, or terminated after a grace period")
@pytest.mark.parametrize(("seen_for", "ended"), [(0.0, False), (299.0, False), (301.0, True)])
def test_an_unknown_machine_has_its_grace_however_old_it_is(seen_for: float, ended: bool) -> None:
    orphan = loading("r2").but(machine=a_machine("r2", token=Token("e0-3-0"), launched_at=Instant(NOW - 99_999.0)))
    known = an_intent(
        Phase.LOADING, adopted=True, launched_at=Instant(NOW - 99_999.0), first_seen_at=Instant(NOW - seen_for),
        failing_since=Instant(NOW - seen_for),
    )  # fmt: skip
    orphan = orphan.but(intent=known if seen_for else None)
    assert (Terminate in kinds(decided(a_pool(), TWO[0], orphan, wants=2))) is ended


@scenario("a half-loaded model is never let into traffic because some timer ran out")
@pytest.mark.parametrize("passes", [0, 1])
def test_no_timer_admits(passes: int) -> None:
    half = loading("r1").but(look=a_look(passes=passes))
    assert half.intent is not None
    half = half.but(intent=replace(half.intent, launched_at=Instant(NOW - 100_000.0), since=Instant(NOW - 100_000.0)))
    assert Admit not in kinds(decided(a_pool(), half, wants=1))


# -------------------------------------------------------------------------------- letting machines go


def draining(**changes: object) -> Seen:
    """A replica that left its balancer half a minute ago and has told twice how many requests are inside."""
    drain = DrainWhy(why="scale_in", since=Instant(NOW - 60.0), deadline=Instant(NOW + 60.0))
    intent = an_intent(
        Phase.DRAINING, drain=drain, ready_at=Instant(NOW - 600.0), admitted_at=Instant(NOW - 600.0),
        out_since=Instant(NOW - 40.0), host="host-r3",
    )  # fmt: skip
    return Seen(a_machine("r3"), a_look("r3"), None, replace(intent, **changes))


@scenario("a drain ends when the replica is empty, or at the deadline, and that is told")
@pytest.mark.parametrize(
    ("running", "looks", "deadline", "ended", "cut"),
    [
        (0, (Instant(NOW - 20.0),), 60.0, True, 0),  # with this look: twice
        (0, (), 60.0, False, 0),  # once
        (3, (Instant(NOW - 20.0),), 60.0, False, 0),  # a stream has 28 minutes to go
        (3, (), -1.0, True, 3),  # ... and is cut at the deadline only
    ],
)
def test_how_a_drain_ends(running: int, looks: tuple[Instant, ...], deadline: float, ended: bool, cut: int) -> None:
    drain = DrainWhy(why="scale_in", since=Instant(NOW - 60.0), deadline=Instant(NOW + deadline))
    look = a_look("r3", last=ProbeVerdict(alive=True, loaded=True, running=running, waiting=0))
    found = decided(a_pool(), *TWO, draining(idle_at=looks, drain=drain).but(look=look), wants=2)
    assert ([one.cut for one in found.plan if isinstance(one, Terminate)] == [cut]) is ended
    assert found.memory.cut_total == cut


@scenario("a drain that can never finish is bounded: a balancer that does not follow is told to forget")
def test_a_balancer_that_does_not_drain_is_left_at_the_deadline() -> None:
    drain = DrainWhy(why="scale_in", since=Instant(NOW - 600.0), deadline=Instant(NOW - 1.0))
    still = draining(drain=drain, out_since=None).but(member=a_member("r3"))
    assert kinds(decided(a_pool(), *TWO, still, wants=2)) == [Evict]


@scenario("a machine is not drained, forgiven and drained again in circles")
def test_a_second_drain_is_final() -> None:
    again = draining(recalls=1).but(member=a_member("r3", state=MemberState.DRAINING))
    found = decided(a_pool(), *TWO, again, wants=3)
    assert kinds(found) == [Launch]


@scenario("the victim is chosen: protected never, young last, then least busy, dearest, newest")
def test_who_leaves_first() -> None:
    def one(name: str, running: int, age: float = 3600.0, offer: str = "o") -> Seen:
        look = a_look(name, last=ProbeVerdict(alive=True, loaded=True, running=running, waiting=0))
        known = in_service(name)
        assert known.intent is not None
        intent = replace(known.intent, launched_at=Instant(NOW - age), offer=offer)
        return known.but(look=look, intent=intent, machine=a_machine(name, offer=offer, launched_at=Instant(NOW - age)))

    order = [
        one("old_dear", 0, offer="dear"), one("newer", 0, 1800.0), one("old", 0), one("busy", 2), one("young", 0, 30.0),
    ]  # fmt: skip
    pool = a_pool(0, 9, offers=two_offers())
    left, chosen = list(reversed(order)), []
    while left:
        found = decided(pool, *left, wants=0)
        leaver = next(one.endpoint.instance for one in found.plan if isinstance(one, Drain))
        chosen.append(str(leaver))
        left = [each for each in left if each.id != rid(leaver)]
    assert chosen == ["old_dear", "newer", "old", "busy", "young"]
    protected = decided(pool, order[0], wants=0, directives=Directives(protect=frozenset({a_machine("old_dear").id})))
    assert not ends(protected)


@scenario("balancer and scaler disagree after a failure between the two: the next tick settles it")
@pytest.mark.parametrize(
    ("seen", "wants", "settles"),
    [
        (in_service("r1").but(member=a_member("r1", state=MemberState.DRAINING)), 2, Admit),
        (ready("r1"), 2, Admit),
        (draining().but(member=a_member("r3")), 1, Drain),
        (in_service("r1").but(machine=None, look=None, intent=an_intent(Phase.GONE)), 1, Evict),
    ],
)
def test_a_disagreement_is_settled(seen: Seen, wants: int, settles: type) -> None:
    assert settles in kinds(decided(a_pool(), THREE[1], seen, wants=wants, memory=a_memory(THREE[1], seen)))


@scenario("if a large share is unhealthy at once, nothing that serves is terminated")
def test_mass_failure_ends_nothing_that_serves() -> None:
    dead = ProbeVerdict(alive=False, loaded=False, detail="refused")
    lost = [
        one.but(look=a_look(one.id.partition(":")[0], last=dead, passes=0, failing_since=Instant(NOW - 20.0)))
        for one in THREE[:2]
    ]
    found = decided(a_pool(), *lost, THREE[2], in_service("r4"), wants=1)
    assert "unhealthy_share" in codes(found)
    assert {one.endpoint.replica for one in found.plan if isinstance(one, Drain)} == {rid("r1"), rid("r2")}
    assert Launch not in kinds(decided(a_pool(), *lost, THREE[2], in_service("r4"), wants=4))


@scenario("a GPU that is lost while its VM lives is a failed replica: out at once, replaced")
def test_a_replica_whose_model_died_is_out_at_once_and_replaced() -> None:
    dead = ProbeVerdict(alive=False, loaded=False, detail="refused")
    lost = in_service("r1").but(look=a_look("r1", last=dead, passes=0, failing_since=Instant(NOW - 1.0)))
    found = decided(a_pool(), lost, TWO[1], wants=2)
    assert kinds(found) == [Drain, Launch]


@scenario("a machine with two replicas, one of which is lost for good, is replaced whole")
def test_a_machine_half_of_which_is_broken_is_replaced() -> None:
    events = (Event(0, "load", 6), Event(30, "crash_loop", 0), Event(60, "load", 6))
    world = World(Script(pool=pools(ports=2), demand=8, warm=20, events=events, calm=60), Laws())
    first = next(iter(world.run().machines.values()), None)
    assert first is not None
    assert all(one.loaded(world.now) for one in world.machines.values())


@scenario("churn is bounded: nothing is replaced twice in half an hour for no gain")
def test_a_steady_load_moves_nothing_for_an_hour() -> None:
    world = World(Script(pool=pools(zones=2), demand=12, warm=40, events=(Event(0, "load", 3),)), Laws())
    world.run()
    before = dict(world.reach)
    for _ in range(240):
        world.step()
    assert world.reach["launch"] == before["launch"]
    assert world.reach["terminate"] == before.get("terminate", 0)


@scenario("new requests: from model loaded to admitted is one decision")
def test_a_ready_replica_is_admitted_in_the_same_tick() -> None:
    assert kinds(decided(a_pool(), loading("r1").but(look=a_look()), wants=1)) == [Admit]


# ----------------------------------------------------------------------------------------------- zero


@scenario("from zero: the first request wakes the pool")
@pytest.mark.parametrize(("load", "target"), [(0.0, 0), (1.0, 1), (9.0, 2)])
def test_a_pool_of_nothing_wakes_with_its_first_request(load: float, target: int) -> None:
    """Asked of a source outside the replicas, since there are none: 9 / 4 is three, a first step is two."""
    assert on_load(a_sample(load, covered=0), pool=a_pool(0, 6)).target == target
    assert on_load(None, pool=a_pool(0, 6)).target == 0


# ---------------------------------------------------------------------------------------- the daemon


@scenario("it restarts: it holds until it has seen a full window, and forgets nothing that it launched")
def test_after_a_restart_it_holds_for_a_window() -> None:
    script = Script(pool=pools(), demand=16, warm=30, events=(Event(0, "load", 0), Event(0, "down", lasts=10)))
    world = World(script, Laws()).run()
    for _ in range(7):
        world.step()
    assert world.reach["scale_in"] == 0
    assert len(world.machines) == 4


@scenario("it restarts with an empty ledger: machines are adopted and nothing is ended for a window")
def test_with_an_empty_ledger_nothing_is_ended_for_a_window() -> None:
    world = World(
        Script(pool=pools(), demand=16, warm=30, events=(Event(0, "load", 0), Event(0, "lose_ledger"))), Laws()
    )
    world.run()
    for _ in range(6):
        world.step()
    assert (world.reach["terminate"], world.reach["evict"], len(world.machines)) == (0, 0, 4)


@scenario("a restart after a long gap: nobody is judged on what was known before it")
def test_after_a_gap_nobody_is_ended_before_it_was_looked_at() -> None:
    old = Instant(NOW - 4000.0)
    boots = loading("r1").but(look=None, intent=an_intent(Phase.LOADING, launched_at=old, failing_since=old))
    lost = in_service("r2").but(
        look=None, member=None, intent=an_intent(Phase.LOST, since=old, ready_at=old, host="host-r2", out_since=old)
    )
    memory = a_memory(boots, lost, last_at=Instant(NOW - 3600.0))
    found = decided(a_pool(), boots, lost, wants=2, memory=memory)
    assert Terminate not in kinds(found)
    assert found.memory.intents[lost.id].drain is None


# ---------------------------------------------------------------------------------------- size, money


@scenario("units: a machine larger than a step may still leave, and never one that is needed")
@pytest.mark.parametrize(("wants", "leaves"), [(4, 1), (5, 0)])
def test_a_machine_of_four_units_leaves_in_one_step(wants: int, leaves: int) -> None:
    pool = a_pool(1, 12, offers=(replace(a_pool().offers[0], capacity=4),))
    pair = [one.but(intent=replace(one.intent, units=4.0)) for one in TWO if one.intent is not None]
    assert len(ends(decided(pool, *pair, wants=wants))) == leaves


@scenario("traffic that no balancer confirms counts for a loss and not for the floor")
def test_who_may_take_traffic_is_not_let_go_below_min() -> None:
    pool = a_pool(2, 6)
    three = (in_service("r1"), in_service("r2"), in_service("r3", traffic=Traffic.UNKNOWN))
    assert len(ends(decided(pool, *three, wants=2))) == 1
    unsure = (
        in_service("r1"), in_service("r2", traffic=Traffic.UNKNOWN), in_service("r3", traffic=Traffic.UNKNOWN),
    )  # fmt: skip
    assert ends(decided(pool, *unsure, wants=2)) == []


def test_every_step_of_a_growing_pool_is_a_step() -> None:
    """Sizes of a pool whose load is 100 times its own: 2, 4, 8, ... each a cooldown apart."""
    world = World(Script(pool=pools(most=16), demand=400, events=()))
    sizes = []
    for _ in range(12):
        world.step()
        sizes.append(sum(one.order.count for one in world.pending.values()) + len(world.machines))
    grown = [two - one for one, two in pairwise([0, *sizes])]
    assert max(grown) <= 8
    assert sizes[-1] == 16
    assert a_pace().scale_out.cooldown == Duration(30.0)


@scenario("a replica that is ready and no longer needed is not admitted by the plan that lets it go")
def test_whoever_leaves_is_not_admitted_by_the_same_plan() -> None:
    found = decided(a_pool(), *TWO, ready("r3"), wants=2)
    assert found.plan == ()
    assert found.memory.intents[rid("r3")].phase is Phase.DRAINING


@scenario("below the floor one that is about to take traffic is not let go, though something else is held")
def test_a_ready_replica_is_kept_while_too_few_take_traffic() -> None:
    found = decided(a_pool(2, 6), in_service("r1"), ready("r2"), loading("r3"), wants=2)
    assert kinds(found) == [Admit, Terminate]
    orphan = an_intent(Phase.LOADING, adopted=True, first_seen_at=NOW, launched_at=NOW)
    kept = decided(a_pool(2, 6), in_service("r1"), ready("r2"), loading("r3").but(intent=orphan), wants=2)
    assert kinds(kept) == [Admit]
