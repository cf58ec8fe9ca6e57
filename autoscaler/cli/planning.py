"""`autoscaler plan`: the real loop in advise mode over a ledger that cannot be written.

Does: tick twice with the stated window between, so that counters have deltas and checks can pass. Does not: act.
Invariant: advise mode calls no changing method of a port; the ledger refuses writes and makes no file (law 14).
"""

from __future__ import annotations

import asyncio
import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from autoscaler import wiring
from autoscaler.cli.show import clean, number
from autoscaler.domain.decision import Decision
from autoscaler.domain.faults import Unreachable
from autoscaler.domain.pool import Mode
from autoscaler.engine.decide import decide
from autoscaler.engine.explain import doing, phrase
from autoscaler.runtime.clock import SystemClock
from autoscaler.runtime.gate import Gate
from autoscaler.runtime.journal import open_journal
from autoscaler.runtime.loop import PoolLoop
from autoscaler.runtime.metrics import Metrics
from autoscaler.runtime.parts import PoolParts, Services

if TYPE_CHECKING:
    from autoscaler.config.schema import Config, PoolConfig


class Planned(NamedTuple):
    """What one pool would do. `faults`: what could not be read; `offers`: what is wrong with the offers."""

    decision: Decision
    faults: tuple[str, ...]
    offers: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """For --json."""
        decision = self.decision
        return {
            "pool": decision.pool,
            "sentence": decision.sentence,
            "wanted": decision.wanted,
            "target": decision.target,
            "trust": decision.trust.level.value,
            "capacity": msgspec.to_builtins(decision.capacity),
            "plan": [_public(msgspec.to_builtins(action)) for action in decision.plan],
            "blocks": [phrase(reason) for reason in decision.blocks],
            "alarms": [phrase(reason) for reason in decision.alarms],
            "faults": list(self.faults),
            "offers": list(self.offers),
        }

    def text(self) -> str:
        """For people."""
        decision = self.decision
        lines = [
            f"{decision.pool}: {decision.sentence}",
            f"  would do  {doing(decision.plan)}",
            f"  wanted    {number(decision.wanted)}, target {decision.target}",
        ]
        lines += [f"  held back {phrase(reason)}" for reason in decision.blocks]
        lines += [f"  alarm     {phrase(reason)}" for reason in decision.alarms]
        lines += [f"  not read  {fault}" for fault in self.faults]
        lines += [f"  unfit     {mistake}" for mistake in self.offers]
        return "\n".join(clean(line) for line in lines)


def _public(action: dict[str, Any]) -> dict[str, Any]:
    """An action less the frozen request of a launch, in which are commands and their environment."""
    return {key: value for key, value in action.items() if key != "request"}


def plan(config: Config, only: PoolConfig | None, window_s: float | None) -> list[Planned]:
    """Decide for each pool after `window_s` seconds (two ticks when None); raises PortFault, ConfigError."""
    return asyncio.run(_plan(config, only, window_s))


async def _plan(config: Config, only: PoolConfig | None, window_s: float | None) -> list[Planned]:
    clock = SystemClock()
    wanted = (only,) if only else config.pools
    wired = wiring.build(msgspec.structs.replace(config, pools=wanted), clock, read_only=True)
    services = Services(
        ledger=wired.ledger,
        clock=clock,
        gate=Gate(clock),
        decide=decide,
        journal=open_journal("json", io.StringIO()),
        metrics=Metrics(),
        checkpoint=lambda _: None,
    )
    try:
        return list(await asyncio.gather(*(_one(parts, services, window_s) for parts in wired.pools)))
    finally:
        await wiring.close(wired)


async def _one(parts: PoolParts, services: Services, window_s: float | None) -> Planned:
    advising = parts._replace(pool=msgspec.structs.replace(parts.pool, mode=Mode.ADVISE))
    loop = PoolLoop(advising, services)
    looks = asyncio.create_task(loop.prober.run())
    try:
        await loop.tick()
        await asyncio.sleep(2 * parts.pool.pace.tick if window_s is None else window_s)
        decision = await loop.tick()
    finally:
        looks.cancel()
        with suppress(asyncio.CancelledError):
            await looks
    if decision is None:
        raise Unreachable(f"{parts.pool.name}: {loop.status.trouble or 'the ledger cannot be read'}")
    observation = loop.status.observation
    faults = observation.faults if observation else ()
    unfit = (line for offer in parts.pool.offers for line in parts.computes[offer.compute].check_offer(offer))
    return Planned(decision, tuple(f"{fault.source}: {fault.fault.detail}" for fault in faults), tuple(unfit))
