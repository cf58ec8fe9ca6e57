"""Whether an action may start now: the lease's end and the wish to stop.

Does: keep the lease renewed, and answer one question. Does not: start or stop anything.
Invariant: no action starts when less than `margin` seconds of the lease are left, or after `close()` (law 9).
"""

import asyncio

from autoscaler.domain.base import Duration, Instant
from autoscaler.domain.faults import PortFault
from autoscaler.ports.clock import Clock
from autoscaler.ports.lease import Lease

FOREVER = Instant(float("inf"))
MARGIN = Duration(5.0)


class NullLease:
    """The lease of a ledger on one host: always held."""

    async def renew(self) -> Instant:
        """Held without end."""
        return FOREVER

    async def aclose(self) -> None:
        """Nothing to give back."""


class Gate:
    """The right to act, asked before every action. `margin`: seconds before the lease's end without new actions."""

    def __init__(self, clock: Clock, *, margin: Duration = MARGIN) -> None:
        self._clock = clock
        self._margin = margin
        self._until: Instant | None = FOREVER
        self._closed = False

    def why_shut(self) -> str:
        """Why no action may start now; empty when it may."""
        if self._closed:
            return "the daemon is stopping"
        if self._until is None:
            return "another daemon holds the lease"
        if self._clock.now() > self._until - self._margin:
            return "the lease ends too soon"
        return ""

    def close(self) -> None:
        """Let nothing start any more."""
        self._closed = True

    async def renew(self, lease: Lease, *, deadline: Duration) -> str:
        """Renew once; an error leaves the present end standing and is returned as a line."""
        try:
            async with asyncio.timeout(deadline):
                self._until = await lease.renew()
        except PortFault as fault:
            return f"the lease was not renewed: {fault}"
        except TimeoutError:
            return f"the lease was not renewed: no answer within {deadline:g} s"
        return ""

    def lease_left(self) -> Duration:
        """Seconds until the lease ends: 0 when it is not held, infinite where there is none to lose."""
        return Duration(0.0 if self._until is None else max(0.0, self._until - self._clock.now()))
