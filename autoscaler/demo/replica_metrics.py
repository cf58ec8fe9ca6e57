"""The metrics page of the stand-in: vLLM's names, labels and buckets, and DCGM's GPU utilisation.

It translates what the batch knows into samples. It computes no rate and no quantile, and it smooths nothing.
Where time is compressed, latencies are wall seconds, as a client measures them, and vLLM's bucket edges are
there twice, as they are and divided by the time scale, so that quantiles keep their resolution.

Invariant: a series that exists once the model is loaded exists from the first scrape, at zero.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from autoscaler.demo.batching import ContinuousBatch

# Source: vLLM v1/metrics/loggers.py (time to first token) and buckets.py (request latency).
_TTFT_EDGES_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_E2E_EDGES_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FINISHED_REASONS = ("stop", "length", "abort")
_LABELS = ("model_name", "engine")


def bucket_edges(edges_s: Iterable[float], time_scale: float) -> list[float]:
    """The edges as they are and, where time is compressed, divided by the scale as well."""
    edges = set(edges_s)
    return sorted(edges | {float(f"{edge / time_scale:.6g}") for edge in edges})


class ReplicaMetrics:
    """The samples of one replica, in a registry of its own."""

    def __init__(self, *, model: str, gpu: str, port: int, started_at: float, time_scale: float) -> None:
        """Make every series, at zero."""
        self._registry = CollectorRegistry()
        of_model = (model, "0")
        self._running = self._gauge("vllm:num_requests_running", "Running requests.").labels(*of_model)
        self._waiting = self._gauge("vllm:num_requests_waiting", "Waiting requests.").labels(*of_model)
        self._kv_cache = self._gauge("vllm:kv_cache_usage_perc", "KV cache in use, 0 to 1.").labels(*of_model)
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens prefilled.").labels(*of_model)
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens out.").labels(*of_model)
        success = self._counter("vllm:request_success", "Requests finished.", (*_LABELS, "finished_reason"))
        self.finished = {reason: success.labels(*of_model, reason) for reason in _FINISHED_REASONS}
        self.ttft_s = self._histogram(
            "vllm:time_to_first_token_seconds",
            "Time to first token.",
            bucket_edges(_TTFT_EDGES_S, time_scale),
        ).labels(*of_model)
        self.e2e_s = self._histogram(
            "vllm:e2e_request_latency_seconds", "Request latency.", bucket_edges(_E2E_EDGES_S, time_scale)
        ).labels(*of_model)
        self._gauge("process_start_time_seconds", "Start of the process.", ()).set(started_at)
        of_gpu = ("gpu", "UUID", "device", "modelName")
        self._gpu = self._gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization, 0 to 100.", of_gpu)
        self._gpu_labels = ("0", f"GPU-stand-in-{port}", "nvidia0", gpu)
        self._gpu.labels(*self._gpu_labels).set(0)

    def page(self, batch: ContinuousBatch, now_s: float) -> bytes:
        """The page in Prometheus' text format, as of `now_s` on the batch's own clock."""
        self._running.set(batch.running)
        self._waiting.set(batch.waiting)
        self._kv_cache.set(batch.kv_cache_usage)
        self._gpu.labels(*self._gpu_labels).set(round(100 * batch.gpu_utilization(now_s), 1))
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = _LABELS) -> Gauge:
        return Gauge(name, text, labels, registry=self._registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = _LABELS) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, edges: list[float]) -> Histogram:
        return Histogram(name, text, _LABELS, buckets=edges, registry=self._registry)
