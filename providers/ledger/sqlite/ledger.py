"""The Ledger port on one SQLite file.

Does: hand each call to the writer's or the reader's thread and wait for its answer. Does not: touch the file itself.
Invariant: the event loop never waits for the disk; a write returns after its commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from autoscaler.domain.base import Instant, PoolName
from autoscaler.domain.decision import Outcome, Record
from autoscaler.domain.directives import Directives
from autoscaler.domain.faults import InvariantBroken, Refused
from autoscaler.domain.memory import Memory
from autoscaler.ports.clock import Clock
from autoscaler.ports.ledger import Ledger, Summary, Versioned
from providers.ledger.sqlite.batches import Batches
from providers.ledger.sqlite.link import Site
from providers.ledger.sqlite.reading import Found, Full, Kept, Load, Read, Reader, Short, Standing
from providers.ledger.sqlite.settings import Settings
from providers.ledger.sqlite.writing import Append, Direct, Make, Save, Write, Writer

#: How long the first save waits for others to share its commit, seconds: little beside the commit itself.
_LINGER: Final = 0.002

Kind = TypeVar("Kind")


def _as(kind: type[Kind], found: Found) -> Kind:
    if not isinstance(found, kind):
        raise InvariantBroken(f"the ledger answered {type(found).__name__} where {kind.__name__} was asked")
    return found


class SqliteLedger:
    """See `autoscaler.ports.ledger.Ledger`. `read_only`: each write is Refused, and no file is made."""

    def __init__(self, file: Path, settings: Settings, clock: Clock, *, read_only: bool = False) -> None:
        self._file = file
        self._clock = clock
        self._read_only = read_only
        self._site = Site(file, settings, clock.now)
        self._writer = Writer(self._site, clock.now)
        self._reader = Reader(self._site)
        self._writes: Batches[Write, int] = Batches(
            f"writer of ledger {file}", self._writer.handle, upkeep=self._writer.upkeep, linger=_LINGER
        )
        self._reads: Batches[Read, Found] = Batches(f"reader of ledger {file}", self._reader.handle)

    async def load(self, pool: PoolName) -> Versioned:
        found = await self._reads.ask(Load(pool))
        if found is None:
            if not self._read_only and not self._site.epoch:
                await self._write(Make())
            return Versioned(Memory(epoch=self._site.epoch), 0)
        return _as(Versioned, found)

    async def save(self, pool: PoolName, version: int, memory: Memory, record: Record) -> int:
        return await self._write(Save(pool, version, memory, record))

    async def append(self, pool: PoolName, sequence: int, outcomes: Sequence[Outcome]) -> None:
        if outcomes:
            await self._write(Append(pool, sequence, tuple(outcomes)))

    async def directives(self, pool: PoolName) -> Directives:
        return _as(Directives, await self._reads.ask(Standing(pool)))

    async def direct(self, pool: PoolName, directives: Directives, by: str) -> None:
        await self._write(Direct(pool, directives, by, self._clock.now()))

    async def summaries(self, pool: PoolName, since: Instant, limit: int) -> list[Summary]:
        found: list[Summary] = _as(list, await self._reads.ask(Short(pool, since, max(limit, 0))))
        return found

    async def record(self, pool: PoolName, sequence: int | None = None) -> Record | None:
        found = await self._reads.ask(Full(pool, sequence))
        return None if found is None else _as(Record, found)

    async def outcomes(self, pool: PoolName, limit: int) -> list[tuple[int, Outcome]]:
        found: list[tuple[int, Outcome]] = _as(list, await self._reads.ask(Kept(pool, max(limit, 0))))
        return found

    async def aclose(self) -> None:
        # The reader first: the connection that closes last folds the log into the file, and only the writer may.
        await self._reads.aclose(self._reader.close)
        await self._writes.aclose(self._writer.close)

    async def _write(self, request: Write) -> int:
        if self._read_only:
            raise Refused(f"ledger {self._file}: found a write, allowed: reading only in this command")
        return await self._writes.ask(request)


if TYPE_CHECKING:
    _port: type[Ledger] = SqliteLedger
