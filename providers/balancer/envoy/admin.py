"""Envoy's admin port, read only: who runs there, the state and active count of each member, counters.

Does: turn answers into values and failures into Unreachable. Does not: change anything in Envoy.
Invariant: a count that Envoy leaves out is 0 only where Envoy says so that way (a gauge at zero has no `value`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from autoscaler.domain.faults import Unreachable
from providers.balancer.envoy.settings import Settings

_TIMEOUT: Final = aiohttp.ClientTimeout(total=3.0)
_COUNTERS: Final = {
    "upstream_rq_total": "requests",
    "upstream_rq_5xx": "answered_5xx",
    "upstream_rq_retry": "retried",
    "upstream_cx_connect_fail": "connect_failed",
    "upstream_cx_connect_timeout": "connect_timed_out",
    "upstream_cx_none_healthy": "none_healthy",
    "upstream_rq_rx_reset": "cut_by_replica",
}


class NotAnswering(Unreachable):
    """Nothing accepts connections there: Envoy does not run."""


class EnvoyStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since Envoy started. `connect_failed`: sent to a replica that did not accept (timeouts included)."""

    requests: int = 0
    answered_5xx: int = 0
    retried: int = 0
    connect_failed: int = 0
    connect_timed_out: int = 0
    none_healthy: int = 0
    cut_by_replica: int = 0


class HostState(msgspec.Struct, frozen=True):
    """One member as Envoy has it now. `trouble`: why it gets no requests, empty when it does."""

    active: int
    trouble: str


class ServerInfo(msgspec.Struct, frozen=True):
    """Which Envoy answers: the file it was started with, the settings in it, and whether it is ready."""

    boot: str
    settings: str
    live: bool


class Admin:
    """The admin port of one Envoy."""

    def __init__(self, settings: Settings) -> None:
        self._base = f"http://{settings.admin}"
        self._cluster = settings.cluster
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def server_info(self) -> ServerInfo:
        """Who answers. Raises NotAnswering, or Unreachable when it does not answer as an Envoy."""
        answer = await self._get("/server_info")
        try:
            node, options = answer.get("node") or {}, answer["command_line_options"]
            settings = (node.get("metadata") or {}).get("settings", "")
            return ServerInfo(str(options["config_path"]), str(settings), answer.get("state") == "LIVE")
        except (KeyError, TypeError, AttributeError) as error:
            raise self._odd("server_info") from error

    async def hosts(self) -> dict[tuple[str, int], HostState]:
        """The members of our cluster. Raises NotAnswering or Unreachable."""
        answer = await self._get("/clusters?format=json")
        try:
            ours = [one for one in answer["cluster_statuses"] if one["name"] == self._cluster]
            if not ours:
                raise Unreachable(f"the Envoy at {self._base} has no cluster named {self._cluster!r}")
            return dict(_host(host) for host in ours[0].get("host_statuses", ()))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise self._odd("clusters") from error

    async def stats(self) -> EnvoyStats:
        """Counters of our cluster. Raises NotAnswering or Unreachable."""
        prefix = f"cluster.{self._cluster}."
        answer = await self._get("/stats?format=json&type=Counters")
        try:
            found = {one["name"]: int(one["value"]) for one in answer["stats"] if "name" in one}
        except (KeyError, TypeError, ValueError) as error:
            raise self._odd("stats") from error
        return EnvoyStats(**{ours: found.get(prefix + theirs, 0) for theirs, ours in _COUNTERS.items()})

    async def _get(self, path: str) -> Any:
        if self._session is None:
            # One connection a call: an Envoy that was restarted in between is no error of ours.
            connector = aiohttp.TCPConnector(force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT, trust_env=False)
        try:
            async with self._session.get(self._base + path, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise Unreachable(f"Envoy's admin port at {self._base} answered {answer.status} to {path}")
                return msgspec.json.decode(await answer.read())
        except aiohttp.ClientConnectorError as error:
            raise NotAnswering(f"Envoy's admin port at {self._base} does not answer: {error.strerror}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"Envoy's admin port at {self._base}: {error or type(error).__name__}") from error
        except msgspec.DecodeError as error:
            raise self._odd(path) from error

    def _odd(self, what: str) -> Unreachable:
        return Unreachable(f"what answers at {self._base} to {what} is no Envoy that this adapter understands")


def _host(host: Mapping[str, Any]) -> tuple[tuple[str, int], HostState]:
    socket = host["address"]["socket_address"]
    gauges = {one["name"]: int(one.get("value", 0)) for one in host.get("stats", ())}
    health = host.get("health_status") or {}
    troubles = [name for name, value in health.items() if value is True]
    eds = health.get("eds_health_status", "HEALTHY")
    if eds != "HEALTHY":
        troubles.append(str(eds).lower())
    state = HostState(gauges.get("rq_active", 0), ", ".join(troubles))
    return (socket["address"], int(socket["port_value"])), state


async def stats(settings: Settings) -> EnvoyStats:
    """Read the counters once. Raises Unreachable."""
    async with Admin(settings) as admin:
        return await admin.stats()
