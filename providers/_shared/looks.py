"""One look at one replica: what its page of metrics says, in the engine's words.

Does: read a page by a preset. Does not: fetch it, or compare it with an earlier one.
Invariant: what the page does not say, or says outside its range, is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from autoscaler.domain.base import Instant, ReplicaId
from autoscaler.domain.load import Signal
from providers._shared.gpus import GPU_NAMES, Gpus, gpu_use
from providers._shared.metrics_page import Buckets, Page, histogram, mean_ratio, plain, sum_of, total
from providers._shared.presets import PROCESS_START, Preset

ARRIVALS: Final = "arrivals"
COMPLETIONS: Final = "completions"
TOKENS: Final = "tokens"
PROMPT_TOKENS: Final = "prompt_tokens"
TTFT: Final = "ttft"
E2E: Final = "e2e"


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica said at `at`; `fault`: why it said nothing. `gauges`: the values of signals at this instant."""

    replica: ReplicaId
    at: Instant
    fault: str = ""
    gpu_fault: str = ""
    gauges: Mapping[Signal, float] = {}
    counters: Mapping[str, Buckets] = {}
    started: float | None = None


def wanted_names(preset: Preset) -> frozenset[str]:
    """The plain names that a replica's own page is searched for."""
    names = [*preset.running, *preset.waiting, *preset.tokens, *preset.prompt_tokens]
    names += [*preset.arrivals, *preset.completions, *PROCESS_START]
    names += [gauge.name for gauge in preset.kv_cache]
    names += [f"{name}_bucket" for name in (*preset.ttft, *preset.e2e)]
    return frozenset(map(plain, names)) | GPU_NAMES


def read_gauges(page: Page, gpu_page: Page | None, preset: Preset, gpus: Gpus = Gpus.MEAN) -> dict[Signal, float]:
    """The signals that are values of an instant; the GPU exporter, where there is one, knows better than the server."""
    gpu = None if gpu_page is None else gpu_use(gpu_page, gpus)
    values = {
        Signal.QUEUE_LENGTH: total(page, preset.waiting),
        Signal.RUNNING: total(page, preset.running),
        Signal.KV_CACHE_USE: mean_ratio(page, preset.kv_cache),
        Signal.GPU_UTILIZATION: gpu_use(page, gpus) if gpu is None else gpu,
    }
    return {signal: value for signal, value in values.items() if value is not None}


def read_counters(page: Page, preset: Preset) -> dict[str, Buckets]:
    """The counters and histograms of a page, those that are there."""
    plain_counters = {
        ARRIVALS: sum_of(page, preset.arrivals),
        COMPLETIONS: sum_of(page, preset.completions),
        TOKENS: total(page, preset.tokens),
        PROMPT_TOKENS: total(page, preset.prompt_tokens),
    }
    found = {name: {math.inf: value} for name, value in plain_counters.items() if value is not None}
    histograms = {TTFT: histogram(page, preset.ttft), E2E: histogram(page, preset.e2e)}
    return found | {name: buckets for name, buckets in histograms.items() if buckets is not None}


def read_start(page: Page) -> float | None:
    """When the process started, Unix seconds."""
    return total(page, PROCESS_START)
