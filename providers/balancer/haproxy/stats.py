"""Counters of a backend: what happened that no client sees.

Does: read them once. Does not: keep or judge them.
Invariant: a counter that HAProxy does not show raises; it is never taken for 0.
"""

from __future__ import annotations

import msgspec

from autoscaler.domain.faults import Unreachable
from providers.balancer.haproxy import reading
from providers.balancer.haproxy.runtime import Runtime
from providers.balancer.haproxy.settings import Layout, Settings


class HaproxyStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since HAProxy started.

    `retried`: connections tried again and requests sent to another server. `connect_failed`: of those that could not
    be made. `cut_by_replica`: answers that a server broke off.
    """

    requests: int = 0
    answered_5xx: int = 0
    retried: int = 0
    connect_failed: int = 0
    cut_by_replica: int = 0


async def stats(settings: Settings, state_dir: str = "", name: str = "haproxy") -> HaproxyStats:
    """Read the counters once. Raises Unreachable or Refused."""
    runtime = Runtime(Layout.of(settings, state_dir, name).socket, settings.timeout)
    row = await reading.backend_row(runtime, settings.backend)
    try:
        return HaproxyStats(
            requests=int(row["stot"]),
            answered_5xx=int(row["hrsp_5xx"]),
            retried=int(row["wretr"]) + int(row["wredis"]),
            connect_failed=int(row["econ"]),
            cut_by_replica=int(row["srv_abrt"]),
        )
    except (KeyError, ValueError) as error:
        raise Unreachable(f"HAProxy at {runtime.where} does not show the counters of {settings.backend}") from error
