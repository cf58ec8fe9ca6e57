"""The load of the past as a workload: counts in bins become requests, with the lengths that were measured.

Does: fill bins that are not known from their neighbours and say how many; draw arrivals by seed; give each bin's
requests the mean lengths measured around it. Does not: ask a server, or know how lengths spread: that is log-normal,
as the world file or the default has it.
Invariant: equal history, settings and seed, equal requests; more than half of the bins unknown is a mistake, no guess.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.faults import ConfigError
from autoscaler.lab.saved import write
from autoscaler.lab.traces import REQUEST_COLUMNS
from autoscaler.lab.workload import Workload, from_counts
from autoscaler.lab.world_file import WorldFile
from autoscaler.ports.telemetry import History

#: Bins over which a mean length is taken: tokens and requests of one bin need not be of the same requests.
_AROUND: Final = 11
_LONGEST: Final = 1_000_000


class Past(NamedTuple):
    """A workload of the past, and what a reader of its figures should know."""

    workload: Workload
    notes: list[str]


def workload_of(history: History, world: WorldFile, name: str, seed: int) -> Past:
    """The workload of a history. Raises ConfigError when there is too little of it."""
    counts, unknown = _filled(history.requests)
    whole = len(history.requests)
    if not whole or unknown * 2 > whole:
        raise ConfigError([f"{name}: {unknown} of {whole} bins are not known; allowed: a time of which most is"])
    if counts.sum() <= 0:
        raise ConfigError([f"{name}: no request in {whole} bins of {history.width:g} s; allowed: a time with some"])
    notes = [history.detail] if history.detail else []
    if unknown:
        notes.append(f"{unknown} of {whole} bins were not known and are drawn between their neighbours")
    drawing = world.drawing(seed)
    cv = 1.0 if drawing.cv is None else drawing.cv
    drawn = from_counts(name, history.width, counts * drawing.scale, drawing.tokens, seed, cv)
    place = np.minimum((drawn.arrival_s / history.width).astype(np.int64), whole - 1)
    given = world.workload.tokens
    guessed: set[str] = set()
    lengths = {}
    for column, measured, own in (
        ("input_tokens", history.input_tokens, given.prompt),
        ("output_tokens", history.output_tokens, given.output),
    ):
        means = _means(measured, counts)
        lengths[column] = getattr(drawn, column)
        if means is None:
            notes.append(
                f"{column} were not counted: {'the world file' if own else 'a default'} says how long they are"
            )
            guessed |= set() if own else {column}
        else:
            lengths[column] = _stretched(lengths[column], place, means)
    workload = drawn._replace(
        input_tokens=lengths["input_tokens"], output_tokens=lengths["output_tokens"], unknown=frozenset(guessed),
        source=f"drawn from {whole} bins of {history.width:g} s, seed {seed}",
    )  # fmt: skip
    return Past(workload, notes)


def _filled(column: tuple[float | None, ...]) -> tuple[NDArray[np.float64], int]:
    """The column with what is not known drawn between its neighbours, and how many that were."""
    values = np.array([np.nan if one is None else one for one in column], dtype=np.float64)
    known = np.isfinite(values)
    if not known.any():
        return np.zeros(len(values)), len(values)
    places = np.arange(len(values))
    return np.interp(places, places[known], values[known]), int(np.count_nonzero(~known))


def _means(tokens: tuple[float | None, ...], counts: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Mean length around each bin; None when tokens were not counted."""
    if not tokens:
        return None
    sums, unknown = _filled(tokens)
    if unknown * 2 > len(sums) or sums.sum() <= 0:
        return None
    window = np.ones(min(_AROUND, len(sums)))
    above, below = np.convolve(sums, window, "same"), np.convolve(counts, window, "same")
    overall = float(sums.sum() / counts.sum())
    found: NDArray[np.float64] = np.where(below >= 1.0, above / np.maximum(below, 1.0), overall)
    return found


def _stretched(lengths: NDArray[np.int32], place: NDArray[np.int64], means: NDArray[np.float64]) -> NDArray[np.int32]:
    """The drawn lengths, by bin so many times as long that their mean is the measured one."""
    factor = means / float(lengths.mean())
    made = np.clip(np.rint(lengths * factor[place]), 1, _LONGEST)
    return made.astype(np.int32)


def save_trace(workload: Workload, path: Path) -> Path:
    """The workload as a request trace, gzip; equal workloads, equal bytes. Raises ConfigError."""
    rows = zip(
        workload.arrival_s.tolist(), workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True
    )
    blank_in, blank_out = ("input_tokens" in workload.unknown), ("output_tokens" in workload.unknown)
    lines = (f"{at:.3f},{'' if blank_in else prompt},{'' if blank_out else output}" for at, prompt, output in rows)
    text = "\n".join([",".join(REQUEST_COLUMNS), *lines, ""])
    return write(path, gzip.compress(text.encode(), mtime=0))
