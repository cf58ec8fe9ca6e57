"""A ledger in a temporary folder, and its file."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from autoscaler.domain.base import Duration
from autoscaler.ports.build import Context
from autoscaler.ports.ledger import Ledger
from providers.ledger import sqlite
from tests.support.ledger import HandClock

Opener = Callable[..., Ledger]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def settings(file: Path) -> sqlite.Settings:
    return sqlite.Settings(url=f"sqlite:///{file}", busy_timeout=Duration(0.05))


@pytest.fixture
async def opened(settings: sqlite.Settings, clock: HandClock) -> AsyncIterator[Opener]:
    """Open ledgers on the file; all are closed in the end."""
    ledgers: list[Ledger] = []

    def open_one(given: sqlite.Settings = settings, *, reader: bool = False) -> Ledger:
        context = Context(installation="test", state_dir="", clock=clock)
        ledgers.append((sqlite.reader if reader else sqlite.build)(given, context))
        return ledgers[-1]

    yield open_one
    for ledger in ledgers:
        await ledger.aclose()
