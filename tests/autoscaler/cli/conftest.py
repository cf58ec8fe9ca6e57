"""The command as a user runs it: a process of its own, in a folder of its own, with the acme package installed."""

import io
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from autoscaler.cli.main import main
from autoscaler.config import modules
from tests.support.acme import install_acme
from tests.support.configs import a_config, a_pool

ROOT = Path(__file__).parents[3]


class Ran(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Shop:
    """A folder with a config, and the command in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = install_acme(folder / "site")
        self.port = free_port()
        self.journal = folder / "journal"

    def pool(self, name: str = "llama", **changes: Any) -> dict[str, Any]:
        """A pool whose adapters write each changing call into the journal."""
        journal = str(self.journal)
        changes.setdefault("offers", [{"compute": "acme", "region": "north", "ports": [8000], "journal": journal}])
        changes.setdefault("balancers", [{"kind": "acme", "target": name, "journal": journal}])
        changes.setdefault("pace", {"tick": "200ms", "stale_after": "2s"})
        return a_pool(name, **changes)

    def write(self, *pools: dict[str, Any], **changes: Any) -> Path:
        """Write autoscaler.yaml."""
        changes.setdefault("admin", {"listen": f"127.0.0.1:{self.port}"})
        path = self.folder / "autoscaler.yaml"
        path.write_text(yaml.safe_dump(a_config(*(pools or (self.pool(),)), **changes), sort_keys=False))
        return path

    def environment(self, **more: str) -> dict[str, str]:
        """That of a command: ours, less what would configure it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOSCALER_")}
        return {**kept, "PYTHONPATH": f"{self.site}{os.pathsep}{ROOT}", **more}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "autoscaler.cli.main", *arguments]

    def __call__(self, *arguments: str, **environment: str) -> Ran:
        """Run it to its end in this process, which is many times faster; what is no exit of its own is raised."""
        out, err = io.StringIO(), io.StringIO()
        code = 0
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(self.folder)
            patch.syspath_prepend(self.site)
            modules._entries.cache_clear()
            for name in [name for name in os.environ if name.startswith("AUTOSCALER_")]:
                patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["autoscaler", *arguments])
            patch.setattr(sys, "stdin", io.StringIO())
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
        for name in [name for name in sys.modules if name.partition(".")[0] == "acme_things"]:
            del sys.modules[name]
        modules._entries.cache_clear()
        return Ran(code, out.getvalue(), err.getvalue())

    def process(self, *arguments: str, **environment: str) -> Ran:
        """Run it to its end in a process of its own; a traceback is a failure of any test."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    def told(self) -> list[str]:
        """The changing calls that reached a provider."""
        return self.journal.read_text().split("\n")[:-1] if self.journal.exists() else []


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def daemon(shop: Shop) -> Any:
    """Start the daemon; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(**environment: str) -> subprocess.Popen[str]:
        with (shop.folder / "log").open("w") as log:
            process = subprocess.Popen(
                shop.command("run"),
                cwd=shop.folder,
                env=shop.environment(**environment),
                stdout=subprocess.DEVNULL,
                stderr=log,
                text=True,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


Start = Callable[..., subprocess.Popen[str]]
