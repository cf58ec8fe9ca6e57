"""What changes the ledger: a batch of requests in one transaction.

Does: compare-and-set each pool's memory with its record, keep outcomes and directives, forget what is old.
Does not: run threads or open files.
Invariant: a request that is refused leaves nothing in the file and does not touch its neighbours; one that is answered
was committed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, delete, func, insert, select, text
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.exc import IntegrityError

from autoscaler.domain.base import Duration, Instant, PoolName
from autoscaler.domain.decision import Outcome, Record
from autoscaler.domain.directives import Directives
from autoscaler.domain.faults import Conflict, PortFault, Refused, Unreachable
from autoscaler.domain.memory import Memory
from providers.ledger.sqlite import codec
from providers.ledger.sqlite.link import Site
from providers.ledger.sqlite.schema import bodies, directives, memory, outcomes, records

#: Directives that are kept of each pool, the one in force included.
DIRECTIVES_KEPT: Final = 50
#: How often old rows are looked for, and how many are forgotten at once at least.
_UPKEEP_EVERY: Final = Duration(60.0)
_UPKEEP_ROWS: Final = 500
#: Free pages above which the file gives space back, and how many pages it gives back at once.
_FREE_PAGES_KEPT: Final = 256
_FREE_PAGES_STEP: Final = 500

Row = dict[str, object]


class Save(NamedTuple):
    """Compare-and-set of a pool's memory, with its record; answered with the new version."""

    pool: PoolName
    version: int
    memory: Memory
    record: Record


class Append(NamedTuple):
    """Outcomes of one tick; answered with 0."""

    pool: PoolName
    sequence: int
    outcomes: tuple[Outcome, ...]


class Direct(NamedTuple):
    """Directives that replace the pool's; answered with 0."""

    pool: PoolName
    directives: Directives
    by: str
    at: Instant


class Make(NamedTuple):
    """Nothing but a ledger that is there; answered with 0."""


Write = Save | Append | Direct | Make


class _Ready(NamedTuple):
    """A request as rows: encoding is done before the lock is taken."""

    request: Write
    rows: tuple[Row, ...]
    body: bytes = b""


def _whole(value: int | None, what: str) -> int | None:
    if value is not None and not -(2**63) <= value < 2**63:
        raise Refused(f"record cannot be saved: found {what} = {value}, allowed: 64-bit integers")
    return value


def _save_rows(save: Save) -> _Ready:
    record, decision = save.record, save.record.decision
    if not math.isfinite(record.at):
        raise Refused(f"record cannot be saved: found at = {record.at}, allowed: an instant")
    short: Row = {
        "pool": save.pool,
        "sequence": _whole(record.sequence, "sequence"),
        "at": record.at,
        "trust": decision.trust.level.value,
        "wanted": _whole(decision.wanted, "wanted"),
        "target": _whole(decision.target, "target"),
        "held": decision.capacity.held,
        "in_service": decision.capacity.in_service,
        "reason": decision.reason.code,
        "sentence": decision.sentence,
        "actions": msgspec.json.encode([action.key for action in decision.plan]).decode(),
    }
    now: Row = {"pool": save.pool, "version": save.version + 1, "json": codec.encode_memory(save.memory)}
    return _Ready(save, (now, short), codec.encode_record(record))


def _ready(request: Write) -> _Ready:
    """The rows of a request; raises Refused for values that have no form on disk."""
    match request:
        case Save():
            _whole(request.version + 1, "version")
            return _save_rows(request)
        case Append(pool, sequence, kept):
            _whole(sequence, "sequence")
            if bad := [outcome.at for outcome in kept if not math.isfinite(outcome.at)]:
                raise Refused(f"outcome cannot be saved: found at = {bad[0]}, allowed: an instant")
            return _Ready(
                request,
                tuple(
                    {"pool": pool, "sequence": sequence, "at": outcome.at, "body": codec.encode_outcome(outcome)}
                    for outcome in kept
                ),
            )
        case Direct(pool, wanted, by, at):
            by.encode()
            return _Ready(request, ({"pool": pool, "json": codec.encode_directives(wanted), "by": by, "at": at},))
        case Make():
            return _Ready(request, ())


class Writer:
    """Handles batches of writes; used by one thread. `now` is the clock that retention goes by."""

    def __init__(self, site: Site, now: Callable[[], Instant]) -> None:
        self._site = site
        self._now = now
        self._newest = -math.inf  # instant of the newest record that this process saved
        self._upkeep_at = -math.inf
        self._backlog = True  # what an earlier process left

    def handle(self, requests: Sequence[Write]) -> Sequence[int | Exception]:
        """Commit the batch; each answer stands in its request's place. An answer may be a PortFault."""
        answers: list[int | Exception] = [0] * len(requests)
        ready: list[tuple[int, _Ready]] = []
        for place, request in enumerate(requests):
            try:
                ready.append((place, _ready(request)))
            except (PortFault, UnicodeEncodeError) as error:
                answers[place] = error if isinstance(error, PortFault) else Refused(f"cannot be saved: {error}")
        for place, answer in zip([at for at, _ in ready], self._commit([item for _, item in ready]), strict=True):
            answers[place] = answer
        return answers

    def _commit(self, batch: Sequence[_Ready]) -> list[int | Exception]:
        if not batch:
            return []
        try:
            with self._site.writer.transaction() as connection:
                answers = _apply(connection, batch)
        except PortFault as fault:
            # A value that SQLite does not take must not cost its neighbours their tick: each alone, then.
            if len(batch) > 1 and isinstance(fault.__cause__, IntegrityError):
                return [answer for item in batch for answer in self._commit([item])]
            return [type(fault)(fault.fault.detail) for _ in batch]
        for item, answer in zip(batch, answers, strict=True):
            if isinstance(item.request, Save) and not isinstance(answer, Exception):
                self._newest = max(self._newest, item.request.record.at)
        return answers

    def upkeep(self, handled: int) -> None:
        """Forget what is old, a little at a time: not at every call, and never more than a few times what came in.

        What is old is old by the clock *and* by the newest record, so that a clock that leaps ahead deletes nothing.
        """
        now = self._now()
        if not self._backlog and 0 <= now - self._upkeep_at < _UPKEEP_EVERY:
            return
        at = min(now, self._newest)
        if at == -math.inf:
            return
        settings, most = self._site.settings, max(_UPKEEP_ROWS, 2 * handled)
        try:
            with self._site.writer.transaction() as connection:
                gone = _forget(connection, at - settings.full_records_for, at - settings.summaries_for, most)
                freed = _give_back(connection)
        except Unreachable:
            return  # the next save meets the same and tells its asker
        self._backlog = freed or gone >= most
        self._upkeep_at = now

    def close(self) -> None:
        """Give the file back."""
        with self._site.writer.lock:
            self._site.writer.close()


def _apply(connection: Connection, batch: Sequence[_Ready]) -> list[int | Exception]:
    """Do a batch inside a transaction that holds the write lock, so that what is compared stays true."""
    versions = _versions(connection, [item.request.pool for item in batch if isinstance(item.request, Save)])
    answers: list[int | Exception] = []
    saved: list[_Ready] = []
    kept: list[Row] = []
    for item in batch:
        match item.request:
            case Save(pool, version) if versions.get(pool, 0) != version:
                found = versions.get(pool, 0)
                answers.append(Conflict(f"memory of pool {pool}: found version {found}, expected {version}"))
                continue
            case Save(pool, version):
                versions[pool] = version + 1
                saved.append(item)
            case Append():
                kept.extend(item.rows)
            case Direct(pool):
                _replace_directives(connection, pool, item.rows[0])
            case Make():
                pass
        answers.append(versions[item.request.pool] if isinstance(item.request, Save) else 0)
    if saved:
        _insert_saved(connection, saved)
    if kept:
        connection.execute(_OUTCOMES, kept)
    return answers


def _versions(connection: Connection, pools: Sequence[PoolName]) -> dict[str, int]:
    if not pools:
        return {}
    return {row.pool: row.version for row in connection.execute(_VERSIONS, {"pools": list(pools)})}


# Built once: building a statement costs more than running it.
_VERSIONS = select(memory.c.pool, memory.c.version).where(memory.c.pool.in_(bindparam("pools", expanding=True)))
_LAST_ID = select(func.max(records.c.id))
_RECORDS, _BODIES, _OUTCOMES = insert(records), insert(bodies), insert(outcomes)
_UPSERT = upsert(memory)
_UPSERT = _UPSERT.on_conflict_do_update(
    index_elements=[memory.c.pool], set_={"version": _UPSERT.excluded.version, "json": _UPSERT.excluded.json}
)


def _insert_saved(connection: Connection, saved: Sequence[_Ready]) -> None:
    # The ids are given here so that a record and its body share one without asking for each.
    first = (connection.execute(_LAST_ID).scalar() or 0) + 1
    connection.execute(_UPSERT, [item.rows[0] for item in saved])
    connection.execute(_RECORDS, [{"id": number, **item.rows[1]} for number, item in enumerate(saved, first)])
    connection.execute(
        _BODIES,
        [{"id": number, "at": item.rows[1]["at"], "body": item.body} for number, item in enumerate(saved, first)],
    )


def _replace_directives(connection: Connection, pool: PoolName, row: Mapping[str, object]) -> None:
    connection.execute(insert(directives), [dict(row)])
    mine = select(directives.c.id).where(directives.c.pool == pool).order_by(directives.c.id.desc())
    connection.execute(delete(directives).where(directives.c.id.in_(mine.offset(DIRECTIVES_KEPT).limit(1000))))


def _forget(connection: Connection, full_before: float, short_before: float, most: int) -> int:
    """Delete at most `most` rows of each table that are older than its bound; the largest number deleted."""
    gone = 0
    for table, before in ((bodies, full_before), (records, short_before), (outcomes, short_before)):
        old = select(table.c.id).where(table.c.at < before).order_by(table.c.at).limit(most)
        gone = max(gone, connection.execute(delete(table).where(table.c.id.in_(old))).rowcount)
    return gone


def _give_back(connection: Connection) -> bool:
    """Return a step of free pages to the disk; whether there are more than a reserve and a quarter of the file."""
    free = int(connection.execute(text("PRAGMA freelist_count")).scalar_one())
    pages = int(connection.execute(text("PRAGMA page_count")).scalar_one())
    spare = free - max(_FREE_PAGES_KEPT, pages // 4)
    if spare <= 0:
        return False
    cursor = connection.connection.cursor()
    for _ in range(min(spare, _FREE_PAGES_STEP)):  # one by one: Python's driver stops after the first page of many
        cursor.execute("PRAGMA incremental_vacuum(1)")
    cursor.close()
    return spare > _FREE_PAGES_STEP
