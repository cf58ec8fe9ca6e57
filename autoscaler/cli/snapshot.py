"""What is known of the pools: from the running daemon, else from the ledger's last records.

Does: ask the daemon first, fall back to the ledger, and say which it was and how old. Does not: print.
Invariant: both sources give the same fields (runtime.views); nothing is written and no ledger file is made.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from autoscaler.cli.admin import Daemon
from autoscaler.domain.faults import PortFault, Unreachable

if TYPE_CHECKING:
    from autoscaler.config.schema import Config, PoolConfig
    from autoscaler.domain.pool import Pool


class Snapshot(NamedTuple):
    """The pools, in full or in short. `source` in words; `live` when the daemon itself answered."""

    source: str
    live: bool
    pools: list[dict[str, Any]]


def of_all(config: Config) -> Snapshot:
    """Every pool in short; raises Unreachable when neither daemon nor ledger knows anything."""
    daemon = Daemon(config.admin, config.installation)
    try:
        return Snapshot(f"the daemon at {daemon.url}", True, _listed(daemon.get("v1", "pools"), daemon))
    except Unreachable as why:
        pools = asyncio.run(_recorded(config, config.pools))
        return _from_ledger(config, pools, why)


def of_one(config: Config, pool: PoolConfig) -> Snapshot:
    """One pool in full; raises as `of_all`."""
    daemon = Daemon(config.admin, config.installation)
    try:
        shown = daemon.get("v1", "pools", pool.pool.name)
        return Snapshot(f"the daemon at {daemon.url}", True, _listed([shown], daemon))
    except Unreachable as why:
        pools = asyncio.run(_recorded(config, [pool]))
        return _from_ledger(config, pools, why)


def _listed(answer: Any, daemon: Daemon) -> list[dict[str, Any]]:
    if not isinstance(answer, list) or not all(isinstance(each, dict) for each in answer):
        raise Unreachable(f"what answers at {daemon.url} is no daemon of ours")
    return answer


def _from_ledger(config: Config, pools: list[dict[str, Any]], why: Unreachable) -> Snapshot:
    if not any(pool["at"] for pool in pools):
        raise Unreachable(
            f"{why}; and the ledger has no record of {', '.join(pool.pool.name for pool in config.pools)}"
        )
    return Snapshot(f"the ledger, since {why}", False, pools)


class _Only(NamedTuple):
    """What runtime.views reads of a pool's parts."""

    pool: Pool


async def _recorded(config: Config, pools: Any) -> list[dict[str, Any]]:
    from autoscaler import wiring
    from autoscaler.runtime import views
    from autoscaler.runtime.clock import SystemClock
    from autoscaler.runtime.loop import Status
    from autoscaler.runtime.parts import PoolParts

    clock = SystemClock()
    ledger = wiring.build_ledger(config, clock, read_only=True)
    shown = []
    try:
        for each in pools:
            record = await ledger.record(each.pool.name)
            status = Status(cast("PoolParts", _Only(each.pool)))
            if record is not None:
                status = status._replace(decision=record.decision, observation=record.observation)
            shown.append(views.full(status, clock.now()))
    except PortFault as fault:
        raise Unreachable(str(fault)) from None
    finally:
        await ledger.aclose()
    return shown
