"""A server that sends exactly the bytes it is told to, and so can be as wrong as a test needs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from autoscaler.domain.base import InstanceId, Instant, replica_id
from autoscaler.domain.replica import Endpoint
from autoscaler.ports.build import Context


class Request(NamedTuple):
    """What a client asked for."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Script = Callable[[asyncio.StreamWriter], Awaitable[None]]
METRICS = "text/plain; version=0.0.4; charset=utf-8"


def reply(body: bytes | str, status: int = 200, kind: str = METRICS, extra: str = "") -> bytes:
    """A whole and correct answer."""
    content = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status} Any\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n{extra}\r\n"
    return head.encode() + content


def json_reply(body: str, status: int = 200) -> bytes:
    """A JSON document."""
    return reply(body, status, "application/json")


class RawServer:
    """Answers by path; an unknown path gets `default`. A route is bytes, or a script that writes for itself."""

    def __init__(self) -> None:
        self.routes: dict[str, bytes | Script] = {}
        self.default: bytes | Script = reply("not here", 404)
        self.requests: list[Request] = []
        self.port = 0

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens, as a replica."""
        return an_endpoint(self.port)

    def asked(self, path: str) -> list[Request]:
        """The requests for a path."""
        return [request for request in self.requests if request.path == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append(Request(method, path, headers, body))
            route = self.routes.get(path, self.default)
            if isinstance(route, bytes):
                writer.write(route)
                await writer.drain()
            else:
                await route(writer)
        writer.close()


@contextlib.asynccontextmanager
async def raw_server(**routes: bytes | Script) -> AsyncIterator[RawServer]:
    """A listening server on a free port; all its connections end with it."""
    server = RawServer()
    server.routes.update(routes)
    open_now: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            open_now.add(task)
            task.add_done_callback(open_now.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await server.serve(reader, writer)
        writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in list(open_now):
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)
        await listener.wait_closed()


def an_endpoint(port: int, instance: str = "i-1") -> Endpoint:
    """A replica on this machine."""
    name = InstanceId(instance)
    return Endpoint(replica=replica_id(name, port), instance=name, host="127.0.0.1", port=port)


class HandClock:
    """A clock that a test moves."""

    def __init__(self, at: float = 1000.0) -> None:
        self.at = at

    def now(self) -> Instant:
        """The present instant."""
        return Instant(self.at)

    async def sleep(self, wait: float) -> None:
        """Move on."""
        self.at += wait


def a_context(clock: HandClock | None = None) -> Context:
    """What a provider under test is told."""
    return Context(installation="test", state_dir="unused", clock=clock or HandClock())
