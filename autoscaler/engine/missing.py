"""Replicas that we remember and that no look showed.

Does: keep what a blind source could not show, call a machine LOST at the first complete look without it and GONE at the
second. Does not: look at what is there (engine.reconcile does).
Invariant: only complete looks make a machine GONE, and a gone one is remembered for a while: it may be shown again.
"""

from __future__ import annotations

import msgspec

from autoscaler.domain.base import ReplicaId, elapsed, instance_of
from autoscaler.domain.decision import Observation, Reason
from autoscaler.domain.lifecycle import Phase, allowed
from autoscaler.domain.memory import Intent
from autoscaler.domain.pool import Offer, Pool
from autoscaler.domain.replica import MemberState, Replica
from autoscaler.engine.joined import Joined
from autoscaler.engine.membership import Members

replace = msgspec.structs.replace


def settle(
    joined: Joined, pool: Pool, observation: Observation, intents: dict[ReplicaId, Intent], found: Members
) -> None:
    """File each remembered replica that no look showed; `found`: the members of all balancers."""
    if not intents:
        return
    shown = {one.id for view in observation.computes.values() for one in view.instances}
    for rid in sorted(intents):
        intent = intents[rid]
        if _unseen(joined, pool, observation, intent):
            joined.unseen.add(rid)
            joined.intents[rid] = intent
            if intent.phase is not Phase.GONE:
                joined.add(_remembered(rid, intent, pool.offer(intent.offer)))
        elif instance_of(rid) in shown:
            continue  # the machine lives and has other ports now
        elif intent.phase is Phase.GONE:
            _gone(joined, pool, observation, rid, intent, found)
        elif intent.phase is Phase.TERMINATING or intent.missing_since is not None:
            joined.intents[rid] = replace(intent, phase=Phase.GONE, since=observation.now)
            if intent.phase is not Phase.TERMINATING:
                joined.taken.append(rid)
                facts: dict[str, str | float | int] = {"replica": rid, "phase": intent.phase.value}
                joined.alarms.append(Reason(code="machine_vanished", facts=facts))
        else:
            _not_shown(joined, pool, observation, rid, intent, found)


def _unseen(joined: Joined, pool: Pool, observation: Observation, intent: Intent) -> bool:
    offer = pool.offer(intent.offer)
    if offer is None:
        return len(joined.visible) < len({one.compute for one in pool.offers})
    view = observation.computes.get(offer.compute)
    return view is None or intent.zone in view.unreachable_zones


def _gone(joined: Joined, pool: Pool, observation: Observation, rid: ReplicaId, before: Intent, found: Members) -> None:
    """Forget it, once it will not be shown again and every balancer has forgotten it too."""
    recent = elapsed(before.since, observation.now) < pool.pace.launch_deadline
    if recent or joined.balancers_blind or found.left_over(rid, before.host, joined.intents):
        joined.intents[rid] = before


def _not_shown(
    joined: Joined, pool: Pool, observation: Observation, rid: ReplicaId, before: Intent, found: Members
) -> None:
    """The first complete look without it: out of traffic, and gone if the next look says so too."""
    if before.ready_at is None and before.drain is None and before.phase is not Phase.LOST:
        joined.load_failures.append(before.offer)
    phase = Phase.LOST if allowed(before.phase, Phase.LOST) else before.phase
    since = before.since if phase is before.phase else observation.now
    lost = replace(before, phase=phase, since=since, missing_since=observation.now)
    joined.intents[rid] = lost
    joined.ended.add(rid)
    replica = _remembered(rid, lost, pool.offer(before.offer))
    members = sorted(found.of(rid, before.host, replica.port).items())
    joined.add(
        replace(
            replica,
            admitted_in=tuple(name for name, one in members if one.state is MemberState.ADMITTED),
            draining_in=tuple(name for name, one in members if one.state is MemberState.DRAINING),
        )
    )


def _remembered(rid: ReplicaId, intent: Intent, offer: Offer | None) -> Replica:
    """A replica as memory has it, for a tick in which its source was blind."""
    return Replica(
        id=rid, instance=instance_of(rid), phase=intent.phase, since=intent.since, offer=intent.offer,
        zone=intent.zone, units=intent.units, host=intent.host, port=int(rid.rpartition(":")[2]),
        launched_at=intent.launched_at, usd_per_h=offer.usd_per_h if offer else 0.0, detail="not seen in this tick",
    )  # fmt: skip
