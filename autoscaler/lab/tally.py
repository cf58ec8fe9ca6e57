"""What is kept of a run while it runs, and the Result that is made of it.

Does: note each tick in a few numbers, and put arrays together at the end. Does not: judge.
Invariant: noting costs the same whatever the length of the run.
"""

from __future__ import annotations

import math
from array import array

import numpy as np

from autoscaler.domain.decision import Decision
from autoscaler.lab.acting import Deeds
from autoscaler.lab.result import Life, Requests, Result, Ticks
from autoscaler.lab.world import World

_COLUMNS = len(Ticks._fields)


class Tally:
    """The notes of one run."""

    def __init__(self, world: World, deeds: Deeds, seed: int, *, keep: bool) -> None:
        self._world = world
        self._deeds = deeds
        self._seed = seed
        self._keep = keep
        self._decisions: list[Decision] = []
        self._rows = array("d")

    def note(self, decision: Decision) -> None:
        """One tick."""
        world, capacity = self._world, decision.capacity
        living = world.cloud.living.values()
        usd = math.fsum([one.offer.usd_per_h for one in living])
        ports = sum([len(one.offer.ports) for one in living])
        wanted = math.nan if decision.wanted is None else decision.wanted
        sizes = (decision.target, wanted, capacity.in_service, capacity.on_the_way, capacity.draining)
        self._rows.extend((world.now_s, *sizes, len(living), world.fleet.waiting(), usd))
        self._rows.extend((ports, world.fleet.stepping()))
        if self._keep:
            self._decisions.append(decision)

    def result(self, *, complete: bool) -> Result:
        """Everything noted, and the state of the world."""
        world = self._world
        s, workload = world.fleet.state, world.workload
        arrived = workload.requests if complete else world.fleet.arrived
        rows = np.array(self._rows).reshape(-1, _COLUMNS).T
        ended_s = workload.duration_s if complete else world.now_s
        return Result(
            workload=workload.name, source=workload.source, seed=self._seed, duration_s=workload.duration_s,
            ended_s=ended_s, complete=complete,
            requests=Requests(
                workload.arrival_s[:arrived], workload.input_tokens[:arrived], workload.output_tokens[:arrived],
                s.ttft[:arrived], s.e2e[:arrived], s.status[:arrived],
            ),
            ticks=Ticks(rows[0], *(row.astype(np.float32) for row in rows[1:])),
            lives=tuple(
                Life(
                    one.id, one.offer.name, one.zone, one.ordered_s, one.shown_s, one.loaded_s, one.ended_s, one.why,
                    one.offer.usd_per_h, world.gpus_of(one) * len(one.offer.ports),
                )
                for one in world.cloud.machines.values()
            ),
            launches=self._deeds.actions["launch"], actions=dict(self._deeds.actions), faults=dict(self._deeds.faults),
            decisions=tuple(self._decisions),
        )  # fmt: skip
