"""The lease port: who may act.

Does: state the contract for one daemon among several. Does not: elect by itself on a single host (always held there).
Invariant: no action starts within a margin of the lease's end (law 9).
"""

from __future__ import annotations

from typing import Protocol

from autoscaler.domain.base import Instant


class Lease(Protocol):
    """The right to act, for a time."""

    async def renew(self) -> Instant | None:
        """Renew; the instant until which this daemon may act, or None when another one holds it."""
        ...

    async def aclose(self) -> None:
        """Give the lease back at once, so that another daemon need not wait for its end."""
        ...
