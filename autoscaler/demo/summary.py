"""The verdict on one run: what the clients saw, what the replicas counted, what the daemon said.

Pure: records, counts and samples in, one summary out. It reads no file and draws nothing. Requests, not
averages, are the witness: a request without an answer counts as one that missed its objective.

Invariant: nothing that went wrong can make a figure look better. What could not be counted is counted apart.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from autoscaler.demo.records import RequestRecord, quantile
from autoscaler.demo.replica_stats import ReplicaStats

# What is on its way or serving; a replica that drains is on its way out, and its machine is still paid for.
_WANTED = frozenset({"requested", "booting", "loading", "ready", "in_service"})
_PAID = _WANTED | {"draining", "terminating"}

_LOAD_RATE_PER_S = 2  # requests a wall second that must arrive for a new replica's first request to be expected


class DaemonSample(msgspec.Struct, kw_only=True):
    """The daemon's own view at one moment. *Units*: wall clock seconds, wall seconds."""

    at: float
    phases: dict[str, int]
    capacity: float
    desired: float
    ttft_s_p95: float | None = None
    trust: str = ""
    sentence: str = ""
    why: str = ""  # a few words for the picture, such as "queue 52, aim 4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the run was: needed to turn wall time into trace time, and replicas into GPUs."""

    trace: str
    time_scale: float
    seed: int
    ttft_objective_s: float
    gpus_per_replica: int


class SizeChange(msgspec.Struct, kw_only=True):
    """One step of the pool's wanted size, with the sentence that explained it."""

    at: float
    before: int
    after: int
    sentence: str
    why: str


class Summary(msgspec.Struct, kw_only=True):
    """What a run came to. *Units*: trace seconds, but wall seconds where a comment or the name says so."""

    trace: str
    time_scale: float
    seed: int
    requests: int
    failed: int
    cut: int
    stopped: int  # given up by the client because it was told to end
    sent_before_ready: int
    retried: int
    replicas_peak: int  # in service at once
    replicas_end: int  # machines there at the end, in whatever phase
    machines_peak: int
    scale_outs: int
    scale_ins: int
    ttft_s_p50: float | None
    ttft_s_p95: float | None  # nothing if more than one request in twenty had no first token
    ttft_objective_s: float
    slo_attainment: float  # share of the requests that were answered in full and began in time
    slo_met: bool
    duration_s: float
    gpu_seconds: float
    fixed_peak_gpu_seconds: float
    ready_to_first_request_s: list[float]  # wall seconds: probes, balancer and sockets are not sped up
    ready_in_quiet: int  # replicas not in that list: fewer than two requests came in the second after ready
    ready_never_asked: int  # replicas that got no request although requests came
    send_lag_wall_s_p95: float | None
    wall_s: float


def summarise(
    setting: Setting,
    records: Sequence[RequestRecord],
    replicas: Sequence[ReplicaStats],
    samples: Sequence[DaemonSample],
    *,
    proxy_connect_failures: int = 0,
    proxy_retries: int = 0,
) -> Summary:
    """Sum a run up. Needs at least one sample of the daemon; records and replicas may be empty."""
    scale = setting.time_scale
    ttft_s = [_ttft_s(record, scale) for record in records if record.outcome != "stopped"]
    p95 = _finite(quantile(ttft_s, 0.95))
    in_time = sum(seconds <= setting.ttft_objective_s for seconds in ttft_s)
    changes = size_changes(samples)
    waits, quiet, never = ready_to_first_request(records, replicas)
    wall_s = samples[-1].at - samples[0].at
    machines_peak = max(_count(sample.phases, _PAID) for sample in samples)
    return Summary(
        trace=setting.trace,
        time_scale=scale,
        seed=setting.seed,
        requests=len(records),
        failed=sum(record.outcome == "failed" for record in records),
        cut=sum(record.outcome == "cut" for record in records),
        stopped=sum(record.outcome == "stopped" for record in records),
        sent_before_ready=sum(r.received_before_ready for r in replicas) + proxy_connect_failures,
        retried=proxy_retries,
        replicas_peak=max(_count(sample.phases, {"in_service"}) for sample in samples),
        replicas_end=_count(samples[-1].phases, _PAID),
        machines_peak=machines_peak,
        scale_outs=sum(change.after > change.before for change in changes),
        scale_ins=sum(change.after < change.before for change in changes),
        ttft_s_p50=_finite(quantile(ttft_s, 0.5)),
        ttft_s_p95=p95,
        ttft_objective_s=setting.ttft_objective_s,
        slo_attainment=in_time / len(ttft_s) if ttft_s else 0.0,
        slo_met=p95 is not None and p95 <= setting.ttft_objective_s,
        duration_s=wall_s * scale,
        gpu_seconds=_machine_seconds(samples) * scale * setting.gpus_per_replica,
        fixed_peak_gpu_seconds=machines_peak * wall_s * scale * setting.gpus_per_replica,
        ready_to_first_request_s=waits,
        ready_in_quiet=quiet,
        ready_never_asked=never,
        send_lag_wall_s_p95=quantile((record.send_lag_s for record in records), 0.95),
        wall_s=wall_s,
    )


def size_changes(samples: Sequence[DaemonSample]) -> list[SizeChange]:
    """Where the number of replicas that are serving or on their way changed from one sample to the next."""
    found = []
    for earlier, later in pairwise(samples):
        before, after = _count(earlier.phases, _WANTED), _count(later.phases, _WANTED)
        if after != before:
            change = SizeChange(at=later.at, before=before, after=after, sentence=later.sentence, why=later.why)
            found.append(change)
    return found


def ready_to_first_request(
    records: Sequence[RequestRecord], replicas: Sequence[ReplicaStats]
) -> tuple[list[float], int, int]:
    """Wall seconds from a loaded model to its first client request, where requests were there to be had.

    A replica counts if at least two requests arrived in the second after its model was loaded, and then with
    its whole wait: a lull later on is not taken off. Returns the waits, how many replicas became ready in
    quiet, and how many were never asked although they counted.
    """
    arrivals = sorted(record.sent_at for record in records)
    waits: list[float] = []
    quiet = never = 0
    for replica in replicas:
        ready_at = replica.load_done_at
        if ready_at is None:
            continue
        first = bisect.bisect_left(arrivals, ready_at)
        if bisect.bisect_left(arrivals, ready_at + 1.0) - first < _LOAD_RATE_PER_S:
            quiet += 1
        elif replica.first_client_request_at is None:
            never += 1
        else:
            waits.append(max(0.0, replica.first_client_request_at - ready_at))
    return waits, quiet, never


def document(summary: Summary) -> dict[str, Any]:
    """The summary as plain data, for `--json`."""
    plain: dict[str, Any] = msgspec.to_builtins(summary)
    return plain


def _ttft_s(record: RequestRecord, scale: float) -> float:
    """Trace seconds to the first token; without a whole answer, however fast it began, forever."""
    answered = record.outcome == "ok" and record.ttft_s is not None
    return (record.ttft_s or 0.0) * scale if answered else math.inf


def _finite(seconds: float | None) -> float | None:
    return seconds if seconds is not None and math.isfinite(seconds) else None


def _count(phases: Mapping[str, int], which: frozenset[str] | set[str]) -> int:
    return sum(count for phase, count in phases.items() if phase.lower() in which)


def _machine_seconds(samples: Sequence[DaemonSample]) -> float:
    """Machines times wall seconds; between two samples the earlier one holds."""
    return sum(_count(earlier.phases, _PAID) * (later.at - earlier.at) for earlier, later in pairwise(samples))
