"""What was seen, joined with what we remember, as replicas with phases: the passive half of a tick.

Does: join instances, members and probe records; move each replica along the transition table; forget what is gone.
Does not: decide anything about size, or plan an action (engine.planner does).
Invariant: what a source could not show keeps its last known phase; only a complete look may say that a machine is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from autoscaler.domain.base import Duration, Instant, ReplicaId, after, elapsed, instance_of, replica_id
from autoscaler.domain.decision import Capacity, Observation, Reason
from autoscaler.domain.faults import InvariantBroken
from autoscaler.domain.lifecycle import HELD, ON_THE_WAY, Phase, allowed
from autoscaler.domain.memory import DrainWhy, Intent, Memory
from autoscaler.domain.pool import Offer, Pool
from autoscaler.domain.replica import (
    Instance,
    InstanceState,
    Member,
    MemberState,
    Notice,
    ProbeRecord,
    Replica,
    Traffic,
)
from autoscaler.engine.membership import Members

replace = msgspec.structs.replace

#: A notice that names no instant is taken as the shortest that clouds give (spot: two minutes).
NOTICE_SHORTEST: Final = Duration(120.0)


class Joined(msgspec.Struct, kw_only=True):
    """The working result of reconciling: replicas, next intents, and what a person or the breaker should hear.

    `load_failures`: offers of machines that ended or expired before their model loaded. `became_ready`: offers of
    machines that did. `strays`: balancer, member of replicas that we know to be gone. `visible`: computes seen.
    """

    replicas: list[Replica] = []
    intents: dict[ReplicaId, Intent] = {}
    alarms: list[Reason] = []
    load_failures: list[str] = []
    became_ready: list[str] = []
    taken: list[ReplicaId] = []
    strays: list[tuple[str, Member, ReplicaId]] = []
    visible: frozenset[str] = frozenset()
    balancers_blind: bool = False
    fresh_passes: set[ReplicaId] = set()
    boots: dict[ReplicaId, str] = {}
    weights: dict[tuple[str, ReplicaId], int] = {}


def join(pool: Pool, memory: Memory, observation: Observation) -> Joined:
    """Reconcile one observation with memory. Raises InvariantBroken on a move that the table does not allow."""
    joined = Joined(visible=frozenset(observation.computes))
    joined.balancers_blind = any(traits.name not in observation.balancers for traits in pool.balancers)
    offers = {offer.name: offer for offer in pool.offers}
    names = tuple(traits.name for traits in pool.balancers)
    members = Members(observation)
    notices = {notice.instance: notice for view in observation.computes.values() for notice in view.notices}
    seen: set[ReplicaId] = set()
    for name in sorted(observation.computes):
        for instance in sorted(observation.computes[name].instances, key=lambda one: one.id):
            offer = offers.get(instance.offer)
            for rid, port, units in _replicas_of(instance, offer):
                seen.add(rid)
                before = memory.intents.get(rid)
                found = members.of(rid, instance.address, port)
                record = _record_of(observation, rid, instance)
                look = _Look(
                    pool, observation, instance, offer, found, memory.epoch, names, joined.balancers_blind,
                    record, _passed(pool, record),
                )  # fmt: skip
                intent = _next_intent(look, rid, before, units, notices.get(instance.id))
                _keep(joined, look, rid, port, before, intent)
    for rid in sorted(set(memory.intents) - seen):
        _missing(joined, pool, observation, rid, memory.intents[rid], members)
    joined.strays = members.strays(joined.intents, memory.intents, pool, observation)
    _foreign_alarms(joined, observation)
    return joined


class _Look(msgspec.Struct):
    """One instance with everything that was seen of it."""

    pool: Pool
    observation: Observation
    instance: Instance
    offer: Offer | None
    members: dict[str, Member]
    epoch: str
    balancers: tuple[str, ...]
    blind: bool
    record: ProbeRecord | None
    passed: bool


def _record_of(observation: Observation, rid: ReplicaId, instance: Instance) -> ProbeRecord | None:
    """The prober's record, unless it is about an earlier boot of the machine."""
    record = observation.probes.get(rid)
    return record if record is not None and record.boot.startswith(instance.boot) else None


def _ours(epoch: str, instance: Instance) -> bool:
    """Whether this very ledger launched the machine: its token begins with our epoch."""
    return bool(epoch) and instance.token.startswith(f"{epoch}-")


def _replicas_of(instance: Instance, offer: Offer | None) -> Iterable[tuple[ReplicaId, int, float]]:
    """The replicas on a machine with their share of its units; a machine with no port known yet is one replica."""
    ports = instance.ports or (offer.ports if offer else ()) or (0,)
    units = (offer.capacity if offer else 1) / len(ports)
    return [(replica_id(instance.id, port), port, units) for port in sorted(ports)]


def _next_intent(look: _Look, rid: ReplicaId, before: Intent | None, units: float, notice: Notice | None) -> Intent:
    """What we mean with this replica now, its phase included."""
    now = look.observation.now
    instance, record = look.instance, look.record
    boot = record.boot if record is not None else instance.boot
    intent = before or Intent(
        phase=Phase.REQUESTED, since=now, launched_at=instance.launched_at, offer=instance.offer,
        zone=instance.zone, units=units, boot=boot, adopted=not _ours(look.epoch, instance),
    )  # fmt: skip
    if _new_boot(intent.boot, boot):
        intent = replace(intent, ready_at=None, admitted_at=None, idle_at=(), failing_since=None, launched_at=now)
    if record is not None and record.boot != intent.boot:
        intent = replace(intent, boot=record.boot)
    intent = _with_directives(look, rid, intent, notice)
    if look.passed and intent.ready_at is None:
        intent = replace(intent, ready_at=now)
    failing = record.failing_since if record is not None else intent.failing_since
    out_since = intent.out_since
    if any(member.state is MemberState.ADMITTED for member in look.members.values()):
        out_since = None
    elif out_since is None and not look.blind:
        out_since = now
    phase = _phase(look, intent, record)
    changed = replace(
        intent, phase=phase, since=intent.since if phase is intent.phase else now, host=instance.address,
        units=units, failing_since=failing, out_since=out_since, missing_since=None,
        idle_at=_idle(look, intent, record, out_since),
    )  # fmt: skip
    return before if before is not None and changed == before else changed


def _new_boot(known: str, seen: str) -> bool:
    """A boot name may be refined (process start becomes known); anything else is another boot."""
    return bool(known) and bool(seen) and not seen.startswith(known) and not known.startswith(seen)


def _with_directives(look: _Look, rid: ReplicaId, intent: Intent, notice: Notice | None) -> Intent:
    """Operators' marks and the provider's notices turn into drains."""
    now, directives = look.observation.now, look.observation.directives
    if intent.drain is None and notice is not None:
        until = notice.at if notice.at is not None else after(now, NOTICE_SHORTEST)
        intent = replace(intent, drain=DrainWhy(why="notice", since=now, deadline=until))
    if intent.drain is None and rid in directives.drain:
        deadline = after(now, look.pool.drain.deadline)
        intent = replace(intent, drain=DrainWhy(why="operator", since=now, deadline=deadline))
    marked = rid in directives.replace
    return intent if marked == intent.replace else replace(intent, replace=marked)


def _passed(pool: Pool, record: ProbeRecord | None) -> bool:
    return record is not None and (
        record.passes >= pool.ready.passes and record.failing_since is None and not record.hung
    )


def _failed(pool: Pool, record: ProbeRecord | None, now: Instant) -> bool:
    """Whether a replica that was ready counts as failed (law 1).

    At once when nothing listens or it hangs, soon on an answer that says no, and within `unhealthy_after` when it
    merely stays silent.
    """
    if record is None or record.failing_since is None:
        return False
    if record.hung or (record.last.certain and not record.last.alive):
        return True
    patience = pool.pace.unhealthy_after / 3 if record.last.certain else pool.pace.unhealthy_after
    return elapsed(record.failing_since, now) >= patience


_ENDED = {InstanceState.TERMINATED: Phase.GONE, InstanceState.STOPPING: Phase.LOST, InstanceState.STOPPED: Phase.LOST}


def _phase(look: _Look, intent: Intent, record: ProbeRecord | None) -> Phase:
    """The phase by what was seen, first match wins."""
    instance = look.instance
    if instance.state is InstanceState.TERMINATED:
        return Phase.GONE
    if intent.terminating_since is not None:
        return Phase.TERMINATING
    if intent.phase is Phase.STANDBY and instance.state in (InstanceState.STOPPED, InstanceState.STOPPING):
        return Phase.STANDBY
    if intent.drain is not None:
        return Phase.DRAINING
    if instance.state in _ENDED:
        return _ENDED[instance.state]
    if instance.state is InstanceState.PENDING or instance.address is None:
        return Phase.BOOTING
    return _serving_phase(look, intent, record)


def _serving_phase(look: _Look, intent: Intent, record: ProbeRecord | None) -> Phase:
    """LOADING, READY, IN_SERVICE or LOST for a machine that runs and is not leaving."""
    was_ready = intent.ready_at is not None
    if was_ready and _failed(look.pool, record, look.observation.now):
        return Phase.LOST
    in_grace = was_ready and intent.phase in (Phase.READY, Phase.IN_SERVICE)  # failing, but not for long enough
    if not (look.passed or in_grace):
        still_lost = intent.phase is Phase.LOST and (record is None or record.failing_since is not None)
        return Phase.LOST if still_lost else Phase.LOADING
    if look.blind:
        return intent.phase if intent.phase in (Phase.READY, Phase.IN_SERVICE) else Phase.READY
    admitted = all(name in look.members and look.members[name].state is MemberState.ADMITTED for name in look.balancers)
    return Phase.IN_SERVICE if admitted else Phase.READY


def _idle(look: _Look, intent: Intent, record: ProbeRecord | None, out_since: Instant | None) -> tuple[Instant, ...]:
    """The last two looks that showed a leaving replica empty, after it left and settled (law 2)."""
    now = look.observation.now
    if intent.drain is None or out_since is None or elapsed(out_since, now) < look.pool.settle:
        return ()
    inside: list[int] = []
    if record is not None and record.last.running is not None and record.last_at > after(out_since, look.pool.settle):
        inside.append(record.last.running + (record.last.waiting or 0))
    inside += [member.active for member in look.members.values() if member.active is not None]
    if not inside and record is not None and record.last.certain and not record.last.alive:
        inside.append(0)  # nothing listens there any more, so nothing can be inside
    if not inside:
        return intent.idle_at if record is None or record.last_at <= after(out_since, look.pool.settle) else ()
    return (*intent.idle_at[-1:], now) if max(inside) == 0 else ()


def _keep(joined: Joined, look: _Look, rid: ReplicaId, port: int, before: Intent | None, intent: Intent) -> None:
    """Check the move, file the replica, and note what the breaker and the planner need."""
    if before is not None and not allowed(before.phase, intent.phase):
        raise InvariantBroken(f"{rid}: {before.phase} to {intent.phase} is not in the transition table")
    if before is None or (before.phase is not intent.phase and before.ready_at is None):
        _note_load_result(joined, before, intent)
    joined.intents[rid] = intent
    record = look.record
    if look.passed:
        joined.fresh_passes.add(rid)
    joined.boots[rid] = intent.boot
    for name, member in look.members.items():
        if member.weight is not None:
            joined.weights[name, rid] = member.weight
    joined.replicas.append(_replica(look, rid, port, intent, record))


def _note_load_result(joined: Joined, before: Intent | None, intent: Intent) -> None:
    if intent.ready_at is not None:
        joined.became_ready.append(intent.offer)
    elif before is not None and intent.phase in (Phase.LOST, Phase.GONE):
        joined.load_failures.append(intent.offer)


def _replica(look: _Look, rid: ReplicaId, port: int, intent: Intent, record: ProbeRecord | None) -> Replica:
    instance, members = look.instance, look.members
    names = sorted(members) if len(members) > 1 else list(members)
    admitted = tuple(name for name in names if members[name].state is MemberState.ADMITTED)
    load = look.observation.load.replicas.get(rid) if look.observation.load is not None else None
    running = record.last.running if record is not None else None
    waiting = record.last.waiting if record is not None else None
    if running is None and load is not None and load.running is not None:
        running, waiting = int(load.running), int(load.waiting or 0)
    return Replica(
        id=rid, instance=instance.id, phase=intent.phase, since=intent.since, offer=intent.offer, zone=instance.zone,
        units=intent.units, host=instance.address, port=port, launched_at=intent.launched_at,
        taking_traffic=_traffic(look.pool, [members[name] for name in admitted]), admitted_in=admitted,
        draining_in=tuple(name for name in names if members[name].state is MemberState.DRAINING),
        missing_in=tuple(name for name in look.balancers if name not in members),
        running=running, waiting=waiting,
        protected=instance.protected or instance.id in look.observation.directives.protect,
        usd_per_h=look.offer.usd_per_h if look.offer else 0.0,
        detail=record.last.detail if record is not None else instance.detail,
    )  # fmt: skip


def _traffic(pool: Pool, members: list[Member]) -> Traffic:
    """The worst of what the balancers say: NO beats UNKNOWN beats YES; without a balancer, being ready is enough."""
    if len(members) < len(pool.balancers):
        return Traffic.NO
    worst = Traffic.YES
    for member in members:
        if member.traffic is Traffic.NO:
            return Traffic.NO
        if member.traffic is Traffic.UNKNOWN:
            worst = Traffic.UNKNOWN
    return worst


def _missing(
    joined: Joined, pool: Pool, observation: Observation, rid: ReplicaId, intent: Intent, members: Members
) -> None:
    """A remembered replica that no look showed: kept when its source was blind, LOST at first, GONE at the second."""
    offer = pool.offer(intent.offer)
    compute = offer.compute if offer else None
    view = observation.computes.get(compute) if compute else None
    unseen = view is None if compute else len(joined.visible) < len({one.compute for one in pool.offers})
    if unseen or (view is not None and intent.zone in view.unreachable_zones):
        joined.intents[rid] = intent
        joined.replicas.append(_remembered(rid, intent, offer))
        return
    if intent.phase is Phase.GONE:
        if members.of(rid, intent.host, int(rid.rpartition(":")[2])):
            joined.intents[rid] = intent  # until every balancer has forgotten it too
        return
    if intent.phase is Phase.TERMINATING or intent.missing_since is not None:
        gone = replace(intent, phase=Phase.GONE, since=observation.now)
        joined.intents[rid] = gone
        if intent.phase is not Phase.TERMINATING:
            joined.taken.append(rid)
            joined.alarms.append(Reason(code="machine_vanished", facts={"replica": rid, "phase": intent.phase.value}))
        return
    if intent.ready_at is None and intent.drain is None:
        joined.load_failures.append(intent.offer)
    phase = Phase.LOST if allowed(intent.phase, Phase.LOST) else intent.phase
    lost = replace(intent, phase=phase, since=observation.now, missing_since=observation.now)
    joined.intents[rid] = lost
    replica = _remembered(rid, lost, offer)
    admitted = members.of(rid, intent.host, replica.port)
    joined.replicas.append(
        replace(
            replica,
            admitted_in=tuple(name for name, one in sorted(admitted.items()) if one.state is MemberState.ADMITTED),
            draining_in=tuple(name for name, one in sorted(admitted.items()) if one.state is MemberState.DRAINING),
        )
    )


def _remembered(rid: ReplicaId, intent: Intent, offer: Offer | None) -> Replica:
    """A replica as memory has it, for a tick in which its source was blind."""
    return Replica(
        id=rid, instance=instance_of(rid), phase=intent.phase, since=intent.since, offer=intent.offer,
        zone=intent.zone, units=intent.units, host=intent.host, port=int(rid.rpartition(":")[2]),
        launched_at=intent.launched_at, usd_per_h=offer.usd_per_h if offer else 0.0, detail="not seen in this tick",
    )  # fmt: skip


def _foreign_alarms(joined: Joined, observation: Observation) -> None:
    """Machines with a tag of ours that no config knows: reported, never touched (law 7)."""
    for name in sorted(observation.computes):
        for instance in sorted(observation.computes[name].foreign, key=lambda one: one.id):
            facts: dict[str, str | float | int] = {"instance": instance.id, "compute": name, "detail": instance.detail}
            joined.alarms.append(Reason(code="foreign_machine", facts=facts))


def capacity_of(joined: Joined, requested: float) -> Capacity:
    """Units by what they are good for; `requested`: units of open launches that show no machine yet."""
    sums = dict.fromkeys(Phase, 0.0)
    taking = leaving = 0.0
    for replica in joined.replicas:
        if joined.intents[replica.id].replace and replica.phase in HELD:
            leaving += replica.units
        sums[replica.phase] += replica.units
        if replica.phase is Phase.IN_SERVICE and replica.taking_traffic is Traffic.YES:
            taking += replica.units
    on_the_way = sum(sums[phase] for phase in ON_THE_WAY) + requested
    existing = sum(units for phase, units in sums.items() if phase not in (Phase.GONE, Phase.STANDBY)) + requested
    return Capacity(
        in_service=sums[Phase.IN_SERVICE], taking=taking, on_the_way=on_the_way, draining=sums[Phase.DRAINING],
        lost=sums[Phase.LOST], existing=existing, leaving=leaving,
    )  # fmt: skip
