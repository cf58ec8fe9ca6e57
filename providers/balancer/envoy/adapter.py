"""The balancer port over Envoy's endpoint file and admin port.

Does: change the file, and join what it says with what Envoy does. Does not: keep members in memory.
Invariant: one writer: calls of one process queue at a lock, processes at a lock file; what Envoy does not show as
listed and healthy is never reported as taking traffic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import Unreachable
from autoscaler.domain.pool import BalancerTraits
from autoscaler.domain.replica import BalancerView, Endpoint, Member, MemberState, Traffic
from autoscaler.ports.balancer import Balancer, Local
from autoscaler.ports.clock import Clock
from providers.balancer.envoy import endpoints as eds
from providers.balancer.envoy.admin import Admin, HostState
from providers.balancer.envoy.process import check_start, ensure
from providers.balancer.envoy.settings import STRATEGIES, Layout, Settings

_SETTLE: Final = Duration(1.0)  # the file watch is a matter of 0.2 s; a loaded machine may take longer


class EnvoyBalancer:
    """One pool's members in one Envoy."""

    def __init__(self, settings: Settings, layout: Layout, name: str, clock: Clock) -> None:
        self._settings, self._layout, self._name, self._clock = settings, layout, name, clock
        self._admin = Admin(settings)
        self._turn = asyncio.Lock()
        self._known = False  # whether the Envoy that answers was found to be ours

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
            await self._ensure()
            as_of = self._clock.now()
            entries = await asyncio.to_thread(eds.read, self._layout.endpoints)
            try:
                hosts = await self._admin.hosts()
            except Unreachable:
                self._known = False  # the next call looks who is there, and starts one if need be
                raise
        return BalancerView(balancer=self._name, members=tuple(_member(entry, hosts) for entry in entries), as_of=as_of)

    async def admit(self, endpoints: Sequence[Endpoint]) -> None:
        await self._change(lambda members: eds.admitted(members, endpoints))

    async def reweigh(self, endpoints: Sequence[Endpoint]) -> None:
        await self._change(lambda members: eds.reweighed(members, endpoints))

    async def drain(self, endpoints: Sequence[Endpoint]) -> None:
        await self._change(lambda members: eds.drained(members, endpoints))

    async def evict(self, endpoints: Sequence[Endpoint]) -> None:
        await self._change(lambda members: eds.evicted(members, endpoints))

    async def check_start(self) -> None:
        await check_start(self._admin, self._settings, self._layout)

    async def aclose(self) -> None:
        await self._admin.aclose()

    async def _ensure(self) -> None:
        if not self._known:
            await ensure(self._admin, self._settings, self._layout)
            self._known = True

    async def _change(self, move: Callable[[eds.Entries], eds.Entries]) -> None:
        # Without asking Envoy: the file is the state, and an Envoy that comes later reads it.
        async with self._turn:
            layout = self._layout
            await asyncio.to_thread(
                eds.change, layout.folder, layout.endpoints, layout.lock, self._settings.cluster, move
            )


def _member(entry: eds.Entry, hosts: Mapping[tuple[str, int], HostState]) -> Member:
    host = hosts.get(entry.address)
    traffic, reason = Traffic.YES, ""
    if host is None:
        traffic, reason = Traffic.NO, "Envoy has not taken it into its list (yet)"
    elif entry.draining or host.trouble:
        traffic, reason = Traffic.NO, host.trouble or "draining"
    return Member(
        endpoint=f"{entry.host}:{entry.port}",
        state=MemberState.DRAINING if entry.draining else MemberState.ADMITTED,
        replica=entry.replica or None,
        traffic=traffic,
        weight=entry.weight,
        active=None if host is None else host.active,
        reason=reason,
    )


if TYPE_CHECKING:
    _adapter: type[Balancer] = EnvoyBalancer
    _local: type[Local] = EnvoyBalancer
