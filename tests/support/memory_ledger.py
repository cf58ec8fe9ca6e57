"""A ledger in memory: compare-and-set on a version, records and outcomes bounded, faults on demand."""

from collections import deque
from collections.abc import Sequence

from autoscaler.domain.base import Instant, PoolName
from autoscaler.domain.decision import Outcome, Record
from autoscaler.domain.directives import Directives
from autoscaler.domain.faults import Conflict
from autoscaler.domain.memory import Memory
from autoscaler.ports.ledger import Summary, Versioned
from tests.support.faults import Faults


class MemoryLedger:
    """`kept`: how many records and outcomes of a pool stay. `touched`: pools with any row."""

    def __init__(self, *, epoch: str = "e1", kept: int = 1000) -> None:
        self.epoch = epoch
        self.kept = kept
        self.faults = Faults()
        self.closed = False
        self.memories: dict[PoolName, Versioned] = {}
        self.records: dict[PoolName, deque[Record]] = {}
        self.kept_outcomes: dict[PoolName, deque[tuple[int, Outcome]]] = {}
        self.said: dict[PoolName, Directives] = {}
        self.said_by: list[tuple[PoolName, Directives, str]] = []

    @property
    def touched(self) -> set[PoolName]:
        return set(self.memories) | set(self.records) | set(self.kept_outcomes)

    def steal(self, pool: PoolName) -> None:
        """Another daemon saves meanwhile: the version goes up."""
        memory, version = self.memories.get(pool, Versioned(Memory(epoch=self.epoch), 0))
        self.memories[pool] = Versioned(memory, version + 1)

    async def load(self, pool: PoolName) -> Versioned:
        await self.faults.enter("load")
        return self.memories.get(pool, Versioned(Memory(epoch=self.epoch), 0))

    async def save(self, pool: PoolName, version: int, memory: Memory, record: Record) -> int:
        await self.faults.enter("save")
        stored = self.memories.get(pool, Versioned(memory, 0)).version
        if stored != version:
            raise Conflict(f"pool {pool} is at version {stored}, not {version}")
        self.memories[pool] = Versioned(memory, version + 1)
        self.records.setdefault(pool, deque(maxlen=self.kept)).append(record)
        return version + 1

    async def append(self, pool: PoolName, sequence: int, outcomes: Sequence[Outcome]) -> None:
        await self.faults.enter("append")
        self.kept_outcomes.setdefault(pool, deque(maxlen=self.kept)).extend((sequence, one) for one in outcomes)

    async def directives(self, pool: PoolName) -> Directives:
        await self.faults.enter("directives")
        return self.said.get(pool, Directives())

    async def direct(self, pool: PoolName, directives: Directives, by: str) -> None:
        await self.faults.enter("direct")
        self.said[pool] = directives
        self.said_by.append((pool, directives, by))

    async def summaries(self, pool: PoolName, since: Instant, limit: int) -> list[Summary]:
        await self.faults.enter("summaries")
        newest = [record for record in reversed(self.records.get(pool, ())) if record.at >= since]
        return [_summary(record) for record in newest[:limit]]

    async def record(self, pool: PoolName, sequence: int | None = None) -> Record | None:
        await self.faults.enter("record")
        found = reversed(self.records.get(pool, ()))
        return next((one for one in found if sequence is None or one.sequence == sequence), None)

    async def outcomes(self, pool: PoolName, limit: int) -> list[tuple[int, Outcome]]:
        await self.faults.enter("outcomes")
        return list(reversed(self.kept_outcomes.get(pool, ())))[:limit]

    async def aclose(self) -> None:
        self.closed = True


def _summary(record: Record) -> Summary:
    decision = record.decision
    return Summary(
        at=record.at,
        sequence=record.sequence,
        trust=decision.trust.level.value,
        wanted=decision.wanted,
        target=decision.target,
        held=decision.capacity.held,
        in_service=decision.capacity.in_service,
        reason=decision.reason.code,
        sentence=decision.sentence,
        actions=tuple(action.key for action in decision.plan),
    )
