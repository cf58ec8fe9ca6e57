"""The traffic of the study: which traces, which part of each, on which replica, and how much of it.

One rule sets the amount: in the busiest hundredth of the bins (a minute of an hour's trace, else ten) the work would
keep `PEAK_UNITS` replicas busy if it were spread evenly, which it is not: the best fixed size is up to thirty.

Does: name the sources, read and scale one. Does not: hold a trace, or where they are.
Invariant: equal file, equal workload.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import ConfigError
from autoscaler.lab.hardware import Hardware, profile
from autoscaler.lab.scorecard import Slo
from autoscaler.lab.traces import Drawing, read_workload
from autoscaler.lab.workload import Lengths, Tokens, Workload
from autoscaler.lab.yardsticks import work_s

PEAK_UNITS: Final = 10.0
DAY_S: Final = 86_400.0
SEED: Final = 1
_LENGTHS_DRAWN: Final = 50_000

#: Llama-2-70B on 4 x A100, as measured by splitwise-sim (MIT, data/perf_model.csv): a step of 42.8 ms + 0.433 ms a
#: sequence, 5,078 prompt tokens a second, batches up to 64. Worked out: the KV cache, 0.9 of 320 GB less 140 GB of
#: weights at 328 kB a token. `chunk` is vLLM's default on such GPUs.
A100: Final = Hardware(
    alpha_s=0.0428, beta_s=0.000433, prefill_tokens_per_s=5078.0, max_batch=64, kv_tokens=450_000, chunk=2048, gpus=4,
    source="splitwise-sim data/perf_model.csv (MIT): llama2-70b, A100-80GB, tp 4",
)  # fmt: skip
#: For prompts that an A100 cannot read within the objective, whatever the size of the pool.
H100: Final = "llama-3.1-70b-4xh100-fp8-vllm"


class Source(NamedTuple):
    """One trace. `days`: the part that is run, None for all. `ttft_s`: the objective of the first token.

    `how`: how its data came about. `shape`: "smooth" for a daily wave that can be foreseen.
    """

    name: str
    file: str
    how: str
    days: tuple[float, float] | None = None
    fast: bool = False
    ttft_s: float = 2.0
    tokens: Tokens = Tokens()
    smooth: bool = False

    @property
    def hardware(self) -> Hardware:
        """What a replica is."""
        return profile(H100) if self.fast else A100

    @property
    def slo(self) -> Slo:
        """What a request may take."""
        return Slo(ttft=Duration(self.ttft_s), e2e=Duration(self.ttft_s))

    @property
    def long(self) -> bool:
        """Whether it lasts longer than an hour."""
        return self.file.startswith("resampled") or self.file.endswith("_rate.csv.gz")


#: ServeGen's other families: p50 and p95, and the longest that its p99 lets expect.
_REASONING: Final = Tokens(prompt=Lengths(208, 6714, most=24_000), output=Lengths(792, 5701, most=12_600))
_IMAGES: Final = Tokens(prompt=Lengths(106, 2346, most=3064), output=Lengths(100, 336, most=587))

#: In the order in which they are run. Days count from the file's second 0, which is a midnight.
SOURCES: Final = (
    Source("azure-code", "azure2023_code.csv.gz", "recorded"),
    Source("azure-conv", "azure2023_conv.csv.gz", "recorded"),
    Source("mooncake", "mooncake_conversation.csv.gz", "recorded", fast=True, ttft_s=10.0),
    Source("mid-66", "servegen_client_m-mid_66_14d_rate.csv.gz", "counted", (0, 2), smooth=True),
    Source("azure-week", "azure2024_conv_week_from_figure_rate.csv.gz", "read off a figure", (1, 3), smooth=True),
    Source("image", "servegen_mm-image_1d_rate.csv.gz", "counted", tokens=_IMAGES, smooth=True),
    Source("large-7d", "resampled_servegen_m-large_7d.csv.gz", "resampled", (0, 2)),
    Source("reasoning", "servegen_deepseek-r1_1d_rate.csv.gz", "counted", fast=True, ttft_s=10.0, tokens=_REASONING),
    Source("large-61", "servegen_client_m-large_61_14d_rate.csv.gz", "counted", (0, 2)),
    Source("m-large", "servegen_m-large_14d_rate.csv.gz", "counted", (0, 2)),
    Source("m-small", "servegen_m-small_14d_rate.csv.gz", "counted", (0, 2)),
    Source("large-34", "servegen_client_m-large_34_14d_rate.csv.gz", "counted", (0, 2)),
    Source("spiky-14d", "resampled_servegen_m-large_spiky_14d.csv.gz", "resampled", (0, 2), fast=True),
    Source("small-14", "servegen_client_m-small_14_14d_rate.csv.gz", "counted", (0, 2)),
    Source("m-mid", "servegen_m-mid_14d_rate.csv.gz", "counted", (0, 2)),
    Source("large-104", "servegen_client_m-large_104_14d_rate.csv.gz", "counted", (0, 2)),
    Source("mid-21", "servegen_client_m-mid_21_14d_rate.csv.gz", "counted", (0, 2)),
)  # fmt: skip
BY_NAME: Final = {one.name: one for one in SOURCES}


class Traffic(NamedTuple):
    """What is run, and by how much it was scaled."""

    source: Source
    workload: Workload
    scale: float


def load(source: Source, folder: Path) -> Traffic:
    """Read, cut and scale. Raises ConfigError: a file that is not there or that has mistakes."""
    path = folder / source.file
    if not path.is_file():
        raise ConfigError([f"traces: found no {source.file} in that folder; allowed: the folder of the public traces"])
    if source.file.endswith("_rate.csv.gz"):
        scale = _scale_of_counts(source, path)
        drawn = read_workload(path, Drawing(tokens=source.tokens, seed=SEED, scale=scale))
        return Traffic(source, _cut(source, drawn), scale)
    found = _cut(source, read_workload(path))
    scale = _rounded(PEAK_UNITS / _peak(found, source))
    return Traffic(source, found.scaled(scale, SEED), scale)


def _cut(source: Source, workload: Workload) -> Workload:
    if source.days is None:
        return workload
    return workload.between(source.days[0] * DAY_S, source.days[1] * DAY_S)


def _peak(workload: Workload, source: Source) -> float:
    """Units kept busy in the busiest hundredth of the bins."""
    width_s = 600.0 if source.long else 60.0
    work = np.bincount((workload.arrival_s / width_s).astype(np.int64), weights=work_s(workload, source.hardware))
    return float(np.quantile(work / width_s, 0.99))


def _scale_of_counts(source: Source, path: Path) -> float:
    """Of a rate series, before it is drawn: its requests may be thousands of millions."""
    starts, counts = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(0, 1), unpack=True)
    if source.days is not None:
        counts = counts[(starts >= source.days[0] * DAY_S) & (starts < source.days[1] * DAY_S)]
    rng = np.random.default_rng(SEED)
    some = Workload(
        name=source.name,
        arrival_s=np.zeros(_LENGTHS_DRAWN),
        input_tokens=source.tokens.prompt.draw(rng, _LENGTHS_DRAWN),
        output_tokens=source.tokens.output.draw(rng, _LENGTHS_DRAWN),
        duration_s=1.0,
    )
    each_s = float(work_s(some, source.hardware).mean())
    return _rounded(PEAK_UNITS / (float(np.quantile(counts, 0.99)) / (starts[1] - starts[0]) * each_s))


def _rounded(scale: float) -> float:
    return float(f"{scale:.3g}")
