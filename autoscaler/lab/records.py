"""A ledger that keeps one run's records in memory, as values, and tells of each as it is saved.

Does: what ports/ledger.py asks, for one process. Does not: survive it, or forget anything.
Invariant: records stand in the order of their decisions; nothing else says what a run decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoscaler.domain.base import Instant, PoolName
from autoscaler.domain.decision import Outcome, Record
from autoscaler.domain.directives import Directives
from autoscaler.domain.faults import Conflict
from autoscaler.domain.memory import Memory
from autoscaler.ports.ledger import Summary, Versioned


class RunLedger:
    """`on_record`, `on_outcome`: called as each is kept."""

    def __init__(self, epoch: str, on_record: Callable[[Record], None], on_outcome: Callable[[Outcome], None]) -> None:
        self._epoch = epoch
        self._on_record = on_record
        self._on_outcome = on_outcome
        self._stored: dict[PoolName, Versioned] = {}
        self._directives: dict[PoolName, Directives] = {}
        self._outcomes: list[tuple[PoolName, int, Outcome]] = []
        self.records: list[Record] = []

    async def load(self, pool: PoolName) -> Versioned:
        """The pool's memory."""
        return self._stored.get(pool, Versioned(Memory(epoch=self._epoch), 0))

    async def save(self, pool: PoolName, version: int, memory: Memory, record: Record) -> int:
        """Keep both, or raise Conflict."""
        stored = (await self.load(pool)).version
        if stored != version:
            raise Conflict(f"pool {pool}: found version {stored}, expected {version}")
        self._stored[pool] = Versioned(memory, version + 1)
        self.records.append(record)
        self._on_record(record)
        return version + 1

    async def append(self, pool: PoolName, sequence: int, outcomes: Sequence[Outcome]) -> None:
        """Keep outcomes."""
        for one in outcomes:
            self._outcomes.append((pool, sequence, one))
            self._on_outcome(one)

    async def directives(self, pool: PoolName) -> Directives:
        """What operators have in force: nothing, unless `direct` said so."""
        return self._directives.get(pool, Directives())

    async def direct(self, pool: PoolName, directives: Directives, by: str) -> None:
        """Replace the pool's directives."""
        del by
        self._directives[pool] = directives

    async def summaries(self, pool: PoolName, since: Instant, limit: int) -> list[Summary]:
        """Ticks in short, newest first."""
        found = [_summary(one) for one in reversed(self.records) if one.pool == pool and one.at >= since]
        return found[:limit]

    async def record(self, pool: PoolName, sequence: int | None = None) -> Record | None:
        """One full record."""
        wanted = (one for one in reversed(self.records) if one.pool == pool and sequence in {None, one.sequence})
        return next(wanted, None)

    async def outcomes(self, pool: PoolName, limit: int) -> list[tuple[int, Outcome]]:
        """Latest outcomes, newest first."""
        return [(sequence, one) for name, sequence, one in reversed(self._outcomes) if name == pool][:limit]

    async def aclose(self) -> None:
        """Nothing to release."""


def _summary(record: Record) -> Summary:
    decision = record.decision
    capacity = decision.capacity
    return Summary(
        record.at, record.sequence, decision.trust.level.value, decision.wanted, decision.target, capacity.held,
        capacity.in_service, decision.reason.code, decision.sentence, tuple(action.key for action in decision.plan),
    )  # fmt: skip
