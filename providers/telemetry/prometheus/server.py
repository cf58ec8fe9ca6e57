"""One Prometheus server, shared by every pool that reads from it: one query serves all that ask the same.

Does: deadlines, single flight, reuse, a bounded number of threads. Does not: know what is asked.
Invariant: ask() ends within `timeout`; a server that hangs holds at most `_THREADS` threads, each until its deadline.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from autoscaler.domain.base import Instant, elapsed
from autoscaler.domain.faults import Unreachable
from autoscaler.ports.clock import Clock
from providers.telemetry.prometheus.secret import Access
from providers.telemetry.prometheus.settings import Settings

if TYPE_CHECKING:
    from providers.telemetry.prometheus.session import Answer, Call, Span

_THREADS: Final = 4
#: The settings that say which server it is, and who we are to it.
_IDENTITY: Final = (
    "url", "timeout", "reuse", "token_env", "token_file", "username", "password_env", "password_file", "headers",
    "tenant", "ca_file", "cert_file", "key_file",
)  # fmt: skip


class _Asked(msgspec.Struct):
    """A query under way or answered. `got_by`: the pools that have it."""

    at: Instant
    task: asyncio.Task[Answer | str]
    got_by: set[object]


class Server:
    """See the module."""

    def __init__(self, settings: Settings, access: Access, clock: Clock) -> None:
        from providers.telemetry.prometheus.session import Prometheus

        self.name = f"Prometheus at {urlsplit(settings.url).netloc}"
        self.users = 0
        self._clock = clock
        self._timeout = settings.timeout
        self._reuse = settings.reuse
        self._client = Prometheus(settings.url, access, settings.timeout)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="prometheus")
        self._free = asyncio.Semaphore(_THREADS)
        self._asked: dict[str, _Asked] = {}
        self._calls: set[Call] = set()

    async def ask(self, promql: str, pool: object) -> Answer:
        """The answer to one query; raises Unreachable. `pool`: who asks, so that nobody gets one answer twice."""
        now = self._clock.now()
        self._asked = {
            text: one
            for text, one in self._asked.items()
            if not one.task.done() or 0 <= elapsed(one.at, now) <= self._reuse
        }
        one = self._asked.get(promql)
        if one is None or (one.task.done() and pool in one.got_by):
            one = self._asked[promql] = _Asked(now, asyncio.create_task(self._fetch(promql)), set())
        one.got_by.add(pool)
        answer = await asyncio.shield(one.task)
        if isinstance(answer, str):
            raise Unreachable(f"{self.name}: {answer}")
        return answer

    async def ask_range(self, promql: str, span: Span) -> Answer:
        """The answer over a span of instants; raises Unreachable. Nobody shares it: the past is asked for once."""
        answer = await self._fetch(promql, span)
        if isinstance(answer, str):
            raise Unreachable(f"{self.name}: {answer}")
        return answer

    def close(self) -> None:
        """End what is under way and release threads and sockets."""
        for one in self._asked.values():
            one.task.cancel()
        for call in list(self._calls):
            call.cut()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def _fetch(self, promql: str, span: Span | None = None) -> Answer | str:
        from providers.telemetry.prometheus.session import Call

        call = Call()
        try:
            async with asyncio.timeout(self._timeout):
                await self._free.acquire()
                self._calls.add(call)
                work = asyncio.get_running_loop().run_in_executor(self._threads, self._client.query, promql, call, span)
                # The place is free when the thread is, not when we stop waiting for it.
                work.add_done_callback(lambda _: self._done(call))
                return await asyncio.shield(work)
        except TimeoutError:
            call.cut()
            return f"no answer within {self._timeout:g} s"

    def _done(self, call: Call) -> None:
        self._calls.discard(call)
        self._free.release()


_SERVERS: Final[dict[bytes, Server]] = {}


def _key(settings: Settings, clock: Clock) -> bytes:
    """Equal for pools that may share: the same server, asked as the same user, under one clock (one daemon)."""
    return msgspec.json.encode(([getattr(settings, field) for field in _IDENTITY], id(clock)))


def shared_server(settings: Settings, clock: Clock) -> Server:
    """The server of these settings, made when it is the first use. Raises ConfigError for secrets that are missing."""
    access = Access(settings)
    key = _key(settings, clock)
    server = _SERVERS.get(key)
    if server is None:
        server = _SERVERS[key] = Server(settings, access, clock)
    server.users += 1
    return server


def release(server: Server) -> None:
    """One use less; the last one closes it."""
    server.users -= 1
    if server.users == 0:
        for key in [key for key, one in _SERVERS.items() if one is server]:
            del _SERVERS[key]
        server.close()
