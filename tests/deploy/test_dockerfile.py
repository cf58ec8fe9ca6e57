"""The Dockerfile without an engine: what a linter would ask, the context that it sees, and its health check, run.

What this does not show: that the image builds. No container engine is at hand where the tests run.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from typing_extensions import override

ROOT = Path(__file__).parents[2]


class Line(NamedTuple):
    """One instruction."""

    word: str
    rest: str


def instructions() -> list[Line]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Line(*line.split(" ", 1)) for line in lines]


def of(word: str) -> list[str]:
    return [line.rest for line in instructions() if line.word == word]


def copied() -> list[str]:
    """Paths that come from the context."""
    return [source for rest in of("COPY") if "--from=" not in rest for source in rest.split()[:-1]]


def test_bases_are_named_with_a_version_and_no_host() -> None:
    bases = [rest.split()[0] for rest in of("FROM")]
    assert len(bases) == 2
    assert len(set(bases)) == 1  # a venv belongs to the Python that made it, at its place
    for base in bases:
        assert "/" not in base
        assert ":" in base
        assert not base.endswith(":latest")


def test_it_ends_as_a_user_that_is_not_root_and_runs_without_a_shell() -> None:
    last = instructions()[max(number for number, line in enumerate(instructions()) if line.word == "FROM") :]
    users = [line.rest for line in last if line.word == "USER"]
    assert users == ["10001:10001"]
    for word in ("ENTRYPOINT", "CMD"):
        (written,) = of(word)
        assert isinstance(json.loads(written), list)


def test_packages_are_pinned_by_their_hashes_and_nothing_else_is_fetched() -> None:
    installs = [rest for rest in of("RUN") if "pip" in rest]
    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert "--no-deps" in installs[1]
    assert "--no-build-isolation" in installs[1]
    assert of("ADD") == []
    assert not [rest for rest in of("RUN") if "curl" in rest or "wget" in rest or "apt" in rest]


def test_no_secret_is_baked_in() -> None:
    for rest in (*of("ENV"), *of("ARG")):
        assert not [word for word in ("TOKEN=", "PASSWORD", "SECRET", "KEY=") if word in rest.upper()]


def context(folder: Path) -> Path:
    """What an engine would see: all is ignored but what .dockerignore lets through."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    for name in (rule[1:] for rule in rules if rule.startswith("!")):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_what_is_copied_is_in_the_context_and_nothing_more_is(tmp_path: Path) -> None:
    assert sorted(copied()) == sorted(path.name for path in context(tmp_path).iterdir())


def test_the_package_is_built_from_the_context_alone(tmp_path: Path) -> None:
    """The build stage's last step, as a wheel: what an image would lack is missing from it."""
    (tmp_path / "src").mkdir()
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), "."], cwd=context(tmp_path / "src"), check=True, timeout=55)
    (wheel,) = tmp_path.glob("*.whl")
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(wheel)], check=True, capture_output=True, text=True
    ).stdout
    for name in ("autoscaler/cli/main.py", "policies/step.py", "providers/compute/static_hosts/adapter.py", ".csv"):
        assert name in listed


class _Admin(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.end_headers()

    @override
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def admin() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Admin) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()
        _Admin.status = 200


def check_health(port: int) -> int:
    (written,) = of("HEALTHCHECK")
    command = json.loads(written.partition("CMD ")[2])
    environment = {**os.environ, "AUTOSCALER_ADMIN__LISTEN": f"127.0.0.1:{port}"}
    command[0] = sys.executable
    return subprocess.run(command, env=environment, check=False, capture_output=True, timeout=20).returncode


def test_the_health_check_follows_the_admin_api(admin: int) -> None:
    assert check_health(admin) == 0
    _Admin.status = 503
    assert check_health(admin) == 1


def test_a_daemon_that_does_not_answer_is_not_healthy() -> None:
    assert check_health(1) == 1
