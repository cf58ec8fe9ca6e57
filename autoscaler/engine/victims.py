"""Who leaves, or comes back, for the size's sake.

Does: recall drains, choose victims of a scale-in, drain what is marked for replacement once the others can carry it.
Does not: say how many units (engine.sizing does), or finish a drain (engine.planner does).
Invariant: interrupted after any action, the plan has not taken capacity that takes traffic below the floor (law 4).
"""

from __future__ import annotations

import math

import msgspec

from autoscaler.domain.base import after, elapsed
from autoscaler.domain.decision import Drain, Evict, Reason, Recall
from autoscaler.domain.lifecycle import ON_THE_WAY, Phase
from autoscaler.domain.memory import DrainWhy
from autoscaler.domain.replica import Replica, Traffic
from autoscaler.engine.opinions import EPSILON
from autoscaler.engine.planner import Draft, begin_drain, endpoint_of, in_grace, machines_in, terminate

replace = msgspec.structs.replace


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


def scale_in(draft: Draft, units: float, most: float, floor: int) -> float:
    """Choose victims for at most `units`; returns the units that leave.

    A single machine that is larger than a step may leave when all guards would let go of that much: `most`.

    Protected machines never; those still on their way first (nobody would notice), young ones last among the serving;
    then least busy, dearest, newest. Capacity that takes traffic stays at `floor` or above after each single victim.
    """
    told = any(one.taking_traffic is not Traffic.UNKNOWN for one in draft.joined.replicas if _serves(draft, one))

    def takes(one: Replica) -> bool:
        return _takes(draft, one) or (not told and _serves(draft, one))

    taking = sum(one.units for one in draft.joined.replicas if takes(one))
    left = 0.0
    for machine in sorted(_candidates(draft), key=lambda group: _victim_order(draft, group)):
        weight = sum(one.units for one in machine)
        # What a balancer does not say is taken as the worse: not as traffic for the floor, but as traffic lost.
        loses = sum(one.units for one in machine if takes(one))
        # One that is ready is about to take traffic: below the floor it is needed.
        may_lose = any(
            one.phase is Phase.READY or (_serves(draft, one) and one.taking_traffic is not Traffic.NO)
            for one in machine
        )
        fits = left + weight <= units + EPSILON or (not left and weight <= most + EPSILON)
        if not fits or (may_lose and taking - loses < floor - EPSILON):
            continue
        _let_go(draft, machine, "scale_in")
        taking -= loses
        left += weight
    return left


def _serves(draft: Draft, replica: Replica) -> bool:
    return draft.intent(replica.id).phase is Phase.IN_SERVICE and replica.phase is Phase.IN_SERVICE


def _takes(draft: Draft, replica: Replica) -> bool:
    return _serves(draft, replica) and replica.taking_traffic is Traffic.YES


def _candidates(draft: Draft, *also: Phase) -> list[list[Replica]]:
    """Machines wholly in phases that may leave, seen in this tick, not protected and not in an orphan's grace."""
    machines = machines_in(draft, (Phase.IN_SERVICE, *sorted(ON_THE_WAY), *also))
    return [
        one
        for one in machines
        if not one[0].protected
        and draft.sees(one[0])
        and not all(in_grace(draft, draft.intent(each.id)) for each in one)
    ]


def _victim_order(draft: Draft, machine: list[Replica]) -> tuple[bool, int, bool, float, float, float, str]:
    serving = max(2 if one.phase is Phase.IN_SERVICE else one.phase is Phase.READY for one in machine)
    young = serving == 2 and elapsed(machine[0].launched_at, draft.now) < draft.pool.pace.min_age
    marked = any(draft.intent(one.id).replace for one in machine)
    load = sum(one.load for one in machine)
    return (not marked, serving, young, load, -machine[0].usd_per_h, -machine[0].launched_at, machine[0].instance)


def _let_go(draft: Draft, machine: list[Replica], why: str) -> None:
    """Begin the end of a machine: straight away when it never served, through a drain otherwise."""
    if all(one.phase in (Phase.BOOTING, Phase.LOADING) and draft.intent(one.id).admitted_at is None
           and not one.admitted_in and not one.draining_in for one in machine):  # fmt: skip
        reason = "no longer needed" if why == "scale_in" else "replaced"
        terminate(draft, machine, f"{reason}, and it never served")
        return
    deadline = after(draft.now, draft.pool.drain.deadline)
    for replica in machine:
        begin_drain(draft, replica, DrainWhy(why=why, since=draft.now, deadline=deadline))


def replace_marked(draft: Draft, target: int, room: float, held_back: str) -> None:
    """Drain machines that are marked, by an operator or by a broken half, once the others carry the target alone.

    A half-broken machine does not wait for them where max leaves no room for its successor: `room`, in units.
    `held_back`: why nothing that serves may be ended now (law 12, or a source that is blind); empty when it may.
    """
    if not any(draft.intent(one.id).replace for one in draft.joined.restless):
        return
    marked = [one for one in _candidates(draft, Phase.DRAINING) if any(draft.intent(each.id).replace for each in one)]
    if not marked:
        return
    if held_back:
        draft.blocks.append(Reason(code="replacement_paced", facts={"why": held_back}))
        return
    others = sum(one.units for one in draft.joined.replicas if _takes(draft, one) and not draft.intent(one.id).replace)
    broken = any(draft.intent(one.id).phase is Phase.DRAINING for one in marked[0])
    if others + EPSILON >= target or (broken and room + EPSILON < sum(one.units for one in marked[0])):
        _let_go(draft, marked[0], "replace")
    else:
        draft.blocks.append(Reason(code="replacing", facts={"waiting": len(marked), "have": math.floor(others)}))
