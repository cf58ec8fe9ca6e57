"""A replica that means harm: whatever it sends, a look ends in time, takes little memory, and goes nowhere else."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psutil
import pytest

from autoscaler.domain.base import Duration
from autoscaler.domain.load import Signal
from providers.probe import http as probe
from providers.telemetry import scrape
from tests.support.raw_http import RawServer, a_context, json_reply, raw_server, reply

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]
MIB = 1024 * 1024
TIMEOUT = Duration(2.0)
#: What looks at one hostile replica may add, for good, to a process of some 100 MiB.
GROWTH_MAX = 48 * MIB
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


async def _for_ever(writer: asyncio.StreamWriter, first: bytes, again: bytes, pause: float = 0.0) -> None:
    writer.write(first)
    while not writer.is_closing():
        writer.write(again)
        await writer.drain()
        await asyncio.sleep(pause)


def endless(first: bytes, again: bytes, pause: float = 0.0) -> Script:
    return lambda writer: _for_ever(writer, first, again, pause)


LINE = b'vllm:num_requests_waiting{engine="0"} 1\n'
SERIES = b"".join(b'vllm:num_requests_waiting{engine="%d"} 1\n' % n for n in range(100_000))
LABELS = b"vllm:num_requests_waiting{" + b",".join(b'l%d="x"' % n for n in range(100_000)) + b"} 1\n"
BOMB = gzip.compress(b"vllm:num_requests_waiting 0\n" * 4_000_000)
HOSTILE: dict[str, bytes | Script] = {
    "an endless body": endless(HEAD + b"\r\n", LINE * 4096),
    "endless chunks of one byte": endless(CHUNKED, b"1\r\nx\r\n" * 4096),
    "an endless size of a chunk": endless(CHUNKED, b"0" * 65536),
    "a body that trickles": endless(HEAD + b"Content-Length: 1000000\r\n\r\n", b"x", 0.05),
    "endless heads": endless(HEAD, b"X-A: b\r\n" * 4096),
    "one endless head": endless(HEAD + b"X-A: ", b"b" * 65536),
    "a head that trickles": endless(b"HTTP/1.1 200 OK\r\nX-A: ", b"b", 0.05),
    "an endless status": endless(b"HTTP/1.1 200 ", b"o" * 65536),
    "endless interim answers": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 4096),
    "no answer": endless(b"", b"", 0.05),
    "a huge length": HEAD + b"Content-Length: 99999999999999999999\r\n\r\nx",
    "a hundred thousand series": reply(SERIES),
    "a hundred thousand labels": reply(LABELS),
    "a compressed bomb": reply(BOMB, extra="Content-Encoding: gzip\r\n"),
    "brackets": json_reply("[" * 1_000_000),
    "a huge number": json_reply("9" * 1_000_000),
    "zeros": reply(b"\0" * 1_000_000),
}


@asynccontextmanager
async def looking(server: RawServer) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """A probe and a scrape of this server, as the daemon makes them; gives what both said."""
    checks = probe.build(probe.Settings(preset="vllm", timeout=TIMEOUT, generate_timeout=TIMEOUT), a_context())
    samples = scrape.build(scrape.Settings(preset="vllm", timeout=TIMEOUT), a_context())

    async def look() -> str:
        verdict, sample = await asyncio.gather(
            checks.check(server.endpoint, generate=True),
            samples.sample(frozenset({Signal.QUEUE_LENGTH}), [server.endpoint]),
        )
        assert not verdict.loaded
        return f"{verdict.detail} {sample.readings[Signal.QUEUE_LENGTH]} {sample.detail}"

    try:
        yield look
    finally:
        await checks.aclose()
        await samples.aclose()


def everywhere(answer: bytes | Script) -> dict[str, bytes | Script]:
    return dict.fromkeys(("/health", "/v1/models", "/v1/completions", "/metrics"), answer)


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
async def test_whatever_it_sends_a_look_ends_in_time_and_memory(answer: bytes | Script) -> None:
    process = psutil.Process()
    async with raw_server(**everywhere(answer)) as server, looking(server) as look:
        await look()  # what is loaded at first use is not its doing
        before = process.memory_info().rss
        for _ in range(2):
            began = time.monotonic()
            said = await look()
            # A sample may take twice its timeout, and this machine may be busy.
            assert time.monotonic() - began < 2 * TIMEOUT + 10
            assert len(said) < 4000
            assert "\n" not in said
        assert process.memory_info().rss - before < GROWTH_MAX


async def test_the_others_are_looked_at_meanwhile() -> None:
    """One that floods must not take the loop: a timer beside it keeps its time."""
    async with raw_server(**everywhere(HOSTILE["endless chunks of one byte"])) as server, looking(server) as look:
        late = []

        async def ticking() -> None:
            while True:
                began = time.monotonic()
                await asyncio.sleep(0.01)
                late.append(time.monotonic() - began)

        beside = asyncio.create_task(ticking())
        await look()
        beside.cancel()
        assert late
        assert max(late) < 5


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_it_sends_nobody_elsewhere(status: int) -> None:
    async with raw_server() as elsewhere:
        target = f"http://127.0.0.1:{elsewhere.port}/stolen"
        for extra in (
            f"Location: {target}\r\n",
            f"Location: //127.0.0.1:{elsewhere.port}/x\r\n",
            "Refresh: 0; url=x\r\n",
        ):
            moved = reply(b"", status, extra=extra)
            async with raw_server(**everywhere(moved)) as server, looking(server) as look:
                assert str(status) in await look()
                assert server.requests
        assert elsewhere.requests == []


async def test_only_the_address_that_the_provider_gave_is_asked() -> None:
    """Models that name a path or a host of their own do not choose where the next request goes."""
    names = ("//evil.example/x", "http://evil.example/", "../../admin", "a?b#c", "a\r\nHost: evil")
    for name in names:
        models = json_reply(json.dumps({"data": [{"id": name}]}))
        async with raw_server(**{"/health": reply(b"ok"), "/v1/models": models}) as server, looking(server) as look:
            await look()
            assert {request.headers["host"] for request in server.requests} == {f"127.0.0.1:{server.port}"}
            assert {request.path for request in server.requests} <= {
                *everywhere(b""),
            }
