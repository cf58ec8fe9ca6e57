"""A ledger of another age: migrated when older, refused and left alone when newer."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, text

from autoscaler.domain.base import Duration, Instant
from autoscaler.domain.faults import ConfigError, Refused
from autoscaler.ports.ledger import Ledger
from providers.ledger.sqlite import Settings, schema
from providers.ledger.sqlite.settings import file_of
from tests.support.ledger import POOL, a_memory, a_record

Opener = Callable[..., Ledger]
FILE = Path("ledger.db")


async def test_a_newer_schema_is_refused_in_plain_words(opened: Opener, file: Path) -> None:
    ledger = opened()
    await ledger.save(POOL, 0, a_memory(1), a_record(a_memory(1)))
    await ledger.aclose()
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("UPDATE meta SET schema = 9")
    late = opened()
    for call in (late.load(POOL), late.save(POOL, 1, a_memory(2), a_record(a_memory(2)))):
        with pytest.raises(Refused, match=rf"ledger {file} has schema 9, this program knows up to 1: use the newer"):
            await call
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("UPDATE meta SET schema = 1")
    assert (await late.load(POOL)).version == 1


def test_an_older_schema_is_migrated_step_by_step() -> None:
    steps: list[int] = []

    def first(connection: Connection) -> None:
        steps.append(1)
        connection.execute(text("ALTER TABLE memory ADD COLUMN note TEXT DEFAULT 'old'"))

    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        made = schema.prepare(connection, FILE, Instant(5.0))
        about = schema.prepare(connection, FILE, Instant(9.0), 3, {1: first, 2: lambda _: steps.append(2)})
        assert steps == [1, 2]
        assert about == (3, made.epoch, 5.0)
        assert schema.read_about(connection, FILE, 3) == about
        connection.execute(text("SELECT note FROM memory"))
    engine.dispose()


def test_an_older_schema_without_a_way_is_refused() -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        schema.prepare(connection, FILE, Instant(5.0))
        with pytest.raises(Refused, match="schema 1, this program knows no way from 1 to 2"):
            schema.prepare(connection, FILE, Instant(9.0), 2, {})
    engine.dispose()


def test_every_older_schema_has_a_way() -> None:
    assert set(schema.MIGRATIONS) == set(range(1, schema.SCHEMA))


@pytest.mark.parametrize(
    "url", ["", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///a/", "sqlite:///a?mode=ro", "/tmp/a.db"]
)
def test_a_url_that_names_no_file_is_refused_with_the_forms_allowed(url: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"ledger\.url: found ('.*'|an address with more than a path in it), allowed: sqlite:///relative/file\.db",
    ):
        file_of(Settings(url=url))


def test_a_url_names_a_relative_or_an_absolute_file() -> None:
    assert file_of(Settings()) == Path("state/autoscaler.db")
    assert file_of(Settings(url="sqlite:////var/lib/a b%20.db")) == Path("/var/lib/a b%20.db")


def test_all_mistakes_of_the_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as told:
        Settings(full_records_for=Duration(-1.0), summaries_for=Duration(-2.0), busy_timeout=Duration(61.0), max_mib=-1)
    assert [mistake.partition(":")[0] for mistake in told.value.mistakes] == [
        "ledger.full_records_for",
        "ledger.summaries_for",
        "ledger.busy_timeout",
        "ledger.max_mib",
    ]


async def test_a_file_name_with_odd_characters_is_that_file(opened: Opener, tmp_path: Path) -> None:
    odd = tmp_path / "a b%20#?.db".replace("?", "")
    ledger = opened(Settings(url=f"sqlite:///{odd}"))
    await ledger.save(POOL, 0, a_memory(1), a_record(a_memory(1)))
    assert odd.exists()


async def test_the_file_is_as_durable_as_promised(opened: Opener) -> None:
    ledger = opened()
    await ledger.load(POOL)
    with ledger._site.writer.transaction() as connection:  # type: ignore[attr-defined]
        found = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "auto_vacuum")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "auto_vacuum": 2}  # FULL, INCREMENTAL
