"""Backends that stream, clients that notice every cut, and a clock: for tests of balancers on loopback."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from autoscaler.domain.base import Duration, InstanceId, Instant, replica_id
from autoscaler.domain.replica import Endpoint

LAST = b"data: [DONE]\n\n"


class WallClock:
    """The machine's clock."""

    def now(self) -> Instant:
        return Instant(time.time())

    async def sleep(self, wait: Duration) -> None:
        await asyncio.sleep(wait)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


@dataclass
class Backend:
    """A server that streams `chunks` chunks, `every_s` apart, and counts what it got."""

    name: str
    chunks: int = 10
    every_s: float = 0.02
    port: int = 0
    received: int = 0
    active: int = 0
    sessions: list[str] = field(default_factory=list)
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.received += 1
        self.active += 1
        self.sessions.append(request.headers.get("x-session", ""))
        try:
            answer = web.StreamResponse(headers={"content-type": "text/event-stream", "x-backend": self.name})
            await answer.prepare(request)
            for number in range(self.chunks):
                await answer.write(b"data: %d\n\n" % number)
                await asyncio.sleep(self.every_s)
            await answer.write(LAST)
            await answer.write_eof()
            return answer
        finally:
            self.active -= 1

    def endpoint(self, weight: int = 100) -> Endpoint:
        instance = InstanceId(f"i-{self.name}")
        replica = replica_id(instance, self.port)
        return Endpoint(replica=replica, instance=instance, host="127.0.0.1", port=self.port, weight=weight)


@asynccontextmanager
async def backends(count: int, **options: float) -> AsyncGenerator[list[Backend]]:
    """Start `count` backends named b0, b1, ..."""
    made = [Backend(f"b{number}") for number in range(count)]
    try:
        for one in made:
            one.chunks, one.every_s = int(options.get("chunks", 10)), options.get("every_s", 0.02)
            await one.start()
        yield made
    finally:
        for one in made:
            await one.stop()


@dataclass
class Seen:
    """What clients saw. `cut`: an answer of 200 that did not end with its last chunk."""

    complete: int = 0
    refused: int = 0
    cut: int = 0
    by_backend: dict[str, int] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)


async def ask(session: aiohttp.ClientSession, url: str, seen: Seen, sticky: str = "") -> str:
    """Send one request and read its stream to the end; returns the backend's name."""
    name = ""
    try:
        async with session.post(f"{url}/v1/completions", json={}, headers={"x-session": sticky}) as answer:
            seen.statuses[answer.status] = seen.statuses.get(answer.status, 0) + 1
            body = await answer.read()
            if answer.status != 200:
                seen.refused += 1
                return ""
            name = answer.headers["x-backend"]
            seen.by_backend[name] = seen.by_backend.get(name, 0) + 1
            if body.endswith(LAST):
                seen.complete += 1
            else:
                seen.cut += 1
    except aiohttp.ClientError:
        seen.cut += 1
    return name


async def ask_many(url: str, count: int, at_once: int = 10) -> Seen:
    """Send `count` requests, `at_once` at a time."""
    seen = Seen()
    async with aiohttp.ClientSession() as session:
        for begin in range(0, count, at_once):
            await asyncio.gather(*(ask(session, url, seen) for _ in range(min(at_once, count - begin))))
    return seen


@asynccontextmanager
async def clients(url: str, count: int) -> AsyncGenerator[Seen]:
    """Keep `count` clients asking without a pause; on leaving, every running stream is read to its end."""
    seen, over = Seen(), asyncio.Event()

    async def ask_on(session: aiohttp.ClientSession) -> None:
        while not over.is_set():
            await ask(session, url, seen)
            if seen.refused:
                await asyncio.sleep(0.05)  # a closed balancer is not to be stormed

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = [asyncio.create_task(ask_on(session)) for _ in range(count)]
        try:
            yield seen
        finally:
            over.set()
            await asyncio.gather(*tasks)
