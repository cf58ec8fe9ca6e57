"""Secrets are planted wherever the product takes one, what can go wrong goes wrong, and they are searched for.

The replicas and the Prometheus server are hostile: they repeat the token that they were sent in every answer.
"""

import http.server
import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from typing_extensions import override

from autoscaler.runtime.journal import open_journal

ROOT = Path(__file__).parents[2]
#: Found nowhere but in the environment that they were given in.
SECRETS = {
    "AUTOSCALER_ADMIN_TOKEN": "planted-admin-4cf2d8b1a7",
    "AUTOSCALER_PROBE_TOKEN": "planted-probe-9d1c77e0b2",
    "AUTOSCALER_SCRAPE_TOKEN": "planted-scrape-3b8a6f51c9",
    "AUTOSCALER_PROMETHEUS_TOKEN": "planted-prometheus-77e0b29d1c",
    "HF_TOKEN": "planted-hub-6f51c93b8a",
}
#: Written in the config, and so in the offer's request: it stays in these two, both for this user only.
PRIVATE = "planted-licence-d8b1a74cf2"

REPLICA = """
import http.server, sys

class Echo(http.server.BaseHTTPRequestHandler):
    def answer(self):
        said = self.headers.get("Authorization", "")
        status, body = 200, f'! {said}\\n'
        if self.path == "/v1/models":
            body = '{"data": [{"id": "m"}]}'
        if self.path == "/v1/completions":
            body = '{"error": "' + said + ' is wrong"}' if sys.argv[2] == "probed" else '{"choices": [{"text": "a"}]}'
        self.send_response(status, said)
        self.send_header("Content-Type", "text/plain" if "metrics" in self.path else "application/json")
        self.send_header("X-Said", said)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())
    do_GET = do_POST = answer
    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"""


class _Prometheus(http.server.BaseHTTPRequestHandler):
    """Refuses, and repeats who asked."""

    def do_GET(self) -> None:
        said = self.headers.get("Authorization", "")
        body = json.dumps({"status": "error", "errorType": "bad_data", "error": f"{said} may not ask"}).encode()
        self.send_response(400, said)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the library's names

    @override
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def prometheus() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Prometheus)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


class Daemon:
    """One run in a folder of its own. `out` collects all that anything said."""

    def __init__(self, folder: Path, prometheus_port: int) -> None:
        self.folder, self.out = folder, io.StringIO()
        (folder / "replica.py").write_text(REPLICA)
        # At port 0 the daemon takes a free one and nobody knows which: one is chosen here.
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = int(taken.getsockname()[1])
        prometheus = {
            "kind": "prometheus",
            "url": f"http://127.0.0.1:{prometheus_port}",
            "preset": "vllm",
            "token_env": "AUTOSCALER_PROMETHEUS_TOKEN",
        }
        scrape = {"kind": "scrape", "preset": "vllm", "token_env": "AUTOSCALER_SCRAPE_TOKEN"}
        config = {
            "installation": f"secrets-{os.getpid()}-{self.port}",
            "admin": {"listen": f"127.0.0.1:{self.port}"},
            "log": {"level": "debug"},
            "pools": [self.pool("probed", scrape), self.pool("scraped", scrape), self.pool("asked", prometheus)],
        }
        path = folder / "autoscaler.yaml"
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)

    def pool(self, name: str, telemetry: dict[str, Any]) -> dict[str, Any]:
        command = [sys.executable, str(self.folder / "replica.py"), "{port}", name]
        offer = {
            "compute": "local_process",
            "command": command,
            "env": {"MODEL_LICENCE": PRIVATE},
            "port_range": "auto",
            "grace": "0s",
        }
        return {
            "name": name,
            "capacity": {"min": 1, "max": 2},
            "offers": [offer],
            "ready_when": {
                "preset": "vllm",
                "token_env": "AUTOSCALER_PROBE_TOKEN",
                "timeout": "1s",
                "generate_timeout": "1s",
                "give_up_after": "3s",
            },
            "telemetry": telemetry,
            "policies": [{"kind": "target_tracking", "signal": "queue_length", "target": 4}],
            "pace": {"tick": "300ms", "stale_after": "2s"},
        }

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOSCALER_")}
        return {**kept, **SECRETS, "PYTHONPATH": str(ROOT), **more}

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "autoscaler.cli.main", *arguments],
            cwd=self.folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        self.out.write(done.stdout + done.stderr)
        return done

    def get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                text: str = answer.read().decode()
        except urllib.error.URLError:  # it is starting
            return ""
        self.out.write(text)
        return text


def until(true: Any, within: float = 40.0) -> Any:
    end = time.monotonic() + within
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def planted_in(text: str, *more: str) -> list[str]:
    return [secret for secret in (*SECRETS.values(), *more) if secret in text]


@pytest.mark.e2e
@pytest.mark.timeout(150)
def test_no_secret_is_in_anything_that_a_run_says_or_keeps(tmp_path: Path, prometheus: int) -> None:
    here = Daemon(tmp_path, prometheus)
    log = (tmp_path / "log").open("w")
    daemon = subprocess.Popen(
        [sys.executable, "-m", "autoscaler.cli.main", "run"],
        cwd=tmp_path,
        env=here.environment(),
        stdout=log,
        stderr=log,
    )
    command_lines: list[str] = []
    replicas: list[psutil.Process] = []
    try:

        def met() -> bool:
            """Every way to repeat a secret was tried: a probe, a scrape and a query failed with the other's words."""
            assert daemon.poll() is None, (tmp_path / "log").read_text()
            for process in psutil.process_iter(["cmdline"]):
                command_lines.append(" ".join(process.info["cmdline"] or []))
                if str(tmp_path / "replica.py") in command_lines[-1]:
                    replicas.append(process)
            told = [here.get(f"/v1/pools/{name}") for name in ("probed", "scraped", "asked")]
            words = ("in the answer: 'Bearer [not shown] is wrong'", "'! Bearer [not shown]'", "may not ask")
            return bool(replicas) and all(word in text for word, text in zip(words, told, strict=True))

        assert until(met), here.out.getvalue()[-6000:]
        for path in ("/metrics", "/v1/pools", "/v1/pools/asked", "/v1/pools/scraped/decisions", "/openapi.json"):
            assert here.get(path)
        here.run("explain", "asked")
        here.run("check", "--online")
        for command in (["status"], ["explain", "probed"], ["plan", "--window", "1s"], ["check", "--online"]):
            here.run(*command, "--json")
        wrong = here.run("pause", "asked", AUTOSCALER_ADMIN_TOKEN=SECRETS["AUTOSCALER_ADMIN_TOKEN"][::-1])
        assert wrong.returncode == 3
        assert SECRETS["AUTOSCALER_ADMIN_TOKEN"][::-1] not in wrong.stderr + wrong.stdout
        assert here.run("pause", "asked").returncode == 0
        daemon.send_signal(signal.SIGHUP)
        time.sleep(1)
    finally:
        daemon.terminate()
        daemon.wait(30)
        log.close()
        for process in {*replicas, *_left(tmp_path)}:
            killed(process)
    said = here.out.getvalue() + (tmp_path / "log").read_text()
    assert planted_in(said, PRIVATE) == []
    assert planted_in("\n".join(command_lines), PRIVATE) == []
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "autoscaler.db" for path in kept)
    found = {path.name: planted_in(path.read_bytes().decode("latin-1")) for path in kept}
    assert {name: secrets for name, secrets in found.items() if secrets} == {}
    private = {path.name for path in kept if PRIVATE.encode() in path.read_bytes()}
    assert private <= {"autoscaler.yaml", "autoscaler.db", "autoscaler.db-wal"}
    for file in (tmp_path / "state").rglob("*"):
        if file.name.startswith("autoscaler.db") or file.suffix == ".log":
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def _left(folder: Path) -> list[psutil.Process]:
    lines = ((one, " ".join(one.info["cmdline"] or [])) for one in psutil.process_iter(["cmdline"]))
    return [process for process, line in lines if str(folder / "replica.py") in line]


def killed(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


@pytest.mark.parametrize(
    "ledger",
    [
        "sqlite://operator:planted-ledger-5511@db.internal/x",
        "sqlite:///state/x.db?password=planted-ledger-5511",
        "postgresql+psycopg2://operator:planted-ledger-5511@127.0.0.1:1/x",
        "nonsense://operator:planted-ledger-5511@db/x",
        "operator:planted-ledger-5511@db/x",
    ],
)
def test_the_password_of_a_ledger_is_in_no_message(tmp_path: Path, prometheus: int, ledger: str) -> None:
    here = Daemon(tmp_path, prometheus)
    for command in (["run"], ["check", "--json"]):
        done = here.run(*command, AUTOSCALER_LEDGER=ledger)
        assert done.returncode in {2, 3}
        assert "planted-ledger" not in done.stdout + done.stderr


def test_a_crash_that_is_logged_shows_no_value_of_a_variable() -> None:
    for style in ("json", "console"):
        stream = io.StringIO()
        token = SECRETS["AUTOSCALER_ADMIN_TOKEN"]
        try:
            assert token
            raise RuntimeError("an error of ours")
        except RuntimeError:
            open_journal(style, stream).crash("crashed")
        assert "an error of ours" in stream.getvalue()
        assert planted_in(stream.getvalue()) == []
