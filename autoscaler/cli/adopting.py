"""What `adopt` and `retire` do once they were confirmed.

Does: find the machine in what the computes show, then tag it, mark it for draining, or end it. Does not: ask or print.
Invariant: a machine that no compute shows with our installation's tags is never touched.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from autoscaler import wiring
from autoscaler.cli import directing
from autoscaler.config.mistakes import close_match
from autoscaler.domain.base import InstanceId, PoolName, ReplicaId, instance_of
from autoscaler.domain.faults import ConfigError, Refused
from autoscaler.domain.replica import InstanceState
from autoscaler.ports.ledger import Ledger
from autoscaler.runtime.clock import SystemClock

if TYPE_CHECKING:
    from autoscaler.config.schema import Config, PoolConfig
    from autoscaler.domain.replica import ComputeView
    from autoscaler.runtime.parts import PoolParts

_DEADLINE_S = 30.0


def adopt(config: Config, pool: PoolConfig, instance: str) -> str:
    """Give a machine the pool's tags; what was done, in words. Raises ConfigError, PortFault."""
    return asyncio.run(_adopt(msgspec.structs.replace(config, pools=(pool,)), InstanceId(instance)))


async def _adopt(config: Config, instance: InstanceId) -> str:
    wired = wiring.build(config, SystemClock(), read_only=True)
    try:
        (parts,) = wired.pools
        seen: list[str] = []
        for key in parts.computes:
            view = await _view(parts, key)
            if instance in {one.id for one in view.instances}:
                return f"belongs to {parts.pool.name} already"
            foreign = [one.id for one in view.foreign]
            if instance in foreign:
                return await _tag(parts, key, instance)
            seen += foreign
    finally:
        await wiring.close(wired)
    raise _unknown(instance, seen)


async def _tag(parts: PoolParts, key: str, instance: InstanceId) -> str:
    tag: Any = getattr(parts.computes[key], "adopt", None)
    if tag is None:
        raise Refused(
            f"compute {key} cannot adopt: give the machine the tags of its pool with the provider's own tools"
        )
    async with asyncio.timeout(_DEADLINE_S):
        await tag(parts.pool, [instance])
    return f"belongs to {parts.pool.name} now; the daemon sees it at its next tick"


def retire(config: Config, instance: str, tagged: str | None) -> str:
    """Let a machine go; what was done, in words. Raises ConfigError, PortFault."""
    found = asyncio.run(_owner(config, InstanceId(instance)))
    if found is None:
        return asyncio.run(_end_foreign(config, InstanceId(instance), tagged))
    pool, replicas = found
    for replica in replicas:
        directing.direct(config, pool, "drain", {"replica": replica})
    return f"drains from {pool.pool.name} ({', '.join(replicas)}), and ends when it is empty"


async def _owner(config: Config, instance: InstanceId) -> tuple[PoolConfig, list[ReplicaId]] | None:
    """The pool whose last record has the machine, with its replicas on it."""
    ledger: Ledger = wiring.build_ledger(config, SystemClock(), read_only=True)
    try:
        for pool in config.pools:
            record = await ledger.record(pool.pool.name)
            replicas = [one.id for one in record.decision.replicas] if record else []
            here = sorted(replica for replica in replicas if instance_of(replica) == instance)
            if here:
                return pool, here
    finally:
        await ledger.aclose()
    return None


async def _end_foreign(config: Config, instance: InstanceId, tagged: str | None) -> str:
    wired = wiring.build(config, SystemClock(), read_only=True)
    seen: list[str] = []
    try:
        for parts in wired.pools:
            for key, compute in parts.computes.items():
                view = await _view(parts, key)
                seen += [one.id for one in view.foreign]
                if instance not in seen:
                    continue
                if tagged is None or tagged in {pool.pool.name for pool in config.pools}:
                    raise ConfigError([f"--tagged: found {tagged!r}; allowed: the pool in the tags, not in the config"])
                gone = msgspec.structs.replace(parts.pool, name=PoolName(tagged))
                async with asyncio.timeout(_DEADLINE_S):
                    refused = await compute.precheck(gone, [instance])
                    if instance in refused:
                        raise Refused(f"{instance}: {refused[instance]}")
                    await compute.terminate(gone, [instance])
                    after = await compute.observe(parts.pool, (), SystemClock().now())
                # A compute touches only what carries our tags, and says nothing of what it left alone (law 7).
                if any(one.id == instance and one.state is InstanceState.RUNNING for one in after.foreign):
                    told = next(one.detail for one in after.foreign if one.id == instance)
                    raise Refused(
                        f"{instance} was left alone: it is not tagged with installation {config.installation} "
                        f"and pool {tagged}; it says {told or 'nothing more'}"
                    )
                return "is ended by its compute"
    finally:
        await wiring.close(wired)
    raise _unknown(instance, seen)


async def _view(parts: PoolParts, key: str) -> ComputeView:
    async with asyncio.timeout(_DEADLINE_S):
        return await parts.computes[key].observe(parts.pool, (), SystemClock().now())


def _unknown(instance: str, seen: list[str]) -> ConfigError:
    known = ", ".join(sorted(set(seen))) or "none"
    words = f"{close_match(instance, seen)}; allowed: a machine that no pool knows: {known}"
    return ConfigError([f"instance: found {instance[:80]!r}{words}"])
