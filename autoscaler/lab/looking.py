"""What the fast loop sees: one Observation a tick, made as runtime.observer and runtime.loop make it.

Does: ask the world's parts, turn faults into values, keep what an early tick reads again. Does not: judge or act.
Invariant: what did not change since the last look is the very same object, so that a reader may skip it.
"""

from __future__ import annotations

from autoscaler.domain.base import ReplicaId
from autoscaler.domain.decision import Decision, Observation, Outcome, SourceFault
from autoscaler.domain.faults import PortFault
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.load import LoadSample, Signal
from autoscaler.domain.memory import Memory
from autoscaler.domain.replica import BalancerView, ComputeView
from autoscaler.lab.front import FRONT
from autoscaler.lab.world import World


class Looker:
    """The eyes of one run."""

    def __init__(self, world: World, signals: frozenset[Signal]) -> None:
        self._world = world
        self._signals = signals
        self._computes = sorted({one.compute for one in world.pool.offers})
        self._views: dict[str, ComputeView] = {}
        self._load: LoadSample | None = None
        self._serving: list[ReplicaId] = [*world.slots]

    def look(self, memory: Memory, outcomes: tuple[Outcome, ...], *, early: bool) -> Observation:
        """The Observation of this instant."""
        faults: list[SourceFault] = []
        # A machine that one look missed is looked for again, not remembered as missing twice.
        again = not early or any(one.missing_since is not None for one in memory.intents.values())
        if again:
            self._views = {}
            self._load = None
        for name in self._computes:
            if name not in self._views:
                self._see_compute(name, memory, faults)
        balancers: dict[str, BalancerView] = {}
        try:
            balancers[FRONT] = self._world.front.members()
        except PortFault as fault:
            faults.append(SourceFault(source=f"balancer:{FRONT}", fault=fault.fault))
        if self._load is None:
            try:
                self._load = self._world.telemetry.sample(self._signals, self._serving)
            except PortFault as fault:
                faults.append(SourceFault(source="telemetry", fault=fault.fault))
        return Observation(
            now=self._world.now, computes=dict(self._views), balancers=balancers, load=self._load,
            probes=self._world.watch.records(self._world.now_s), outcomes=outcomes, faults=tuple(faults),
        )  # fmt: skip

    def _see_compute(self, name: str, memory: Memory, faults: list[SourceFault]) -> None:
        try:
            self._views[name] = self._world.cloud.observe(name, memory.launches)
        except PortFault as fault:
            faults.append(SourceFault(source=f"compute:{name}", fault=fault.fault))

    def follow(self, decision: Decision) -> None:
        """From now on the replicas in service are those of this decision."""
        self._serving = [one.id for one in decision.replicas if one.phase is Phase.IN_SERVICE]
