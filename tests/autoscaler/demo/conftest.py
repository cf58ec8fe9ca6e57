"""Stand-in servers inside the test's own loop, on free ports; each is stopped when its test ends."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import aiohttp
import pytest

from autoscaler.demo.model_server import ModelServer
from autoscaler.demo.server_options import read_options

Serve = Callable[..., Awaitable[str]]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a stand-in with command-line arguments and return its address once it listens."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*arguments: str, wait: bool = True) -> str:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            server = ModelServer(read_options(["--port", str(port), *arguments]), time.time())
            running = asyncio.create_task(server.run())

            async def end() -> None:
                server.stop()
                await running

            stack.push_async_callback(end)
            address = f"http://127.0.0.1:{port}"
            while wait and not await _answers(address):
                await asyncio.sleep(0.01)
            return address

        yield start


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield session


@pytest.fixture
def ask(client: aiohttp.ClientSession) -> Callable[..., Coroutine[Any, Any, tuple[int, bytes]]]:
    """POST a completion and return (status, whole body)."""

    async def post(address: str, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, bytes]:
        async with client.post(f"{address}/v1/completions", json=fields, headers=headers) as response:
            return response.status, await response.read()

    return post


async def _answers(address: str) -> bool:
    host, port = address.removeprefix("http://").split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
