from prometheus_client.parser import text_string_to_metric_families

from autoscaler.demo.batching import ContinuousBatch, Limits
from autoscaler.demo.profile import profile
from autoscaler.demo.replica_metrics import ReplicaMetrics, bucket_edges

GPU = profile("qwen3-32b-2xh100-vllm")


def some_metrics() -> ReplicaMetrics:
    return ReplicaMetrics(model="m", gpu=GPU.gpu, port=8000, started_at=12.5, time_scale=25)


def samples(page: bytes) -> dict[str, float]:
    """Series without labels, but for the reason a request finished."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason", "")
            found[sample.name + (f"/{reason}" if reason else "")] = sample.value
    return found


def test_every_series_is_there_from_the_first_scrape() -> None:
    found = samples(some_metrics().page(ContinuousBatch(GPU, Limits()), 0.0))
    expected = {
        "vllm:num_requests_running": 0.0,
        "vllm:num_requests_waiting": 0.0,
        "vllm:kv_cache_usage_perc": 0.0,
        "vllm:prompt_tokens_total": 0.0,
        "vllm:generation_tokens_total": 0.0,
        "vllm:request_success_total/stop": 0.0,
        "vllm:request_success_total/length": 0.0,
        "vllm:request_success_total/abort": 0.0,
        "vllm:time_to_first_token_seconds_count": 0.0,
        "vllm:e2e_request_latency_seconds_count": 0.0,
        "process_start_time_seconds": 12.5,
        "DCGM_FI_DEV_GPU_UTIL": 0.0,
    }
    assert expected.items() <= found.items()


def test_gauges_show_the_batch_and_the_gpu_is_on_dcgms_scale() -> None:
    batch = ContinuousBatch(GPU, Limits(max_num_batched_tokens=2048), utilization_window_s=15)
    for _ in range(5):
        batch.submit(2048, 10, 0.0)
    page = samples(some_metrics().page(batch, 0.1))
    assert (page["vllm:num_requests_running"], page["vllm:num_requests_waiting"]) == (1.0, 4.0)
    batch.advance(100.0)
    batch.submit(1_000_000, 1, 100.0)
    assert samples(some_metrics().page(batch, 130.0))["DCGM_FI_DEV_GPU_UTIL"] == 0.0  # larger than the cache
    batch = ContinuousBatch(GPU, Limits(kv_cache_tokens=10_000_000), utilization_window_s=15)
    batch.submit(1_000_000, 1, 0.0)
    batch.advance(30.0)
    assert samples(some_metrics().page(batch, 30.0))["DCGM_FI_DEV_GPU_UTIL"] == 100.0


def test_compressed_time_adds_edges_and_takes_none_away() -> None:
    edges = bucket_edges([0.5, 1.0, 2.5], 25)
    assert edges == [0.02, 0.04, 0.1, 0.5, 1.0, 2.5]
    assert bucket_edges([0.5, 1.0], 1.0) == [0.5, 1.0]
