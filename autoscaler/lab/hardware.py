"""How fast a replica is: a published set-up, or one's own numbers.

The model: a step of continuous batching takes `alpha_s` + `beta_s` x sequences + `kv_s` x tokens in the KV cache +
prompt tokens in it / `prefill_tokens_per_s`; prompts are read in chunks of `chunk` tokens a step (see kernel).
What it leaves out: prefix caches, speculative decoding, preemption (a sequence reserves its final length, as if output
lengths were known), swapping, the growing cost of attention within one long prompt, the time of tokenisers and
networks, warm-up of a fresh replica, and that reading a chunk overlaps with reading the weights.

Does: hold the numbers and read the table that ships. Does not: simulate.
Invariant: every number is positive; a profile names its source.
"""

from __future__ import annotations

import csv
from importlib import resources
from typing import Final

import msgspec

from autoscaler.domain.faults import ConfigError

#: The set-up used where none is named: 2 x H100, Qwen3-32B, vLLM.
DEFAULT_PROFILE: Final = "qwen3-32b-2xh100-vllm"


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica. `alpha_s`, `beta_s`, `kv_s`: seconds a step, a sequence in it, a token reserved in the KV cache.

    `prefill_tokens_per_s`: prompt tokens read a second. `max_batch`: sequences at once. `kv_tokens`: tokens of prompt
    and output that fit at once. `chunk`: prompt tokens a step. `speed`: all of it so many times faster. `gpus`: used
    together by one replica, for counting GPU hours.
    """

    alpha_s: float
    beta_s: float
    prefill_tokens_per_s: float
    kv_s: float = 0.0
    max_batch: int = 256
    kv_tokens: int = 300_000
    chunk: int = 8192
    speed: float = 1.0
    gpus: int = 1
    source: str = "given"

    def __post_init__(self) -> None:
        """Raise ValueError with what is wrong."""
        for name in ("alpha_s", "beta_s", "kv_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: found {getattr(self, name)}, allowed is a number from 0 on")
        for name in ("prefill_tokens_per_s", "max_batch", "kv_tokens", "chunk", "speed", "gpus"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: found {getattr(self, name)}, allowed is a number above 0")
        if self.alpha_s + self.beta_s <= 0:
            raise ValueError("alpha_s, beta_s: found both 0, allowed is one above 0: a step takes time")

    def times(self, factor: float) -> Hardware:
        """The same, `factor` times faster."""
        return msgspec.structs.replace(self, speed=self.speed * factor)

    def tokens_per_s(self, sequences: int) -> float:
        """Output tokens a second with `sequences` decoding, short contexts, and no prompt to read."""
        return self.speed * sequences / (self.alpha_s + self.beta_s * sequences)


def profiles() -> dict[str, Hardware]:
    """Every set-up that ships, by name; see data/README.md for whose figures they are."""
    text = (resources.files("autoscaler.lab") / "data" / "gpu_profiles.csv").read_text("utf-8")
    return {row["name"]: _hardware(row) for row in csv.DictReader(text.splitlines())}


def profile(name: str) -> Hardware:
    """The set-up of that name. Raises ConfigError."""
    known = profiles()
    if name not in known:
        raise ConfigError([f"hardware: found {name!r}; allowed: {', '.join(sorted(known))}"])
    return known[name]


def _hardware(row: dict[str, str]) -> Hardware:
    return Hardware(
        alpha_s=float(row["alpha_ms"]) / 1000.0,
        beta_s=float(row["beta_ms"]) / 1000.0,
        kv_s=float(row["kv_us_per_token"]) / 1e6,
        prefill_tokens_per_s=float(row["prefill_tokens_per_s"]),
        max_batch=int(row["max_batch"]),
        kv_tokens=int(row["kv_tokens"]),
        chunk=int(row["chunk"]),
        gpus=int(row["gpus"]),
        source=row["source"],
    )
