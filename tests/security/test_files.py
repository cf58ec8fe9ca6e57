"""What the daemon makes on disk is for its own user, whatever the umask says."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from autoscaler.cli.run import make_state_dir
from autoscaler.domain.base import PoolName
from autoscaler.domain.directives import Directives
from autoscaler.domain.faults import ConfigError
from providers.ledger import sqlite
from tests.support.raw_http import a_context


class Configured(NamedTuple):
    """What make_state_dir reads of a config."""

    state_dir: str


@pytest.fixture(autouse=True)
def _loose_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_the_ledger_its_log_its_lock_and_its_backup(tmp_path: Path) -> None:
    file = tmp_path / "state" / "a.db"
    settings = sqlite.Settings(url=f"sqlite:///{file}")
    with sqlite.hold(settings):
        ledger = sqlite.build(settings, a_context())
        await ledger.direct(PoolName("p"), Directives(), "test")
        sqlite.backup(settings, tmp_path / "copy.db")
        made = {path.name: mode(path) for path in file.parent.iterdir()}
        await ledger.aclose()
    assert {"a.db", "a.db-wal", "a.db-shm", "a.db.lock"} <= set(made)
    assert set(made.values()) == {0o600}
    assert mode(tmp_path / "copy.db") == 0o600
    assert mode(file.parent) == 0o700
    sqlite.restore(settings, tmp_path / "copy.db")
    assert {mode(path) for path in file.parent.iterdir()} == {0o600}


def test_the_state_folder(tmp_path: Path) -> None:
    made = tmp_path / "made"
    make_state_dir(Configured(str(made)))  # type: ignore[arg-type]
    assert mode(made) == 0o700
    there = tmp_path / "there"
    there.mkdir(mode=0o750)
    make_state_dir(Configured(str(there)))  # type: ignore[arg-type]
    assert mode(there) == 0o750, "who made it may have had a reason"
    there.chmod(0o777)
    with pytest.raises(ConfigError, match=r"state_dir: .*everyone may write to it"):
        make_state_dir(Configured(str(there)))  # type: ignore[arg-type]
