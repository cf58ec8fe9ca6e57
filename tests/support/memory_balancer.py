"""A balancer in memory: members with their state, a log of every change, and active counts that a test may set."""

from collections.abc import Sequence

from autoscaler.domain.base import Duration, Instant, ReplicaId
from autoscaler.domain.pool import BalancerTraits
from autoscaler.domain.replica import BalancerView, Endpoint, Member, MemberState, Traffic
from autoscaler.ports.clock import Clock
from tests.support.faults import Faults


class MemoryBalancer:
    """`log`: (instant, verb, replica) of every change that took effect. `counts`: members show active counts."""

    def __init__(self, clock: Clock, *, name: str = "front", settle: float = 1.0, counts: bool = False) -> None:
        self.name = name
        self.clock = clock
        self.counts = counts
        self.faults = Faults()
        self.closed = False
        self.active: dict[ReplicaId, int] = {}
        self.traffic: dict[ReplicaId, Traffic] = {}
        self.log: list[tuple[Instant, str, ReplicaId]] = []
        self.state: dict[ReplicaId, tuple[Endpoint, MemberState]] = {}
        self._traits = BalancerTraits(
            name=name, weights=True, settle=Duration(settle), counts_active=counts, recall=True
        )

    def traits(self) -> BalancerTraits:
        return self._traits

    def admitted(self) -> set[ReplicaId]:
        return {name for name, (_, state) in self.state.items() if state is MemberState.ADMITTED}

    async def members(self) -> BalancerView:
        await self.faults.enter("members")
        members = tuple(
            Member(
                endpoint=endpoint.address,
                replica=name,
                state=state,
                traffic=self.traffic.get(name, Traffic.YES),
                weight=endpoint.weight,
                active=self.active.get(name, 0) if self.counts else None,
            )
            for name, (endpoint, state) in self.state.items()
        )
        return BalancerView(balancer=self.name, members=members, as_of=self.clock.now())

    async def admit(self, endpoints: Sequence[Endpoint]) -> None:
        await self.faults.enter("admit")
        for one in endpoints:
            if self.state.get(one.replica, (one, None))[1] is not MemberState.ADMITTED:
                self.log.append((self.clock.now(), "admit", one.replica))
            self.state[one.replica] = (one, MemberState.ADMITTED)

    async def reweigh(self, endpoints: Sequence[Endpoint]) -> None:
        await self.faults.enter("reweigh")
        for one in endpoints:
            if one.replica in self.state:
                self.state[one.replica] = (one, self.state[one.replica][1])

    async def drain(self, endpoints: Sequence[Endpoint]) -> None:
        await self.faults.enter("drain")
        for one in endpoints:
            if one.replica in self.state and self.state[one.replica][1] is MemberState.ADMITTED:
                self.log.append((self.clock.now(), "drain", one.replica))
                self.state[one.replica] = (one, MemberState.DRAINING)

    async def evict(self, endpoints: Sequence[Endpoint]) -> None:
        await self.faults.enter("evict")
        for one in endpoints:
            if self.state.pop(one.replica, None) is not None:
                self.log.append((self.clock.now(), "evict", one.replica))

    async def aclose(self) -> None:
        self.closed = True
