"""What the balancer's strategy is worth: pools whose replicas are not alike, without an autoscaler.

Two pools of eight: "mixed", four replicas work twice as fast as the other four (two GPU types), which the balancer
knows where the strategy has weights; and "one slow", one works at half speed and nobody knows. Traffic is Azure's
conversation trace of an hour, scaled to a share of what the pool could do.

Does: run each strategy on each pool at each load. Does not: scale, drain or fail anything.
Invariant: equal traffic for all strategies of a pool and load.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from autoscaler.lab.fleet import Fleet
from autoscaler.lab.hardware import profile
from autoscaler.lab.result import Requests
from autoscaler.lab.scorecard import Slo
from autoscaler.lab.study.records import Served
from autoscaler.lab.study.traffic import BY_NAME, H100, SEED
from autoscaler.lab.traces import read_workload
from autoscaler.lab.workload import Workload
from autoscaler.lab.yardsticks import relaxed_units_h

_POOLS: Final = {"mixed": (2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0), "one slow": (1.0,) * 7 + (0.5,)}
_LOADS: Final = (0.4, 0.5, 0.6)
_REPLICA: Final = profile(H100)
_TAIL_S: Final = 600.0
_CLIENTS: Final = 200


class Way(NamedTuple):
    """A strategy as the table has it. `weighs`: whether the fast replicas have twice the weight."""

    name: str
    strategy: str
    weighs: bool = False


_WAYS: Final = (
    Way("round robin", "round_robin"),
    Way("weighted round robin", "weighted", weighs=True),
    Way("least connections", "least_connections"),
    Way("least connections, weighted", "least_connections", weighs=True),
    Way("least load", "least_load"),
    Way("least load, weighted", "least_load", weighs=True),
    Way("sticky (source hash)", "source_hash"),
)


def measure(traces: Path) -> list[Served]:
    """Every strategy on every pool at every load. Raises ConfigError when the trace is not there."""
    recorded = read_workload(traces / BY_NAME["azure-conv"].file)
    busy = relaxed_units_h(recorded, _REPLICA) / (recorded.duration_s / 3600.0)
    found = []
    for pool, speeds in _POOLS.items():
        for load in _LOADS:
            workload = recorded.scaled(load * math.fsum(speeds) / busy, SEED)
            ways = [way for way in _WAYS if pool == "mixed" or not way.weighs]
            found += [serve(pool, load, way, workload) for way in ways]
    return found


def serve(pool: str, load: float, way: Way, workload: Workload) -> Served:
    """One run."""
    fleet = Fleet(workload, way.strategy, clients=_CLIENTS, seed=SEED, batch_max=_REPLICA.max_batch)
    for speed in _POOLS[pool]:
        weight = speed if way.weighs else 1.0
        fleet.open(fleet.take(_REPLICA.times(speed), weight), weight)
    fleet.advance(workload.duration_s + _TAIL_S, _TAIL_S)
    state = fleet.state
    done = Requests(state.arrival, workload.input_tokens, workload.output_tokens, state.ttft, state.e2e, state.status)
    ttft = float(np.quantile(np.nan_to_num(state.ttft, nan=np.inf), 0.95, method="inverted_cdf"))
    return Served(
        pool=pool, strategy=way.name, load=load,
        ttft_s_p95=round(ttft, 3) if math.isfinite(ttft) else None,
        attainment=round(float(Slo().inside(done).mean()), 5),
    )  # fmt: skip
