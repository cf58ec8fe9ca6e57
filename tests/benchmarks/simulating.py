"""How long simulated weeks take on one processor: the aims of the lab, as they come out here.

Does: run the fast loop over (1) a week of 318,326 requests at a tick of 15 s, pool of up to 30, and (2) a fortnight of
ten million requests from a rate series, each in a process of its own, and print wall and processor time and the
highest resident memory. Does not: judge.
Without files the workloads are drawn with the same count, duration and kind of wave as the public traces that the aims
name (ServeGen m-large). `AUTOSCALER_BENCH_WEEK` and `AUTOSCALER_BENCH_RATE` name the files themselves, where they are.
Run as `python -m tests.benchmarks.simulating week|fortnight`.
Invariant: compiling is not counted, as it happens once an installation; reading the file is.
"""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Final

import numpy as np

from autoscaler.domain.base import PoolName
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Bounds, Offer, Pool
from autoscaler.lab.fast import simulate
from autoscaler.lab.result import Result
from autoscaler.lab.settings import WorldSettings
from autoscaler.lab.traces import Drawing, read_workload
from autoscaler.lab.workload import Lengths, Tokens, Workload, from_counts
from autoscaler.ports.policy import Policy

DAY_S: Final = 86_400.0
WIDTH_S: Final = 600.0
WEEK_REQUESTS: Final = 318_326
RATE_REQUESTS: Final = 10_000_000
#: p50 and p95 of the week's trace.
WEEK_TOKENS: Final = Tokens(prompt=Lengths(659, 2890), output=Lengths(29, 636, most=4096))


def a_wave(name: str, days: int, requests: int, tokens: Tokens) -> Workload:
    """A daily wave between a tenth and full, with clumps."""
    at = (np.arange(int(days * DAY_S / WIDTH_S)) + 0.5) * WIDTH_S
    shape = 0.55 - 0.45 * np.cos(2 * math.pi * at / DAY_S)
    return from_counts(name, WIDTH_S, shape * (requests / shape.sum()), tokens, seed=1, cv=2.0)


def week() -> Workload:
    """The week: the file that the environment names, else one like it."""
    path = os.environ.get("AUTOSCALER_BENCH_WEEK")
    return read_workload(Path(path)) if path else a_wave("a week", 7, WEEK_REQUESTS, WEEK_TOKENS)


def fortnight() -> Workload:
    """The fortnight of ten million requests."""
    path = os.environ.get("AUTOSCALER_BENCH_RATE")
    if not path:
        return a_wave("a fortnight", 14, RATE_REQUESTS, Tokens())
    total = np.loadtxt(path, delimiter=",", skiprows=1, usecols=1).sum()
    return read_workload(Path(path), Drawing(scale=float(RATE_REQUESTS / total)))


def run(workload: Workload, target: float) -> Result:
    """One pool of up to 30 replicas that tracks requests running, `target` a unit."""
    tracking = import_module("policies.target_tracking")
    policies: list[Policy] = [tracking.build(tracking.Settings(signal=Signal.RUNNING, target=target))]
    offers = (Offer(name="gpu", compute="lab", zones=("a", "b"), usd_per_h=10.0),)
    pool = Pool(installation="bench", name=PoolName("bench"), bounds=Bounds(min=1, max=30), offers=offers)
    return simulate(pool, policies, workload, WorldSettings(), seed=1)


def measure(which: str) -> str:
    """One row. Raises RuntimeError when the run did not do what it is named for."""
    run(a_wave("warm-up", 1, 2000, Tokens()), 8.0)
    wall, used = time.perf_counter(), time.process_time()
    make, target = {"week": (week, 1.5), "fortnight": (fortnight, 8.0)}[which]
    workload = make()
    read = time.process_time() - used
    result = run(workload, target)
    wall, used = time.perf_counter() - wall, time.process_time() - used
    ended = int(np.count_nonzero(result.requests.status == 1))
    if not result.complete or ended < 0.9 * workload.requests:
        message = f"{which}: {ended:,} of {workload.requests:,} requests ended"
        raise RuntimeError(message)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sizes = f"{result.ticks.in_service.min():.0f} to {result.ticks.in_service.max():.0f}"
    return (
        f"| {workload.name} | {workload.requests:,} | {len(result.ticks.at_s):,} | {sizes} | {wall:.1f} s "
        f"| {used:.1f} s (reading or drawing {read:.1f} s) | {memory:.0f} MiB |"
    )


def table() -> list[str]:
    """The README's rows."""
    rows = ["| workload | requests | ticks | in service | wall | processor | highest resident |", "|---" * 7 + "|"]
    for which in ("week", "fortnight"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.simulating", which], check=True, capture_output=True, text=True
        )
        rows.append(done.stdout.strip())
    return rows


if __name__ == "__main__":
    print(measure(sys.argv[1]))
