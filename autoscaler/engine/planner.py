"""From a target to ordered actions on what exists: the active half of a tick.

Does: keep members in step with phases, end what has drained, replace what is lost, recall, drain and choose victims.
Does not: choose where to launch (engine.placing does) or how many units to aim at (engine.sizing does).
Invariant: interrupted after any action, the plan has not taken capacity that takes traffic below the floor, and has
terminated nothing by choice that had not left every balancer and shown itself empty twice, or passed its deadline.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from autoscaler.domain.base import InstanceId, Instant, ReplicaId, after, elapsed
from autoscaler.domain.decision import (
    Action,
    Admit,
    Drain,
    Evict,
    Observation,
    Reason,
    Recall,
    Reweigh,
    Terminate,
)
from autoscaler.domain.lifecycle import ON_THE_WAY, Phase
from autoscaler.domain.memory import DrainWhy, Intent, Memory
from autoscaler.domain.pool import BalancerTraits, Pool
from autoscaler.domain.replica import Endpoint, Replica, Traffic
from autoscaler.engine.opinions import EPSILON
from autoscaler.engine.reconcile import Joined

replace = msgspec.structs.replace

#: Weight of one unit of capacity; 100 leaves room for fractions where a balancer wants whole numbers.
UNIT_WEIGHT: Final = 100
#: While too many are unhealthy, at most one is replaced in this many ticks (law 12).
PACED_TICKS: Final = 4


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
    machines: list[list[Replica]] = []

    def __post_init__(self) -> None:
        by_instance: dict[InstanceId, list[Replica]] = {}
        for replica in self.joined.replicas:
            by_instance.setdefault(replica.instance, []).append(replica)
        self.machines = [group for _, group in sorted(by_instance.items())]

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

    def sees(self, replica: Replica) -> bool:
        """Whether the compute of this replica was seen in this tick; nothing of an unseen one is ended."""
        offer = self.pool.offer(replica.offer)
        return (offer.compute in self.joined.visible) if offer else bool(self.joined.visible)


def endpoint_of(replica: Replica) -> Endpoint:
    """Where a replica listens, with its weight."""
    weight = max(1, round(replica.units * UNIT_WEIGHT))
    return Endpoint(
        replica=replica.id, instance=replica.instance, host=replica.host or "", port=replica.port, weight=weight
    )


def keep_members(draft: Draft) -> None:
    """Put the balancers in step with the phases: admit the ready, take out the failed, settle disagreements."""
    for replica in draft.joined.replicas:
        seen = [one for one in draft.pool.balancers if one.name in draft.observation.balancers]
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
    lost = [one for one in joined.replicas if one.phase is Phase.LOST or _drains_as_lost(joined, one)]
    serving = sum(1 for one in joined.replicas if one.phase is Phase.IN_SERVICE)
    total = len(lost) + serving
    if len(lost) > max(1.0, total / 3):
        return f"{len(lost)} of {total} replicas are unhealthy at once"
    return ""


def _drains_as_lost(joined: Joined, replica: Replica) -> bool:
    drain = joined.intents[replica.id].drain
    return replica.phase is Phase.DRAINING and drain is not None and drain.why == "lost"


def replace_lost(draft: Draft, unhealthy: str) -> None:
    """Replicas that did not recover leave for good; one at a time, spaced, while a large share is unhealthy."""
    pace = draft.pool.pace
    waiting = [
        one
        for one in draft.joined.replicas
        if one.phase is Phase.LOST and draft.sees(one) and elapsed(one.since, draft.now) >= pace.replace_after
    ]
    if unhealthy and waiting:
        paced_at = draft.memory.replace_paced_at
        spacing = max(float(pace.replace_after), PACED_TICKS * float(pace.tick))
        if paced_at is not None and elapsed(paced_at, draft.now) < spacing:
            draft.blocks.append(Reason(code="replacement_paced", facts={"why": unhealthy}))
            return
        waiting = sorted(waiting, key=lambda one: (one.since, one.id))[:1]
        draft.paced_at = draft.now
    for replica in waiting:
        deadline = after(draft.now, draft.pool.drain.lost_deadline)
        _begin_drain(draft, replica, DrainWhy(why="lost", since=draft.now, deadline=deadline))


def end_failed_loads(draft: Draft) -> list[str]:
    """Terminate machines whose model did not load by the deadline; returns their offers for the breaker (law 11).

    None of its replicas ever was in a balancer, so nothing can be cut.
    """
    failed = []
    for machine in _machines(draft, (Phase.BOOTING, Phase.LOADING)):
        give_up = draft.pool.ready.give_up_after
        if any(draft.intent(one.id).admitted_at is not None or one.admitted_in for one in machine):
            for one in machine:
                if elapsed(one.since, draft.now) >= give_up and one.phase is Phase.LOADING:
                    deadline = after(draft.now, draft.pool.drain.lost_deadline)
                    _begin_drain(draft, one, DrainWhy(why="never_ready", since=draft.now, deadline=deadline))
            continue
        intent = draft.intent(machine[0].id)
        limit = max(give_up, draft.pool.pace.orphan_grace) if intent.adopted else give_up
        if elapsed(intent.launched_at, draft.now) >= limit and draft.sees(machine[0]) and not machine[0].protected:
            failed.append(machine[0].offer)
            terminate(draft, machine, "its model did not load in time")
    return failed


def finish_drains(draft: Draft) -> None:
    """Evict what has drained, then terminate machines all of whose replicas have left (law 2)."""
    for machine in _machines(draft, (Phase.DRAINING,)):
        done = [_drained(draft, one) for one in machine]
        for replica, state in zip(machine, done, strict=True):
            _evict(draft, replica, state)
        left = all(not one.admitted_in and not one.draining_in for one in machine)
        ready = all(done) and left and draft.sees(machine[0]) and not draft.joined.balancers_blind
        if ready and not machine[0].protected:
            why = draft.intent(machine[0].id).drain
            terminate(draft, machine, f"drained ({why.why})" if why else "drained")
    for machine in _machines(draft, (Phase.TERMINATING,)):
        if machine[0].phase is not Phase.TERMINATING:
            continue
        for replica in machine:
            _evict(draft, replica, "terminating")
        if draft.sees(machine[0]) and not draft.joined.balancers_blind:
            draft.actions.append(Terminate(instance=machine[0].instance, offer=machine[0].offer, why="terminating"))


def _evict(draft: Draft, replica: Replica, why: str) -> None:
    """Remove a replica from every balancer that lists it, once it gets nothing new there; no `why`, no eviction."""
    if why and not replica.admitted_in:
        for name in replica.draining_in:
            draft.actions.append(Evict(endpoint=endpoint_of(replica), balancer=name, why=why))


def _drained(draft: Draft, replica: Replica) -> str:
    """Why a draining replica may go: "empty" or "deadline"; "" when it may not yet."""
    intent = draft.intent(replica.id)
    if intent.drain is None or intent.out_since is None:
        return ""
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
            cut += int(replica.load)
        draft.update(
            replica.id,
            replace(intent, phase=Phase.TERMINATING, since=draft.now, terminating_since=draft.now),
        )
    draft.cut += cut
    first = machine[0]
    draft.actions.append(Terminate(instance=first.instance, offer=first.offer, why=why, cut=cut))


def _machines(draft: Draft, phases: tuple[Phase, ...]) -> list[list[Replica]]:
    """Machines all of whose replicas are in `phases` by the intents of this very plan, by instance id."""
    intents = draft.joined.intents
    return [group for group in draft.machines if all(intents[one.id].phase in phases for one in group)]


def _begin_drain(draft: Draft, replica: Replica, why: DrainWhy) -> None:
    """Mark a replica as leaving and tell the balancers at once."""
    intent = draft.intent(replica.id)
    if intent.drain is not None or intent.terminating_since is not None:
        return
    draft.update(replica.id, replace(intent, drain=why, phase=Phase.DRAINING, since=draft.now, idle_at=()))
    for name in replica.admitted_in:
        if not any(isinstance(one, Drain) and one.balancer == name and one.endpoint.replica == replica.id
                   for one in draft.actions):  # fmt: skip
            draft.actions.append(Drain(endpoint=endpoint_of(replica), balancer=name, why=why.why))


def recall(draft: Draft, units: float) -> float:
    """Take back drains for scale-in while load has returned; returns the units won (law 15)."""
    won = 0.0
    traits = {one.name: one for one in draft.pool.balancers}
    candidates = sorted(
        (one for one in draft.joined.replicas if one.phase is Phase.DRAINING and _recallable(draft, one)),
        key=lambda one: (one.usd_per_h, -one.load, one.id),
    )
    for replica in candidates:
        names = [*replica.draining_in, *replica.missing_in]
        if won + EPSILON >= units or any(not traits[name].recall for name in names if name in traits):
            continue
        intent = draft.intent(replica.id)
        fresh = replace(intent, drain=None, phase=Phase.READY, since=draft.now, recalls=1, idle_at=())
        draft.update(replica.id, fresh)
        draft.actions = [
            one for one in draft.actions if not (isinstance(one, Drain | Evict) and one.endpoint.replica == replica.id)
        ]
        endpoint, boot = endpoint_of(replica), draft.joined.boots.get(replica.id, "")
        for name in names:
            draft.actions.append(Recall(endpoint=endpoint, balancer=name, boot=boot))
        won += replica.units
    return won


def _recallable(draft: Draft, replica: Replica) -> bool:
    intent = draft.intent(replica.id)
    return (
        intent.drain is not None
        and intent.drain.why == "scale_in"
        and intent.recalls == 0
        and intent.terminating_since is None
        and replica.id in draft.joined.fresh_passes
    )


def scale_in(draft: Draft, units: float, floor: int) -> float:
    """Choose victims for at most `units`; returns the units that leave.

    Protected machines never; those still on their way first (nobody would notice), young ones last among the serving;
    then least busy, dearest, newest. Capacity that takes traffic stays at `floor` or above after each single victim.
    """
    taking = sum(one.units for one in draft.joined.replicas if _takes(draft, one))
    left = 0.0
    for machine in sorted(_candidates(draft), key=lambda group: _victim_order(draft, group)):
        weight = sum(one.units for one in machine)
        loses = sum(one.units for one in machine if _takes(draft, one))
        if left + weight > units + EPSILON or (loses and taking - loses < floor - EPSILON):
            continue
        _let_go(draft, machine, "scale_in")
        taking -= loses
        left += weight
    return left


def _takes(draft: Draft, replica: Replica) -> bool:
    intent = draft.intent(replica.id)
    serves = intent.phase is Phase.IN_SERVICE and replica.phase is Phase.IN_SERVICE
    return serves and replica.taking_traffic is Traffic.YES


def _candidates(draft: Draft) -> list[list[Replica]]:
    """Machines wholly in phases that may leave, seen in this tick and not protected."""
    machines = _machines(draft, (Phase.IN_SERVICE, *sorted(ON_THE_WAY)))
    return [one for one in machines if not one[0].protected and draft.sees(one[0])]


def _victim_order(draft: Draft, machine: list[Replica]) -> tuple[bool, bool, bool, float, float, float, str]:
    serving = any(one.phase is Phase.IN_SERVICE for one in machine)
    young = serving and elapsed(machine[0].launched_at, draft.now) < draft.pool.pace.min_age
    marked = any(draft.intent(one.id).replace for one in machine)
    load = sum(one.load for one in machine)
    return (not marked, serving, young, load, -machine[0].usd_per_h, -machine[0].launched_at, machine[0].instance)


def _let_go(draft: Draft, machine: list[Replica], why: str) -> None:
    """Begin the end of a machine: straight away when it never served, through a drain otherwise."""
    if all(one.phase in (Phase.BOOTING, Phase.LOADING) and draft.intent(one.id).admitted_at is None
           and not one.admitted_in for one in machine):  # fmt: skip
        terminate(draft, machine, "no longer needed, and it never served")
        return
    deadline = after(draft.now, draft.pool.drain.deadline)
    for replica in machine:
        _begin_drain(draft, replica, DrainWhy(why=why, since=draft.now, deadline=deadline))


def replace_marked(draft: Draft, target: int) -> None:
    """Drain machines that an operator marked, once what is not marked carries the target alone."""
    marked = [one for one in _candidates(draft) if any(draft.intent(each.id).replace for each in one)]
    if not marked:
        return
    others = sum(one.units for one in draft.joined.replicas if _takes(draft, one) and not draft.intent(one.id).replace)
    if others + EPSILON >= target:
        _let_go(draft, marked[0], "replace")
    else:
        draft.blocks.append(Reason(code="replacing", facts={"waiting": len(marked), "have": math.floor(others)}))
