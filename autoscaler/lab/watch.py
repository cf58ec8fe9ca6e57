"""The simulated prober: the records that the daemon's prober would have, worked out from when things happened.

It follows runtime.prober's schedule: a replica that loads or fails is looked at every min(1 s, tick / 3) from the tick
that first showed it running, and half of that after its first pass; one that serves every tick / 3. A look takes no
time, and one at the instant of a tick comes before the tick observes and after it began, so what it wakes is the next.
The check tells requests inside only of a replica that leaves; of the others telemetry tells it.

Does: give records, and the instant at which the prober would wake the loop. Does not: look at more than what leaves.
Invariant: while nothing changes, the record of a replica that serves is the very same object.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import msgspec

from autoscaler.domain.base import Instant, ReplicaId, instance_of
from autoscaler.domain.decision import Decision
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.pool import Pool
from autoscaler.domain.replica import ProbeRecord, ProbeVerdict, Replica
from autoscaler.lab.cloud import START, Cloud, Machine
from autoscaler.lab.fleet import Fleet
from autoscaler.runtime.probe_rules import boot_name

#: Seconds, and shares of a look, that are nothing but rounding.
_EPS: Final = 1e-9
_ANSWERING: Final = frozenset({Phase.LOADING, Phase.READY, Phase.IN_SERVICE, Phase.DRAINING, Phase.LOST})
#: What the check of a simulated replica says.
FINE: Final = ProbeVerdict(alive=True, loaded=True)
REFUSED: Final = ProbeVerdict(alive=False, loaded=False, detail="nothing listens")


class _Watched(msgspec.Struct):
    """One replica; instants in seconds of the workload, infinity for never.

    `first_s`: its first pass; `ready_s`: its last needed one; `fails_s`: the first look that fails after a pass.
    `look_s`: its next look while it leaves; `noted`: the record of the last one of these.
    """

    replica: ReplicaId
    machine: Machine
    boot: str
    since_s: float
    first_s: float
    ready_s: float
    admitted: bool = False
    fails_s: float = math.inf
    look_s: float = math.inf
    noted: ProbeRecord | None = None
    told: ProbeRecord | None = None
    stage: int = -1


class _Wake(NamedTuple):
    """A look that wakes the loop if its replica is then admitted, or is not; without a replica it does in any case."""

    at_s: float
    of: _Watched | None = None
    admitted: bool = False


class Watch:
    """The prober of one pool."""

    def __init__(self, pool: Pool, cloud: Cloud, fleet: Fleet, slots: dict[ReplicaId, int]) -> None:
        self._cloud = cloud
        self._fleet = fleet
        self._slots = slots
        self._passes = pool.ready.passes
        self._calm = float(pool.pace.tick) / 3.0
        self._fast = min(1.0, self._calm)
        self._goes_on = math.ceil(pool.pace.unhealthy_after / self._fast - _EPS) * self._fast
        self._watched: dict[ReplicaId, _Watched] = {}
        self._wakes: list[_Wake] = []

    def begin(self, replica: ReplicaId, machine: Machine) -> None:
        """A replica that has been looked at since before second 0."""
        boot = boot_name(machine.shown.boot, "")
        self._watched[replica] = _Watched(replica, machine, boot, 0.0, 0.0, 0.0, admitted=True)

    def follow(self, decision: Decision, now_s: float) -> None:
        """Watch what this decision's replicas say."""
        watched: dict[ReplicaId, _Watched] = {}
        for replica in decision.replicas:
            if replica.phase in _ANSWERING and replica.host:
                known = self._watched.get(replica.id)
                if known is None:
                    known = self._new(replica, now_s)
                if replica.phase is not Phase.DRAINING:
                    known.look_s = math.inf
                elif known.look_s == math.inf and known.ready_s < math.inf:
                    known.look_s = self._last_look_s(known, now_s) + self._calm
                known.admitted = bool(replica.admitted_in)
                watched[replica.id] = known
        self._watched = watched

    def _new(self, replica: Replica, now_s: float) -> _Watched:
        machine = self._cloud.machines[instance_of(replica.id)]
        waits = max(0.0, machine.loaded_s - now_s) if machine.lives else math.inf
        first = now_s + (math.ceil(waits / self._fast - _EPS) * self._fast if waits < math.inf else math.inf)
        ready = first + (self._passes - 1) * self._fast / 2.0
        one = _Watched(replica.id, machine, boot_name(machine.shown.boot, ""), now_s, first, ready)
        if ready < math.inf:
            self._wakes.append(_Wake(ready, one))
        if not machine.lives:
            self._wakes += _Wake(now_s, one, admitted=True), _Wake(now_s + self._goes_on, one, admitted=True)
        return one

    def ended(self, machine: Machine) -> None:
        """A machine ended: the next look at each of its replicas fails. What we end, we end after a tick's looks."""
        for one in self._watched.values():
            if one.machine is not machine:
                continue
            ended_s = machine.ended_s + (_EPS if machine.why == "terminated" else 0.0)
            self._wakes = [wake for wake in self._wakes if wake.of is not one or wake.at_s < ended_s]
            if one.first_s >= ended_s:
                one.first_s = one.ready_s = math.inf
                continue
            begun, every = (one.ready_s, self._calm) if one.ready_s < ended_s else (one.first_s, self._fast / 2.0)
            one.fails_s = begun + math.ceil((ended_s - begun) / every) * every
            self._wakes.append(_Wake(one.fails_s, one, admitted=True))
            self._wakes.append(_Wake(one.fails_s + self._goes_on, one, admitted=True))

    # ------------------------------------------------------------------------------------- wakes

    def wake_s(self) -> float:
        """The earliest instant of a look that wakes the loop and was not heard; infinity when none is known."""
        return min([wake.at_s for wake in self._wakes if self._wakens(wake)], default=math.inf)

    def heard(self, now_s: float, *, woken: bool) -> None:
        """A tick begins: earlier wakes are over, and those of this instant when it was them that brought it."""
        self._wakes = [
            _Wake(now_s) if wake.at_s == now_s else wake
            for wake in self._wakes
            if wake.at_s > now_s or (wake.at_s == now_s and not woken and self._wakens(wake))
        ]

    def _wakens(self, wake: _Wake) -> bool:
        one = wake.of
        return one is None or (self._watched.get(one.replica) is one and one.admitted is wake.admitted)

    # ------------------------------------------------------------------------------------- looks at what leaves

    def look_s(self) -> float:
        """When the next look at a replica that leaves is due."""
        return min([one.look_s for one in self._watched.values()], default=math.inf)

    def look(self, now_s: float) -> None:
        """Look at the replicas that leave and are due."""
        for one in self._watched.values():
            if one.look_s <= now_s:
                one.noted, one.look_s = self._leaving(one, now_s), now_s + self._calm

    def _leaving(self, one: _Watched, now_s: float) -> ProbeRecord:
        return ProbeRecord(
            replica=one.replica, boot=one.boot, passes=self._passes, last_at=Instant(START + now_s),
            loaded_at=Instant(START + one.ready_s), last=self.inside(one.replica),
        )  # fmt: skip

    def inside(self, replica: ReplicaId) -> ProbeVerdict:
        """What a look now says of a replica that leaves."""
        if replica not in self._slots:
            return REFUSED
        inside = self._fleet.inside(self._slots[replica])
        return ProbeVerdict(alive=True, loaded=True, running=inside.running, waiting=inside.waiting)

    def _last_look_s(self, one: _Watched, now_s: float) -> float:
        """The last look at a replica that was ready, up to and including `now_s`."""
        return one.ready_s + math.floor((now_s - one.ready_s) / self._calm + _EPS) * self._calm

    # ------------------------------------------------------------------------------------- records

    def records(self, now_s: float) -> dict[ReplicaId, ProbeRecord]:
        """What the prober knows at `now_s`."""
        found = {}
        for replica, one in self._watched.items():
            record = self._record(one, now_s)
            if record is not None:
                found[replica] = record
        return found

    def _record(self, one: _Watched, now_s: float) -> ProbeRecord | None:
        if now_s >= one.fails_s:
            return self._failing(one, one.fails_s, now_s)
        if now_s < one.first_s:
            return self._failing(one, one.since_s, now_s) if now_s > one.since_s else None
        if one.noted is not None and one.noted.last_at == START + self._last_look_s(one, now_s):
            return one.noted
        stage = self._passes if now_s >= one.ready_s else 1 + int((now_s - one.first_s) / (self._fast / 2.0) + _EPS)
        if one.stage != stage or one.told is None:
            at = one.ready_s if stage == self._passes else one.first_s + (stage - 1) * self._fast / 2.0
            one.stage = stage
            one.told = ProbeRecord(
                replica=one.replica, boot=one.boot, passes=stage, last=FINE, last_at=Instant(START + at),
                loaded_at=Instant(START + one.ready_s) if stage == self._passes else None,
            )  # fmt: skip
        return one.told

    def _failing(self, one: _Watched, since_s: float, now_s: float) -> ProbeRecord:
        looked_s = since_s + math.floor((now_s - since_s) / self._fast + _EPS) * self._fast
        return ProbeRecord(
            replica=one.replica, boot=one.boot, passes=0, last=REFUSED, last_at=Instant(START + looked_s),
            failing_since=Instant(START + since_s),
        )  # fmt: skip
