"""A real Prometheus server (Debian's), real replicas that it scrapes, and a relay that tells its answers crookedly.

Does: start it on a free port with targets from a file, wait until it has scraped, stop, hang and kill it, and fill one
with samples of the past. Does not: judge. Invariant: nothing of it runs after its `with` has ended.
"""

import asyncio
import contextlib
import json
import shutil
import signal
import ssl
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from autoscaler.demo.model_server import ModelServer
from autoscaler.demo.server_options import read_options
from tests.support.streaming import free_ports

_PATIENCE_S = 25.0
Document = dict[str, Any]


def binary(name: str = "prometheus") -> str:
    """Debian's binary; without it the test is skipped, which in CI is a failure."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: make debian")
    return found


class RealPrometheus:
    """One server, and the files that it reads."""

    def __init__(self, folder: Path, labels: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self._labels = dict(labels)
        self._process: subprocess.Popen[bytes] | None = None
        self._config = folder / "prometheus.yml"
        self._targets = folder / "targets.json"
        job = {"job_name": "vllm", "file_sd_configs": [{"files": [str(self._targets)]}]}
        scraping = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        self._config.write_text(json.dumps({"global": scraping, "scrape_configs": [job]}))  # YAML holds JSON
        self.show([])

    def show(self, addresses: Sequence[str]) -> None:
        """Make these its targets; it follows within some five seconds."""
        beside = self.folder / "targets.tmp"
        beside.write_text(json.dumps([{"targets": list(addresses), "labels": self._labels}] if addresses else []))
        beside.replace(self._targets)

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    binary(),
                    f"--config.file={self._config}",
                    f"--storage.tsdb.path={self.folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + _PATIENCE_S
        while not self._ready():
            assert self._process.poll() is None, (self.folder / "prometheus.log").read_text()
            assert time.monotonic() < until, "Prometheus does not get ready"
            time.sleep(0.05)

    def hang(self) -> None:
        """It accepts and never answers."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """It is as before."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def query(self, promql: str) -> list[dict[str, Any]]:
        """Ask it without any of the code under test."""
        address = f"{self.url}/api/v1/query?query={urllib.parse.quote(promql)}"
        with urllib.request.urlopen(address, timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    async def until(self, promql: str, count: int) -> None:
        """Wait until an expression has so many results."""
        until = time.monotonic() + _PATIENCE_S
        while len(found := await asyncio.to_thread(self.query, promql)) != count:
            assert time.monotonic() < until, f"{promql}: {found}"
            await asyncio.sleep(0.1)

    def backfill(self, lines: Sequence[str]) -> None:
        """Write samples with their own times into its storage, before it starts; OpenMetrics lines."""
        text = self.folder / "past.txt"
        text.write_text("\n".join([*lines, "# EOF", ""]))
        command = [binary("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(text)]
        subprocess.run([*command, str(self.folder / "data")], check=True, capture_output=True, timeout=_PATIENCE_S)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextlib.contextmanager
def a_prometheus(folder: Path, **labels: str) -> Iterator[RealPrometheus]:
    """One server, not yet started; `labels` are put on every target."""
    server = RealPrometheus(folder, labels)
    try:
        yield server
    finally:
        server.kill()


@contextlib.asynccontextmanager
async def stand_ins(count: int, *arguments: str) -> AsyncIterator[list[int]]:
    """Real replicas with loaded models, in this loop; gives their ports."""
    ports = free_ports(count)
    servers = [ModelServer(read_options(["--port", str(port), *arguments]), time.time()) for port in ports]
    async with contextlib.AsyncExitStack() as stack:
        for server in servers:
            running = asyncio.create_task(server.run())

            async def end(server: ModelServer = server, running: asyncio.Task[Any] = running) -> None:
                server.stop()
                await running

            stack.push_async_callback(end)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
            for port in ports:
                await _answers(client, port)
        yield ports


async def _answers(client: aiohttp.ClientSession, port: int) -> None:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with client.get(f"http://127.0.0.1:{port}/health") as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(0.02)
    raise AssertionError(f"the stand-in at {port} does not answer")


async def used(ports: Sequence[int]) -> None:
    """One short request to each replica, so that its counters are not 0."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as client:
        await asyncio.gather(*(_complete(client, port, max_tokens=2) for port in ports))


@contextlib.asynccontextmanager
async def busy(ports: Sequence[int], each: int) -> AsyncIterator[None]:
    """So many endless requests inside each replica."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as client:
        running = [
            asyncio.create_task(_complete(client, port, max_tokens=100_000)) for port in ports for _ in range(each)
        ]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _complete(client: aiohttp.ClientSession, port: int, max_tokens: int) -> None:
    async with client.get(f"http://127.0.0.1:{port}/v1/models") as answer:
        model = (await answer.json())["data"][0]["id"]
    body = {"model": model, "prompt": "x", "max_tokens": max_tokens, "stream": True}
    async with client.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for _ in answer.content:
            pass


Twist = Callable[[Document], Document]


@contextlib.asynccontextmanager
async def crooked(straight: str, twist: Twist) -> AsyncIterator[str]:
    """The same server through a relay that changes each answer; gives its address."""
    async with aiohttp.ClientSession() as client:

        async def relay(request: web.Request) -> web.Response:
            async with client.get(f"{straight}{request.path_qs}") as answer:
                document = await answer.json()
            return web.json_response(twist(document))

        app = web.Application()
        app.router.add_get("/api/v1/query", relay)
        async with served(app) as url:
            yield url


@contextlib.asynccontextmanager
async def served(app: web.Application, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A web application on a free port."""
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        port = free_ports(1)[0]
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def zeros(*but: str) -> Twist:
    """Every number becomes 0, save those of these names."""

    def twist(document: Document) -> Document:
        for row in document["data"]["result"]:
            if row["metric"].get("__name__") not in but:
                row["values"] = [[at, "0"] for at, _ in row.get("values", ())]
        return document

    return twist


def only(ports: Sequence[int]) -> Twist:
    """The series of these replicas only, without a word about the others."""
    kept = {f"127.0.0.1:{port}" for port in ports}

    def twist(document: Document) -> Document:
        rows = document["data"]["result"]
        document["data"]["result"] = [row for row in rows if row["metric"].get("instance", "") in kept]
        return document

    return twist


def with_warning(document: Document) -> Document:
    """Nothing is missing, but the server says that something may be."""
    return {**document, "warnings": ["store gateway 3 did not answer"]}


def later(seconds: float) -> Twist:
    """A server whose clock is off by so much."""

    def twist(document: Document) -> Document:
        for row in document["data"]["result"]:
            row["values"] = [[at + seconds, value] for at, value in row.get("values", ())]
        return document

    return twist
