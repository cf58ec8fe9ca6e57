"""The simulated balancer: members as it was told, traffic as it becomes true a lag later.

Does: answer members, admit, reweigh, drain and evict as ports/balancer.py has it. Does not: choose a replica for a
request (the dispatch of the kernel does), or check health: it notices an ended machine at once, which real ones do not.
Invariant: a replica gets requests only while it is admitted, loaded and alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import msgspec

from autoscaler.domain.base import Duration, Instant, ReplicaId
from autoscaler.domain.faults import Unreachable
from autoscaler.domain.pool import BalancerTraits
from autoscaler.domain.replica import BalancerView, Endpoint, Member, MemberState, Traffic
from autoscaler.lab.cloud import START
from autoscaler.lab.events import Agenda
from autoscaler.lab.fleet import STRATEGIES, Fleet
from autoscaler.lab.settings import FrontSettings, TroubleKind
from autoscaler.lab.troubles import Troubles

#: The name of the only binding of a simulated pool.
FRONT: Final = "front"


def traits_of(settings: FrontSettings) -> BalancerTraits:
    """What the simulated balancer can do."""
    return BalancerTraits(
        name=FRONT, strategies=tuple(STRATEGIES), weights=True, settle=Duration(max(1.0, settings.lag_s)),
    )  # fmt: skip


class Front:
    """The balancer of one pool. `slots`: the kernel's slot of each replica that is loaded, kept by the world."""

    def __init__(
        self, fleet: Fleet, agenda: Agenda, settings: FrontSettings, troubles: Troubles, slots: dict[ReplicaId, int]
    ) -> None:
        self._fleet = fleet
        self._agenda = agenda
        self._settings = settings
        self._troubles = troubles
        self._slots = slots
        self._members: dict[ReplicaId, Member] = {}
        self._wanted: dict[ReplicaId, float] = {}  # what is true: weight of those that should get requests
        self._shown: tuple[Member, ...] | None = None
        self.now_s = 0.0

    # ------------------------------------------------------------------------------------- the port

    def members(self) -> BalancerView:
        """All members; the very same tuple while nothing changed. Raises Unreachable."""
        self._answer()
        if self._shown is None:
            self._shown = tuple(self._members.values())
        return BalancerView(balancer=FRONT, members=self._shown, as_of=Instant(START + self.now_s))

    def admit(self, endpoints: Iterable[Endpoint]) -> None:
        """Give these requests, a lag later; raises Unreachable."""
        self._answer()
        for one in endpoints:
            known = self._members.get(one.replica)
            traffic = known.traffic if known is not None else Traffic.UNKNOWN
            self._put(one.replica, one.address, MemberState.ADMITTED, one.weight, traffic)
            self._later(partial(self._opens, one.replica, one.weight / 100.0))

    def reweigh(self, endpoints: Iterable[Endpoint]) -> None:
        """Set weights, a lag later; raises Unreachable."""
        self._answer()
        for one in endpoints:
            known = self._members.get(one.replica)
            if known is not None:
                self._put(one.replica, known.endpoint, known.state, one.weight, known.traffic)
                if known.state is MemberState.ADMITTED:
                    self._later(partial(self._opens, one.replica, one.weight / 100.0))

    def drain(self, endpoints: Iterable[Endpoint]) -> None:
        """No new requests, a lag later; raises Unreachable."""
        self._answer()
        for one in endpoints:
            known = self._members.get(one.replica)
            if known is not None:
                self._put(one.replica, known.endpoint, MemberState.DRAINING, known.weight or 100, known.traffic)
                self._later(partial(self._closes, one.replica))

    def evict(self, endpoints: Iterable[Endpoint]) -> None:
        """Remove; raises Unreachable."""
        self._answer()
        for one in endpoints:
            if self._members.pop(one.replica, None) is not None:
                self._shown = None
                self._later(partial(self._closes, one.replica))

    def _answer(self) -> None:
        if self._troubles.now(TroubleKind.FRONT_DARK, self.now_s) is not None:
            raise Unreachable("the balancer does not answer")

    # ------------------------------------------------------------------------------------- what is true

    def begin(self, endpoint: Endpoint) -> None:
        """A member that has been admitted since before second 0."""
        self._put(endpoint.replica, endpoint.address, MemberState.ADMITTED, endpoint.weight, Traffic.UNKNOWN)
        self._opens(endpoint.replica, endpoint.weight / 100.0)

    def came(self, replica: ReplicaId) -> None:
        """A replica is loaded: it gets requests if it should."""
        if replica in self._wanted:
            self._opens(replica, self._wanted[replica])

    def went(self, replica: ReplicaId) -> None:
        """A replica's machine ended."""
        self._tell(replica, Traffic.NO)

    def _later(self, what: partial[None]) -> None:
        trouble = self._troubles.now(TroubleKind.FRONT_LAG, self.now_s)
        lag_s = self._settings.lag_s * (trouble.factor if trouble is not None else 1.0)
        if lag_s > 0:
            self._agenda.at(self.now_s + lag_s, what)
        else:
            what()

    def _opens(self, replica: ReplicaId, weight: float) -> None:
        self._wanted[replica] = weight
        slot = self._slots.get(replica)
        if slot is not None:
            self._fleet.open(slot, weight)
            self._tell(replica, Traffic.YES)

    def _closes(self, replica: ReplicaId) -> None:
        self._wanted.pop(replica, None)
        slot = self._slots.get(replica)
        if slot is not None:
            self._fleet.close(slot)
        self._tell(replica, Traffic.NO)

    def _tell(self, replica: ReplicaId, traffic: Traffic) -> None:
        known = self._members.get(replica)
        if known is not None and known.traffic is not traffic:
            self._members[replica] = msgspec.structs.replace(known, traffic=traffic)
            self._shown = None

    def _put(self, replica: ReplicaId, endpoint: str, state: MemberState, weight: int, traffic: Traffic) -> None:
        member = Member(endpoint=endpoint, replica=replica, state=state, weight=weight, traffic=traffic)
        if self._members.get(replica) != member:
            self._members[replica] = member
            self._shown = None
