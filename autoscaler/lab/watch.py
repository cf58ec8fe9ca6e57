"""The simulated prober: the records that the daemon's prober would have, worked out from when things happened.

It follows runtime.prober's schedule: a replica that loads is looked at every min(1 s, tick / 3) from the tick that
first showed it running, and half of that after its first pass; one that serves every tick / 3. A look takes no time.
The check tells requests inside only of a replica that leaves; of the others telemetry tells it.

Does: give records, and the instant at which the prober would wake the loop. Does not: look at anything itself.
Invariant: while nothing changes a record is the very same object.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from autoscaler.domain.base import Instant, ReplicaId, instance_of
from autoscaler.domain.decision import Decision
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.pool import Pool
from autoscaler.domain.replica import ProbeRecord, ProbeVerdict, Replica
from autoscaler.lab.cloud import START, Cloud, Machine
from autoscaler.lab.fleet import Fleet
from autoscaler.runtime.probe_rules import boot_name

_ANSWERING: Final = frozenset({Phase.LOADING, Phase.READY, Phase.IN_SERVICE, Phase.DRAINING, Phase.LOST})
_FINE: Final = ProbeVerdict(alive=True, loaded=True)
_REFUSED: Final = ProbeVerdict(alive=False, loaded=False, detail="nothing listens")


class _Watched(msgspec.Struct):
    """One replica. `ready_s`: its last needed pass; `fails_s`: the first look at it that fails after it was ready."""

    machine: Machine
    boot: str
    since_s: float
    first_s: float
    ready_s: float
    leaving: bool = False
    admitted: bool = False
    fails_s: float = math.inf
    told: ProbeRecord | None = None
    stage: int = -1


class Watch:
    """The prober of one pool."""

    def __init__(self, pool: Pool, cloud: Cloud, fleet: Fleet, slots: dict[ReplicaId, int]) -> None:
        self._cloud = cloud
        self._fleet = fleet
        self._slots = slots
        self._passes = pool.ready.passes
        self._calm = float(pool.pace.tick) / 3.0
        self._fast = min(1.0, self._calm)
        self._watched: dict[ReplicaId, _Watched] = {}
        self._wakes: set[float] = set()

    def begin(self, replica: ReplicaId, machine: Machine) -> None:
        """A replica that has been looked at since before second 0."""
        self._watched[replica] = _Watched(machine, boot_name(machine.shown.boot, ""), 0.0, 0.0, 0.0, admitted=True)

    def follow(self, decision: Decision, now_s: float) -> None:
        """Watch what this decision's replicas say."""
        watched: dict[ReplicaId, _Watched] = {}
        for replica in decision.replicas:
            if replica.phase in _ANSWERING and replica.host:
                known = self._watched.get(replica.id)
                if known is None:
                    known = self._new(replica, now_s)
                known.leaving = replica.phase is Phase.DRAINING
                known.admitted = bool(replica.admitted_in)
                watched[replica.id] = known
        self._watched = watched

    def _new(self, replica: Replica, now_s: float) -> _Watched:
        machine = self._cloud.machines[instance_of(replica.id)]
        waits = max(0.0, machine.loaded_s - now_s)
        first = now_s + (math.ceil(waits / self._fast - 1e-9) * self._fast if waits < math.inf else math.inf)
        ready = first + (self._passes - 1) * self._fast / 2.0
        self._wakes.add(ready)
        return _Watched(machine, boot_name(machine.shown.boot, ""), now_s, first, ready)

    def ended(self, machine: Machine) -> None:
        """A machine ended: the next look at each of its replicas fails."""
        for one in self._watched.values():
            if one.machine is machine and one.ready_s < machine.ended_s:
                rounds = math.floor((machine.ended_s - one.ready_s) / self._calm) + 1
                one.fails_s = one.ready_s + rounds * self._calm
                if one.admitted:
                    self._wakes.add(one.fails_s)

    def wake_s(self, after_s: float) -> float:
        """The next instant after `after_s` at which the prober wakes the loop; infinity when none is known."""
        if not self._wakes:
            return math.inf
        self._wakes = {one for one in self._wakes if after_s < one < math.inf}
        return min(self._wakes, default=math.inf)

    def records(self, now_s: float) -> dict[ReplicaId, ProbeRecord]:
        """What the prober knows at `now_s`."""
        found = {}
        for replica, one in self._watched.items():
            record = self._record(replica, one, now_s)
            if record is not None:
                found[replica] = record
        return found

    def _record(self, replica: ReplicaId, one: _Watched, now_s: float) -> ProbeRecord | None:
        if now_s >= one.fails_s:
            return self._failing(replica, one, one.fails_s)
        if now_s < one.first_s:
            return self._failing(replica, one, one.since_s) if now_s > one.since_s else None
        if one.leaving and now_s >= one.ready_s:
            return self._leaving(replica, one, now_s)
        stage = self._passes if now_s >= one.ready_s else 1 + int((now_s - one.first_s) / (self._fast / 2.0) + 1e-9)
        if one.stage != stage or one.told is None:
            at = one.ready_s if stage == self._passes else one.first_s + (stage - 1) * self._fast / 2.0
            one.stage = stage
            one.told = ProbeRecord(
                replica=replica, boot=one.boot, passes=stage, last=_FINE, last_at=Instant(START + at),
                loaded_at=Instant(START + one.ready_s) if stage == self._passes else None,
            )  # fmt: skip
        return one.told

    def _failing(self, replica: ReplicaId, one: _Watched, since_s: float) -> ProbeRecord:
        if one.stage != 0 or one.told is None:
            since = Instant(START + since_s)
            one.stage = 0
            one.told = ProbeRecord(
                replica=replica, boot=one.boot, passes=0, last=_REFUSED, last_at=since, failing_since=since
            )
        return one.told

    def _leaving(self, replica: ReplicaId, one: _Watched, now_s: float) -> ProbeRecord:
        """The last look at a replica that leaves: whether it was empty then."""
        looked_s = one.ready_s + math.floor((now_s - one.ready_s) / self._calm + 1e-9) * self._calm
        slot = self._slots.get(replica)
        running = waiting = 0
        if slot is not None:
            empty_s = self._fleet.empty_since(slot)
            if empty_s is None or empty_s > looked_s:
                inside = self._fleet.inside(slot)
                running, waiting = max(1, inside.running), inside.waiting
        verdict = ProbeVerdict(alive=True, loaded=True, running=running, waiting=waiting)
        one.stage = -1
        return ProbeRecord(
            replica=replica, boot=one.boot, passes=self._passes, last=verdict, last_at=Instant(START + looked_s),
            loaded_at=Instant(START + one.ready_s),
        )  # fmt: skip
