"""A pool of real models behind a real HAProxy grows and shrinks with its load, and every generation is whole.

The daemon starts llama.cpp servers, asks each for a generation before it admits it, reads their real metrics, and
clients stream real generations through HAProxy. Who failed is told by the clients, by HAProxy's counters and by the
servers' own counts of tokens. CPUs do what GPUs should, so times are bounds with room, and figures are printed.
"""

import asyncio
import csv
import json
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from typing_extensions import override

from providers.balancer.haproxy import HaproxyStats, Settings, stats
from providers.balancer.haproxy.settings import Layout
from tests.support.model_servers import gguf, llama_command, status_of
from tests.support.real_world import RealWorld, Shape, ended

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

TOKENS = 32
BUSY = 6


class ModelWorld(RealWorld):
    """The pool of a real world, with real models for stand-ins and an HAProxy for the Envoy."""

    @override
    def config(self) -> dict[str, Any]:
        config = super().config()
        pool = config["pools"][0]
        # The models leave the machine to the rest: a daemon has one of its own where they have a GPU.
        pool["offers"][0]["command"] = self.witnessed(["nice", "-n", "10", *llama_command(self.model, "{port}")])
        pool["ready_when"] |= {"preset": "llama_cpp", "generate": True, "passes": 2, "timeout": "3s"}
        where = {"listen": self.proxy.listen, "directory": self.proxy.directory}
        pool["balancers"] = [{"kind": "haproxy", "embedded": True, **where}]
        pool["telemetry"] |= {"preset": "llama_cpp", "timeout": "3s"}
        return config

    @property
    def model(self) -> Path:
        return self.root / "model.gguf"

    @property
    def proxy(self) -> Settings:
        listen = f"127.0.0.1:{self.here.listen_port}"
        return Settings(embedded=True, listen=listen, directory=str(self.root / "proxy"))

    def haproxy(self) -> HaproxyStats:
        """HAProxy's counters."""
        return asyncio.run(stats(self.proxy))

    def served(self) -> dict[int, int]:
        """Requests that HAProxy has given to each of its servers, by port."""
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(5.0)
            one.connect(Layout.of(self.proxy, "", "").socket)
            one.sendall(b"show stat\n")
            table = b"".join(iter(lambda: one.recv(65536), b"")).decode().removeprefix("# ")
        rows = [row for row in csv.DictReader(table.splitlines()) if row["type"] == "2"]
        return {int(row["addr"].rpartition(":")[2]): int(row["stot"]) for row in rows}


@dataclass
class Traffic:
    """What the clients saw: one entry an answer."""

    ended: list[float] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    tokens: int = 0


async def generate(session: aiohttp.ClientSession, url: str, seen: Traffic) -> None:
    """One streamed generation, whole when it ends with its reason, its count of tokens and the stream's end."""
    body = {"prompt": "a", "max_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True}}
    began, first, reason, tokens, done = time.monotonic(), 0.0, None, 0, False
    try:
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            if answer.status != 200:
                seen.lost[f"failed: HTTP {answer.status}"] += 1
                return
            async for line in answer.content:
                first = first or time.monotonic()
                text = line.removeprefix(b"data: ").strip()
                done = done or text == b"[DONE]"
                if text.startswith(b"{"):
                    event = json.loads(text)
                    reason = next((one["finish_reason"] for one in event["choices"] if one["finish_reason"]), reason)
                    tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    except (aiohttp.ClientError, TimeoutError) as error:
        seen.lost[f"{'cut' if first else 'failed'}: {type(error).__name__}"] += 1
        return
    if not done or reason not in {"length", "stop"} or tokens < 1:
        seen.lost[f"cut: finish {reason}, {tokens} tokens, end {done}"] += 1
        return
    seen.ended.append(time.time())
    seen.took_s.append(time.monotonic() - began)
    seen.first_s.append(first - began)
    seen.tokens += tokens


@dataclass
class Birth:
    """When one replica was started, loaded, and given its first request by HAProxy. Seconds since the epoch."""

    started: float
    ready: float = 0.0
    first: float = 0.0


class Watcher(threading.Thread):
    """Looks at every replica twenty times a second, with no word from the daemon."""

    def __init__(self, world: ModelWorld) -> None:
        super().__init__()
        self.births: dict[int, Birth] = {}
        self._world = world
        self._over = threading.Event()

    @override
    def run(self) -> None:
        while not self._over.wait(0.05):
            for start in self._world.starts():
                with suppress(psutil.Error, ValueError, IndexError):
                    words = psutil.Process(start.pid).cmdline()
                    self.births.setdefault(int(words[words.index("--port") + 1]), Birth(start.at))
            with suppress(OSError):
                served = self._world.served()
                for port, birth in self.births.items():
                    birth.ready = birth.ready or (time.time() if status_of(port, "/health") == 200 else 0.0)
                    birth.first = birth.first or (time.time() if served.get(port, 0) else 0.0)

    def end(self) -> None:
        self._over.set()
        self.join()


class Clients(threading.Thread):
    """Clients of which as many ask as they are told, each without a pause."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.seen, self.wanted = url, Traffic(), 1
        self._over = threading.Event()

    @override
    def run(self) -> None:
        asyncio.run(self._all())

    def end(self) -> None:
        """Every stream is read to its end."""
        self._over.set()
        self.join()

    async def _all(self) -> None:
        timeout = aiohttp.ClientTimeout(total=120.0)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            await asyncio.gather(*(self._one(session, number) for number in range(BUSY)))

    async def _one(self, session: aiohttp.ClientSession, number: int) -> None:
        while not self._over.is_set():
            if number < self.wanted:
                await generate(session, self.url, self.seen)
            else:
                await asyncio.sleep(0.05)


@contextmanager
def busy(thread: Clients | Watcher) -> Iterator[None]:
    thread.start()
    try:
        yield
    finally:
        thread.end()


@pytest.fixture
def root() -> Iterator[Path]:
    """The path of a UNIX socket is short."""
    with tempfile.TemporaryDirectory(prefix="real-") as folder:
        made = Path(folder) / "world"
        made.mkdir()
        yield made


def test_one_two_one_with_real_generations(root: Path) -> None:
    shape = Shape(
        low=1,
        high=2,
        policies=[{"kind": "concurrency", "target": 4, "utilization": 1.0, "stable_window": "4s"}],
        ready={"give_up_after": "60s"},
    )
    with ended(ModelWorld(root, shape)) as world:
        gguf(world.model, width=512, layers=8)
        world.daemon()
        watcher, clients = Watcher(world), Clients(world.here.url)
        with busy(watcher):
            world.until_serving(1, 60.0)
            with busy(clients):
                world.until(lambda: len(clients.seen.ended) >= 5, 30.0, "generations by one model")
                clients.wanted, grew_at = BUSY, time.time()
                world.until_serving(2, 60.0)
                world.until(lambda: len(clients.seen.ended) >= 40, 60.0, "generations by two models")
                clients.wanted, shrank_at = 1, time.time()
                world.until_serving(1, 60.0)
                shrunk_s = time.time() - shrank_at
                left = len(clients.seen.ended)
                world.until(lambda: len(clients.seen.ended) >= left + 3, 30.0, "generations by the one that stays")
            served, proxy, records = world.served(), world.haproxy(), world.ledger()
    seen, births = clients.seen, list(watcher.births.values())
    cut = records[-1].decision.memory.cut_total
    requests = len(seen.ended) + seen.lost.total()
    print(f"{requests} generations, {seen.tokens} tokens; lost {dict(seen.lost)}, by the daemon's count {cut}; {proxy}")
    for birth in births:
        load_s, first_s = birth.ready - birth.started, birth.first - birth.ready
        print(f"loaded {load_s:.2f} s after its start, first request {first_s:.2f} s later")
    first, took = (sorted(times) for times in (seen.first_s, seen.took_s))
    print(
        f"second model's first request {births[1].first - grew_at:.1f} s after the load came, one again "
        f"{shrunk_s:.1f} s after it went; median to first token {statistics.median(first):.2f} s, whole "
        f"{statistics.median(took):.2f} s"
    )
    assert seen.lost == {}
    assert cut == 0
    assert len(births) == 2
    assert all(birth.started < birth.ready <= birth.first for birth in births)
    assert requests >= 40
    assert seen.tokens >= 10 * requests
    # HAProxy's own word: it gave every request to a model, tried none again, and answered nothing itself.
    assert proxy.requests == requests
    assert (proxy.retried, proxy.connect_failed, proxy.cut_by_replica, proxy.answered_5xx) == (0, 0, 0, 0)
    assert len(served) == 1
    assert requests - next(iter(served.values())) >= 10  # the one that has gone did its share
