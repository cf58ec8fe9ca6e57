"""What reconciling comes to: replicas with phases, next intents, and the sums over them.

Does: hold the working result of a tick's look, and add units by what they are good for. Does not: look or decide.
Invariant: each replica here has an intent; an intent without a replica is of a machine that is gone.
"""

from __future__ import annotations

import msgspec

from autoscaler.domain.base import ReplicaId
from autoscaler.domain.decision import Capacity, Reason
from autoscaler.domain.lifecycle import HELD, ON_THE_WAY, Phase
from autoscaler.domain.memory import Intent
from autoscaler.domain.replica import Member, Replica, Traffic


class Joined(msgspec.Struct, kw_only=True):
    """The working result of reconciling: replicas, next intents, and what a person or the breaker should hear.

    `load_failures`: offers of machines that ended or expired before their model loaded. `became_ready`: offers of
    machines that did. `strays`: balancer, member of replicas that we know to be gone. `visible`: computes seen.
    `unseen`: replicas whose zone or compute did not answer: nothing of them is ended. `looked`: replicas of which a
    look in their present boot is known. `ended`: LOST ones whose machine is stopped or missing.
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
    unseen: set[ReplicaId] = set()
    looked: set[ReplicaId] = set()
    ended: set[ReplicaId] = set()
    fresh_passes: set[ReplicaId] = set()
    boots: dict[ReplicaId, str] = {}
    weights: dict[tuple[str, ReplicaId], int] = {}


def capacity_of(joined: Joined, requested: float, withdrawn: float) -> Capacity:
    """Units by what they are good for.

    `requested`: units of open launches that show no machine yet; `withdrawn`: of those that were taken back, which
    may still come until the compute has said otherwise.
    """
    sums = dict.fromkeys(Phase, 0.0)
    taking = leaving = 0.0
    for replica in joined.replicas:
        if joined.intents[replica.id].replace and replica.phase in HELD:
            leaving += replica.units
        sums[replica.phase] += replica.units
        if replica.phase is Phase.IN_SERVICE and replica.taking_traffic is Traffic.YES:
            taking += replica.units
    on_the_way = sum(sums[phase] for phase in ON_THE_WAY) + requested
    living = sum(units for phase, units in sums.items() if phase not in (Phase.GONE, Phase.STANDBY))
    return Capacity(
        in_service=sums[Phase.IN_SERVICE], taking=taking, on_the_way=on_the_way, draining=sums[Phase.DRAINING],
        lost=sums[Phase.LOST], existing=living + requested + withdrawn, leaving=leaving,
    )  # fmt: skip


def resting(joined: Joined) -> float:
    """Units that failed, whose machine still runs, and that may recover: not yet given up."""
    intents = joined.intents
    return sum(
        one.units
        for one in joined.replicas
        if one.phase is Phase.LOST and one.id not in joined.ended and intents[one.id].phase is Phase.LOST
    )
