"""The clock port: the only source of time outside the shells.

Does: state the contract. Does not: promise monotony across restarts (Memory.last_at does that).
Invariant: `now` never goes back within one process.
"""

from __future__ import annotations

from typing import Protocol

from autoscaler.domain.base import Duration, Instant


class Clock(Protocol):
    """Now and sleep, real or virtual."""

    def now(self) -> Instant:
        """The present instant."""
        ...

    async def sleep(self, wait: Duration) -> None:
        """Return after `wait` seconds."""
        ...
