"""The simulated world behind the daemon's own ports: what the runtime's loop talks to in a full-speed run.

A read answers when everything else that happens at its instant has happened; a call that changes something answers at
once. The world is moved on to the clock's present before every answer.

Does: translate each port's call to the world's parts. Does not: simulate anything itself.
Invariant: an answer is that of the world at the clock's present instant, whoever asks first.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import msgspec

from autoscaler.domain.base import InstanceId, Instant, PoolName, ReplicaId, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import Refused
from autoscaler.domain.load import LoadSample, Signal
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import BalancerTraits, Offer, Pool
from autoscaler.domain.replica import BalancerView, ComputeView, Endpoint, Instance, LaunchState, ProbeVerdict
from autoscaler.lab.cloud import NO_STANDBY, START, Cloud
from autoscaler.lab.front import traits_of
from autoscaler.lab.virtual_time import quiet
from autoscaler.lab.watch import FINE, REFUSED
from autoscaler.lab.world import World
from autoscaler.ports.clock import Clock


class Present:
    """One world at the clock's present: seconds of the workload, 0 before it begins."""

    def __init__(self, world: World, clock: Clock) -> None:
        self._world = world
        self._clock = clock

    def world(self) -> World:
        """The world, moved on to now."""
        self._world.advance(max(self._world.now_s, self._clock.now() - START))
        return self._world


class Account:
    """The clouds of all pools of one account. `make`: the world of a pool when it is first heard of."""

    def __init__(self, make: Callable[[Pool], Present]) -> None:
        self._make = make
        self._pools: dict[tuple[str, PoolName], Present] = {}

    def cloud(self, pool: Pool) -> Cloud:
        """A pool's machines, now."""
        key = (pool.installation, pool.name)
        if key not in self._pools:
            self._pools[key] = self._make(pool)
        return self._pools[key].world().cloud

    def foreign(self, pool: Pool, compute: str) -> tuple[Instance, ...]:
        """Machines of other installations."""
        others = [one.world().cloud for (owner, _), one in self._pools.items() if owner != pool.installation]
        return tuple(one for cloud in others for one in cloud.observe(compute, ()).instances)


class SimulatedCompute:
    """One compute of an account, by the name that offers give it."""

    def __init__(self, name: str, account: Account) -> None:
        self._name = name
        self._account = account

    async def observe(self, pool: Pool, launches: Sequence[OpenLaunch], not_older_than: Instant) -> ComputeView:
        """What the cloud shows now, which is never older than asked for."""
        del not_older_than
        await quiet()
        view = self._account.cloud(pool).observe(self._name, launches)
        foreign = self._account.foreign(pool, self._name)
        return msgspec.structs.replace(view, foreign=foreign) if foreign else view

    async def launch(self, pool: Pool, order: Launch) -> LaunchState:
        """Order machines."""
        return self._account.cloud(pool).launch(order)

    async def withdraw(self, pool: Pool, token: Token) -> None:
        """Take back what has not come yet."""
        self._account.cloud(pool).withdraw(token)

    async def start(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """Refuse: there is no standby."""
        del pool, ids
        raise Refused(NO_STANDBY)

    async def stop(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """Refuse: there is no standby."""
        del pool, ids
        raise Refused(NO_STANDBY)

    async def terminate(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """End machines of this pool."""
        self._account.cloud(pool).terminate(ids)

    async def precheck(self, pool: Pool, ids: Sequence[InstanceId]) -> dict[InstanceId, str]:
        """Every removal would be accepted."""
        del pool, ids
        return {}

    def check_offer(self, offer: Offer) -> list[str]:
        """Nothing can be wrong: a simulated machine is what the world's settings say, whatever the request asks."""
        del offer
        return []

    async def aclose(self) -> None:
        """Nothing to release."""


class SimulatedBalancer:
    """The one binding of a simulated pool."""

    def __init__(self, present: Present) -> None:
        self._present = present

    def traits(self) -> BalancerTraits:
        """What the simulated balancer can do."""
        return traits_of(self._present.world().settings.front)

    async def members(self) -> BalancerView:
        """All members, now."""
        await quiet()
        return self._present.world().front.members()

    async def admit(self, endpoints: Sequence[Endpoint]) -> None:
        """Give these requests, a lag later."""
        self._present.world().front.admit(endpoints)

    async def reweigh(self, endpoints: Sequence[Endpoint]) -> None:
        """Set weights, a lag later."""
        self._present.world().front.reweigh(endpoints)

    async def drain(self, endpoints: Sequence[Endpoint]) -> None:
        """No new requests, a lag later."""
        self._present.world().front.drain(endpoints)

    async def evict(self, endpoints: Sequence[Endpoint]) -> None:
        """Remove, a lag later."""
        self._present.world().front.evict(endpoints)

    async def aclose(self) -> None:
        """Nothing to release."""


class SimulatedTelemetry:
    """The scraper of a simulated pool."""

    def __init__(self, present: Present) -> None:
        self._present = present

    async def sample(self, signals: frozenset[Signal], replicas: Sequence[Endpoint]) -> LoadSample:
        """One look at the replicas in service."""
        await quiet()
        return self._present.world().telemetry.sample(signals, [one.replica for one in replicas])

    async def aclose(self) -> None:
        """Nothing to release."""


class SimulatedProbe:
    """The check of a simulated model server, which tells requests inside only while the replica leaves.

    `leaving`: who does, as the last decision has it. A real server tells them always; telling them here of all others
    too would cost the fast loop a step of the world for each look, to no use: telemetry tells them.
    """

    def __init__(self, present: Present, leaving: Container[ReplicaId]) -> None:
        self._present = present
        self._leaving = leaving

    async def check(self, endpoint: Endpoint, *, generate: bool) -> ProbeVerdict:
        """One look; a model that is loaded generates."""
        del generate
        world = self._present.world()
        if endpoint.replica not in world.slots:
            return REFUSED
        return world.watch.inside(endpoint.replica) if endpoint.replica in self._leaving else FINE

    async def aclose(self) -> None:
        """Nothing to release."""
