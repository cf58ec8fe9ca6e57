"""What reconciling comes to: replicas with phases, next intents, and the sums over them.

Does: hold the working result of a tick's look, and add units by what they are good for. Does not: look or decide.
Invariant: each replica here has an intent; an intent without a replica is of a machine that is gone.
"""

from __future__ import annotations

import math
from functools import lru_cache
from operator import attrgetter
from typing import Final

import msgspec

from autoscaler.domain.base import InstanceId, ReplicaId, replica_id
from autoscaler.domain.decision import Capacity, Reason
from autoscaler.domain.lifecycle import HELD, ON_THE_WAY, Phase
from autoscaler.domain.load import LoadSample
from autoscaler.domain.memory import Intent
from autoscaler.domain.pool import Offer
from autoscaler.domain.replica import Member, ProbeRecord, Replica, Traffic

#: Weight of one unit of capacity; 100 leaves room for fractions where a balancer wants whole numbers.
UNIT_WEIGHT: Final = 100
# A name of this module is found many times faster than the attribute of an enum, and these are asked for in each tick.
_IN_SERVICE: Final = Phase.IN_SERVICE
_DRAINING: Final = Phase.DRAINING
_LOST: Final = Phase.LOST
_YES: Final = Traffic.YES
_UNPAID: Final = frozenset({Phase.GONE, Phase.STANDBY})
_UNITS: Final = attrgetter("units")


class Seat(msgspec.Struct, frozen=True, gc=False):
    """One replica of a machine as its offer has it: its share of the machine's units and of the traffic."""

    rid: ReplicaId
    port: int
    units: float
    weight: int
    usd_per_h: float


def seats(instance: InstanceId, ports: tuple[int, ...], offer: Offer | None) -> tuple[Seat, ...]:
    """The replicas on a machine; one with no port known yet is one replica."""
    if offer is None:
        return _seats(instance, ports or (0,), 1, 0.0)
    return _seats(instance, ports or offer.ports or (0,), offer.capacity, offer.usd_per_h)


@lru_cache(maxsize=16_384)  # a machine's are the same in each tick, and take four times as long to make as to find
def _seats(instance: InstanceId, ports: tuple[int, ...], capacity: int, usd_per_h: float) -> tuple[Seat, ...]:
    units = capacity / len(ports)
    return tuple(Seat(replica_id(instance, port), port, units, weight_of(units), usd_per_h) for port in sorted(ports))


class Joined(msgspec.Struct, kw_only=True):
    """The working result of reconciling: replicas, next intents, and what a person or the breaker should hear.

    `load_failures`: offers of machines that ended or expired before their model loaded. `became_ready`: offers of
    machines that did. `strays`: balancer, member of replicas that we know to be gone. `visible`: computes seen.
    `unseen`: replicas whose zone or compute did not answer: nothing of them is ended. `looked`: replicas of which a
    look in their present boot is known. `ended`: LOST ones whose machine is stopped or missing.

    `steady`, `restless`: those of `replicas` for whom nothing is to be done, and the others, in the same order: rules
    that concern none of the steady ones look at the restless only. What is known of `fresh_passes`, `looked`, `boots`
    and `weights` is of restless ones.
    """

    replicas: list[Replica] = []
    steady: list[Replica] = []
    restless: list[Replica] = []
    intents: dict[ReplicaId, Intent] = {}
    alarms: list[Reason] = []
    load_failures: list[str] = []
    became_ready: list[str] = []
    taken: list[ReplicaId] = []
    strays: list[tuple[str, Member, ReplicaId]] = []
    visible: frozenset[str] = frozenset()
    balancers_blind: bool = False
    unseen: set[ReplicaId] = set()
    looked: set[ReplicaId] = set()
    ended: set[ReplicaId] = set()
    fresh_passes: set[ReplicaId] = set()
    boots: dict[ReplicaId, str] = {}
    weights: dict[tuple[str, ReplicaId], int] = {}

    def add(self, replica: Replica) -> None:
        """File a replica that is not steady."""
        self.replicas.append(replica)
        self.restless.append(replica)

    def add_steady(self, replica: Replica, intent: Intent) -> None:
        """File a replica that is steady, and whose intent stays as it is."""
        self.replicas.append(replica)
        self.steady.append(replica)
        self.intents[replica.id] = intent

    @property
    def serving(self) -> int:
        """How many replicas are in service."""
        return len(self.steady) + sum([one.phase is _IN_SERVICE for one in self.restless])

    def steady_units(self) -> float:
        """Units of the steady replicas, which all are in service."""
        return math.fsum(map(_UNITS, self.steady))


def weight_of(units: float) -> int:
    """A replica's share of traffic, by its share of capacity."""
    return max(1, round(units * UNIT_WEIGHT))


def running_of(rid: ReplicaId, record: ProbeRecord | None, load: LoadSample | None) -> tuple[int | None, int | None]:
    """Requests running and waiting inside, as the probe saw it, else as telemetry says."""
    running = record.last.running if record is not None else None
    waiting = record.last.waiting if record is not None else None
    told = load.replicas.get(rid) if load is not None and running is None else None
    if told is not None and told.running is not None:
        return int(told.running), int(told.waiting or 0)
    return running, waiting


def capacity_of(joined: Joined, requested: float, withdrawn: float) -> Capacity:
    """Units by what they are good for.

    `requested`: units of open launches that show no machine yet; `withdrawn`: of those that were taken back, which
    may still come until the compute has said otherwise.
    """
    sums = {_IN_SERVICE: joined.steady_units(), _DRAINING: 0.0, _LOST: 0.0}
    leaving = 0.0
    for replica in joined.restless:
        sums[replica.phase] = sums.get(replica.phase, 0.0) + replica.units
        if joined.intents[replica.id].replace and replica.phase in HELD:
            leaving += replica.units
    taking = math.fsum([one.units for one in joined.steady if one.taking_traffic is _YES])
    taking += math.fsum(
        [one.units for one in joined.restless if one.phase is _IN_SERVICE and one.taking_traffic is _YES]
    )
    on_the_way = math.fsum([units for phase, units in sums.items() if phase in ON_THE_WAY]) + requested
    living = math.fsum([units for phase, units in sums.items() if phase not in _UNPAID])
    return Capacity(
        in_service=sums[_IN_SERVICE], taking=taking, on_the_way=on_the_way, draining=sums[_DRAINING],
        lost=sums[_LOST], existing=living + requested + withdrawn, leaving=leaving,
    )  # fmt: skip


def resting(joined: Joined) -> float:
    """Units that failed, whose machine still runs, and that may recover: not yet given up."""
    intents = joined.intents
    return sum(
        one.units
        for one in joined.restless
        if one.phase is _LOST and one.id not in joined.ended and intents[one.id].phase is _LOST
    )
