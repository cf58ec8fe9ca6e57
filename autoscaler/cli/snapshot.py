"""What is known of the pools: from the running daemon, else from the ledger's last records.

Does: ask the daemon first, fall back to the ledger, and say which it was and how old. Does not: print.
A file that is refused hides no daemon that runs: it is asked at the address in the file, and the mistakes are told too.
Invariant: both sources give the same fields (runtime.views); nothing is written and no ledger file is made.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from autoscaler.cli.admin import Daemon
from autoscaler.cli.options import chosen_pool, loaded
from autoscaler.config.load import load_address
from autoscaler.domain.faults import ConfigError, PortFault, Unreachable

if TYPE_CHECKING:
    from pathlib import Path

    from autoscaler.config.schema import Config
    from autoscaler.domain.pool import Pool


class Snapshot(NamedTuple):
    """The pools, in full or in short. `source` in words; `live` when the daemon itself answered.

    `mistakes`: what is wrong with the file, which the daemon has not taken.
    """

    source: str
    live: bool
    pools: list[dict[str, Any]]
    mistakes: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """For --json, beside what is shown of the pools."""
        told = {"config_mistakes": list(self.mistakes)} if self.mistakes else {}
        return {"source": self.source, "live": self.live, **told}

    def remark(self) -> str:
        """For people, beside the pools; empty when all is as it should be."""
        if self.mistakes:
            return f"from {self.source}; the config file is refused: {'; '.join(self.mistakes)}"
        return "" if self.live else f"from {self.source}"


def all_pools(path: Path) -> Snapshot:
    """Every pool in short; raises ConfigError, and Unreachable when neither daemon nor ledger knows anything."""
    try:
        config = loaded(path)
    except ConfigError as refused:
        return _of_daemon(path, refused, None)
    daemon = Daemon(config.admin, config.installation)
    try:
        return Snapshot(f"the daemon at {daemon.url}", True, _listed(daemon.get("v1", "pools"), daemon))
    except Unreachable as why:
        pools = asyncio.run(_recorded(config, config.pools))
        return _from_ledger(config, pools, why)


def one_pool(path: Path, name: str | None) -> Snapshot:
    """One pool in full, which may be left unnamed when there is only one; raises as `all_pools`."""
    try:
        config = loaded(path)
    except ConfigError as refused:
        return _of_daemon(path, refused, name)
    pool = chosen_pool(config, name)
    daemon = Daemon(config.admin, config.installation)
    try:
        shown = daemon.get("v1", "pools", pool.pool.name)
        return Snapshot(f"the daemon at {daemon.url}", True, _listed([shown], daemon))
    except Unreachable as why:
        pools = asyncio.run(_recorded(config, [pool]))
        return _from_ledger(config, pools, why)


def _of_daemon(path: Path, refused: ConfigError, name: str | None) -> Snapshot:
    """What a daemon says that has not taken this file: one pool where `name` is given; raises `refused` if none runs.

    All pools come in full, since one that is asked for without a name must be found first; there are few.
    """
    try:
        installation, admin = load_address(path)
        daemon = Daemon(admin, installation)
        pools = _listed(daemon.get("v1", "pools"), daemon)
        wanted = [pool["name"] for pool in pools if name in {None, pool.get("name")}]
        full = _listed([daemon.get("v1", "pools", each) for each in wanted], daemon)
    except (ConfigError, Unreachable):
        raise refused from None
    if not full:
        known = ", ".join(str(pool.get("name")) for pool in pools)
        raise ConfigError([f"pool: found {str(name)[:60]!r}; allowed: {known}", *refused.mistakes])
    return Snapshot(f"the daemon at {daemon.url}", True, full, tuple(refused.mistakes))


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
