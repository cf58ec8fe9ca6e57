"""The full-speed run: the daemon's real loop, prober, executor and journal over the simulated world, in virtual time.

It does what the fast loop does, some five times slower, through the code that runs in production: what the two
decide is compared tick by tick (tests/simulation/test_full_agrees_with_fast.py), and its records are the ledger's own.

Does: put the runtime's parts and the simulated adapters together, and drive them to the end of the workload. Does not:
observe, decide or act. Invariant: same pool, policies, workload, settings and seed, same records, byte by byte.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TextIO

import msgspec

from autoscaler.domain.base import Duration, Instant, ReplicaId
from autoscaler.domain.decision import Record
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Mode, Pool
from autoscaler.engine.decide import decide
from autoscaler.lab.acting import Deeds
from autoscaler.lab.adapters import (
    Account,
    Present,
    SimulatedBalancer,
    SimulatedCompute,
    SimulatedProbe,
    SimulatedTelemetry,
)
from autoscaler.lab.cloud import START
from autoscaler.lab.front import FRONT
from autoscaler.lab.records import RunLedger
from autoscaler.lab.result import Result
from autoscaler.lab.settings import WorldSettings
from autoscaler.lab.tally import Tally
from autoscaler.lab.virtual_time import GRID_S, VirtualClock, run_virtual
from autoscaler.lab.workload import Workload
from autoscaler.lab.world import EPOCH, World, endpoint_of, replicas_of
from autoscaler.ports.policy import Policy
from autoscaler.runtime.gate import Gate
from autoscaler.runtime.journal import open_journal
from autoscaler.runtime.loop import PoolLoop
from autoscaler.runtime.metrics import Metrics
from autoscaler.runtime.parts import PoolParts, Services
from autoscaler.runtime.prober import Target

#: Ticks between two calls of `progress`.
_TOLD_EVERY: Final = 20


class Full(NamedTuple):
    """What a full-speed run comes to: the same Result as the fast one's, and the ledger's records, oldest first.

    `pool`: as the world has it, with which the records can be replayed.
    """

    result: Result
    records: tuple[Record, ...]
    pool: Pool


class FullOptions(NamedTuple):
    """`progress`: told the second reached and the last one, now and then. `journal`: where the daemon's log goes.

    Without one, only errors of ours are logged, to standard error.
    """

    progress: Callable[[float, float], None] | None = None
    journal: TextIO | None = None


def simulate_full(
    pool: Pool,
    policies: Sequence[Policy],
    workload: Workload,
    settings: WorldSettings | None = None,
    seed: int = 0,
    options: FullOptions | None = None,
) -> Full:
    """Run one pool over one workload. Ctrl-C ends it early: the Result then is of what was done, and says so.

    Raises ConfigError for settings that do not fit the pool, InvariantBroken on a bug of ours.
    """
    acting = msgspec.structs.replace(pool, mode=Mode.ACT)
    run = _Run(World(acting, workload, settings or WorldSettings(), seed), policies, seed, options or FullOptions())
    try:
        run_virtual(run.drive)
    except KeyboardInterrupt:
        return run.full(complete=False)
    return run.full(complete=True)


class _Run:
    """One run in progress."""

    def __init__(self, world: World, policies: Sequence[Policy], seed: int, options: FullOptions) -> None:
        self._world = world
        self._options = options
        self._deeds = Deeds()
        self._tally = Tally(world, self._deeds, seed, keep=False)
        self._ledger = RunLedger(EPOCH, self._note, self._deeds.count)
        self._leaving: set[ReplicaId] = set()
        # The prober has looked at who serves since before second 0, so that their last needed pass is there.
        self._before_s = (world.pool.ready.passes - 1) * min(1.0, float(world.pool.pace.tick) / 3.0) / 2.0
        self._clock = VirtualClock(Instant(START - self._before_s))
        self._parts = self._assemble(tuple(policies))

    def _assemble(self, policies: tuple[Policy, ...]) -> PoolParts:
        present, pool = Present(self._world, self._clock), self._world.pool
        account = Account(lambda _: present)
        signals: frozenset[Signal] = frozenset().union(*(policy.signals() for policy in policies))
        return PoolParts(
            pool=pool, policies=policies,
            computes={name: SimulatedCompute(name, account) for name in sorted({one.compute for one in pool.offers})},
            balancers={FRONT: SimulatedBalancer(present)}, telemetry=SimulatedTelemetry(present),
            probe=SimulatedProbe(present, self._leaving), signals=signals, config_hash="",
        )  # fmt: skip

    async def drive(self) -> None:
        """Run the loop from second 0 to the end of the workload."""
        options, end_s = self._options, self._world.workload.duration_s
        journal = open_journal(stream=options.journal or sys.stderr, level="info" if options.journal else "error")
        services = Services(
            ledger=self._ledger, clock=self._clock, gate=Gate(self._clock), decide=decide, journal=journal,
            metrics=Metrics(), checkpoint=lambda _: None,
        )  # fmt: skip
        loop = PoolLoop(self._parts, services)
        loop.prober.watch(self._serving())
        probing = asyncio.create_task(loop.prober.run())
        ending = asyncio.create_task(self._clock.sleep(Duration(self._before_s + end_s - GRID_S)))
        await self._clock.sleep(Duration(self._before_s))
        ticking = asyncio.create_task(loop.run())
        tasks = (probing, ticking, ending)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # an error of ours
            loop.stop()
            await ticking
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._world.finish()

    def _serving(self) -> list[Target]:
        """Who serves at second 0."""
        return [
            Target(endpoint_of(one.id, one.shown.address or "", port, one.offer), one.shown.boot, admitted=True)
            for one in self._world.cloud.living.values()
            for _, port in replicas_of(one)
        ]

    def _note(self, record: Record) -> None:
        """A decision was saved and will now be carried out."""
        decision, world = record.decision, self._world
        self._leaving.clear()
        self._leaving.update(one.id for one in decision.replicas if one.phase is Phase.DRAINING)
        self._tally.note(decision)
        if self._options.progress is not None and record.sequence % _TOLD_EVERY == 0:
            self._options.progress(world.now_s, world.workload.duration_s)

    def full(self, *, complete: bool) -> Full:
        """What the run came to so far."""
        return Full(self._tally.result(complete=complete), tuple(self._ledger.records), self._world.pool)
