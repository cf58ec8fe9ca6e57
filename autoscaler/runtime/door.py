"""What stands before the admin API's routes: who may come in, how much they may carry, how long they may take.

Does: check the Host, the token and the size of the body before any route or parser sees the request, and end
connections that make no progress. Does not: know the routes, or listen.
Invariant: a request that changes something reaches the routes only with the token, whole, and no larger than BODY_MAX;
whatever a client does, its connection ends within CONNECTION_S of its last answer.
"""

import asyncio
import hmac
import ipaddress
import json
from typing import Any, Final, NamedTuple

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

#: The largest directive is a few hundred bytes.
BODY_MAX: Final = 16 * 1024
#: Request line and headers together, bytes.
HEAD_MAX: Final = 16 * 1024
#: Seconds in which a body must have come.
BODY_WITHIN_S: Final = 5.0
#: Seconds from a connection's begin, or from its last answer, to its next answer. The ledger gets five of them.
CONNECTION_S: Final = 20.0
#: More connections than this get 503 at once: a fleet of scrapers needs a dozen, and descriptors are for replicas.
CONNECTIONS_MAX: Final = 256

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class _Refusal(NamedTuple):
    """An answer without a route."""

    status: int
    detail: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`, or can have meant it by that name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Door:
    """ASGI middleware around the whole application. `host` is where it listens; `token`: None lets nothing change."""

    def __init__(self, app: ASGIApp, *, host: str, token: str | None) -> None:
        self._app = app
        self._local = is_loopback(host)
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request in, or answer it here."""
        if scope["type"] != "http":  # no other kind has a route
            return
        headers = Headers(scope=scope)
        refusal = self._wrong_host(headers) or self._not_allowed(scope, headers)
        body = b""
        if refusal is None:
            read = await _body(headers, receive)
            if read is None:
                return  # gone before its request was whole
            refusal, body = (read, b"") if isinstance(read, _Refusal) else (None, read)
        if refusal is not None:
            await _refuse(refusal, send)
            return
        await self._app(scope, _replayed(body, receive), _with_headers(send))

    def _wrong_host(self, headers: Headers) -> _Refusal | None:
        """A web page may give its own name our loopback address (DNS rebinding); its requests carry that name."""
        if not self._local:
            return None
        given = headers.getlist("host")
        if len(given) == 1 and is_loopback(_name_of(given[0])):
            return None
        return _Refusal(421, "Host: this daemon listens on loopback only; allowed: localhost or a loopback address")

    def _not_allowed(self, scope: Scope, headers: Headers) -> _Refusal | None:
        """What changes something needs the token; so does looking at pools, for those who are not on this machine."""
        changes = scope["method"] not in _READING
        if not changes and (self._local or not scope["path"].startswith("/v1/")):
            return None
        if self._token is None:
            return _Refusal(403, "no token is configured for the admin API, so it changes nothing; set one")
        given = headers.getlist("authorization")
        kind, _, secret = (given[0] if len(given) == 1 else "").partition(" ")
        same = hmac.compare_digest(secret.strip().encode(), self._token)
        if kind.lower() == "bearer" and same:
            return None
        return _Refusal(401, "a valid bearer token is needed", ((b"www-authenticate", b"Bearer"),))


def _name_of(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


async def _body(headers: Headers, receive: Receive) -> bytes | _Refusal | None:
    """The whole body, bounded in size and time; None when the client left."""
    told = headers.get("content-length", "0")
    too_large = _Refusal(413, f"body: allowed are {BODY_MAX} bytes", ((b"connection", b"close"),))
    if not told.isdecimal() or int(told[:20]) > BODY_MAX:
        return too_large
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > BODY_MAX:
                    return too_large
                more = message.get("more_body", False)
    except TimeoutError:
        return _Refusal(408, f"body: did not come within {BODY_WITHIN_S:g} s", ((b"connection", b"close"),))
    return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more for the routes; after it, what the connection says."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return sending


async def _refuse(refusal: _Refusal, send: Send) -> None:
    content = json.dumps({"detail": refusal.detail}).encode()
    length = (b"content-length", str(len(content)).encode())
    headers = [(b"content-type", b"application/json"), length, *refusal.headers, *_HEADERS]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


class BoundedProtocol(H11Protocol):
    """HTTP by uvicorn, which bounds idling only, with an end for who sends a head byte by byte or never reads."""

    _deadline: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._restart()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._restart()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _restart(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(CONNECTION_S, self.transport.abort)
