"""Results as files, to be compared later: `result.json` with every figure, `result.npz` with every request and tick.

Does: write both, read both back, and say what is wrong with a file that is none. Does not: judge or draw.
Invariant: equal runs make equal bytes (no date, no path of this machine); a file is written whole or not at all.
"""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from autoscaler import __version__
from autoscaler.domain.faults import ConfigError
from autoscaler.lab.result import Life, Requests, Result, Ticks
from autoscaler.lab.scorecard import Part, Scorecard, Slo, part_of, score
from autoscaler.lab.settings import WorldSettings
from autoscaler.lab.trial import Trial

FORMAT: Final = "llm-pool-autoscaler lab result"
VERSION: Final = 1
JSON_NAME: Final = "result.json"
_ARRAYS_NAME: Final = "result.npz"
_JSON_MAX: Final = 256 * 1024 * 1024


class Run(NamedTuple):
    """A run with its judgement. `label`: the policies in a word; `policies`: by their own names."""

    label: str
    pool: str
    policies: tuple[str, ...]
    settings: WorldSettings
    result: Result
    slo: Slo
    part: Part
    card: Scorecard

    @property
    def partial(self) -> str:
        """How far an interrupted run came; empty for a whole one."""
        done = self.result.ended_s / max(1e-9, self.result.duration_s)
        return "" if self.result.complete else f"interrupted after {done:.0%} of the workload"


def judge(trial: Trial, result: Result, start_share: float = 0.0) -> Run:
    """A run with its scorecard from a share of its duration on. Raises ConfigError."""
    part = part_of(result, start_share)
    card = score(result, trial.slo, part)
    names = tuple(one.name for one in trial.policies)
    return Run(trial.label, trial.pool.name, names, trial.settings, result, trial.slo, part, card)


class _Document(msgspec.Struct, kw_only=True):
    """The JSON file."""

    format: str
    version: int
    made_by: str
    label: str
    pool: str
    policies: tuple[str, ...]
    workload: str
    source: str
    seed: int
    complete: bool
    duration_s: float
    ended_s: float
    part: Part
    slo: Slo
    scorecard: Scorecard
    launches: int
    actions: dict[str, int]
    faults: dict[str, int]
    settings: WorldSettings
    lives: tuple[tuple[str, str, str, float, float, float | None, float | None, str, float, int], ...]
    arrays: str = _ARRAYS_NAME


def _finite(value: float) -> float | None:
    """JSON has no infinity: a moment that never came is null."""
    return value if np.isfinite(value) else None


def _never(value: float | None) -> float:
    return float("inf") if value is None else value


def plain(run: Run) -> dict[str, Any]:
    """A run for --json: what a program asks for first, and no machine's life."""
    shown: dict[str, Any] = msgspec.to_builtins(_document(run))
    for key in ("lives", "arrays", "settings"):
        del shown[key]
    return shown


def _document(run: Run) -> _Document:
    result = run.result
    return _Document(
        format=FORMAT, version=VERSION, made_by=f"autoscaler {__version__}", label=run.label, pool=run.pool,
        policies=run.policies, workload=result.workload, source=result.source, seed=result.seed,
        complete=result.complete, duration_s=result.duration_s, ended_s=result.ended_s, part=run.part, slo=run.slo,
        scorecard=run.card, launches=result.launches, actions=result.actions, faults=result.faults,
        settings=run.settings,
        lives=tuple(
            (one.instance, one.offer, one.zone, one.ordered_s, one.shown_s, _finite(one.loaded_s),
             _finite(one.ended_s), one.why, one.usd_per_h, one.gpus)
            for one in result.lives
        ),
    )  # fmt: skip


def save(run: Run, folder: Path) -> Path:
    """Write both files into `folder`, which is made; returns the JSON file. Raises ConfigError when it cannot."""
    arrays = io.BytesIO()
    columns = {f"requests.{name}": column for name, column in run.result.requests._asdict().items()}
    columns |= {f"ticks.{name}": column for name, column in run.result.ticks._asdict().items()}
    np.savez_compressed(arrays, **columns)
    text = msgspec.json.format(msgspec.json.encode(_document(run)), indent=1)
    write(folder / _ARRAYS_NAME, arrays.getvalue())
    return write(folder / JSON_NAME, text + b"\n")


def write(path: Path, content: bytes) -> Path:
    """Write a file whole, in a folder that is made. Raises ConfigError when it cannot be."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        raise ConfigError(
            [f"{path}: cannot be written: {error.strerror}; allowed: a path in a folder of ours"]
        ) from None
    return path


def read(path: Path) -> Run:
    """A saved run, by its JSON file or its folder. Raises ConfigError: what, where, what is allowed."""
    file = path / JSON_NAME if path.is_dir() else path
    allowed = f"allowed: a folder or {JSON_NAME} that `autoscaler simulate --out` wrote"
    try:
        if file.stat().st_size > _JSON_MAX:
            raise ConfigError([f"{file}: larger than any result; {allowed}"])
        document = msgspec.json.decode(file.read_bytes(), type=_Document)
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}; {allowed}"]) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{file}: is no result: {str(error).partition(chr(10))[0][:120]}; {allowed}"]) from None
    if document.format != FORMAT or document.version != VERSION:
        found = f"found {document.format[:60]!r}, version {document.version}"
        raise ConfigError([f"{file}: {found}; allowed: {FORMAT!r}, version {VERSION}"])
    requests, ticks = _columns(file.parent / Path(document.arrays).name)
    result = Result(
        workload=document.workload, source=document.source, seed=document.seed, duration_s=document.duration_s,
        ended_s=document.ended_s, complete=document.complete, requests=requests, ticks=ticks,
        lives=tuple(Life(*one[:5], _never(one[5]), _never(one[6]), *one[7:]) for one in document.lives),
        launches=document.launches, actions=document.actions, faults=document.faults,
    )  # fmt: skip
    return Run(
        document.label, document.pool, document.policies, document.settings, result, document.slo, document.part,
        document.scorecard,
    )  # fmt: skip


def _columns(file: Path) -> tuple[Requests, Ticks]:
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            requests = Requests(**{name: arrays[f"requests.{name}"] for name in Requests._fields})
            ticks = Ticks(**{name: arrays[f"ticks.{name}"] for name in Ticks._fields})
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        told = str(error).partition("\n")[0][:120]
        raise ConfigError([f"{file}: cannot be read: {told}; allowed: the arrays beside a {JSON_NAME}"]) from None
    return requests, ticks
