"""The ledger port: what must survive.

Does: keep memory (compare-and-set), decision records, directives and outcomes. Does not: interpret them.
Invariant: memory and its decision record are saved in one transaction or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from autoscaler.domain.base import Instant, PoolName
from autoscaler.domain.decision import Outcome, Record
from autoscaler.domain.directives import Directives
from autoscaler.domain.memory import Memory


class Versioned(NamedTuple):
    """Memory with the version that the next save must name; version 0 is an empty ledger."""

    memory: Memory
    version: int


class Summary(NamedTuple):
    """One tick in short, kept for 35 days."""

    at: Instant
    sequence: int
    trust: str
    wanted: int | None
    target: int
    held: float
    in_service: float
    reason: str
    sentence: str
    actions: tuple[str, ...]


class Ledger(Protocol):
    """Storage shared by all pools of an installation. Raises Conflict, Unreachable (locked, full), Refused (schema)."""

    async def load(self, pool: PoolName) -> Versioned:
        """The pool's memory; a fresh one with the ledger's epoch when there is none."""
        ...

    async def save(self, pool: PoolName, version: int, memory: Memory, record: Record) -> int:
        """Compare-and-set memory and append the record in one transaction; returns the new version.

        Raises Conflict when `version` is not the stored one: a stale daemon cannot save, so cannot act.
        """
        ...

    async def append(self, pool: PoolName, sequence: int, outcomes: Sequence[Outcome]) -> None:
        """Keep what a tick's actions came to, for explain; losing it is safe."""
        ...

    async def directives(self, pool: PoolName) -> Directives:
        """What operators have in force."""
        ...

    async def direct(self, pool: PoolName, directives: Directives, by: str) -> None:
        """Replace the pool's directives; kept with who and when."""
        ...

    async def summaries(self, pool: PoolName, since: Instant, limit: int) -> list[Summary]:
        """Ticks in short, newest first."""
        ...

    async def record(self, pool: PoolName, sequence: int | None = None) -> Record | None:
        """One full record, the newest when `sequence` is None; None when it is not (any more) there."""
        ...

    async def outcomes(self, pool: PoolName, limit: int) -> list[tuple[int, Outcome]]:
        """Latest outcomes with the sequence of their tick, newest first."""
        ...

    async def aclose(self) -> None:
        """Finish what is queued and release the file."""
        ...
