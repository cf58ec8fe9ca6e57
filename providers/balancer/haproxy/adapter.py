"""The balancer port over HAProxy's runtime API.

Does: translate calls about replicas into changes of servers, each from what HAProxy says at that moment, and keep the
servers file in step. Does not: keep members in memory, so a reload by someone else is seen for what it is.
Invariant: no server is changed whose name is not ours; what is not shown as up and ready is not reported as taking
traffic; a count that a process before this one may share is not reported as 0.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from autoscaler.domain.base import Duration, ReplicaId
from autoscaler.domain.faults import PortFault, Refused
from autoscaler.domain.pool import BalancerTraits
from autoscaler.domain.replica import BalancerView, Endpoint, Member, MemberState, Traffic
from autoscaler.ports.balancer import Balancer, Local
from autoscaler.ports.clock import Clock
from providers._shared import processes
from providers.balancer.haproxy import demands, kept, reading
from providers.balancer.haproxy.process import Process
from providers.balancer.haproxy.reading import Info, Server
from providers.balancer.haproxy.runtime import NoSocket, NotAnswering
from providers.balancer.haproxy.servers import Servers
from providers.balancer.haproxy.settings import STRATEGIES

_SETTLE: Final = Duration(0.5)  # a change holds when its answer comes; a request on its way to a server is counted
Found = dict[str, Server]
Move = Callable[[kept.Lines], kept.Lines]
_UNIT: Final = 100  # our weight of one unit of capacity
_LARGEST: Final = 256


class HaproxyBalancer:
    """One pool's servers in one backend of one HAProxy."""

    def __init__(self, here: Process, name: str, clock: Clock) -> None:
        self._here, self._name, self._clock = here, name, clock
        self._runtime, self._settings, self._layout, self._names = here.runtime, here.settings, here.layout, here.names
        self._servers = Servers(self._runtime, self._settings)
        self._turn = asyncio.Lock()
        self._fit = False  # whether this HAProxy was found to be as the settings want it
        self._weights: dict[ReplicaId, int] = {}  # as asked for: HAProxy's own steps are coarser

    def traits(self) -> BalancerTraits:
        return BalancerTraits(
            name=self._name,
            strategies=STRATEGIES,
            weights=True,
            settle=_SETTLE,
            drain_stops="requests",
            recall=True,
            counts_active=True,
        )

    async def members(self) -> BalancerView:
        async with self._turn:
            as_of = self._clock.now()
            info, servers = await self._look()
            lines = await asyncio.to_thread(self._lines)
        ours = {rid: one for one in servers if (rid := self._names.replica(one.name)) is not None}
        whole = await asyncio.to_thread(self._counts_all, info)
        members = [self._member(rid, one, whole=whole) for rid, one in ours.items() if not one.maint]
        there = {one.name for one in ours.values() if not one.maint}
        members += [
            _only_in_file(rid, line)
            for name, line in lines.items()
            if name not in there and (rid := self._names.replica(name))
        ]
        foreign = [_foreign(one) for one in servers if self._names.replica(one.name) is None]
        return BalancerView(balancer=self._name, members=tuple(members), foreign=tuple(foreign), as_of=as_of)

    async def admit(self, endpoints: Sequence[Endpoint]) -> None:
        lines = {self._names.server(one.replica): self._line(one) for one in endpoints}

        async def move(servers: Found) -> None:
            for name, line in lines.items():
                await self._servers.admit(name, line, servers.get(name))

        await self._change(lambda held: {**held, **lines}, move, keep=frozenset(lines))
        self._weights.update({one.replica: one.weight for one in endpoints})

    async def reweigh(self, endpoints: Sequence[Endpoint]) -> None:
        weights = {self._names.server(one.replica): self._line(one).weight for one in endpoints}

        def reweighed(held: kept.Lines) -> kept.Lines:
            return {
                name: msgspec.structs.replace(line, weight=weights.get(name, line.weight))
                for name, line in held.items()
            }

        async def move(servers: Found) -> None:
            for name in weights.keys() & servers.keys():
                if not servers[name].maint:
                    await self._servers.reweigh(servers[name], weights[name])

        await self._change(reweighed, move)
        self._weights.update({one.replica: one.weight for one in endpoints})

    async def drain(self, endpoints: Sequence[Endpoint]) -> None:
        names = {self._names.server(one.replica) for one in endpoints}

        async def move(servers: Found) -> None:
            for name in sorted(names & servers.keys()):
                await self._servers.drain(servers[name])

        await self._change(lambda held: _without(held, names), move)

    async def evict(self, endpoints: Sequence[Endpoint]) -> None:
        names = {self._names.server(one.replica) for one in endpoints}

        async def move(servers: Found) -> None:
            for name in sorted(names & servers.keys()):
                await self._servers.remove(servers[name])

        await self._change(lambda held: _without(held, names), move)
        for one in endpoints:
            self._weights.pop(one.replica, None)

    async def check_start(self) -> None:
        """Also of an HAProxy that others run: what only a person can mend is told before anything is launched."""
        if self._settings.servers_file and self._layout.servers is not None:
            await asyncio.to_thread(kept.check, self._layout.servers, self._names.owner)
        if self._settings.embedded:
            await self._here.check_start()
            return
        try:
            await self._look()
        except NoSocket as error:
            raise Refused(str(error)) from error
        except NotAnswering:
            return  # it may come back, and must not keep other pools waiting

    async def aclose(self) -> None:
        """Nothing to release: each command has a connection of its own."""

    async def _look(self) -> tuple[Info, tuple[Server, ...]]:
        info = await self._here.ensure()
        backend = await reading.backend(self._runtime, self._settings.backend)
        if not self._fit:
            await demands.judge(self._runtime, self._settings, info, backend)
            self._fit = True
        return info, backend.servers

    def _lines(self) -> dict[str, kept.Line]:
        return {} if self._layout.servers is None else kept.read(self._layout.servers, self._names.owner)

    def _counts_all(self, info: Info) -> bool:
        """Whether no older process can hold streams to our servers: ours from its start on, or for long enough."""
        if info.uptime_s >= self._settings.reload_grace:
            return True
        record = processes.read_record(self._layout.record) if self._settings.embedded else None
        return record is not None and record.pid == info.pid

    def _member(self, replica: ReplicaId, one: Server, *, whole: bool) -> Member:
        asked = self._weights.get(replica)
        exact = asked is not None and self._weight(asked) == one.weight
        return Member(
            endpoint=f"{one.host}:{one.port}",
            state=MemberState.DRAINING if one.draining else MemberState.ADMITTED,
            replica=replica,
            traffic=Traffic.YES if one.serves else Traffic.NO,
            weight=asked if exact else round(one.weight * _UNIT / self._settings.unit_weight),
            active=one.active if whole or one.active else None,
            reason="" if one.serves else "draining" if one.draining else one.trouble,
        )

    def _weight(self, asked: int) -> int:
        return max(1, round(asked * self._settings.unit_weight / _UNIT))

    def _line(self, endpoint: Endpoint) -> kept.Line:
        """The server of an endpoint. Raises Refused for what HAProxy would not take, before anything is changed."""
        try:
            host = str(ipaddress.ip_address(endpoint.host))
        except ValueError:
            raise Refused(f"{endpoint.replica}: this adapter takes IP addresses, not {endpoint.host!r}") from None
        weight = self._weight(endpoint.weight)
        if weight > _LARGEST:
            allowed = _LARGEST * _UNIT // endpoint.weight
            raise Refused(
                f"{endpoint.replica}: {endpoint.weight / _UNIT:g} units would weigh {weight}, HAProxy's largest is "
                f"{_LARGEST}: set unit_weight to {allowed} or less"
            )
        return kept.Line(host=host, port=endpoint.port, weight=weight)

    async def _change(
        self, lines: Move, change: Callable[[Found], Awaitable[None]], keep: frozenset[str] = frozenset()
    ) -> None:
        """Bring the servers file, then the servers, to what is asked; a file that fails must not stop a drain.

        `keep`: names that leave maintenance by this. Raises what the change raised, else what the file did.
        """
        async with self._turn:
            _, servers = await self._look()
            found = {one.name: one for one in servers if self._names.replica(one.name) is not None}
            fault = await self._write(lines, found)
            await change(found)
            for name, one in found.items():
                if one.maint and name not in keep:
                    await self._servers.remove(one)  # what could not be deleted when it was evicted
        if fault is not None:
            raise fault

    async def _write(self, lines: Move, found: Found) -> PortFault | None:
        if self._layout.servers is None:
            return None
        held = {
            name: kept.Line(host=one.host, port=one.port, weight=one.weight)
            for name, one in found.items()
            if not one.maint and not one.draining
        }
        wanted = lines(held)
        options, owner = self._settings.server_options, self._names.owner
        try:
            await asyncio.to_thread(kept.change, self._layout.servers, owner, options, wanted)
        except PortFault as fault:
            return fault
        return None


def _without(held: kept.Lines, names: set[str]) -> kept.Lines:
    return {name: line for name, line in held.items() if name not in names}


def _only_in_file(replica: ReplicaId, line: kept.Line) -> Member:
    """HAProxy does not have it, but a reload would bring it: admitted again or taken out, whichever it is due."""
    return Member(
        endpoint=f"{line.host}:{line.port}",
        state=MemberState.DRAINING,
        replica=replica,
        traffic=Traffic.NO,
        reason="only in the servers file, not in HAProxy",
    )


def _foreign(one: Server) -> Member:
    """A server that somebody else put into our backend: told, never touched."""
    return Member(
        endpoint=f"{one.host}:{one.port}",
        state=MemberState.DRAINING if one.draining or one.maint else MemberState.ADMITTED,
        traffic=Traffic.YES if one.serves else Traffic.NO,
        active=one.active,
        reason=f"server {one.name} is not ours",
    )


if TYPE_CHECKING:
    _adapter: type[Balancer] = HaproxyBalancer
    _local: type[Local] = HaproxyBalancer
