"""What comes to a pool: requests with their arrival and lengths, as recorded or drawn from a series of counts.

Does: read request traces and rate series, check every line, draw by seed, cut and scale. Does not: know replicas.
Invariant: arrivals never go backwards, lie within [0, duration_s]; lengths are whole numbers, of output 1 or more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.faults import ConfigError

#: More requests than this at once would not fit into a gigabyte with their results.
REQUESTS_MAX = 15_000_000
#: The standard normal's 95th percentile.
_Z95 = 1.6448536269514722


class Lengths(NamedTuple):
    """A log-normal number of tokens by its median and 95th percentile, at least `least`, at most `most`."""

    p50: float
    p95: float
    most: int = 32_768
    least: int = 1

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
        """`count` lengths."""
        sigma = math.log(self.p95 / self.p50) / _Z95
        drawn = rng.standard_normal(count, dtype=np.float32)
        drawn *= np.float32(sigma)
        np.exp(drawn, out=drawn)
        drawn *= np.float32(self.p50)
        np.clip(np.rint(drawn, out=drawn), self.least, self.most, out=drawn)
        return drawn.astype(np.int32)


class Tokens(NamedTuple):
    """Lengths of prompts and outputs, drawn independently.

    The default is ServeGen's m-large (Alibaba, Apache-2.0, arXiv 2505.09999), request-weighted p50 and p95.
    """

    prompt: Lengths = Lengths(601, 2404)
    output: Lengths = Lengths(53, 539, most=4096)


class Workload(NamedTuple):
    """Requests in order of arrival, seconds from the start. `source` says how they came about.

    `unknown`: columns of lengths that the file had blank from end to end, so that what stands here is a guess.
    """

    name: str
    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    duration_s: float
    source: str = ""
    unknown: frozenset[str] = frozenset()

    @property
    def requests(self) -> int:
        """Number of requests."""
        return len(self.arrival_s)

    def between(self, start_s: float, end_s: float) -> Workload:
        """The requests of [start, end), with `start` as the new second 0. Raises ConfigError when none is left."""
        first, last = np.searchsorted(self.arrival_s, (start_s, end_s))
        if first == last:
            raise ConfigError(
                [f"{self.name}: no request between {start_s:g} and {end_s:g} s; allowed: a part with some"]
            )
        return self._replace(
            arrival_s=self.arrival_s[first:last] - start_s,
            input_tokens=self.input_tokens[first:last],
            output_tokens=self.output_tokens[first:last],
            duration_s=min(end_s, self.duration_s) - start_s,
        )

    def first_half(self) -> Workload:
        """The requests of the first half of the duration."""
        return self.between(0.0, self.duration_s / 2.0)

    def second_half(self) -> Workload:
        """The requests of the second half of the duration."""
        return self.between(self.duration_s / 2.0, self.duration_s + 1.0)._replace(duration_s=self.duration_s / 2.0)

    def scaled(self, factor: float, seed: int = 0) -> Workload:
        """Traffic times `factor`: below 1 a random part, above 1 with copies that come up to a second later."""
        if not 0 < factor < math.inf:
            raise ConfigError([f"{self.name}: scale: found {factor:g}; allowed: a number above 0"])
        rng = np.random.default_rng([seed, 0x5CA1E])
        whole = int(factor)
        times = np.full(self.requests, whole) + (rng.random(self.requests) < factor - whole)
        picked = np.repeat(np.arange(self.requests), times)
        limit_requests(self.name, len(picked))
        copies = np.r_[False, picked[1:] == picked[:-1]]
        arrival = self.arrival_s[picked] + np.where(copies, rng.random(len(picked)), 0.0)
        np.minimum(arrival, self.duration_s, out=arrival)
        order = np.argsort(arrival, kind="stable")
        return self._replace(
            arrival_s=arrival[order],
            input_tokens=self.input_tokens[picked][order],
            output_tokens=self.output_tokens[picked][order],
            source=f"{self.source}, times {factor:g}",
        )


def limit_requests(name: str, count: int) -> None:
    """Raise ConfigError when there are none, or more than fit."""
    if count == 0:
        raise ConfigError([f"{name}: found no request; allowed: at least one"])
    if count > REQUESTS_MAX:
        raise ConfigError(
            [f"{name}: found {count:,} requests; allowed: up to {REQUESTS_MAX:,} at once (use a scale below 1)"]
        )


def from_counts(
    name: str,
    width_s: float,
    counts: NDArray[np.float64],
    tokens: Tokens | None = None,
    seed: int = 0,
    cv: float | NDArray[np.float64] = 1.0,
) -> Workload:
    """Requests of a rate series: `counts` requests (fractions by chance) in each bin of `width_s` seconds.

    `cv`: coefficient of variation of the gaps inside a bin, one number or one a bin; 1 is Poisson given the count,
    more clumps them (gamma gaps, scaled to fill the bin). Equal seed, equal requests.
    """
    tokens = tokens or Tokens()
    rng = np.random.default_rng([seed, 0xA221])
    whole = np.floor(counts).astype(np.int64)
    whole += rng.random(len(counts)) < counts - whole
    total = int(whole.sum())
    limit_requests(name, total)
    arrival = np.empty(total)
    spread = np.broadcast_to(np.asarray(cv, dtype=np.float64), whole.shape)
    at = 0
    for index, count in enumerate(whole.tolist()):
        arrival[at : at + count] = _inside_bin(rng, count, float(spread[index])) * width_s + index * width_s
        at += count
    return Workload(
        name=name,
        arrival_s=arrival,
        input_tokens=tokens.prompt.draw(rng, total),
        output_tokens=tokens.output.draw(rng, total),
        duration_s=width_s * len(counts),
        source="drawn from a rate series",
    )


def _inside_bin(rng: np.random.Generator, count: int, cv: float) -> NDArray[np.float64]:
    """Sorted places of `count` arrivals in a bin, as shares of it: `count` + 1 gaps of this variation, scaled."""
    if count == 0:
        return np.empty(0)
    shape = 1.0 / max(cv, 0.05) ** 2
    gaps = np.cumsum(rng.standard_gamma(shape, count + 1))
    total = float(gaps[-1])
    if total <= 0:  # every gap of a very clumped draw was too small for a float: all at once
        return np.full(count, float(rng.random()))
    return gaps[:-1] / total
