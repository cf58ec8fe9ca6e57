"""What was seen, joined with what we remember, as replicas with phases: the passive half of a tick.

Does: join instances, members and probe records; move each replica along the transition table; forget what is gone.
Does not: decide anything about size, or plan an action (engine.planner does).
Invariant: what a source could not show keeps its last known phase; only a complete look may say that a machine is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import msgspec

from autoscaler.domain.base import Duration, InstanceId, Instant, ReplicaId, after, elapsed, instance_of
from autoscaler.domain.decision import Observation, Reason
from autoscaler.domain.faults import InvariantBroken
from autoscaler.domain.lifecycle import Phase, allowed
from autoscaler.domain.memory import DrainWhy, Intent, Memory
from autoscaler.domain.pool import Pool
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
from autoscaler.engine import missing
from autoscaler.engine.joined import Joined, Seat, running_of, seats
from autoscaler.engine.membership import Members
from autoscaler.engine.steady import Steady

replace = msgspec.structs.replace

#: A notice that names no instant is taken as the shortest that clouds give (spot: two minutes).
NOTICE_SHORTEST: Final = Duration(120.0)
_BY_ID: Final = attrgetter("id")
# A name of this module is found many times faster than the attribute of an enum, and these are asked for most.
_GONE: Final = Phase.GONE
_TERMINATED: Final = InstanceState.TERMINATED
#: Drains of replicas that failed: nothing else that happens to them makes them healthy.
_GIVEN_UP: Final = ("lost", "never_ready")


def join(pool: Pool, memory: Memory, observation: Observation) -> Joined:
    """Reconcile one observation with memory. Raises InvariantBroken on a move that the table does not allow."""
    joined = Joined(visible=frozenset(observation.computes))
    offers = {offer.name: offer for offer in pool.offers}
    names = tuple([traits.name for traits in pool.balancers])
    joined.balancers_blind = any(name not in observation.balancers for name in names)
    members = Members(observation)
    notices = _earliest([notice for view in observation.computes.values() for notice in view.notices])
    broken = _half_broken(memory)
    steady = Steady(pool, observation, members, notices.keys() | broken)
    for name in sorted(observation.computes):
        for instance in sorted(observation.computes[name].instances, key=_BY_ID):
            for seat in seats(instance.id, instance.ports, offers.get(instance.offer)):
                before = _known(memory, seat.rid, instance)
                record = _record_of(observation, seat.rid, instance)
                passed = _passed(pool, record)
                if passed and record is not None and before is not None:
                    replica = steady.replica(seat, instance, before, record)
                    if replica is not None:
                        joined.add_steady(replica, before)
                        continue
                look = _Look(
                    pool, observation, instance, seat, members.of(seat.rid, instance.address, seat.port), memory.epoch,
                    names, joined.balancers_blind, record, passed, instance.id in broken,
                )  # fmt: skip
                _keep(joined, look, before, _next_intent(look, before, notices.get(instance.id)))
    unshown = {rid: intent for rid, intent in memory.intents.items() if rid not in joined.intents}
    missing.settle(joined, pool, observation, unshown, members)
    watched = memory.history_since is not None and (
        elapsed(memory.history_since, observation.now) >= pool.pace.scale_in.stabilization
    )
    joined.strays = members.strays(joined.intents, pool, observation, settled=watched)
    _foreign_alarms(joined, observation)
    return joined


class _Look(msgspec.Struct):
    """One instance with everything that was seen of it."""

    pool: Pool
    observation: Observation
    instance: Instance
    seat: Seat
    members: dict[str, Member]
    epoch: str
    balancers: tuple[str, ...]
    blind: bool
    record: ProbeRecord | None
    passed: bool
    half_broken: bool


def _earliest(notices: Sequence[Notice]) -> dict[InstanceId, Notice]:
    """One notice a machine: the soonest; one that names no instant counts as soonest."""
    found: dict[InstanceId, Notice] = {}
    for notice in sorted(notices, key=lambda one: (one.at is not None, one.at or 0.0, one.kind)):
        found.setdefault(notice.instance, notice)
    return found


def _half_broken(memory: Memory) -> set[InstanceId]:
    """Machines one of whose replicas was given up: the others are replaced too, since only a machine can be ended."""
    return {
        instance_of(rid) for rid, one in memory.intents.items() if one.drain is not None and one.drain.why in _GIVEN_UP
    }


def _known(memory: Memory, rid: ReplicaId, instance: Instance) -> Intent | None:
    """What memory has of it; a machine that was taken for gone and is shown again begins anew, its end not undone."""
    before = memory.intents.get(rid)
    if before is None or before.phase is not _GONE or instance.state is _TERMINATED:
        return before
    return replace(before, phase=Phase.REQUESTED)


def _record_of(observation: Observation, rid: ReplicaId, instance: Instance) -> ProbeRecord | None:
    """The prober's record, unless it is about an earlier boot of the machine."""
    record = observation.probes.get(rid)
    return record if record is not None and _is_of_boot(record.boot, instance.boot) else None


def _ours(epoch: str, instance: Instance) -> bool:
    """Whether this very ledger launched the machine: its token begins with our epoch."""
    return bool(epoch) and instance.token.startswith(f"{epoch}-")


def _next_intent(look: _Look, before: Intent | None, notice: Notice | None) -> Intent:
    """What we mean with this replica now, its phase included."""
    now, rid, units = look.observation.now, look.seat.rid, look.seat.units
    instance, record = look.instance, look.record
    boot = record.boot if record is not None else instance.boot
    intent = before or Intent(
        phase=Phase.REQUESTED, since=now, launched_at=instance.launched_at, offer=instance.offer,
        zone=instance.zone, units=units, boot=boot, adopted=not _ours(look.epoch, instance), first_seen_at=now,
    )  # fmt: skip
    if _new_boot(intent.boot, boot):
        # A boot after one that worked has its time to load; one of a row that never worked has not.
        begun = now if intent.ready_at is not None else intent.launched_at
        intent = replace(intent, ready_at=None, admitted_at=None, idle_at=(), failing_since=None, launched_at=begun)
    if record is not None and record.boot != intent.boot:
        intent = replace(intent, boot=record.boot)
    intent = _with_directives(look, rid, intent, notice)
    if look.passed and intent.ready_at is None:
        intent = replace(intent, ready_at=now)
    intent = _with_failure(intent, record)
    out_since = intent.out_since
    if any(member.state is MemberState.ADMITTED for member in look.members.values()):
        out_since = None
    elif out_since is None and not look.blind:
        out_since = now
    phase = _phase(look, intent, record)
    changed = replace(
        intent, phase=phase, since=intent.since if phase is intent.phase else now, host=instance.address,
        units=units, out_since=out_since, missing_since=None,
        idle_at=_idle(look, intent, record, out_since), inside=_inside(look, intent, phase),
    )  # fmt: skip
    return before if before is not None and changed == before else changed


def _new_boot(known: str, seen: str) -> bool:
    """A boot name may be refined (process start becomes known); anything else is another boot."""
    return bool(known) and bool(seen) and not _is_of_boot(seen, known) and not _is_of_boot(known, seen)


def _is_of_boot(fuller: str, shorter: str) -> bool:
    """Whether `fuller` names the same boot, perhaps more exactly; parts of a name end with a bar."""
    return fuller == shorter or not shorter or f"{fuller}|".startswith(f"{shorter.rstrip('|')}|")


def _with_failure(intent: Intent, record: ProbeRecord | None) -> Intent:
    """Since when the check has failed in this boot; a prober that began anew does not begin the row anew."""
    if record is None:
        return intent
    failing = record.failing_since
    if failing is not None and intent.failing_since is not None:
        failing = min(failing, intent.failing_since)
    return intent if failing == intent.failing_since else replace(intent, failing_since=failing)


def _with_directives(look: _Look, rid: ReplicaId, intent: Intent, notice: Notice | None) -> Intent:
    """Operators' marks and the provider's notices turn into drains."""
    now, directives = look.observation.now, look.observation.directives
    drain = intent.drain
    if notice is not None and (drain is None or drain.why != "notice"):
        until = notice.at if notice.at is not None else after(now, NOTICE_SHORTEST)
        if drain is None or drain.why not in _GIVEN_UP:
            until = min(until, drain.deadline) if drain is not None else until
            drain = DrainWhy(why="notice", since=now, deadline=until)
        elif until < drain.deadline:
            drain = replace(drain, deadline=until)
    if rid in directives.drain and (drain is None or drain.why == "scale_in"):
        until = drain.deadline if drain is not None else after(now, look.pool.drain.deadline)
        drain = DrainWhy(why="operator", since=now, deadline=until)
    if drain is not intent.drain:
        intent = replace(intent, drain=drain)
    marked = rid in directives.replace or (look.half_broken and drain is None)
    return intent if marked == intent.replace else replace(intent, replace=marked)


def _passed(pool: Pool, record: ProbeRecord | None) -> bool:
    return record is not None and (
        record.passes >= pool.ready.passes and record.failing_since is None and not record.hung
    )


def _failed(pool: Pool, intent: Intent, record: ProbeRecord | None, now: Instant) -> bool:
    """Whether a replica that was ready counts as failed (law 1).

    At once when nothing listens or it hangs, soon on an answer that says no, and within `unhealthy_after` when it
    merely stays silent.
    """
    if record is None or record.failing_since is None or intent.failing_since is None:
        return False
    if record.hung or (record.last.certain and not record.last.alive):
        return True
    patience = pool.pace.unhealthy_after / 3 if record.last.certain else pool.pace.unhealthy_after
    return elapsed(intent.failing_since, now) >= patience


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
    if was_ready and _failed(look.pool, intent, record, look.observation.now):
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
    fresh = record is not None and record.last_at > after(out_since, look.pool.settle)
    looks: list[tuple[Instant, int]] = []  # when it was looked at, and how many requests were inside
    if fresh and record is not None and record.last.running is not None:
        looks.append((record.last_at, record.last.running + (record.last.waiting or 0)))
    for name, member in look.members.items():
        if member.active is not None:
            looks.append((look.observation.balancers[name].as_of, member.active))
    if not looks and record is not None and record.last.certain and not record.last.alive:
        looks.append((record.last_at, 0))  # nothing listens there any more, so nothing can be inside
    if not looks:
        return () if fresh else intent.idle_at
    if any(inside for _, inside in looks):
        return ()
    at = max(when for when, _ in looks)  # one look read in two ticks is still one look
    return intent.idle_at if at <= max(intent.idle_at, default=out_since) else (*intent.idle_at[-1:], at)


def _inside(look: _Look, intent: Intent, phase: Phase) -> int:
    """Requests inside a replica that is lost or leaves, for counting what its end cuts; the last word stands."""
    if phase not in (Phase.LOST, Phase.DRAINING):
        return 0
    record = look.record
    if record is not None and record.last.certain and not record.last.alive:
        return 0  # what was inside died with it, and is not ours to cut
    counts = [member.active for member in look.members.values() if member.active is not None]
    told = [sum(counts)] if counts else []
    if record is not None and record.last.running is not None:
        told.append(record.last.running + (record.last.waiting or 0))
    return max(told, default=intent.inside)


def _keep(joined: Joined, look: _Look, before: Intent | None, intent: Intent) -> None:
    """Check the move, file the replica, and note what the breaker and the planner need."""
    rid = look.seat.rid
    was = before.phase if before is not None else Phase.REQUESTED
    if not allowed(was, intent.phase):
        raise InvariantBroken(f"{rid}: {was} to {intent.phase} is not in the transition table")
    if before is None or (before.phase is not intent.phase and before.ready_at is None):
        _note_load_result(joined, before, intent)
    joined.intents[rid] = intent
    record = look.record
    if look.passed:
        joined.fresh_passes.add(rid)
    if record is not None:
        joined.looked.add(rid)
    if look.instance.state in _ENDED:
        joined.ended.add(rid)
    joined.boots[rid] = intent.boot
    for name, member in look.members.items():
        if member.weight is not None:
            joined.weights[name, rid] = member.weight
    joined.add(_replica(look, intent, record))


def _note_load_result(joined: Joined, before: Intent | None, intent: Intent) -> None:
    if intent.ready_at is not None:
        joined.became_ready.append(intent.offer)
    elif before is not None and intent.phase in (Phase.LOST, Phase.GONE):
        joined.load_failures.append(intent.offer)


def _replica(look: _Look, intent: Intent, record: ProbeRecord | None) -> Replica:
    instance, members, seat = look.instance, look.members, look.seat
    names = sorted(members) if len(members) > 1 else list(members)
    admitted = tuple(name for name in names if members[name].state is MemberState.ADMITTED)
    running, waiting = running_of(seat.rid, record, look.observation.load)
    return Replica(
        id=seat.rid, instance=instance.id, phase=intent.phase, since=intent.since, offer=intent.offer,
        zone=instance.zone, units=intent.units, host=instance.address, port=seat.port, launched_at=intent.launched_at,
        taking_traffic=_traffic(look.pool, [members[name] for name in admitted]), admitted_in=admitted,
        draining_in=tuple(name for name in names if members[name].state is MemberState.DRAINING),
        missing_in=tuple(name for name in look.balancers if name not in members),
        running=running, waiting=waiting,
        protected=instance.protected or instance.id in look.observation.directives.protect,
        usd_per_h=seat.usd_per_h,
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


def _foreign_alarms(joined: Joined, observation: Observation) -> None:
    """Machines with a tag of ours that no config knows, and others' members: reported, never touched (law 7)."""
    for name in sorted(observation.computes):
        if foreign := observation.computes[name].foreign:  # one line however many: neighbours must not drown our own
            first = min(foreign, key=lambda one: one.id)
            facts: dict[str, str | float | int] = {
                "count": len(foreign), "compute": name, "instance": first.id, "detail": first.detail,
            }  # fmt: skip
            joined.alarms.append(Reason(code="foreign_machines", facts=facts))
    for name in sorted(observation.balancers):
        if others := observation.balancers[name].foreign:
            other = min(others, key=lambda one: (one.endpoint, one.reason))
            facts = {"count": len(others), "balancer": name, "endpoint": other.endpoint, "detail": other.reason}
            joined.alarms.append(Reason(code="foreign_members", facts=facts))
