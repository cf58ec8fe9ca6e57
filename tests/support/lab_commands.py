"""The lab's commands as a user runs them: a folder with a config, a small workload, and the command in it.

Does: run in this process (fast) or in one of its own (signals, a terminal). Does not: judge.
Invariant: a traceback is a failure of any test.
"""

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from autoscaler.cli.main import main

ROOT = Path(__file__).parents[2]
AZURE = ROOT / "autoscaler" / "demo" / "data" / "azure2023_code.csv.gz"


class Ran(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its one JSON document."""
        return json.loads(self.out)


def a_lab_pool(name: str = "llama", **changes: Any) -> dict[str, Any]:
    """A pool of this machine's processes behind an Envoy; nothing of it is started by the lab."""
    pool: dict[str, Any] = {
        "name": name,
        "capacity": {"min": 1, "max": 6},
        "offers": [{"compute": "local_process", "name": "here", "command": ["serve", "{port}"], "usd_per_hour": 2.5}],
        "ready_when": {"preset": "vllm"},
        "balancers": [{"kind": "envoy", "listen": "127.0.0.1:8080", "strategy": "round_robin"}],
        "telemetry": {"kind": "scrape", "preset": "vllm"},
        "policies": [{"kind": "target_tracking", "signal": "queue_length", "target": 4}],
    }
    pool.update(changes)
    return pool


class Lab:
    """A folder in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("autoscaler.yaml", {"installation": "lab", "pools": [a_lab_pool()]})
        self.trace("day.csv", 900.0, 0.5)

    def write(self, name: str, document: object) -> Path:
        """Write YAML."""
        path = self.folder / name
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    def trace(self, name: str, duration_s: float, rate: float) -> Path:
        """A Poisson trace with a busy middle; always the same."""
        rng = np.random.default_rng(7)
        at = np.sort(rng.random(int(duration_s * rate))) * duration_s
        burst = duration_s * (0.5 + 0.05 * np.sort(rng.random(8 * int(duration_s * rate))))
        rows = [f"{one:.3f},{1 + int(2000 * two)},{1 + int(60 * two)}" for one, two in
                zip(np.sort(np.concatenate([at, burst])), rng.random(len(at) + len(burst)), strict=True)]  # fmt: skip
        path = self.folder / name
        path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows, ""]))
        return path

    def __call__(self, *arguments: str | Path, **environment: str) -> Ran:
        """Run it to its end in this process; what is no exit of its own is raised."""
        out, err, code = io.StringIO(), io.StringIO(), 0
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(self.folder)
            for name in [name for name in os.environ if name.startswith("AUTOSCALER_")]:
                patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setenv("COLUMNS", "120")
            patch.setattr(sys, "argv", ["autoscaler", *map(str, arguments)])
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Ran(code, out.getvalue(), err.getvalue())

    def process(self, *arguments: str | Path) -> Ran:
        """Run it to its end in a process of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOSCALER_")}
        done = subprocess.run(
            [sys.executable, "-m", "autoscaler.cli.main", *map(str, arguments)],
            cwd=self.folder, env={**kept, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=200, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def on_a_terminal(self, *arguments: str | Path) -> Iterator["Attached"]:
        """It runs in a process of its own, with a terminal as standard error; it is ended with the `with`."""
        ours, theirs = pty.openpty()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOSCALER_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "autoscaler.cli.main", *map(str, arguments)],
            cwd=self.folder, env={**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, text=True,
        )  # fmt: skip
        os.close(theirs)
        attached = Attached(process, ours)
        try:
            yield attached
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
            attached.reader.join()
            os.close(ours)


class Attached:
    """A command on a terminal, which is read all the time: else the command would wait for its reader."""

    def __init__(self, process: "subprocess.Popen[str]", terminal: int) -> None:
        self.process = process
        self.seen = b""
        self._terminal = terminal
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed: it has ended
            while part := os.read(self._terminal, 4096):
                self.seen += part

    def until(self, what: Callable[[], bool], patience_s: float = 200.0) -> None:
        """Wait while the command runs."""
        end = time.monotonic() + patience_s
        while not what():
            assert time.monotonic() < end, self.seen[-2000:]
            assert self.process.poll() is None, self.seen[-2000:]
            time.sleep(0.05)

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C; its exit code and what it printed."""
        self.process.send_signal(signal.SIGINT)
        out, _ = self.process.communicate(timeout=200)
        return self.process.returncode, out
