"""What the demo sees of the daemon and of the proxy: their own admin endpoints, asked over and over.

Does: one bounded look at a time, turned into a sample. Does not: keep samples or draw conclusions from a silence.
Invariant: a look never raises for what the other side does, and takes at most its timeout; no answer is no sample.
"""

import asyncio
import contextlib
import http.client
import json
import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from autoscaler.config import modules
from autoscaler.config.modules import Group
from autoscaler.demo.summary import DaemonSample
from autoscaler.demo.words import short
from autoscaler.demo.world import POOL, PROXY_CLUSTER, World
from autoscaler.domain.faults import PortFault
from autoscaler.domain.load import Signal

_TIMEOUT_S = 2.0


class ProxyCounts(NamedTuple):
    """What the proxy did that no client sees: connections to replicas that failed, requests that it repeated."""

    connect_failures: int = 0
    retries: int = 0


class Watch:
    """Keeps one connection to the daemon's admin API."""

    def __init__(self, world: World, time_scale: float) -> None:
        """Connect to nothing yet."""
        self._scale = time_scale
        self._target: float | None = None
        self._changed_why = ""
        self._daemon = http.client.HTTPConnection("127.0.0.1", world.admin_port, timeout=_TIMEOUT_S)
        self._world = world
        self._proxy = http.client.HTTPConnection("127.0.0.1", world.proxy_admin_port, timeout=_TIMEOUT_S)

    def __enter__(self) -> Self:
        """Nothing to open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self._daemon.close()
        self._proxy.close()

    def look(self) -> DaemonSample | None:
        """The pool as the daemon sees it now, or nothing."""
        pool = _get(self._daemon, f"/v1/pools/{POOL}")
        if not isinstance(pool, dict):
            return None
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            return self._sample(pool)
        return None

    def proxy(self) -> ProxyCounts:
        """The proxy's counters since it started. Raises OSError: without them no verdict is honest."""
        if self._world.balancer == "haproxy":
            return _haproxy(self._world)
        answer = _get(self._proxy, "/stats?format=json&type=Counters")
        prefix = f"cluster.{PROXY_CLUSTER}."
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found = {one["name"]: int(one["value"]) for one in answer["stats"] if "name" in one}
            return ProxyCounts(found[f"{prefix}upstream_cx_connect_fail"], found[f"{prefix}upstream_rq_retry"])
        raise OSError("the proxy does not say how often it failed to connect, or what it repeated")

    def _sample(self, pool: dict[str, Any]) -> DaemonSample | None:
        if pool["at"] is None:
            return None
        reasons = [(one["recommendation"]["target"], one["recommendation"]["reason"]) for one in pool["opinions"]]
        if pool["target"] != self._target:  # what follows from it is seen some looks later, and has this reason
            self._target, self._changed_why = pool["target"], self._why(reasons)
        return DaemonSample(
            at=time.time(),
            phases=pool["phases"],
            capacity=pool["capacity"]["in_service"],
            desired=pool["target"],
            ttft_s_p95=_ttft_s(reasons),
            trust=f"{pool['trust']}: {pool['trust_why']}",
            sentence=pool["sentence"],
            why=self._changed_why,
        )

    def _why(self, reasons: Sequence[tuple[float | None, dict[str, Any]]]) -> str:
        """In a few words the opinion that decided: the first of those that want most, else the first."""
        sized = [(math.ceil(target), -index) for index, (target, _) in enumerate(reasons) if target is not None]
        _, place = max(sized, default=(0, 0))
        reason: dict[str, Any] = reasons[-place][1] if reasons else {"code": "no policy"}
        return short(str(reason["code"]), reason.get("facts", {}), self._scale)


def _haproxy(world: World) -> ProxyCounts:
    haproxy: Any = modules.load(Group.BALANCER, "haproxy", "--balancer")
    settings = haproxy.Settings(embedded=True, backend=PROXY_CLUSTER)
    try:
        found = asyncio.run(haproxy.stats(settings, str(world.state / "pools" / POOL)))
    except PortFault as fault:
        raise OSError(str(fault)) from fault
    return ProxyCounts(found.connect_failed, found.retried)


def _ttft_s(reasons: Sequence[tuple[float | None, dict[str, Any]]]) -> float | None:
    """The p95 that a policy judged, if one did. *Units*: the daemon's seconds."""
    for _, reason in reasons:
        facts = reason.get("facts", {})
        if facts.get("signal") == Signal.TTFT_S_P95 and isinstance(facts.get("value"), int | float):
            return float(facts["value"])
    return None


def _get(connection: http.client.HTTPConnection, path: str) -> Any:
    """The JSON that a GET answers, or nothing."""
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        return json.loads(body) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        connection.close()  # the next look connects anew
        return None
