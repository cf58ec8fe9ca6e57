"""What a simulated run comes to, as arrays: every request, every tick, every machine.

Does: hold it and add up what money and GPUs were spent. Does not: judge it (the scorecard does).
Invariant: arrays of one kind have one length; instants are seconds of the workload.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.decision import Decision

#: What became of a request, as in `Requests.status`.
UNFINISHED, OK, FAILED, CUT = range(4)


class Requests(NamedTuple):
    """One entry a request, in order of arrival. `ttft_s`, `e2e_s` are NaN where there was no such moment."""

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    ttft_s: NDArray[np.float32]
    e2e_s: NDArray[np.float32]
    status: NDArray[np.uint8]


class Ticks(NamedTuple):
    """One entry a decision.

    Sizes in units: `target` (after guards), `wanted` (of the policies, NaN: no opinion), `in_service`, `on_the_way`,
    `draining`; `machines` that live; `waiting` requests in replicas and at the balancer;
    `usd_per_h` of the machines that live; `replicas` of the machines that live, loading ones included, and how many of
    them are `busy`: in the middle of a step at that instant.
    """

    at_s: NDArray[np.float64]
    target: NDArray[np.float32]
    wanted: NDArray[np.float32]
    in_service: NDArray[np.float32]
    on_the_way: NDArray[np.float32]
    draining: NDArray[np.float32]
    machines: NDArray[np.float32]
    waiting: NDArray[np.float32]
    usd_per_h: NDArray[np.float32]
    replicas: NDArray[np.float32]
    busy: NDArray[np.float32]


class Life(NamedTuple):
    """One machine: ordered, shown by the cloud (from then on it is paid), its model loaded, ended (all maybe inf).

    `why`: what ended it: "" (it lived to the end), "terminated", "spot", "crash".
    """

    instance: str
    offer: str
    zone: str
    ordered_s: float
    shown_s: float
    loaded_s: float
    ended_s: float
    why: str
    usd_per_h: float
    gpus: int


class Result(NamedTuple):
    """One run of one pool over one workload. `complete`: False when it was interrupted at `ended_s`.

    `decisions`: kept only when asked for. `actions`, `faults`: how many of each kind.
    """

    workload: str
    source: str
    seed: int
    duration_s: float
    ended_s: float
    complete: bool
    requests: Requests
    ticks: Ticks
    lives: tuple[Life, ...]
    launches: int
    actions: dict[str, int]
    faults: dict[str, int]
    decisions: tuple[Decision, ...] = ()

    def machine_hours(self, start_s: float = 0.0, end_s: float | None = None) -> float:
        """Hours of machines that were paid in [start, end), the whole run by default."""
        return sum(_hours(one, start_s, self._end(end_s)) for one in self.lives)

    def gpu_hours(self, start_s: float = 0.0, end_s: float | None = None) -> float:
        """Hours of GPUs that were paid in [start, end)."""
        return sum(one.gpus * _hours(one, start_s, self._end(end_s)) for one in self.lives)

    def cost_usd(self, start_s: float = 0.0, end_s: float | None = None) -> float:
        """US dollars at the offers' prices in [start, end)."""
        return sum(one.usd_per_h * _hours(one, start_s, self._end(end_s)) for one in self.lives)

    def _end(self, end_s: float | None) -> float:
        return self.ended_s if end_s is None else min(end_s, self.ended_s)


def _hours(life: Life, start_s: float, end_s: float) -> float:
    return max(0.0, min(life.ended_s, end_s) - max(life.shown_s, start_s)) / 3600.0
