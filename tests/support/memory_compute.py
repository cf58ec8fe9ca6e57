"""A compute in memory: machines boot, run and end after stated delays; the same token gives the same machines."""

from collections.abc import Sequence
from itertools import count

import msgspec

from autoscaler.domain.base import InstanceId, Instant, PoolName, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import Refused
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import Offer, Pool
from autoscaler.domain.replica import ComputeView, Instance, InstanceState, LaunchState, LaunchStatus, Notice
from autoscaler.ports.clock import Clock
from tests.support.faults import Faults

replace = msgspec.structs.replace


class MemoryCompute:
    """`boot_s`: from launch to running; `end_s`: from terminate to terminated; `gone_s`: how long the dead still show.

    `room`: machines that may exist at once in all pools; beyond it a launch gets fewer than asked. `lag_s`: how old a
    view is.
    """

    def __init__(
        self, clock: Clock, *, name: str = "memory", boot_s: float = 5.0, end_s: float = 2.0, room: int = 10_000
    ) -> None:
        self.name = name
        self.clock = clock
        self.boot_s = boot_s
        self.end_s = end_s
        self.room = room
        self.faults = Faults()
        self.launched: dict[Token, tuple[InstanceId, ...]] = {}
        self.notices: list[Notice] = []
        self.foreign: list[Instance] = []
        self.closed = False
        self.address = "host-{}"
        self._numbers = count(1)
        self._pools: dict[PoolName, dict[InstanceId, Instance]] = {}
        self._owner: dict[InstanceId, PoolName] = {}
        self._changes: list[tuple[Instant, InstanceId, InstanceState]] = []
        self.terminated: list[tuple[Instant, InstanceId]] = []

    # --- what a test does to it ---

    def machines(self, pool: PoolName) -> dict[InstanceId, Instance]:
        """The pool's machines as they truly are now, the ended ones not."""
        self._settle()
        return {
            name: one for name, one in self._pools.get(pool, {}).items() if one.state is not InstanceState.TERMINATED
        }

    def add(self, pool: PoolName, instance: Instance) -> None:
        """Put a machine there that nobody launched."""
        self._pools.setdefault(pool, {})[instance.id] = instance
        self._owner[instance.id] = pool

    def vanish(self, instance: InstanceId) -> None:
        """The provider takes it away without a word."""
        self._pools[self._owner[instance]].pop(instance)

    def restart(self, instance: InstanceId) -> None:
        """The same machine boots anew."""
        now = self.clock.now()
        self._set(instance, replace(self._get(instance), boot=f"{instance}@{now:.3f}", state=InstanceState.RUNNING))

    # --- the port ---

    async def observe(self, pool: Pool, launches: Sequence[OpenLaunch], not_older_than: Instant) -> ComputeView:
        await self.faults.enter("observe")
        self._settle()
        instances = tuple(self._pools.get(pool.name, {}).values())
        states = {
            one.token: LaunchState(
                status=LaunchStatus.DONE if one.token in self.launched else LaunchStatus.PENDING,
                ids=self.launched.get(one.token, ()),
            )
            for one in launches
        }
        ours = {one.id for one in instances}
        return ComputeView(
            compute=self.name,
            instances=instances,
            as_of=self.clock.now(),
            launches=states,
            notices=tuple(one for one in self.notices if one.instance in ours),
            foreign=tuple(self.foreign),
        )

    async def launch(self, pool: Pool, order: Launch) -> LaunchState:
        await self.faults.enter("launch")
        if order.token not in self.launched:
            offer = pool.offer(order.placement.offer)
            alive = sum(len(self.machines(name)) for name in self._pools)
            made = [
                self._make(pool.name, order, offer.ports if offer and offer.ports else (8000,))
                for _ in range(min(order.count, max(0, self.room - alive)))
            ]
            self.launched[order.token] = tuple(made)
        return LaunchState(status=LaunchStatus.DONE, ids=self.launched[order.token])

    async def withdraw(self, pool: Pool, token: Token) -> None:
        await self.faults.enter("withdraw")

    async def start(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self.faults.enter("start")
        for one in ids:
            if self._owner.get(one) != pool.name:
                raise Refused(f"{one} is no machine of pool {pool.name}")
            self._set(one, replace(self._get(one), state=InstanceState.PENDING, boot=f"{one}@{self.clock.now():.3f}"))
            self._later(self.boot_s, one, InstanceState.RUNNING)

    async def stop(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self.faults.enter("stop")
        for one in ids:
            if self._owner.get(one) == pool.name and one in self._pools[pool.name]:
                self._set(one, replace(self._get(one), state=InstanceState.STOPPING))
                self._later(self.end_s, one, InstanceState.STOPPED)

    async def terminate(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self.faults.enter("terminate")
        for one in ids:
            if self._owner.get(one) == pool.name and one in self._pools[pool.name]:
                if self._get(one).state is not InstanceState.STOPPING:
                    self.terminated.append((self.clock.now(), one))
                self._set(one, replace(self._get(one), state=InstanceState.STOPPING))
                self._later(self.end_s, one, InstanceState.TERMINATED)

    async def precheck(self, pool: Pool, ids: Sequence[InstanceId]) -> dict[InstanceId, str]:
        await self.faults.enter("precheck")
        known = self._pools.get(pool.name, {})
        return {one: "protected" for one in ids if one in known and known[one].protected}

    def check_offer(self, offer: Offer) -> list[str]:
        return []

    async def aclose(self) -> None:
        self.closed = True

    # --- inside ---

    def _make(self, pool: PoolName, order: Launch, ports: tuple[int, ...]) -> InstanceId:
        name = InstanceId(f"{self.name}-{next(self._numbers)}")
        now = self.clock.now()
        made = Instance(
            id=name,
            token=order.token,
            offer=order.placement.offer,
            zone=order.placement.zone,
            state=InstanceState.PENDING,
            launched_at=now,
            ports=ports,
            boot=f"{name}@{now:.3f}",
        )
        self.add(pool, made)
        self._later(self.boot_s, name, InstanceState.RUNNING)
        return name

    def _get(self, name: InstanceId) -> Instance:
        return self._pools[self._owner[name]][name]

    def _set(self, name: InstanceId, instance: Instance) -> None:
        self._pools[self._owner[name]][name] = instance

    def _later(self, wait: float, name: InstanceId, state: InstanceState) -> None:
        self._changes.append((Instant(self.clock.now() + wait), name, state))

    def _settle(self) -> None:
        """Let every change that is due happen."""
        now = self.clock.now()
        due = sorted(change for change in self._changes if change[0] <= now)
        self._changes = [change for change in self._changes if change[0] > now]
        for _, name, state in due:
            if name not in self._pools.get(self._owner[name], {}):
                continue
            before = self._get(name)
            if before.state is InstanceState.STOPPING and state is InstanceState.RUNNING:
                continue
            address = self.address.format(name) if state is InstanceState.RUNNING else before.address
            self._set(name, replace(before, state=state, address=address))
