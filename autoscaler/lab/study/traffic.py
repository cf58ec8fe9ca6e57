"""The traffic of the study: which traces, which part of each, on which replica, and how much of it.

One rule sets the amount: the work of the busiest hundredth of the bins (a minute of an hour's trace, else ten) would
keep 10 replicas busy, or 7 where days are run, if it were spread evenly. It is not: pools are larger than that.

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
from autoscaler.lab.traces import read_workload
from autoscaler.lab.workload import Lengths, Tokens, Workload, from_counts
from autoscaler.lab.yardsticks import work_s

PEAK_UNITS: Final = (10.0, 7.0)
DAY_S: Final = 86_400.0
SEED: Final = 1
_LENGTHS_DRAWN: Final = 50_000.0

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
    def peak_units(self) -> float:
        """Replicas that the work of its busiest hundredth keeps busy, after scaling."""
        return PEAK_UNITS[self.long]

    @property
    def long(self) -> bool:
        """Whether it lasts longer than an hour."""
        return self.file.startswith("resampled") or self.file.endswith("_rate.csv.gz")


#: p50 and p95 of ServeGen's reasoning family and of Azure's conversations, and the longest that is plausible.
_REASONING: Final = Tokens(prompt=Lengths(208, 6714, most=24_000), output=Lengths(792, 5701, most=12_600))

_CHAT: Final = Tokens(prompt=Lengths(1020, 4083, most=8000), output=Lengths(129, 451, most=1500))

#: In the order in which they are run. Days count from the file's second 0, which is a midnight.
SOURCES: Final = (
    Source("azure-code", "azure2023_code.csv.gz", "recorded"),
    Source("azure-conv", "azure2023_conv.csv.gz", "recorded"),
    Source("mooncake", "mooncake_conversation.csv.gz", "recorded", fast=True, ttft_s=10.0),
    Source("mid-66", "servegen_client_m-mid_66_14d_rate.csv.gz", "counted", (0, 2), smooth=True),
    Source(
        "azure-week", "azure2024_conv_week_from_figure_rate.csv.gz", "read off a figure", (1, 3), tokens=_CHAT,
        smooth=True,
    ),
    Source("large-7d", "resampled_servegen_m-large_7d.csv.gz", "resampled", (0, 1)),
    Source("reasoning", "servegen_deepseek-r1_1d_rate.csv.gz", "counted", fast=True, ttft_s=10.0, tokens=_REASONING),
    Source("large-61", "servegen_client_m-large_61_14d_rate.csv.gz", "counted", (0, 1)),
    Source("m-large", "servegen_m-large_14d_rate.csv.gz", "counted", (0, 1)),
    Source("m-small", "servegen_m-small_14d_rate.csv.gz", "counted", (0, 1)),
    Source("large-34", "servegen_client_m-large_34_14d_rate.csv.gz", "counted", (0, 1)),
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
        return _drawn(source, path)
    found = _cut(source, read_workload(path))
    scale = _rounded(source.peak_units / _peak(found, source))
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


def _drawn(source: Source, path: Path) -> Traffic:
    """Of a rate series only the part is drawn: the whole may have thousands of millions of requests."""
    series = np.genfromtxt(path, delimiter=",", names=True)
    starts, counts = series["start_s"], series["requests"]
    first, last = (0.0, np.inf) if source.days is None else (source.days[0] * DAY_S, source.days[1] * DAY_S)
    part = (starts >= first) & (starts < last)
    cv = np.ones(len(starts))
    if "interarrival_cv" in (series.dtype.names or ()):
        cv = np.nan_to_num(series["interarrival_cv"], nan=1.0)
    width_s = float(starts[1] - starts[0])
    some = from_counts(source.name, 1.0, np.array([_LENGTHS_DRAWN]), source.tokens, SEED)
    each_s = float(work_s(some, source.hardware).mean())
    scale = _rounded(source.peak_units / (float(np.quantile(counts[part], 0.99)) / width_s * each_s))
    return Traffic(
        source, from_counts(source.name, width_s, counts[part] * scale, source.tokens, SEED, cv[part]), scale
    )


def _rounded(scale: float) -> float:
    return float(f"{scale:.3g}")
