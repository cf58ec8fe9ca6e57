"""What only looks: a batch of questions in one read transaction.

Does: answer loads, directives, summaries, records and outcomes from one snapshot. Does not: write, or make a file.
Invariant: an answer is what was committed when its batch began; an empty ledger and an absent one answer alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import BindParameter, Connection, Row, bindparam, select

from autoscaler.domain.base import Instant, PoolName
from autoscaler.domain.decision import Outcome, Record
from autoscaler.domain.directives import Directives
from autoscaler.domain.faults import PortFault
from autoscaler.ports.ledger import Summary, Versioned
from providers.ledger.sqlite import codec
from providers.ledger.sqlite.link import NothingThere, Site
from providers.ledger.sqlite.schema import bodies, directives, memory, outcomes, records


class Load(NamedTuple):
    """A pool's memory; answered with None where there is none."""

    pool: PoolName


class Standing(NamedTuple):
    """A pool's directives in force."""

    pool: PoolName


class Short(NamedTuple):
    """Ticks in short since an instant, newest first."""

    pool: PoolName
    since: Instant
    limit: int


class Full(NamedTuple):
    """One whole record; the newest when `sequence` is None."""

    pool: PoolName
    sequence: int | None


class Kept(NamedTuple):
    """The latest outcomes."""

    pool: PoolName
    limit: int


Read = Load | Standing | Short | Full | Kept
Found = Versioned | Directives | list[Summary] | Record | list[tuple[int, Outcome]] | None

_POOL: BindParameter[str] = bindparam("pool")
_LIMIT: BindParameter[int] = bindparam("limit")
_LOAD = select(memory.c.version, memory.c.json).where(memory.c.pool == _POOL)
_STANDING = select(directives.c.json).where(directives.c.pool == _POOL).order_by(directives.c.id.desc()).limit(1)
_SHORT = (
    select(records)
    .where(records.c.pool == _POOL)
    .order_by(records.c.sequence.desc(), records.c.id.desc())
    .limit(_LIMIT)
)
_NEWEST = (
    select(records.c.id, records.c.sequence, bodies.c.body)
    .outerjoin_from(records, bodies, records.c.id == bodies.c.id)
    .where(records.c.pool == _POOL)
    .order_by(records.c.sequence.desc(), records.c.id.desc())
    .limit(1)
)
_NAMED = _NEWEST.where(records.c.sequence == bindparam("sequence"))
_KEPT = (
    select(outcomes.c.sequence, outcomes.c.body)
    .where(outcomes.c.pool == _POOL)
    .order_by(outcomes.c.id.desc())
    .limit(_LIMIT)
)


class Reader:
    """Handles batches of reads; used by one thread."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def handle(self, requests: Sequence[Read]) -> Sequence[Found | Exception]:
        """Answer each request in its place; an answer may be a PortFault."""
        try:
            with self._site.reader.transaction() as connection:
                return [self._answer(connection, request) for request in requests]
        except NothingThere:
            return [_nothing(request) for request in requests]
        except PortFault as fault:
            return [type(fault)(fault.fault.detail) for _ in requests]

    def _answer(self, connection: Connection, request: Read) -> Found | Exception:
        try:
            return self._look_up(connection, request)
        except PortFault as fault:  # what stands in this row; the others are no worse for it
            return fault

    def _look_up(self, connection: Connection, request: Read) -> Found:
        where = f"ledger {self._site.file}, pool {request.pool}"
        match request:
            case Load(pool):
                found = connection.execute(_LOAD, {"pool": pool}).first()
                if found is None:
                    return None
                return Versioned(codec.decode_memory(found.json, f"{where}: memory"), found.version)
            case Standing(pool):
                text = connection.execute(_STANDING, {"pool": pool}).scalar()
                return Directives() if text is None else codec.decode_directives(text, f"{where}: directives")
            case Short(pool, since, limit):
                ticks = connection.execute(_SHORT, {"pool": pool, "limit": limit})
                # Instants rise with the sequence, so the first older one is the end: rows beyond it are never fetched.
                return [_summary(row) for row in takewhile(lambda row: row.at >= since, ticks)]
            case Full(pool, sequence):
                wanted = _NEWEST if sequence is None else _NAMED
                row = connection.execute(wanted, {"pool": pool, "sequence": sequence}).first()
                if row is None or row.body is None:
                    return None
                return codec.decode_record(row.body, f"{where}: record {row.sequence}")
            case Kept(pool, limit):
                rows = connection.execute(_KEPT, {"pool": pool, "limit": limit})
                return [(row.sequence, codec.decode_outcome(row.body, f"{where}: outcome")) for row in rows]

    def close(self) -> None:
        """Give the file back."""
        with self._site.reader.lock:
            self._site.reader.close()


def _nothing(request: Read) -> Found:
    match request:
        case Load() | Full():
            return None
        case Standing():
            return Directives()
        case Short() | Kept():
            return []


def _summary(row: Row[Any]) -> Summary:
    return Summary(
        at=row.at,
        sequence=row.sequence,
        trust=row.trust,
        wanted=row.wanted,
        target=row.target,
        held=math.nan if row.held is None else row.held,
        in_service=math.nan if row.in_service is None else row.in_service,
        reason=row.reason,
        sentence=row.sentence,
        actions=msgspec.json.decode(row.actions, type=tuple[str, ...]),
    )
