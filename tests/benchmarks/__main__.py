"""`make bench`: the README's table of what the product itself costs.

Does: run each benchmark and print Markdown rows. Does not: judge; these figures are for comparing in one run.
Invariant: each figure comes from running the thing now, on this machine, and says on which.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time

from tests.benchmarks import deciding, simulating

HELP_RUNS = 7


def help_s() -> float:
    """Median wall seconds of `autoscaler --help` as a whole process."""
    times = []
    for _ in range(HELP_RUNS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "autoscaler.cli.main", "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _print(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)


def main() -> None:
    """Print every table."""
    _print(f"Python {platform.python_version()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}", "")
    _print("`decide()` alone, four policies", "", *deciding.table(), "")
    _print("Whole ticks: 10 replicas a pool, four policies, probes, saves and records included", "")
    _print("| pools | CPU a tick, all pools | CPU a pool | resident |", "|---|---|---|---|")
    for count in (1, 100, 1000):
        row = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.ticking", str(count)], check=True, capture_output=True, text=True
        )
        _print(row.stdout.strip())
    _print("", "The lab's fast mode: one pool of up to 30 replicas, tick 15 s, one processor", "", *simulating.table())
    _print("", f"`autoscaler --help`: {help_s():.2f} s (median of {HELP_RUNS})")


if __name__ == "__main__":
    main()
