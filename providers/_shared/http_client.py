"""A careful HTTP client for looking at replicas that may be broken or hostile.

Does: one request with a bounded answer. Does not: bound the time (the caller does, for all its requests together),
follow redirects, use proxies from the environment, decompress, keep cookies, or retry.
Invariant: whatever the other side sends, at most `limit` bytes of body are held, only NoAnswer is raised, and no answer
or message holds a secret that was sent, even if the other side repeats it.

Every request has its own connection, closed afterwards. A kept connection that the server has closed meanwhile would
look like a failed check; a kept idle one delays the end of Triton and llama.cpp; and a check on a fresh connection also
shows that the server still accepts.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec
from yarl import URL

from autoscaler.domain.faults import ConfigError

PROBE_HEADER: Final = "X-Autoscaler-Probe"
BODY_LIMIT: Final = 4 * 1024 * 1024
_CONNECTIONS: Final = 256
#: A shorter value is no secret, and could be part of anything.
_SECRET_SHORTEST: Final = 8
_HIDDEN: Final = "[not shown]"
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Answer(NamedTuple):
    """What came back, whole."""

    status: int
    content_type: str
    body: bytes


class NoAnswer(Exception):
    """No usable answer. `certain`: the other side refused or misbehaved, so looking again at once would not help."""

    def __init__(self, detail: str, *, certain: bool, connected: bool) -> None:
        super().__init__(detail)
        self.detail = detail
        self.certain = certain
        self.connected = connected


class HttpClient:
    """Requests under one set of headers, whose values are secrets; must be closed."""

    def __init__(self, headers: dict[str, str], *, limit: int = BODY_LIMIT) -> None:
        self._headers = {
            PROBE_HEADER: "1",
            "Accept-Encoding": "identity",
            "User-Agent": "llm-pool-autoscaler",
            **headers,
        }
        values = {value.removeprefix("Bearer ") for value in headers.values()}
        self._secrets = [value for value in values if len(value) >= _SECRET_SHORTEST]
        self._limit = limit
        self._session: aiohttp.ClientSession | None = None

    async def get(self, url: URL, *, accept: str = "*/*", headers: dict[str, str] | None = None) -> Answer:
        """GET; raises NoAnswer."""
        return await self._ask("GET", url, None, {"Accept": accept, **(headers or {})})

    async def post(self, url: URL, body: bytes, *, content_type: str = "application/json") -> Answer:
        """POST a body; raises NoAnswer."""
        return await self._ask("POST", url, body, {"Content-Type": content_type})

    async def aclose(self) -> None:
        """Close what is open; the client can be used again afterwards."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        # Not in __init__: a session belongs to a running loop, and build() is called without one.
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=_CONNECTIONS),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session

    async def _ask(self, method: str, url: URL, body: bytes | None, headers: dict[str, str]) -> Answer:
        what = f"{method} {url.path}"
        try:
            async with self._open().request(
                method, url, data=body, headers={**self._headers, **headers}, allow_redirects=False
            ) as response:
                content = await self._read(response, what)
                return Answer(response.status, self._hidden(response.content_type), content)
        except aiohttp.ClientConnectorError as error:
            refused = error.os_error.errno == errno.ECONNREFUSED
            # A name that does not resolve or a network without a route may be our own trouble.
            detail = "connection refused" if refused else f"no connection: {error.os_error.strerror or error.os_error}"
            raise NoAnswer(f"{what}: {detail}", certain=refused, connected=False) from error
        except aiohttp.ServerDisconnectedError as error:
            raise NoAnswer(f"{what}: closed without an answer", certain=True, connected=True) from error
        except aiohttp.ClientPayloadError as error:
            raise NoAnswer(f"{what}: the answer broke off", certain=True, connected=True) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            said = self._hidden(str(error)).splitlines() or ["no detail"]
            detail = f"{what}: {type(error).__name__}: {said[0][:200]}"
            raise NoAnswer(detail, certain=True, connected=True) from error

    async def _read(self, response: aiohttp.ClientResponse, what: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > self._limit:
                response.close()
                raise NoAnswer(f"{what}: more than {self._limit} bytes", certain=True, connected=True)
            parts.append(part)
        body = b"".join(parts)
        for secret in self._secrets:
            body = body.replace(secret.encode(), _HIDDEN.encode())
        return body

    def _hidden(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text


def address(host: str, port: int, path: str) -> URL:
    """The URL of a path on a replica; `path` is encoded already and may hold a query. Raises NoAnswer."""
    try:
        base = URL.build(scheme="http", host=host, port=port)
        return base.join(URL(path, encoded=True))
    except ValueError as error:
        raise NoAnswer(f"{host!r} is no host: {error}", certain=True, connected=False) from error


def json_of(answer: Answer) -> Any:
    """The document in an answer; None when it is none."""
    try:
        return msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def headers_from_environment(headers: dict[str, str], token_env: str | None) -> dict[str, str]:
    """Read secret headers: `headers` maps a header to the environment variable that holds it.

    Raises ConfigError with every variable that is not set or cannot be a header.
    """
    wanted = {**headers, **({"Authorization": token_env} if token_env else {})}
    found: dict[str, str] = {}
    mistakes: list[str] = []
    for header, variable in wanted.items():
        value = os.environ.get(variable)
        if not _HEADER_NAME.fullmatch(header):
            mistakes.append(f"headers: found {header!r}, allowed is the name of an HTTP header")
        elif not value:
            mistakes.append(f"headers: {header} is to come from the environment variable {variable}, which is not set")
        elif _CONTROL.search(value):
            mistakes.append(f"headers: the environment variable {variable} has a line break or control character in it")
        else:
            found[header] = f"Bearer {value}" if token_env and header == "Authorization" else value
    if mistakes:
        raise ConfigError(mistakes)
    return found
