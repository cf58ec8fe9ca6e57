"""The tables of the ledger, how they come to be, and how they grow.

Does: define the tables, make them with a new epoch, migrate older ones, refuse newer ones and files of other programs.
Does not: read or write what is in them. Loaded only when a ledger is used, as it loads SQLAlchemy.
Invariant: after `prepare` the file has exactly the schema that this program knows, or a Refused was raised and it is
as it was.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy import (
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    insert,
    inspect,
    select,
    update,
)

from autoscaler.domain.base import Instant
from autoscaler.domain.faults import Refused

SCHEMA: Final = 1

tables = MetaData()

meta = Table(
    "meta",
    tables,
    Column("id", Integer, primary_key=True),
    Column("schema", Integer, nullable=False),
    Column("epoch", Text, nullable=False),
    Column("created_at", Float, nullable=False),
)
memory = Table(
    "memory",
    tables,
    Column("pool", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("json", Text, nullable=False),
)
# One row a tick, in short. Floats that are not finite have no form in SQLite: NaN is NULL there.
records = Table(
    "records",
    tables,
    Column("id", Integer, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("trust", Text, nullable=False),
    Column("wanted", Integer),
    Column("target", Integer, nullable=False),
    Column("held", Float),
    Column("in_service", Float),
    Column("reason", Text, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("actions", Text, nullable=False),
    Index("records_pool_sequence", "pool", "sequence"),
    Index("records_at", "at"),
)
# The whole tick, in a table of its own: it goes after two days, and reading summaries must not wade through it.
bodies = Table(
    "bodies",
    tables,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("bodies_at", "at"),
)
outcomes = Table(
    "outcomes",
    tables,
    Column("id", Integer, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("outcomes_pool", "pool"),
    Index("outcomes_at", "at"),
)
directives = Table(
    "directives",
    tables,
    Column("id", Integer, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("json", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("at", Float, nullable=False),
    Index("directives_pool", "pool"),
)

#: Step from schema N to N + 1, by N; each runs in the transaction of `prepare`.
Migrations = Mapping[int, Callable[[Connection], None]]
MIGRATIONS: Final[Migrations] = {}


class About(NamedTuple):
    """What a ledger says of itself."""

    schema: int
    epoch: str
    created_at: Instant


def read_about(connection: Connection, file: Path, known: int = SCHEMA) -> About | None:
    """What the ledger says of itself, None for an empty database.

    Raises Refused for a newer schema and for a database of another program.
    """
    names = set(inspect(connection).get_table_names())
    if not names:
        return None
    if "meta" not in names or "memory" not in names:
        found = ", ".join(sorted(names)[:5])
        raise Refused(f"ledger {file}: found a database of something else (tables {found}), allowed: a ledger")
    row = connection.execute(select(meta.c.schema, meta.c.epoch, meta.c.created_at)).first()
    if row is None:
        raise Refused(f"ledger {file}: found no schema version in it, allowed: a ledger made by this program")
    if row.schema > known:
        raise Refused(
            f"ledger {file} has schema {row.schema}, this program knows up to {known}: "
            "use the newer program that made it, or restore a backup"
        )
    return About(row.schema, row.epoch, Instant(row.created_at))


def prepare(
    connection: Connection, file: Path, now: Instant, known: int = SCHEMA, migrations: Migrations = MIGRATIONS
) -> About:
    """Bring the database to the schema `known` inside the caller's transaction: made anew, migrated, or as it is."""
    about = read_about(connection, file, known)
    if about is None:
        tables.create_all(connection)
        about = About(known, secrets.token_hex(8), now)
        connection.execute(insert(meta).values(id=1, schema=known, epoch=about.epoch, created_at=now))
    for step in range(about.schema, known):
        if step not in migrations:
            raise Refused(f"ledger {file} has schema {about.schema}, this program knows no way from {step} to {known}")
        migrations[step](connection)
        connection.execute(update(meta).values(schema=step + 1))
    return about._replace(schema=known)
