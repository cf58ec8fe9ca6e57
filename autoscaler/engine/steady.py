"""Who is steady: a replica that serves, passes its check, and of which nothing that matters has changed.

Does: recognise it at a glance, so that a tick costs little where nothing happens: nearly all replicas, nearly always.
Does not: move anybody; whoever is not recognised goes the long way through engine.reconcile.
Invariant: of a steady replica the long way concludes the same: its intent stays as it is, and no rule wants an action.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from autoscaler.domain.base import InstanceId
from autoscaler.domain.decision import Observation
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import Intent
from autoscaler.domain.pool import Pool
from autoscaler.domain.replica import Instance, InstanceState, MemberState, ProbeRecord, Replica, Traffic
from autoscaler.engine.joined import Seat, running_of
from autoscaler.engine.membership import Members

# A name of this module is found several times faster than the attribute of an enum, and these are asked for most.
_IN_SERVICE: Final = Phase.IN_SERVICE
_RUNNING: Final = InstanceState.RUNNING
_ADMITTED: Final = MemberState.ADMITTED
_YES: Final = Traffic.YES
_NO: Final = Traffic.NO


class Steady:
    """Recognises steady replicas in one observation. `marked`: machines that may not be steady, whatever they show."""

    def __init__(self, pool: Pool, observation: Observation, members: Members, marked: Container[InstanceId]) -> None:
        self._members = members
        self._load = observation.load
        self._marked = marked
        self._named = observation.directives.drain | observation.directives.replace
        self._protected = observation.directives.protect
        self._weighing = {traits.name for traits in pool.balancers if traits.weights}
        self._names = tuple(sorted(traits.name for traits in pool.balancers))
        self._inside = bool(self._names)  # without balancers a replica counts as out all the time
        self._sighted = observation.balancers.keys() == set(self._names)

    def replica(self, seat: Seat, instance: Instance, intent: Intent, record: ProbeRecord) -> Replica | None:
        """The replica when it is steady, else None. `record` is of the present boot and passes."""
        if not (self._sighted and self._goes_on(intent, seat, instance, record)):
            return None
        traffic = self._traffic(seat, instance.address)
        if traffic is _NO:
            return None
        running, waiting = running_of(seat.rid, record, self._load)
        protected = instance.protected or instance.id in self._protected
        return Replica(  # by position: see there
            seat.rid, instance.id, _IN_SERVICE, intent.since, intent.offer, instance.zone, seat.units, instance.address,
            seat.port, intent.launched_at, traffic, self._names, (), (), running, waiting, protected, seat.usd_per_h,
            record.last.detail,
        )  # fmt: skip

    def _goes_on(self, intent: Intent, seat: Seat, instance: Instance, record: ProbeRecord) -> bool:
        """Whether it served, its machine runs where it ran, and nothing is open: no drain, failure, mark or move."""
        return (
            intent.phase is _IN_SERVICE
            and instance.state is _RUNNING
            and instance.address is not None
            and intent.host == instance.address
            and intent.boot == record.boot
            and intent.units == seat.units
            and intent.ready_at is not None
            and intent.admitted_at is not None
            and (intent.out_since is None) is self._inside
            and not (intent.replace or intent.drain or intent.idle_at or intent.inside)
            and intent.failing_since is intent.missing_since is intent.terminating_since is None
            and seat.rid not in self._named
            and instance.id not in self._marked
        )

    def _traffic(self, seat: Seat, host: str | None) -> Traffic:
        """What the balancers say: NO unless each has it admitted, with its weight, and lets traffic through."""
        worst: Traffic = _YES
        for name in self._names:
            member = self._members.one(name, seat.rid, host, seat.port)
            if member is None or member.state is not _ADMITTED or member.traffic is _NO:
                return _NO
            if member.weight != seat.weight and member.weight is not None and name in self._weighing:
                return _NO
            if member.traffic is not _YES:
                worst = member.traffic
        return worst
