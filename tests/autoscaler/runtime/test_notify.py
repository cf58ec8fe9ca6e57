"""The service manager hears through its real socket when the daemon is ready and when it ends."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from autoscaler.runtime.notify import READY, STOPPING, tell
from tests.support.own_hosts import host_settings
from tests.support.streaming import free_ports


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with (
        tempfile.TemporaryDirectory(prefix="sd-") as folder,  # a socket's path must be short
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening,
    ):
        listening.bind(f"{folder}/notify")
        listening.settimeout(20.0)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{folder}/notify")
        yield listening


def test_a_state_is_one_datagram(manager: socket.socket) -> None:
    assert tell(READY) == ""
    assert manager.recv(100) == b"READY=1"


def test_an_abstract_socket_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"autoscaler-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        assert tell(STOPPING) == ""
        assert listening.recv(100) == b"STOPPING=1"


def test_nobody_listens_is_told_and_nobody_asked_is_fine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    assert "cannot be told READY=1: " in tell(READY)
    monkeypatch.delenv("NOTIFY_SOCKET")
    assert tell(READY) == ""


@pytest.mark.e2e
def test_the_daemon_says_that_it_is_ready_and_that_it_ends(manager: socket.socket, tmp_path: Path) -> None:
    settings = host_settings(tmp_path)
    offer = {"compute": "static_hosts", "name": "own", "start": [*settings.start], "stop": [*settings.stop]}
    pool = {
        "name": "p",
        "mode": "advise",
        "capacity": {"min": 0, "max": 1},
        "offers": [{**offer, "hosts": [{"name": "h1"}]}],
        "ready_when": {"preset": "vllm", "port": 8000},
        "policies": [{"kind": "fixed", "size": 0}],
    }
    config = tmp_path / "autoscaler.yaml"
    (port,) = free_ports(1)
    config.write_text(yaml.safe_dump({"installation": "i", "pools": [pool], "admin": {"listen": f"127.0.0.1:{port}"}}))
    words = [sys.executable, "-m", "autoscaler.cli.main", "run", "--config", str(config)]
    daemon = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert manager.recv(100) == b"READY=1"
        with socket.create_connection(("127.0.0.1", port), 5.0):
            pass  # ready is: the API's port is taken
        daemon.send_signal(signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"
        assert daemon.wait(20) == 0
    finally:
        daemon.kill()
        daemon.wait()
