"""How a directive reaches the daemon: its API when it answers and there is a token, else the ledger's shared row.

Does: check the names against what is known, change one part of the directives, write. Does not: print.
Invariant: both ways apply the same change (runtime.api.changed_directives).
"""

from __future__ import annotations

import asyncio
import getpass
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from autoscaler import wiring
from autoscaler.cli.admin import Daemon
from autoscaler.config.mistakes import close_match
from autoscaler.domain.base import Duration, InstanceId, ReplicaId, after, instance_of
from autoscaler.domain.directives import AtLeast, Pause
from autoscaler.domain.faults import ConfigError, Unreachable
from autoscaler.ports.ledger import Ledger
from autoscaler.runtime.api import changed_directives
from autoscaler.runtime.clock import SystemClock

if TYPE_CHECKING:
    from autoscaler.config.schema import Config, PoolConfig


class Done(NamedTuple):
    """How it went, in words, and the directives that are now in force."""

    through: str
    directives: Any


def direct(config: Config, pool: PoolConfig, verb: str, body: dict[str, Any]) -> Done:
    """Give one directive; raises ConfigError for a name or size that cannot be, PortFault when it reaches nobody."""
    units, most = body.get("units", 0), pool.pool.bounds.max
    if units > most:
        raise ConfigError([f"--at-least: found {units}, which is more than the pool's max; allowed: 0 to {most}"])
    daemon = Daemon(config.admin, config.installation)
    if daemon.has_token:
        try:
            daemon.get("v1", "pools", pool.pool.name)
            answer = daemon.post("v1", "pools", pool.pool.name, verb, body=body)
            return Done(f"told to the daemon at {daemon.url}", answer)
        except Unreachable:
            pass  # no daemon runs: it will read the ledger when it does
    return asyncio.run(_to_ledger(config, pool, verb, body))


async def _to_ledger(config: Config, pool: PoolConfig, verb: str, body: dict[str, Any]) -> Done:
    ledger = wiring.build_ledger(config, SystemClock(), read_only=False)
    try:
        name = pool.pool.name
        change = await _change(ledger, pool, verb, body)
        changed = changed_directives(await ledger.directives(name), change)
        await ledger.direct(name, changed, f"{_user()}@{socket.gethostname()}")
    finally:
        await ledger.aclose()
    return Done("written to the ledger; a running daemon reads it at its next tick", msgspec.to_builtins(changed))


async def _change(ledger: Ledger, pool: PoolConfig, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    match verb:
        case "pause":
            return {"pause": Pause(body["direction"])}
        case "resume":
            return {"pause": Pause.NONE}
        case "at-least":
            until = after(SystemClock().now(), Duration(body["for_s"]))
            return {"at_least": AtLeast(units=body["units"], until=until) if body["units"] else None}
        case "protect":
            machine = await _known_machine(ledger, pool, body["instance"])
            return {"protect" if body["on"] else "unprotect": machine}
        case _:
            return {verb: await _known_replica(ledger, pool, body["replica"])}


async def _replicas(ledger: Ledger, pool: PoolConfig) -> list[ReplicaId]:
    record = await ledger.record(pool.pool.name)
    return sorted(replica.id for replica in record.decision.replicas) if record else []


async def _known_replica(ledger: Ledger, pool: PoolConfig, name: str) -> ReplicaId:
    known = await _replicas(ledger, pool)
    if name not in known:
        words = ", ".join(known) or "none"
        raise ConfigError([f"replica: found {name[:80]!r}{close_match(name, known)}; allowed: {words}"])
    return ReplicaId(name)


async def _known_machine(ledger: Ledger, pool: PoolConfig, name: str) -> InstanceId:
    known = await _replicas(ledger, pool)
    if name in known:
        return instance_of(ReplicaId(name))
    machines = sorted({instance_of(replica) for replica in known})
    if name not in machines:
        words = ", ".join(machines) or "none"
        raise ConfigError([f"instance: found {name[:80]!r}{close_match(name, machines)}; allowed: {words}"])
    return InstanceId(name)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "operator"
