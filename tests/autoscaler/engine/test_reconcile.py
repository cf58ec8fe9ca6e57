"""What was seen becomes phases: by the table, row by row where chance is too rare; and nothing is lost on the way."""

import pytest

from autoscaler.domain.base import Instant, Token
from autoscaler.domain.decision import Admit, Drain, Evict, Terminate
from autoscaler.domain.directives import Directives
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import DrainWhy
from autoscaler.domain.replica import ComputeView, InstanceState, MemberState, Notice, ProbeVerdict
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
    decided,
    in_service,
    loading,
    ready,
    replace,
    rid,
)

P = Phase
R1 = rid("r1")
REFUSED = ProbeVerdict(alive=False, loaded=False, detail="refused")
DRAIN = DrainWhy(why="scale_in", since=Instant(NOW - 60.0), deadline=Instant(NOW + 60.0))


def phase_of(seen: Seen, **changes: object) -> Phase:
    """The phase after joining, before the plan adds to it."""
    found = decided(a_pool(), seen, wants=1, **changes)
    joined = {one.id: one.phase for one in found.replicas}
    return joined.get(R1, found.memory.intents[R1].phase)


def seen_as(
    before: Phase | None, *, machine: object = None, look: object = None, member: object = None, **intent: object
) -> Seen:
    known = an_intent(before, **intent) if before is not None else None
    return Seen(machine, look, member, known)  # type: ignore[arg-type]


ENDED = a_machine(state=InstanceState.TERMINATED)
STOPPED = a_machine(state=InstanceState.STOPPED)
BOOTS = a_machine(state=InstanceState.PENDING, address=None)
FAILS = a_look(last=REFUSED, passes=0, failing_since=Instant(NOW - 20.0))
OK_AT = {"ready_at": Instant(NOW - 300.0)}


@pytest.mark.parametrize(
    ("before", "seen", "now"),
    [
        # first looks: REQUESTED is what a machine is before it was ever seen
        (P.REQUESTED, seen_as(None, machine=BOOTS), P.BOOTING),
        (P.REQUESTED, seen_as(None, machine=a_machine()), P.LOADING),
        (P.REQUESTED, seen_as(None, machine=a_machine(), look=a_look()), P.READY),
        (P.REQUESTED, seen_as(None, machine=a_machine(), look=a_look(), member=a_member()), P.IN_SERVICE),
        (P.REQUESTED, seen_as(None, machine=STOPPED), P.LOST),
        (P.REQUESTED, seen_as(None, machine=ENDED), P.GONE),
        # seen again after it was taken for gone
        (P.GONE, seen_as(P.GONE, machine=a_machine(), terminating_since=NOW), P.TERMINATING),
        (P.GONE, seen_as(P.GONE, machine=a_machine(), drain=DRAIN), P.DRAINING),
        (P.GONE, seen_as(P.GONE, machine=a_machine()), P.LOADING),
        # the provider ends it, whatever it was
        (P.BOOTING, seen_as(P.BOOTING, machine=ENDED), P.GONE),
        (P.LOADING, seen_as(P.LOADING, machine=ENDED), P.GONE),
        (P.READY, seen_as(P.READY, machine=ENDED), P.GONE),
        (P.IN_SERVICE, seen_as(P.IN_SERVICE, machine=ENDED), P.GONE),
        (P.DRAINING, seen_as(P.DRAINING, machine=ENDED, drain=DRAIN), P.GONE),
        (P.LOST, seen_as(P.LOST, machine=ENDED), P.GONE),
        # booting
        (P.BOOTING, seen_as(P.BOOTING, machine=a_machine()), P.LOADING),
        (P.BOOTING, seen_as(P.BOOTING, machine=a_machine(), look=a_look()), P.READY),
        (P.BOOTING, seen_as(P.BOOTING, machine=STOPPED), P.LOST),
        (P.BOOTING, seen_as(P.BOOTING, machine=a_machine(), look=a_look(), member=a_member(), **OK_AT), P.IN_SERVICE),
        # a restart seen as such
        (P.LOADING, seen_as(P.LOADING, machine=BOOTS), P.BOOTING),
        (P.READY, seen_as(P.READY, machine=BOOTS, **OK_AT), P.BOOTING),
        (P.IN_SERVICE, seen_as(P.IN_SERVICE, machine=BOOTS, **OK_AT), P.BOOTING),
        (P.LOST, seen_as(P.LOST, machine=BOOTS, **OK_AT), P.BOOTING),
        (P.READY, seen_as(P.READY, machine=a_machine(boot="b2"), **OK_AT), P.LOADING),
        (P.IN_SERVICE, seen_as(P.IN_SERVICE, machine=a_machine(boot="b2"), member=a_member(), **OK_AT), P.LOADING),
        # a boot's name may be refined, and b10 is not b1
        (P.READY, seen_as(P.READY, machine=a_machine(), look=a_look(boot="b1|p5|"), **OK_AT), P.READY),
        (P.READY, seen_as(P.READY, machine=a_machine(boot="b10"), look=a_look(boot="b10|"), **OK_AT), P.READY),
        (P.READY, seen_as(P.READY, machine=a_machine(boot="b10"), look=a_look(boot="b1|"), **OK_AT), P.LOADING),
        # failing and recovering
        (P.READY, seen_as(P.READY, machine=a_machine(), look=FAILS, failing_since=NOW, **OK_AT), P.LOST),
        (P.IN_SERVICE, seen_as(P.IN_SERVICE, machine=a_machine(), look=FAILS, member=a_member(), **OK_AT), P.LOST),
        (P.LOST, seen_as(P.LOST, machine=a_machine(), look=a_look(), **OK_AT), P.READY),
        (P.LOST, seen_as(P.LOST, machine=a_machine(), look=a_look(), member=a_member(), **OK_AT), P.IN_SERVICE),
        (P.LOST, seen_as(P.LOST, machine=a_machine(), look=a_look(passes=1), **OK_AT), P.LOADING),
        (P.LOADING, seen_as(P.LOADING, machine=STOPPED), P.LOST),
        (P.LOADING, seen_as(P.LOADING, machine=a_machine(), look=a_look(), member=a_member()), P.IN_SERVICE),
        # not shown: LOST at the first complete look, GONE at the second
        (P.IN_SERVICE, seen_as(P.IN_SERVICE, **OK_AT), P.LOST),
        (P.LOST, seen_as(P.LOST, missing_since=Instant(NOW - 15.0), **OK_AT), P.GONE),
        (P.TERMINATING, seen_as(P.TERMINATING, terminating_since=NOW), P.GONE),
    ],
)  # fmt: skip
def test_a_replica_moves_by_what_is_seen(before: Phase, seen: Seen, now: Phase) -> None:
    del before
    memory = a_memory(seen, intents={R1: seen.intent} if seen.intent is not None else {})
    assert phase_of(seen, memory=memory) is now


def test_a_prober_without_records_after_a_restart_takes_nobody_out() -> None:
    seen = in_service("r1").but(look=None)
    found = decided(a_pool(), seen, wants=1)
    assert found.replicas[0].phase is P.IN_SERVICE
    assert found.plan == ()


def test_a_failure_counts_from_its_first_look_though_the_prober_began_anew() -> None:
    """Silent for 14 s before the restart, for 2 s after it: 16 s are more than the 15 s allowed."""
    silent = ProbeVerdict(alive=False, loaded=False, certain=False)
    look = a_look(last=silent, failing_since=Instant(NOW - 2.0))
    known = in_service("r1")
    assert known.intent is not None
    seen = known.but(look=look, intent=replace(known.intent, failing_since=Instant(NOW - 16.0)))
    assert phase_of(seen) is P.LOST
    assert phase_of(known.but(look=look)) is P.IN_SERVICE


def test_one_look_read_in_two_ticks_is_one_look() -> None:
    """Law 2 asks for two looks: an early tick that reads the same record again is none."""
    member = a_member(state=MemberState.DRAINING, active=None)
    look = a_look(last_at=Instant(NOW - 5.0))
    intent = an_intent(P.DRAINING, drain=DRAIN, out_since=Instant(NOW - 30.0), idle_at=(look.last_at,), **OK_AT)
    intent = replace(intent, drain=replace(DRAIN, why="operator"))
    seen = Seen(a_machine(), look, member, intent)
    assert decided(a_pool(), seen, wants=0).memory.intents[R1].idle_at == (look.last_at,)
    later = seen.but(look=replace(look, last_at=Instant(NOW - 1.0)))
    found = decided(a_pool(), later, wants=0)
    assert found.memory.intents[R1].idle_at == (look.last_at, Instant(NOW - 1.0))
    assert [one.key for one in found.plan if isinstance(one, Evict)] == [f"evict:b:{R1}"]


def test_a_zone_that_does_not_answer_keeps_its_replicas_and_ends_none() -> None:
    """Its drain deadline has passed, yet whether it left its balancer is not known while it is not seen."""
    past = replace(DRAIN, deadline=Instant(NOW - 1.0))
    seen = Seen(None, None, None, an_intent(P.DRAINING, drain=past, out_since=Instant(NOW - 60.0), **OK_AT))
    dark = {"c": ComputeView(compute="c", instances=(), as_of=NOW, unreachable_zones=("local",))}
    found = decided(a_pool(), seen, wants=0, memory=a_memory(seen, intents={R1: seen.intent}), computes=dark)
    assert not [one for one in found.plan if isinstance(one, Terminate)]
    assert found.memory.intents[R1].phase is P.DRAINING


def test_a_notice_on_a_draining_replica_shortens_its_time_and_forbids_its_recall() -> None:
    """Load has returned (3 wanted, 2 there), but the machine that drains will be taken away."""
    known = in_service("r1")
    assert known.intent is not None
    drains = known.but(
        member=a_member(state=MemberState.DRAINING),
        intent=replace(known.intent, phase=P.DRAINING, drain=DRAIN, out_since=Instant(NOW - 10.0)),
    )
    soon = Notice(instance=a_machine().id, kind="spot", at=Instant(NOW + 20.0))
    late = Notice(instance=a_machine().id, kind="maintenance", at=Instant(NOW + 900.0))
    pair = in_service("r2")
    for notices in ((soon, late), (late, soon)):
        view = an_observation(drains, pair).computes["c"]
        found = decided(a_pool(), drains, pair, wants=3, computes={"c": replace(view, notices=notices)})
        drain = found.memory.intents[R1].drain
        assert drain is not None
        assert (drain.why, drain.deadline) == ("notice", soon.at)


def test_an_operators_drain_is_not_recalled_when_load_returns() -> None:
    known = in_service("r1")
    assert known.intent is not None
    drains = known.but(intent=replace(known.intent, phase=P.DRAINING, drain=DRAIN, out_since=Instant(NOW - 10.0)))
    found = decided(a_pool(), drains, wants=3, directives=Directives(drain=frozenset({R1})))
    drain = found.memory.intents[R1].drain
    assert drain is not None
    assert drain.why == "operator"


def test_a_member_at_the_endpoint_of_a_gone_one_belongs_to_who_lives_there_now() -> None:
    """Hosts that reuse addresses (and one's own host, always) gave each new replica the eviction of the old one."""
    now_there = ready("r2").but(machine=a_machine("r2", address="host-r1"))
    gone = an_intent(P.GONE, since=Instant(NOW - 5000.0))
    member = a_member("r1", replica=None)
    seen = now_there.but(member=member)
    memory = a_memory(seen, intents={R1: gone, seen.id: seen.intent})
    found = decided(a_pool(), seen, wants=1, memory=memory)
    assert not [one for one in found.plan if isinstance(one, Evict)]
    assert R1 not in found.memory.intents  # nothing of it is left anywhere: forgotten


def test_members_of_whom_an_empty_ledger_knows_nothing_stay_for_a_window() -> None:
    member = a_member("r9")
    fresh = a_memory(in_service("r1"), history_since=NOW)
    views = an_observation(in_service("r1")).balancers["b"]
    both = {"b": replace(views, members=(*views.members, member))}
    assert decided(a_pool(), in_service("r1"), wants=1, memory=fresh, balancers=both).plan == ()
    later = decided(a_pool(), in_service("r1"), wants=1, balancers=both)
    assert [one.key for one in later.plan] == [f"evict:b:{rid('r9')}"]


def test_a_machine_shows_other_ports_and_its_old_one_is_no_failure() -> None:
    known = loading("r1")
    assert known.intent is not None
    old = an_intent(P.LOADING)
    memory = a_memory(known, intents={rid("r1", 0): old})
    found = decided(a_pool(), known, wants=1, memory=memory)
    assert set(found.memory.intents) == {R1}
    assert found.memory.breakers == {}


def test_a_crash_loop_has_one_time_to_load_and_not_one_a_boot() -> None:
    """Never ready: its time runs on. Ready once: it begins with the boot after."""
    began = Instant(NOW - 200.0)
    seen = loading("r1", boot="b2")
    never = an_intent(P.LOADING, launched_at=began)
    found = decided(a_pool(), seen.but(look=None, intent=never), wants=1)
    assert found.memory.intents[R1].launched_at == began
    once = an_intent(P.READY, launched_at=began, **OK_AT)
    found = decided(a_pool(), seen.but(look=None, intent=once), wants=1)
    assert found.memory.intents[R1].launched_at == NOW


def test_a_machine_of_another_epoch_is_adopted_and_ours_is_not() -> None:
    other = loading("r1").but(intent=None, machine=a_machine(token=Token("e0-1-0")))
    ours = loading("r2").but(intent=None)
    found = decided(a_pool(), other, ours, wants=2)
    assert [found.memory.intents[one].adopted for one in (R1, rid("r2"))] == [True, False]
    assert found.memory.intents[R1].first_seen_at == NOW


def test_a_member_that_someone_detached_is_admitted_again() -> None:
    found = decided(a_pool(), in_service("r1").but(member=None), wants=1)
    assert [type(one) for one in found.plan] == [Admit]


def test_a_replica_in_a_new_boot_leaves_the_balancer_at_once() -> None:
    found = decided(a_pool(), in_service("r1").but(machine=a_machine(boot="b2")), wants=1)
    assert [type(one) for one in found.plan if isinstance(one, Drain)] == [Drain]
