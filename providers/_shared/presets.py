"""What is known of each model server: where it says that its model is loaded, and what its metrics are called.

Does: state facts, one table row a server. Does not: ask anything over a socket or interpret an answer.
Invariant: names are tried in order and match with `:` and `_` alike, with or without `_total`: Python servers may
replace colons when they speak OpenMetrics, and counters of prometheus_client get a suffix.

Sources: the servers' own code and documentation at vLLM 0.33, SGLang 0.5.23, TGI db931fc, llama.cpp 11434, Triton
2.51, TorchServe 0.12, dcgm-exporter d5e5f51. The last three and llama.cpp were also run; see tests/providers/data.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class LoadedCheck(StrEnum):
    """What shows that the model is loaded, after the liveness path answered 200."""

    STATUS = "status"  # the liveness path itself: 200 is loaded
    MODELS = "models"  # GET /v1/models lists the model
    TRITON = "triton"  # GET /v2/models/NAME/ready is 200; 400 (not 503) while loading
    TORCHSERVE = "torchserve"  # management port: GET /models/NAME shows workers READY


class Generation(StrEnum):
    """The smallest real inference, and the shape of an answer that has content."""

    COMPLETIONS = "completions"  # POST /v1/completions -> choices[0].text or usage.completion_tokens
    TGI = "tgi"  # POST /generate -> generated_text
    TRITON = "triton"  # POST /v2/models/NAME/infer -> outputs[].data
    TORCHSERVE = "torchserve"  # POST /predictions/NAME -> a body


class Scaled(msgspec.Struct, frozen=True):
    """A gauge's name, and the value that means "all of it": 1 or 100."""

    name: str
    full: float = 1.0


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One model server.

    An empty tuple of names: the server does not export it. `ttft` and `e2e` are histograms in seconds. `tokens`:
    generated tokens; `prompt_tokens`: processed ones. `progress`: counters that move while a request is being
    generated; their sum standing still with requests inside means that the server hangs. A counter that moves only when
    a request ends is no such counter. `arrivals`, `completions`: each a group of counters to be added up, of which the
    first must be there.
    """

    name: str
    live: str
    loaded: LoadedCheck
    generation: Generation
    needs_model: bool = False
    metrics_path: str | None = "/metrics"
    metrics_port: int | None = None
    management_port: int | None = None
    slowest_health_s: float = 0.0
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_cache: tuple[Scaled, ...] = ()
    ttft: tuple[str, ...] = ()
    e2e: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    prompt_tokens: tuple[str, ...] = ()
    progress: tuple[str, ...] = ()
    arrivals: tuple[str, ...] = ()
    completions: tuple[str, ...] = ()


#: GPU utilisation, wherever it is exported; the order is the order of trust. DCGM_FI_DEV_GPU_UTIL is missing on MIG
#: cards, where the engine's activity is given instead; DCGM 4.6 renamed that one. Its DCGM_FI_DEV_GPU_UTIL_RATIO is not
#: read: the name has meant 0..100 (4.6, field 203) and 0..1 (4.7, field 1613), and a page does not say which.
GPU_UTILIZATION: Final = (
    Scaled("DCGM_FI_DEV_GPU_UTIL", 100.0),
    Scaled("DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
    Scaled("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
    Scaled("nvidia_smi_utilization_gpu_ratio"),
    Scaled("nv_gpu_utilization"),
    Scaled("GPUUtilization", 100.0),
)

#: When the process started, Unix seconds; prometheus_client's own name, missing in its multiprocess mode.
PROCESS_START: Final = ("process_start_time_seconds",)

_PRESETS: Final = (
    Preset(
        name="vllm",
        live="/health",
        loaded=LoadedCheck.MODELS,  # refuses connections while it loads
        generation=Generation.COMPLETIONS,
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_cache=(Scaled("vllm:kv_cache_usage_perc"), Scaled("vllm:gpu_cache_usage_perc")),
        ttft=("vllm:time_to_first_token_seconds",),
        e2e=("vllm:e2e_request_latency_seconds",),
        tokens=("vllm:generation_tokens",),
        prompt_tokens=("vllm:prompt_tokens",),
        progress=("vllm:generation_tokens",),
        completions=("vllm:request_success",),
    ),
    Preset(
        name="sglang",
        live="/health",
        loaded=LoadedCheck.MODELS,
        generation=Generation.COMPLETIONS,
        slowest_health_s=1.0,  # its health check generates, and looks for the answer in steps of 1 s
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        kv_cache=(Scaled("sglang:token_usage"), Scaled("sglang:full_token_usage")),
        ttft=("sglang:time_to_first_token_seconds",),
        e2e=("sglang:e2e_request_latency_seconds",),
        tokens=("sglang:generation_tokens",),
        prompt_tokens=("sglang:prompt_tokens",),
        progress=("sglang:realtime_tokens",),  # generation_tokens moves only when a request ends
        completions=("sglang:num_requests",),
    ),
    Preset(
        name="tgi",
        live="/health",
        loaded=LoadedCheck.STATUS,  # refuses connections until it is warm
        generation=Generation.TGI,
        running=("tgi_batch_current_size",),
        waiting=("tgi_queue_size",),
        e2e=("tgi_request_duration",),  # seconds, though the name does not say so
        tokens=("tgi_request_generated_tokens_sum",),
        prompt_tokens=("tgi_request_input_length_sum",),
        arrivals=("tgi_request_count",),
        completions=("tgi_request_success", "tgi_request_failure"),
    ),
    Preset(
        name="llama_cpp",
        live="/health",  # 503 on every route while it loads; under load it may starve: see docs/model-servers.md
        loaded=LoadedCheck.STATUS,
        generation=Generation.COMPLETIONS,
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        kv_cache=(Scaled("llamacpp:kv_cache_usage_ratio"),),  # older versions only
        tokens=("llamacpp:tokens_predicted",),
        prompt_tokens=("llamacpp:prompt_tokens",),
        progress=("llamacpp:n_decode", "llamacpp:tokens_predicted"),  # the second moves only when a request ends
    ),
    Preset(
        name="triton",
        live="/v2/health/live",
        loaded=LoadedCheck.TRITON,  # /v2/health/ready is 200 with no model loaded
        generation=Generation.TRITON,
        needs_model=True,
        metrics_port=8002,
        waiting=("nv_inference_pending_request_count",),
        completions=("nv_inference_request_success", "nv_inference_request_failure"),
    ),
    Preset(
        name="torchserve",
        live="/ping",  # stays Healthy for minutes while its workers crash
        loaded=LoadedCheck.TORCHSERVE,
        generation=Generation.TORCHSERVE,
        needs_model=True,
        metrics_port=8082,
        management_port=8081,
        arrivals=("ts_inference_requests",),
    ),
    Preset(
        name="nim",  # 1.x, at second hand and not run here; 2.x has vLLM's names: preset vllm with path /v1/metrics
        live="/v1/health/ready",
        loaded=LoadedCheck.MODELS,
        generation=Generation.COMPLETIONS,
        metrics_path="/v1/metrics",
        running=("num_requests_running",),
        waiting=("num_requests_waiting",),
        kv_cache=(Scaled("gpu_cache_usage_perc"),),
        ttft=("time_to_first_token_seconds",),
        e2e=("e2e_request_latency_seconds",),
        tokens=("generation_tokens",),
        prompt_tokens=("prompt_tokens",),
        progress=("generation_tokens",),
        completions=("request_success",),
    ),
    Preset(
        name="openai",
        live="/v1/models",
        loaded=LoadedCheck.MODELS,
        generation=Generation.COMPLETIONS,
        metrics_path=None,
    ),
)

PRESETS: Final = {preset.name: preset for preset in _PRESETS}


def mistake_in_preset(name: str) -> str:
    """Say what is wrong with a preset's name; empty when nothing is."""
    return "" if name in PRESETS else f"preset: found {name!r}, allowed is one of {', '.join(PRESETS)}"


def mistakes_in_ports(ports: dict[str, int | None]) -> list[str]:
    """Say which of these ports cannot be one; None is fine."""
    return [
        f"{field}: found {port}, allowed is a port from 1 to 65535"
        for field, port in ports.items()
        if port is not None and not 1 <= port <= 65535
    ]
