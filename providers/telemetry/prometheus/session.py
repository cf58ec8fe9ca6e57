"""One query at a time of one Prometheus server, through prometheus-api-client, with the bounds that it lacks.

Does: authenticate, ask, read the answer whole and say in words what is wrong with it. Blocks: call it in a thread.
Does not: share, wait for others, or know what is asked.
Invariant: query() returns within `timeout` of silence, holds at most `ANSWER_LIMIT` bytes, follows no redirect, raises
nothing for what a server does, and shows no secret in what it says; Call.cut() ends it whatever the server does.

The client has no deadline of its own, retries for ten seconds, and drops the warnings of a partial answer. Its session
is therefore ours: it reads each answer itself, and hands the client a checked document. That the timeout of `requests`
is for each read and not for the whole is what `Call` is for: it shuts the socket from outside.
"""

from __future__ import annotations

import base64
import re
import socket
import ssl
import threading
from datetime import UTC, datetime
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from typing_extensions import override
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, Retry
from urllib3.connection import HTTPConnection, HTTPSConnection

from providers.telemetry.prometheus.secret import Access, SecretGone

ANSWER_LIMIT: Final = 32 * 1024 * 1024
_ERROR_LIMIT: Final = 64 * 1024
_CHUNK: Final = 64 * 1024
_SAID: Final = 200
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_HERE = threading.local()


class Row(msgspec.Struct, frozen=True):
    """One element of an answer: `value` of an instant, or `values` of a range; (Unix time, number as text)."""

    metric: dict[str, str] = {}
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class Answer(NamedTuple):
    """What the server said. `warnings`: why it may not be all."""

    rows: tuple[Row, ...]
    warnings: tuple[str, ...] = ()


class Span(NamedTuple):
    """The instants of a range query: from `start` to `end`, Unix time, each `step` seconds."""

    start: float
    end: float
    step: float


class _Data(msgspec.Struct):
    resultType: str  # noqa: N815 - Prometheus' own name
    result: msgspec.Raw


class _Document(msgspec.Struct):
    status: str
    data: _Data | None = None
    errorType: str = ""  # noqa: N815
    error: str = ""
    warnings: list[str] = []


class _Broken(Exception):
    """An answer that is none; its text says why."""


class Call:
    """One query under way, which another thread can end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_cut = False

    def hold(self, connected: socket.socket) -> None:
        """Know the socket of a connection that was just made; TLS will take over its descriptor, so keep a second."""
        with self._lock:
            self._sockets.append(connected.dup())
            if self._is_cut:
                self._shut()

    def cut(self) -> None:
        """End it: whoever reads or writes there gets an end of file or an error."""
        with self._lock:
            self._is_cut = True
            self._shut()

    def close(self) -> None:
        """Release what is held; the query is over."""
        with self._lock:
            for one in self._sockets:
                one.close()
            self._sockets.clear()

    def _shut(self) -> None:
        for one in self._sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the other side was first


class _Http(HTTPConnection):
    @override
    def _new_conn(self) -> socket.socket:
        made = super()._new_conn()
        _HERE.call.hold(made)
        return made


class _Https(HTTPSConnection):
    @override
    def _new_conn(self) -> socket.socket:
        made = super()._new_conn()
        _HERE.call.hold(made)
        return made


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _Https


class _Adapter(HTTPAdapter):
    @override
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}


class _Whole(requests.Response):
    """A checked answer in the form that the client reads."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.status_code = 200
        self._answer = answer

    @override
    def json(self, **kwargs: Any) -> Any:
        return {"data": {"result": self._answer}}


class _Session(requests.Session):
    """Reads each answer whole, within bounds, before anybody sees it."""

    @override
    def request(self, method: Any, url: Any, *args: Any, **kwargs: Any) -> requests.Response:
        kwargs |= {"allow_redirects": False, "stream": True}
        with super().request(method, url, *args, **kwargs) as response:
            if response.status_code != 200:
                raise _Broken(_refusal(response, _read(response, _ERROR_LIMIT)))
            return _Whole(_answer(response, _read(response, ANSWER_LIMIT)))


def _read(response: requests.Response, limit: int) -> bytes:
    body = bytearray()
    for part in response.iter_content(_CHUNK):
        body += part
        if len(body) > limit:
            told = f"{limit // 1024 // 1024} MiB" if limit >= 1024 * 1024 else f"{limit // 1024} KiB"
            raise _Broken(f"an answer of more than {told}: narrow it with a selector (replicas.selector)")
    return bytes(body)


def _refusal(response: requests.Response, body: bytes) -> str:
    """Why a status is none that we can use."""
    status = response.status_code
    if 300 <= status < 400:
        to = urlsplit(response.headers.get("Location", ""))
        return f"HTTP {status} to {to.scheme}://{to.netloc}{to.path}, not followed: set url to what answers itself"
    if status in {401, 403}:
        return f"HTTP {status}: the token, password or certificate is not accepted"
    try:
        document = msgspec.json.decode(body, type=_Document)
    except msgspec.DecodeError:
        return f"HTTP {status}"
    return f"HTTP {status}: {document.errorType}: {document.error}"


def _answer(response: requests.Response, body: bytes) -> Answer:
    try:
        document = msgspec.json.decode(body, type=_Document)
    except msgspec.ValidationError as error:
        raise _Broken(f"JSON that is no answer of Prometheus: {error}") from None
    except msgspec.DecodeError:
        kind = response.headers.get("Content-Type", "no content type")
        raise _Broken(f"no JSON but {kind}: a login page, or not a Prometheus server") from None
    if document.status != "success" or document.data is None:
        raise _Broken(f"{document.errorType or 'error'}: {document.error or 'no reason given'}")
    return Answer(_rows(document.data), tuple(document.warnings))


def _rows(data: _Data) -> tuple[Row, ...]:
    try:
        if data.resultType == "scalar":
            return (Row(value=msgspec.json.decode(data.result, type=tuple[float, str])),)
        if data.resultType in {"vector", "matrix"}:
            return tuple(msgspec.json.decode(data.result, type=list[Row]))
    except msgspec.DecodeError as error:
        raise _Broken(f"a result that cannot be read: {error}") from None
    raise _Broken(f"a result of type {data.resultType!r}, not a vector")


class Prometheus:
    """One server, asked from one or several threads; must be closed."""

    def __init__(self, url: str, access: Access, timeout: float) -> None:
        self._access = access
        self._timeout = timeout
        self._session = session = _Session()
        session.trust_env = False  # no proxy and no .netrc that nobody named
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        session.headers.update({"Accept-Encoding": "identity", "Connection": "close", **access.headers})
        session.headers["User-Agent"] = "llm-pool-autoscaler"
        session.verify = access.ca_file or True
        session.cert = (access.cert_file, access.key_file) if access.cert_file and access.key_file else None
        url = url.rstrip("/")  # the client would ask for //api/v1/query, which is a 404
        self._connect = PrometheusConnect(
            url, retry=Retry(total=0), auth=self._authorized, session=session, timeout=timeout
        )
        # The client has put its own adapter in place for `url`; the longer prefix goes before it.
        session.mount(f"{url}/api/", _Adapter(max_retries=0))

    def query(self, promql: str, call: Call, span: Span | None = None) -> Answer | str:
        """The answer, at this instant or over a span of them, or in one line why there is none."""
        _HERE.call = call
        try:
            answer: Answer = self._connect.custom_query(promql) if span is None else self._range(promql, span)
        except (_Broken, SecretGone) as error:
            return self._said(str(error))
        except (requests.RequestException, OSError, ValueError) as error:
            return f"no answer within {self._timeout:g} s" if _is_late(error) else self._said(_why(error))
        finally:
            call.close()
        return answer

    def close(self) -> None:
        """Release sockets."""
        self._session.close()

    def _range(self, promql: str, span: Span) -> Any:
        start, end = (datetime.fromtimestamp(one, UTC) for one in (span.start, span.end))
        return self._connect.custom_query_range(promql, start, end, f"{span.step:g}")

    def _authorized(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        token, password = self._access.token(), self._access.password()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        elif password is not None:
            pair = base64.b64encode(f"{self._access.username}:{password}".encode()).decode()
            request.headers["Authorization"] = f"Basic {pair}"
        return request

    def _said(self, text: str) -> str:
        """One short line, in which a server cannot show us our own secrets."""
        for secret in self._access.known():
            text = text.replace(secret, "***")
        return _CONTROL.sub(" ", text)[:_SAID]


def _innermost(error: Exception) -> BaseException:
    inner: BaseException = error
    while below := [one for one in (*inner.args, getattr(inner, "reason", None)) if isinstance(one, BaseException)]:
        inner = below[-1]
    return inner


def _is_late(error: Exception) -> bool:
    inner = _innermost(error)
    if isinstance(inner, urllib3.exceptions.NewConnectionError):  # by descent a timeout, and refused is none
        return False
    return isinstance(error, requests.exceptions.Timeout) or isinstance(
        inner, (TimeoutError, urllib3.exceptions.TimeoutError)
    )


def _why(error: Exception) -> str:
    """What went wrong underneath, without the address and the query that the libraries write into it."""
    inner = _innermost(error)
    if isinstance(error, requests.exceptions.SSLError) or isinstance(inner, ssl.SSLError):
        return f"TLS: {getattr(inner, 'verify_message', '') or inner}"
    if "refused" in str(inner):
        return "connection refused"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the answer broke off"
    if isinstance(inner, ConnectionError):  # http.client's RemoteDisconnected is one
        return "it closed the connection without an answer"
    text = str(inner).rpartition("Failed to establish a new connection: ")[2]
    return text or type(error).__name__
