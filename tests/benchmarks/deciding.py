"""How long decide() alone takes: p50 and p99 for 10 and 100 replicas with four policies.

Does: build a steady pool and time single calls. Does not: touch I/O.
Invariant: every timed call returns a full decision on a pool that is in service.
"""

from __future__ import annotations

import statistics
import time
from importlib import import_module

import msgspec

from autoscaler.domain.base import Duration, InstanceId, Instant, PoolName, Token, replica_id
from autoscaler.domain.decision import Calendar, Decision, Observation
from autoscaler.domain.load import Kind, LoadSample, Reading, ReadingState, Signal
from autoscaler.domain.memory import Memory
from autoscaler.domain.pool import BalancerTraits, Bounds, Offer, Pool
from autoscaler.domain.replica import (
    BalancerView,
    ComputeView,
    Instance,
    InstanceState,
    Member,
    MemberState,
    ProbeRecord,
    ProbeVerdict,
    Traffic,
)
from autoscaler.engine.decide import decide
from autoscaler.ports.policy import Policy

replace = msgspec.structs.replace
TICK_S = 15.0


def four_policies() -> tuple[Policy, ...]:
    """Two target trackers, a latency objective and steps, with their default settings."""
    tracking, slo, step = (import_module(f"policies.{name}") for name in ("target_tracking", "latency_slo", "step"))
    return (
        tracking.build(tracking.Settings(signal=Signal.QUEUE_LENGTH, target=4.0)),
        tracking.build(tracking.Settings(signal=Signal.GPU_UTILIZATION, target=0.75)),
        slo.build(slo.Settings(signal=Signal.TTFT_S_P95, objective=Duration(2.0))),
        step.build(
            step.Settings(
                signal=Signal.KV_CACHE_USE,
                steps=(step.StepOut(at_least=0.9, add=1),),
                scale_in=step.StepIn(below=0.2, remove=1),
            )
        ),
    )


def a_pool(replicas: int) -> Pool:
    """A pool that may hold `replicas` and a few more."""
    return Pool(
        installation="bench",
        name=PoolName("bench"),
        bounds=Bounds(min=1, max=replicas + 5),
        offers=(Offer(name="only", compute="memory", ports=(8000,), usd_per_h=10.0),),
        balancers=(BalancerTraits(name="memory", counts_active=True, weights=True),),
    )


def observe(replicas: int, now: Instant) -> Observation:
    """Everything in service, busy, and freshly probed."""
    ids = [InstanceId(f"machine-{index}") for index in range(replicas)]
    rids = [replica_id(one, 8000) for one in ids]
    verdict = ProbeVerdict(alive=True, loaded=True, running=12, waiting=2, tokens_total=1e6, boot="b")

    def reading(signal: Signal, kind: Kind, value: float, samples: int = 0) -> Reading:
        return Reading(
            signal=signal,
            kind=kind,
            state=ReadingState.OK,
            at=now,
            value=value,
            covered=replicas,
            expected=replicas,
            samples=samples,
            source="bench",
        )

    load = LoadSample(
        at=now,
        readings={
            Signal.QUEUE_LENGTH: reading(Signal.QUEUE_LENGTH, Kind.TOTAL, 2.0 * replicas),
            Signal.GPU_UTILIZATION: reading(Signal.GPU_UTILIZATION, Kind.MEAN, 0.72),
            Signal.KV_CACHE_USE: reading(Signal.KV_CACHE_USE, Kind.MEAN, 0.5),
            Signal.TTFT_S_P95: reading(Signal.TTFT_S_P95, Kind.QUANTILE, 0.8, 400),
        },
    )
    return Observation(
        now=now,
        computes={
            "memory": ComputeView(
                compute="memory",
                as_of=now,
                instances=tuple(
                    Instance(
                        id=one,
                        token=Token("bench-1-0"),
                        offer="only",
                        zone="local",
                        state=InstanceState.RUNNING,
                        launched_at=Instant(0.0),
                        address=f"10.0.0.{index}",
                        ports=(8000,),
                        boot="b",
                    )
                    for index, one in enumerate(ids)
                ),
            )
        },
        balancers={
            "memory": BalancerView(
                balancer="memory",
                as_of=now,
                members=tuple(
                    Member(
                        endpoint=f"10.0.0.{index}:8000",
                        replica=rid,
                        state=MemberState.ADMITTED,
                        traffic=Traffic.YES,
                        weight=100,
                        active=12,
                    )
                    for index, rid in enumerate(rids)
                ),
            )
        },
        load=load,
        probes={
            rid: ProbeRecord(replica=rid, boot="b", passes=2, last=verdict, last_at=now, loaded_at=Instant(0.0))
            for rid in rids
        },
    )


def time_decide(replicas: int, calls: int, *, anew: bool = True) -> tuple[float, float]:
    """Median and 99th percentile of one call, in milliseconds.

    `anew`: every machine, member and record is made anew for each call, as a daemon's ports do; else only the load
    and the instants are, as in a simulation.
    """
    first = observe(replicas, Instant(1_000_000.0))
    pool, policies, memory = a_pool(replicas), four_policies(), Memory(epoch="bench")
    times_ms: list[float] = []
    decision: Decision | None = None
    for index in range(calls):
        observation = observe(replicas, Instant(1_000_000.0 + index * TICK_S))
        if not anew:
            observation = replace(
                observation, computes=first.computes, balancers=first.balancers, probes=first.probes
            )  # fmt: skip
        began = time.perf_counter()
        decision = decide(pool, policies, memory, observation, Calendar(utc="2026-12-01T00:00:00"))
        times_ms.append((time.perf_counter() - began) * 1000.0)
        memory = decision.memory
    if decision is None or decision.capacity.in_service != replicas:
        message = f"the benchmark's pool is not in service: {decision and decision.sentence}"
        raise RuntimeError(message)
    quantiles = statistics.quantiles(times_ms, n=100)
    return statistics.median(times_ms), quantiles[98]


def table(calls: int = 500) -> list[str]:
    """The README's rows."""
    rows = ["| replicas | p50 | p99 |", "|---|---|---|"]
    for replicas in (10, 30, 100):
        p50, p99 = time_decide(replicas, calls)
        rows.append(f"| {replicas} | {p50:.2f} ms | {p99:.2f} ms |")
    p50, p99 = time_decide(30, calls, anew=False)
    rows.append(f"| 30, nothing new but load | {p50:.2f} ms | {p99:.2f} ms |")
    return rows


if __name__ == "__main__":
    print("\n".join(table()))
