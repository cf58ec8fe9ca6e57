"""What a tick of many pools costs: the real runtime and a real SQLite ledger, providers in memory, one process.

Does: run the supervisor in real time with N pools of 10 replicas in service, at the default tick of 15 s with four
policies, probes, saves, records and logs included, and read the process's own CPU time over whole ticks.
Does not: count what a real provider's SDK or the network would cost. Invariant: every pool is at 10 in service.
Run as `python -m tests.benchmarks.ticking N`: a process of its own, so that memory is that of N pools.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import psutil

from autoscaler.cli.run import tune_collector
from autoscaler.domain.base import Duration, PoolName
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Bounds, Offer, Pace, Pool, ReadyRule
from autoscaler.ports.build import Context
from autoscaler.runtime.clock import SystemClock
from autoscaler.runtime.journal import open_journal
from autoscaler.runtime.parts import PoolParts
from autoscaler.runtime.supervisor import Options, Supervisor
from tests.benchmarks.deciding import four_policies
from tests.support.memory_balancer import MemoryBalancer
from tests.support.memory_compute import MemoryCompute
from tests.support.memory_probe import MemoryProbe
from tests.support.memory_telemetry import MemoryTelemetry

REPLICAS = 10
TICK = Duration(15.0)
VALUES = {
    Signal.QUEUE_LENGTH: 40.0,
    Signal.GPU_UTILIZATION: 0.72,
    Signal.KV_CACHE_USE: 0.5,
    Signal.TTFT_S_P95: 0.8,
}


def parts(name: str, clock: SystemClock) -> PoolParts:
    """One pool that wants exactly what it has."""
    balancer = MemoryBalancer(clock, name="front", counts=True)
    compute = MemoryCompute(clock, boot_s=0.0)  # an account each: they would share one limit on calls otherwise
    pool = Pool(
        installation="bench",
        name=PoolName(name),
        bounds=Bounds(min=REPLICAS, max=REPLICAS),
        offers=(Offer(name="only", compute="memory", ports=(8000,), usd_per_h=10.0),),
        balancers=(balancer.traits(),),
        ready=ReadyRule(passes=1),
        pace=Pace(tick=TICK),
    )
    policies = four_policies()
    telemetry = MemoryTelemetry(clock, VALUES)
    signals: frozenset[Signal] = frozenset().union(*(policy.signals() for policy in policies))
    return PoolParts(
        pool=pool, policies=policies, computes={"memory": compute}, balancers={"front": balancer},
        telemetry=telemetry, probe=MemoryProbe(clock, load_s=0.0), signals=signals, config_hash="bench",
    )  # fmt: skip


def _forget(pools: list[PoolParts]) -> None:
    """Drop what the in-memory providers log for tests: it is not the product's memory."""
    for one in pools:
        probe, telemetry = one.probe, one.telemetry
        if isinstance(probe, MemoryProbe) and isinstance(telemetry, MemoryTelemetry):
            probe.looks.clear()
            probe.generated.clear()
            telemetry.asked.clear()


async def measure(count: int, ticks: int = 3) -> str:
    """One row: CPU seconds a tick of all pools, and the resident memory."""
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w", encoding="utf-8") as sink:
        clock = SystemClock()
        sqlite = import_module("providers.ledger.sqlite")
        context = Context(installation="bench", state_dir=folder, clock=clock)
        ledger = sqlite.build(sqlite.Settings(url=f"sqlite:///{folder}/ledger.db"), context)
        pools = [parts(f"pool-{index}", clock) for index in range(count)]
        journal = open_journal(stream=sink)
        supervisor = Supervisor(ledger, Options(clock=clock, journal=journal, handle_signals=False))
        await supervisor.open(pools)
        tune_collector()
        serving = asyncio.create_task(supervisor.serve())
        await asyncio.sleep(2 * TICK)
        _forget(pools)
        began = _cpu_s()
        await asyncio.sleep(ticks * TICK)
        spent = (_cpu_s() - began) / ticks
        short = [one for one in pools if len(one.balancers["front"].admitted()) != REPLICAS]  # type: ignore[attr-defined]
        memory = psutil.Process().memory_info().rss / 2**20
        supervisor.stop()
        await serving
        await supervisor.close()
        if short:
            message = f"{len(short)} of {count} pools were not at {REPLICAS} in service"
            raise RuntimeError(message)
    return f"| {count:,} | {spent:.2f} s | {spent / count * 1000:.2f} ms | {memory:.0f} MiB |"


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """One row for the number of pools in argv."""
    print(asyncio.run(measure(int(sys.argv[1]))))


if __name__ == "__main__":
    main()
