"""The speed of one GPU set-up, from a named row of the profile table that ships with the package.

It reads `data/gpu_profiles.csv` and answers how fast such a server prefills and decodes. It does not
interpolate between rows and has no default for a missing figure.

Invariant: a profile has a positive prefill rate and positive itl coefficients, or is refused.
"""

import csv
from dataclasses import dataclass
from importlib import resources

_MS_PER_S = 1000.0


class UnknownProfileError(ValueError):
    """The name is in no row of the table; the message lists the names there are."""


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """Speed of one model on one GPU set-up. Source: the row's own `source`, kept word for word."""

    name: str
    gpu: str
    gpus: int
    model: str
    prefill_tokens_per_s: float
    itl_alpha_ms: float
    itl_beta_ms: float
    kind: str
    source: str

    def itl_s(self, decoding: int) -> float:
        """Seconds between two output tokens of one sequence while `decoding` sequences decode."""
        return (self.itl_alpha_ms + self.itl_beta_ms * decoding) / _MS_PER_S


def profiles() -> dict[str, GpuProfile]:
    """Every row that ships, by name."""
    text = (resources.files("autoscaler.demo") / "data" / "gpu_profiles.csv").read_text("utf-8")
    return {row["name"]: _profile(row) for row in csv.DictReader(text.splitlines())}


def profile(name: str) -> GpuProfile:
    """The row of that name. Raises UnknownProfileError."""
    rows = profiles()
    if name not in rows:
        msg = f"no GPU profile {name!r}: allowed are {', '.join(sorted(rows))}"
        raise UnknownProfileError(msg)
    return rows[name]


def _profile(row: dict[str, str]) -> GpuProfile:
    found = GpuProfile(
        name=row["name"],
        gpu=row["gpu"],
        gpus=int(row["tp"]),
        model=row["model"],
        prefill_tokens_per_s=float(row["prefill_tokens_per_s"]),
        itl_alpha_ms=float(row["itl_alpha_ms"]),
        itl_beta_ms=float(row["itl_beta_ms"]),
        kind=row["kind"],
        source=row["source"],
    )
    if min(found.prefill_tokens_per_s, found.itl_alpha_ms, found.itl_beta_ms) <= 0:
        msg = f"GPU profile {found.name!r}: prefill rate and itl coefficients must be above 0"
        raise ValueError(msg)
    return found
