"""Who may come in to the admin API, how much they may carry, how long they may take: with a socket and raw bytes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from autoscaler.runtime import door
from autoscaler.runtime.api import Api, ApiSettings
from autoscaler.runtime.loop import PoolLoop
from tests.support.memory_ledger import MemoryLedger
from tests.support.pool_world import PoolWorld, services
from tests.support.virtual_time import VirtualClock

TOKEN = "a-token-for-tests"
AUTHORIZED = f"Authorization: Bearer {TOKEN}\r\n"


class House:
    """An API on a free port of loopback, and what its ledger was told."""

    def __init__(self, port: int, ledger: MemoryLedger) -> None:
        self.port, self.ledger = port, ledger

    async def said(self, request: bytes, within: float = 10.0) -> tuple[int, bytes]:
        """Send these bytes, read until the answer is whole or the end: its status (0: none) and all of it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(request)
                await writer.drain()
            answer = b""
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(within):
                    while b"}" not in answer and (part := await reader.read(65536)):
                        answer += part
            return int(answer.split(b" ", 2)[1]) if answer else 0, answer
        finally:
            writer.close()

    async def asked(self, method: str, path: str, headers: str = "", body: bytes = b"", host: str = "localhost") -> int:
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        return (await self.said(head.encode() + body))[0]


@contextlib.asynccontextmanager
async def house(host: str = "127.0.0.1") -> AsyncIterator[House]:
    clock = VirtualClock()
    world, ledger = PoolWorld(clock), MemoryLedger()
    shared = services(clock, ledger)
    loop = PoolLoop(world.parts(), shared)
    api = Api(ApiSettings(host=host, port=0, token=TOKEN), {world.name: loop}, shared)
    port = api.bind()
    api.start()
    try:
        await loop.tick()
        yield House(port, ledger)
    finally:
        await api.close()


async def test_the_token_is_looked_at_before_the_body() -> None:
    async with house() as here:
        for body in (b"{", b"not json", b'{"direction": 7}', b"x" * 100_000):
            assert await here.asked("POST", "/v1/pools/p/pause", "", body) == 401
            assert await here.asked("POST", "/v1/pools/nowhere/pause", "Authorization: Bearer no\r\n", body) == 401
        # A head that promises a body is answered before any of it came.
        head = b"POST /v1/pools/p/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        assert (await here.said(head, within=2.0))[0] == 401
        assert await here.asked("POST", "/v1/pools/p/pause", AUTHORIZED, b"{") == 422
        assert here.ledger.said_by == []


async def test_two_tokens_are_none_and_another_scheme_is_none() -> None:
    async with house() as here:
        for headers in (
            AUTHORIZED + "Authorization: Bearer other\r\n",
            f"Authorization: Basic {TOKEN}\r\n",
            f"Authorization: {TOKEN}\r\n",
            f"X-Token: {TOKEN}\r\n",
            "Authorization: Bearer \xe9\r\n",
        ):
            assert await here.asked("POST", "/v1/pools/p/resume", headers) in {400, 401}, headers
        assert await here.asked("POST", f"/v1/pools/p/resume?access_token={TOKEN}") == 401
        assert await here.asked("POST", "/v1/pools/p/resume", AUTHORIZED) == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""])
async def test_a_name_that_a_web_page_gave_to_our_address_is_refused(host: str) -> None:
    async with house() as here:
        for method, path in (("GET", "/v1/pools"), ("GET", "/metrics"), ("POST", "/v1/pools/p/resume")):
            assert await here.asked(method, path, AUTHORIZED, host=host) == 421
        assert here.ledger.said_by == []


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9095", "127.0.0.1", "127.0.0.1:1", "[::1]:9095", "127.3.2.1"])
async def test_the_names_of_this_machine_are_fine(host: str) -> None:
    async with house() as here:
        assert await here.asked("GET", "/v1/pools", host=host) == 200


async def test_beyond_loopback_pools_are_shown_to_the_token_only() -> None:
    async with house("0.0.0.0") as here:
        for path in ("/v1/pools", "/v1/pools/p", "/v1/pools/p/decisions", "/v1/pools/nowhere"):
            assert await here.asked("GET", path, host="scaler.internal") == 401
        assert await here.asked("GET", "/v1/pools", AUTHORIZED, host="scaler.internal") == 200
        for path in ("/healthz", "/readyz"):
            assert await here.asked("GET", path, host="scaler.internal") == 200


async def test_no_page_of_another_origin_may_read_or_ask() -> None:
    async with house() as here:
        origin = "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n"
        for method in ("GET", "OPTIONS"):
            head = f"{method} /v1/pools HTTP/1.1\r\nHost: localhost\r\n{origin}Connection: close\r\n\r\n"
            _, answer = await here.said(head.encode())
            assert b"access-control" not in answer.lower()
            assert b"cache-control: no-store" in answer.lower()
            assert b"server:" not in answer.lower()


async def test_a_body_is_bounded_whether_its_size_is_told_or_not() -> None:
    async with house() as here:
        big = b"[" + b" " * door.BODY_MAX + b"]"
        assert await here.asked("POST", "/v1/pools/p/pause", AUTHORIZED, big) == 413
        head = f"POST /v1/pools/p/pause HTTP/1.1\r\nHost: localhost\r\n{AUTHORIZED}Transfer-Encoding: chunked\r\n\r\n"
        chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
        assert (await here.said(head.encode() + chunk * 8))[0] == 413
        lying = f"POST /v1/pools/p/pause HTTP/1.1\r\nHost: localhost\r\n{AUTHORIZED}Content-Length: {10**30}\r\n\r\n"
        assert (await here.said(lying.encode()))[0] in {400, 413}


async def test_a_head_is_bounded() -> None:
    async with house() as here:
        head = f"GET /v1/pools HTTP/1.1\r\nHost: localhost\r\nX: {'y' * (2 * door.HEAD_MAX)}"  # and no end
        assert (await here.said(head.encode()))[0] == 400


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "BODY_WITHIN_S", 0.2)
    async with house() as here:
        head = f"POST /v1/pools/p/pause HTTP/1.1\r\nHost: localhost\r\n{AUTHORIZED}Content-Length: 9\r\n\r\n"
        assert (await here.said(head.encode()))[0] == 408
        assert here.ledger.said_by == []


async def test_who_sends_a_head_byte_by_byte_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "CONNECTION_S", 0.5)
    async with house() as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for letter in b"GET /v1/pools HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 10_000:
                writer.write(bytes([letter]))
                await writer.drain()
                await asyncio.sleep(0.02)
                if reader.at_eof() or writer.transport.is_closing():
                    break
        assert time.monotonic() - began < 20
        writer.close()
        assert await here.asked("GET", "/healthz") == 200


async def test_who_never_reads_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "CONNECTION_S", 0.5)
    async with house() as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port, limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)
        ended = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(40):
                while not ended:
                    await asyncio.sleep(0.1)
                    try:
                        writer.write(b"x")
                        await writer.drain()
                    except ConnectionError:
                        ended = True
        assert ended
        writer.close()
        del reader


async def test_more_connections_than_anybody_needs_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with house() as here:
        held = [await asyncio.open_connection("127.0.0.1", here.port) for _ in range(door.CONNECTIONS_MAX)]
        head = b"GET /v1/pools HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        async with asyncio.timeout(30):
            while (await here.said(head))[0] != 503:  # until the last of them was taken in
                await asyncio.sleep(0.05)
        for _, writer in held:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in held))
        async with asyncio.timeout(30):
            while await here.asked("GET", "/v1/pools") != 200:
                await asyncio.sleep(0.05)


async def test_an_error_of_ours_shows_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr("autoscaler.runtime.views.short", broken)
    async with house() as here:
        status, answer = await here.said(b"GET /v1/pools HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status == 500
        assert b'{"detail":"an error of the daemon: RuntimeError"}' in answer
        assert b"hunter2" not in answer
        assert b"Traceback" not in answer
