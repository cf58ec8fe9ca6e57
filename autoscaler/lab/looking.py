"""What the fast loop sees: one Observation a tick, made as runtime.observer and runtime.loop make it.

Does: ask the world's parts, turn faults into values, keep what an early tick reads again. Does not: judge or act.
Invariant: what did not change since the last look is the very same object, so that a reader may skip it.
"""

from __future__ import annotations

import math

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
        self._views: dict[str, tuple[float, ComputeView]] = {}
        self._load: tuple[float, LoadSample] | None = None
        self._serving: list[ReplicaId] = []  # a daemon that starts knows of none until its first decision

    def look(self, memory: Memory, outcomes: tuple[Outcome, ...], *, early: bool) -> Observation:
        """The Observation of this instant."""
        world, faults = self._world, list[SourceFault]()
        # A machine that one look missed is looked for again, not remembered as missing twice.
        again = not early or any(one.missing_since is not None for one in memory.intents.values())
        oldest_s = math.inf if again else world.now_s - float(world.pool.pace.tick)
        computes = {name: view for name, (at_s, view) in self._views.items() if at_s > oldest_s}
        for name in self._computes:
            if name not in computes and (view := self._see_compute(name, memory, faults)) is not None:
                computes[name] = view
        balancers: dict[str, BalancerView] = {}
        try:
            balancers[FRONT] = world.front.members()
        except PortFault as fault:
            faults.append(SourceFault(source=f"balancer:{FRONT}", fault=fault.fault))
        load = self._load[1] if self._load is not None and self._load[0] > oldest_s else self._see_load(faults)
        return Observation(
            now=world.now, computes=computes, balancers=balancers, load=load,
            probes=world.watch.records(world.now_s), outcomes=outcomes, faults=tuple(faults),
        )  # fmt: skip

    def _see_compute(self, name: str, memory: Memory, faults: list[SourceFault]) -> ComputeView | None:
        try:
            view = self._world.cloud.observe(name, memory.launches)
        except PortFault as fault:
            faults.append(SourceFault(source=f"compute:{name}", fault=fault.fault))
            return None
        self._views[name] = self._world.now_s, view
        return view

    def _see_load(self, faults: list[SourceFault]) -> LoadSample | None:
        try:
            load = self._world.telemetry.sample(self._signals, self._serving)
        except PortFault as fault:
            faults.append(SourceFault(source="telemetry", fault=fault.fault))
            return None
        self._load = self._world.now_s, load
        return load

    def follow(self, decision: Decision) -> None:
        """From now on the replicas in service are those of this decision."""
        self._serving = [one.id for one in decision.replicas if one.phase is Phase.IN_SERVICE]
