"""Each figure of the summary, by an example whose result is worked out beside it."""

from typing import Any

import pytest

from autoscaler.demo.records import Outcome, RequestRecord
from autoscaler.demo.replica_stats import ReplicaStats
from autoscaler.demo.summary import (
    DaemonSample,
    Setting,
    document,
    ready_to_first_request,
    size_changes,
    summarise,
)

SETTING = Setting(trace="t", time_scale=10.0, seed=1, ttft_objective_s=2.0, gpus_per_replica=2)


def answered(at: float, ttft_wall_s: float | None = 0.1, outcome: Outcome = "ok") -> RequestRecord:
    return RequestRecord(
        index=0,
        scheduled_at=at,
        sent_at=at,
        first_token_at=None if ttft_wall_s is None else at + ttft_wall_s,
        input_tokens=1,
        output_tokens=1,
        outcome=outcome,
    )


def seen(at: float, **phases: int) -> DaemonSample:
    return DaemonSample(at=at, phases=phases, capacity=phases.get("in_service", 0), desired=1, sentence="why")


def a_replica(**stamps: Any) -> ReplicaStats:
    return ReplicaStats(port=1, pid=1, model="m", time_scale=10.0, started_at=0.0, **stamps)


def test_latency_is_in_trace_time_and_an_unanswered_request_is_never_in_time() -> None:
    records = [answered(float(i), 0.1) for i in range(18)]  # 0.1 s of wall time are 1 s of the trace
    records += [answered(18.0, 0.5), answered(19.0, None, "failed")]
    summary = summarise(SETTING, records, [], [seen(0, in_service=1)])
    assert summary.ttft_s_p95 == pytest.approx(5.0)
    assert summary.slo_attainment == pytest.approx(18 / 20)
    assert not summary.slo_met
    assert (summary.requests, summary.failed, summary.cut) == (20, 1, 0)


def test_a_cut_stream_that_began_in_time_still_misses_the_objective() -> None:
    records = [answered(0.0, 0.01)] * 9 + [answered(0.0, 0.01, "cut")]
    summary = summarise(SETTING, records, [], [seen(0, in_service=1)])
    assert summary.ttft_s_p95 is None
    assert summary.slo_attainment == pytest.approx(0.9)
    assert not summary.slo_met


def test_a_run_that_keeps_its_objective_says_so() -> None:
    summary = summarise(SETTING, [answered(0.0)] * 20, [], [seen(0, in_service=1)])
    assert summary.slo_met
    assert summary.slo_attainment == 1.0


def test_no_request_is_no_success() -> None:
    summary = summarise(SETTING, [], [], [seen(0, in_service=1)])
    assert (summary.ttft_s_p95, summary.slo_attainment, summary.slo_met) == (None, 0.0, False)


def test_requests_that_the_client_gave_up_are_counted_apart() -> None:
    records = [answered(0.0)] * 4 + [answered(0.0, None, "stopped")]
    summary = summarise(SETTING, records, [], [seen(0, in_service=1)])
    assert (summary.requests, summary.stopped, summary.slo_attainment) == (5, 1, 1.0)


def test_too_early_requests_are_what_replicas_counted_and_what_the_proxy_could_not_connect() -> None:
    replicas = [a_replica(received_before_ready=2), a_replica(received_before_ready=1)]
    summary = summarise(SETTING, [], replicas, [seen(0, in_service=1)], proxy_connect_failures=4, proxy_retries=5)
    assert (summary.sent_before_ready, summary.retried) == (7, 5)


def test_gpus_are_paid_from_the_request_to_the_end_of_the_drain() -> None:
    samples = [
        seen(0.0, in_service=1),
        seen(10.0, in_service=1, requested=2),
        seen(20.0, in_service=3),
        seen(40.0, in_service=2, draining=1),
        seen(41.0, in_service=2, terminating=1),
        seen(42.0, in_service=2, gone=1),
        seen(50.0, in_service=2),
    ]
    summary = summarise(SETTING, [], [], samples)
    # wall: 10 x 1 + 10 x 3 + 20 x 3 + 1 x 3 + 1 x 3 + 8 x 2 = 122 machine seconds; x 10 (scale) x 2 (GPUs)
    assert summary.gpu_seconds == pytest.approx(2440)
    assert summary.fixed_peak_gpu_seconds == pytest.approx(3 * 50 * 10 * 2)
    assert (summary.replicas_peak, summary.machines_peak, summary.replicas_end) == (3, 3, 2)
    assert (summary.scale_outs, summary.scale_ins) == (1, 1)
    assert (summary.duration_s, summary.wall_s) == (500, 50)


def test_a_replica_on_its_way_through_the_phases_is_one_change() -> None:
    samples = [seen(0, IN_SERVICE=1), seen(1, IN_SERVICE=1, LOADING=2), seen(2, IN_SERVICE=2, READY=1)]
    samples += [seen(3, IN_SERVICE=3), seen(4, IN_SERVICE=2, DRAINING=1), seen(5, IN_SERVICE=2)]
    assert [(c.at, c.before, c.after, c.sentence) for c in size_changes(samples)] == [
        (1, 1, 3, "why"),
        (4, 3, 2, "why"),
    ]


def test_what_is_left_over_at_the_end_is_seen() -> None:
    summary = summarise(SETTING, [], [], [seen(0, in_service=1), seen(1, in_service=1, draining=1)])
    assert summary.replicas_end == 2


def test_the_wait_for_a_first_request_counts_where_requests_were_to_be_had() -> None:
    records = [answered(100.0 + i / 4) for i in range(20)]  # four a second, from 100 s to 105 s
    replicas = [
        a_replica(load_done_at=101.0, first_client_request_at=101.4),
        a_replica(load_done_at=102.0, first_client_request_at=104.5),
        a_replica(load_done_at=50.0, first_client_request_at=100.0),  # ready in quiet
        a_replica(load_done_at=104.7, first_client_request_at=None),  # one request came: quiet as well
        a_replica(load_done_at=103.0),  # requests came, none to it
        a_replica(),  # never loaded
    ]
    waits, quiet, never = ready_to_first_request(records, replicas)
    assert waits == [pytest.approx(0.4), pytest.approx(2.5)]
    assert (quiet, never) == (2, 1)


def test_the_document_has_what_the_demo_promises() -> None:
    promised = {
        "requests", "failed", "cut", "sent_before_ready", "retried", "replicas_peak", "replicas_end",
        "scale_outs", "scale_ins", "ttft_s_p95", "slo_attainment", "gpu_seconds", "fixed_peak_gpu_seconds",
        "ready_to_first_request_s", "slo_met", "time_scale", "seed", "trace",
    }  # fmt: skip
    assert promised <= document(summarise(SETTING, [], [], [seen(0, in_service=1)])).keys()
