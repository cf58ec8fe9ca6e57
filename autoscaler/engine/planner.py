"""What must be done whatever the size: the part of the plan that follows from the state of each replica.

Does: keep members in step with phases, replace what is lost, end what never loaded, finish drains.
Does not: choose who leaves for the size's sake (engine.victims does), where to launch (engine.placing) or how much.
Invariant: interrupted after any action, the plan has terminated nothing by choice that had not left every balancer and
shown itself empty twice, or passed its deadline.
"""

from __future__ import annotations

from typing import Final

import msgspec

from autoscaler.domain.base import InstanceId, Instant, ReplicaId, after, elapsed, instance_of
from autoscaler.domain.decision import Action, Admit, Drain, Evict, Observation, Reason, Reweigh, Terminate
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import DrainWhy, Intent, Memory
from autoscaler.domain.pool import BalancerTraits, Pool
from autoscaler.domain.replica import Endpoint, Replica
from autoscaler.engine.joined import Joined, weight_of

replace = msgspec.structs.replace

#: While too many are unhealthy, at most one is replaced in this many ticks (law 12).
PACED_TICKS: Final = 4
# A name of this module is found many times faster than the attribute of an enum, and these are asked for in each tick.
_LOST: Final = Phase.LOST
_DRAINING: Final = Phase.DRAINING


class Draft(msgspec.Struct, kw_only=True):
    """The plan while it is made, with the intents that go with it."""

    pool: Pool
    memory: Memory
    observation: Observation
    joined: Joined
    actions: list[Action] = []
    blocks: list[Reason] = []
    last_in_at: Instant | None = None
    last_out_at: Instant | None = None
    paced_at: Instant | None = None
    cut: int = 0
    changed: set[ReplicaId] = set()

    def machines(self) -> list[list[Replica]]:
        """The replicas of each machine, by instance id."""
        return _by_machine(self.joined.replicas)

    def restless(self) -> list[list[Replica]]:
        """The replicas of each machine of which one is not steady or was changed by this plan, by instance id."""
        machines = {one.instance for one in self.joined.restless} | {instance_of(one) for one in self.changed}
        if not machines:
            return []
        return _by_machine([one for one in self.joined.replicas if one.instance in machines])

    @property
    def now(self) -> Instant:
        """The instant of this tick."""
        return self.observation.now

    def intent(self, rid: ReplicaId) -> Intent:
        """The next intent of a replica."""
        return self.joined.intents[rid]

    def update(self, rid: ReplicaId, intent: Intent) -> None:
        """Set the next intent of a replica."""
        self.joined.intents[rid] = intent
        self.changed.add(rid)

    def sees(self, replica: Replica) -> bool:
        """Whether the compute and zone of this replica were seen in this tick; nothing of an unseen one is ended."""
        return replica.id not in self.joined.unseen


def _by_machine(replicas: list[Replica]) -> list[list[Replica]]:
    by_instance: dict[InstanceId, list[Replica]] = {}
    for replica in replicas:
        by_instance.setdefault(replica.instance, []).append(replica)
    return [group for _, group in sorted(by_instance.items())]


def endpoint_of(replica: Replica) -> Endpoint:
    """Where a replica listens, with its weight."""
    return Endpoint(
        replica=replica.id, instance=replica.instance, host=replica.host or "", port=replica.port,
        weight=weight_of(replica.units),
    )  # fmt: skip


def keep_members(draft: Draft) -> None:
    """Put the balancers in step with the phases: admit the ready, take out the failed, settle disagreements."""
    seen = [one for one in draft.pool.balancers if one.name in draft.observation.balancers]
    for replica in draft.joined.restless:
        if replica.phase in (Phase.READY, Phase.IN_SERVICE):
            _admit(draft, replica, seen)
        elif replica.phase not in (Phase.REQUESTED, Phase.STANDBY):
            for name in replica.admitted_in:
                why = draft.intent(replica.id).drain
                reason = why.why if why else replica.phase.value
                draft.actions.append(Drain(endpoint=endpoint_of(replica), balancer=name, why=reason))
    for name, member, rid in draft.joined.strays:
        host, _, port = member.endpoint.rpartition(":")
        gone = Endpoint(replica=rid, instance=InstanceId(rid.rpartition(":")[0]), host=host, port=int(port or 0))
        draft.actions.append(Evict(endpoint=gone, balancer=name, why="its machine is gone"))


def _admit(draft: Draft, replica: Replica, balancers: list[BalancerTraits]) -> None:
    """Admit where it is missing or was drained by someone else; only with a pass seen in this very boot (law 1)."""
    if replica.id not in draft.joined.fresh_passes:
        return
    endpoint, boot = endpoint_of(replica), draft.joined.boots[replica.id]
    for traits in balancers:
        if traits.name not in replica.admitted_in:
            draft.actions.append(Admit(endpoint=endpoint, balancer=traits.name, boot=boot))
        elif traits.weights and draft.joined.weights.get((traits.name, replica.id), endpoint.weight) != endpoint.weight:
            draft.actions.append(Reweigh(endpoint=endpoint, balancer=traits.name))
    if draft.intent(replica.id).admitted_at is None:
        draft.update(replica.id, replace(draft.intent(replica.id), admitted_at=draft.now))


def unhealthy_share(joined: Joined) -> str:
    """Why health forbids ending anything that serves: more than max(1, a third) are failing at once (law 12)."""
    lost = [one for one in joined.restless if one.phase is _LOST or _drains_as_lost(joined, one)]
    if len(lost) <= 1:
        return ""
    total = len(lost) + joined.serving
    if len(lost) > total / 3:
        return f"{len(lost)} of {total} replicas are unhealthy at once"
    return ""


def _drains_as_lost(joined: Joined, replica: Replica) -> bool:
    if replica.phase is not _DRAINING:
        return False
    drain = joined.intents[replica.id].drain
    return drain is not None and drain.why == "lost"


def replace_lost(draft: Draft, unhealthy: str) -> None:
    """Replicas that did not recover leave for good; one at a time, spaced, while a large share is unhealthy.

    One whose machine is stopped cannot recover and waits for nobody; one that a look missed is gone at the next.
    """
    pace = draft.pool.pace
    overdue = [
        one
        for one in draft.joined.restless
        if one.phase is Phase.LOST
        and draft.sees(one)
        and elapsed(one.since, draft.now) >= pace.replace_after
        and not in_grace(draft, draft.intent(one.id))
    ]
    # After a restart the prober has looked at nothing yet: a replica is not given up on what was known before.
    waiting = [one for one in overdue if one.id in draft.joined.looked and one.id not in draft.joined.ended]
    ended = [one for one in overdue if one.id in draft.joined.ended and draft.intent(one.id).missing_since is None]
    if unhealthy and waiting:
        paced_at = draft.memory.replace_paced_at
        spacing = max(float(pace.replace_after), PACED_TICKS * float(pace.tick))
        if paced_at is not None and elapsed(paced_at, draft.now) < spacing:
            draft.blocks.append(Reason(code="replacement_paced", facts={"why": unhealthy}))
            waiting = []
        else:
            waiting = sorted(waiting, key=lambda one: (one.since, one.id))[:1]
            draft.paced_at = draft.now
    for replica in [*ended, *waiting]:
        deadline = after(draft.now, draft.pool.drain.lost_deadline)
        begin_drain(draft, replica, DrainWhy(why="lost", since=draft.now, deadline=deadline))


def end_failed_loads(draft: Draft) -> dict[str, str]:
    """Terminate machines whose model did not load by the deadline; returns offer and why for the breaker (law 11).

    One that never was in a balancer is ended at once, since nothing can be cut; another one drains first.
    """
    failed: dict[str, str] = {}
    deadline = after(draft.now, draft.pool.drain.lost_deadline)
    for machine in draft.restless():
        stuck = [one for one in machine if _gives_up(draft, one)]
        if not stuck or machine[0].protected or not draft.sees(machine[0]):
            continue
        fresh = not any(_was_member(draft, one) for one in machine)
        if fresh and len(stuck) == len(machine):
            if draft.joined.balancers_blind:
                continue
            terminate(draft, machine, "its model did not load in time")
        else:
            for one in stuck:
                begin_drain(draft, one, DrainWhy(why="never_ready", since=draft.now, deadline=deadline))
        why = f"no model loaded within {draft.pool.ready.give_up_after:g} s"
        failed[machine[0].offer] = f"{why}: {stuck[0].detail}" if stuck[0].detail else why
    return failed


def _was_member(draft: Draft, replica: Replica) -> bool:
    return draft.intent(replica.id).admitted_at is not None or bool(replica.admitted_in or replica.draining_in)


def _gives_up(draft: Draft, replica: Replica) -> bool:
    """Whether a replica has had its time to load, and a look in this very boot (if it runs) says that it has not."""
    intent, now = draft.intent(replica.id), draft.now
    if intent.phase not in (Phase.BOOTING, Phase.LOADING):
        return False
    if replica.phase is Phase.LOADING and (replica.id not in draft.joined.looked or intent.failing_since is None):
        return False
    if intent.ready_at is not None:  # it worked in this boot: since it left traffic, not since it last flapped
        begun = intent.out_since if draft.pool.balancers and intent.out_since is not None else intent.since
        return elapsed(begun, now) >= draft.pool.ready.give_up_after
    return elapsed(intent.launched_at, now) >= draft.pool.ready.give_up_after and not in_grace(draft, intent)


def in_grace(draft: Draft, intent: Intent) -> bool:
    """An adopted machine that is not ready yet is left alone for a while from when it was first seen (law 7)."""
    if not intent.adopted or intent.ready_at is not None or intent.admitted_at is not None:
        return False
    return elapsed(intent.first_seen_at or intent.since, draft.now) < draft.pool.pace.orphan_grace


def finish_drains(draft: Draft) -> None:
    """Evict what has drained, then terminate machines all of whose replicas have left (law 2)."""
    for machine in machines_in(draft, (Phase.DRAINING,)):
        done = [_drained(draft, one) for one in machine]
        for replica, state in zip(machine, done, strict=True):
            _evict(draft, replica, state)
        left = all(not one.admitted_in and not one.draining_in for one in machine)
        ready = all(done) and left and draft.sees(machine[0]) and not draft.joined.balancers_blind
        if ready and not machine[0].protected:
            why = draft.intent(machine[0].id).drain
            terminate(draft, machine, f"drained ({why.why})" if why else "drained")
    for machine in machines_in(draft, (Phase.TERMINATING,)):
        if machine[0].phase is not Phase.TERMINATING:
            continue
        for replica in machine:
            _evict(draft, replica, "terminating")
        if draft.sees(machine[0]) and not draft.joined.balancers_blind:
            draft.actions.append(Terminate(instance=machine[0].instance, offer=machine[0].offer, why="terminating"))


def _evict(draft: Draft, replica: Replica, why: str) -> None:
    """Remove a replica from every balancer that lists it, once it gets nothing new there; no `why`, no eviction.

    A balancer that still admits it at the deadline does not follow drains: a drain that cannot finish is bounded.
    """
    if not why or (replica.admitted_in and why not in ("deadline", "terminating")):
        return
    for name in (*replica.admitted_in, *replica.draining_in):
        draft.actions = [
            one for one in draft.actions if one.key != f"drain:{name}:{replica.id}"
        ]  # fmt: skip
        draft.actions.append(Evict(endpoint=endpoint_of(replica), balancer=name, why=why))


def _drained(draft: Draft, replica: Replica) -> str:
    """Why a draining replica may go: "empty" or "deadline"; "" when it may not yet."""
    intent = draft.intent(replica.id)
    if intent.drain is None:
        return ""
    if intent.out_since is None:
        return "deadline" if draft.now >= intent.drain.deadline else ""
    if len(intent.idle_at) >= 2:
        return "empty"
    never_served = intent.admitted_at is None and intent.ready_at is None
    if never_served and elapsed(intent.out_since, draft.now) >= draft.pool.settle:
        return "empty"
    return "deadline" if draft.now >= intent.drain.deadline else ""


def terminate(draft: Draft, machine: list[Replica], why: str) -> None:
    """Save the end of a machine and ask for it; counts what its deadline cuts."""
    cut = 0
    for replica in machine:
        intent = draft.intent(replica.id)
        if intent.drain is not None and len(intent.idle_at) < 2:
            inside = max(int(replica.load), intent.inside)
            cut += inside
            # What a provider takes away with notice is told with the action, and is not a cut of our choice.
            draft.cut += inside if intent.drain.why != "notice" else 0
        draft.update(
            replica.id,
            replace(intent, phase=Phase.TERMINATING, since=draft.now, terminating_since=draft.now),
        )
    first = machine[0]
    draft.actions.append(Terminate(instance=first.instance, offer=first.offer, why=why, cut=cut))


def machines_in(draft: Draft, phases: tuple[Phase, ...]) -> list[list[Replica]]:
    """Machines all of whose replicas are in `phases` by the intents of this very plan, by instance id."""
    intents = draft.joined.intents
    machines = draft.machines() if Phase.IN_SERVICE in phases else draft.restless()
    return [group for group in machines if all(intents[one.id].phase in phases for one in group)]


def begin_drain(draft: Draft, replica: Replica, why: DrainWhy) -> None:
    """Mark a replica as leaving and tell the balancers at once."""
    intent = draft.intent(replica.id)
    if intent.drain is not None or intent.terminating_since is not None:
        return
    draft.update(replica.id, replace(intent, drain=why, phase=Phase.DRAINING, since=draft.now, idle_at=()))
    draft.actions = [  # whoever leaves is not admitted by the same plan
        one for one in draft.actions if not (isinstance(one, Admit | Reweigh) and one.endpoint.replica == replica.id)
    ]
    for name in replica.admitted_in:
        if not any(isinstance(one, Drain) and one.balancer == name and one.endpoint.replica == replica.id
                   for one in draft.actions):  # fmt: skip
            draft.actions.append(Drain(endpoint=endpoint_of(replica), balancer=name, why=why.why))
