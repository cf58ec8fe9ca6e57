"""The running daemon, asked over its admin API.

Does: one request with a timeout, a bounded answer, and the token where there is one. Does not: know what answers mean.
Invariant: the token goes to the configured address only, follows no redirect and is in no message.
"""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from autoscaler.domain.faults import Refused, Unreachable

if TYPE_CHECKING:
    from autoscaler.config.schema import Admin

_TIMEOUT_S = 3.0
_ANSWER_MAX = 32 * 1024 * 1024


class Daemon:
    """A client of one daemon. `get` and `post` raise Unreachable when nothing that speaks this API answers."""

    def __init__(self, admin: Admin, installation: str) -> None:
        self._admin = admin
        self._installation = installation
        self.url = admin.url

    @property
    def has_token(self) -> bool:
        """Whether it could send directives."""
        return self._admin.token is not None

    def get(self, *path: str, query: str = "") -> Any:
        """The JSON answer of a GET; raises Unreachable, or Refused with what the daemon says."""
        return self._ask("GET", path, query=query)

    def post(self, *path: str, body: dict[str, Any]) -> Any:
        """The JSON answer of a POST; raises as `get`."""
        return self._ask("POST", path, body=body)

    def _ask(self, method: str, path: tuple[str, ...], *, query: str = "", body: dict[str, Any] | None = None) -> Any:
        target = "/" + "/".join(quote(part, safe="") for part in path) + (f"?{query}" if query else "")
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        headers["X-Autoscaler-Installation"] = self._installation  # another one's daemon must not obey us
        if self._admin.token is not None:
            headers["Authorization"] = f"Bearer {self._admin.token.reveal()}"
        host = urlsplit(self.url)
        connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, target, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            content = answer.read(_ANSWER_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(f"no daemon answers at {self.url}: {why}") from None
        finally:
            connection.close()
        return self._read(answer.status, content)

    def _read(self, status: int, content: bytes) -> Any:
        try:
            value = json.loads(content) if len(content) <= _ANSWER_MAX else None
        except ValueError:
            value = None
        if value is None or (status == 200 and not isinstance(value, dict | list)):
            raise Unreachable(f"what answers at {self.url} is no daemon of ours (status {status})")
        if not 200 <= status < 300:
            detail = value.get("detail", value) if isinstance(value, dict) else value
            raise Refused(f"the daemon at {self.url} refuses (status {status}): {str(detail)[:300]}")
        return value
