"""What is kept of the study: one file a case while it runs, one small file of everything at the end.

Does: hold the figures, write and read both. Does not: run or judge.
Invariant: a file is written whole or not at all; equal figures make equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from autoscaler.domain.faults import ConfigError
from autoscaler.lab.saved import write
from autoscaler.lab.scorecard import Scorecard

T = TypeVar("T")

VERSION: Final = 1
GOAL: Final = 0.99
_SERVED: Final = "strategies.json"


class Half(msgspec.Struct, frozen=True, array_like=True):
    """One half of a run: share inside the objective, GPU hours, units in service, p95 to first token, flaps."""

    attainment: float
    gpu_hours: float
    size_mean: float
    size_max: float
    ttft_s_p95: float
    flaps: int

    @property
    def holds(self) -> bool:
        """Whether the goal is kept."""
        return self.attainment >= GOAL


def half_of(card: Scorecard) -> Half:
    """The figures that are kept, with as many digits as tell something."""
    return Half(
        round(card.slo_attainment or 0.0, 6), round(card.gpu_hours, 3), round(card.size_mean, 3),
        round(card.size_max, 3), round(card.ttft_s_p95 or 0.0, 3), card.flaps,
    )  # fmt: skip


class Run(msgspec.Struct, frozen=True, array_like=True):
    """One contender at one rung of its ladder."""

    contender: str
    rung: int
    setting: float
    first: Half
    second: Half


class Case(msgspec.Struct, frozen=True):
    """A source at a cold start; 0 holds the fixed sizes, which have none."""

    source: str
    cold_s: int
    runs: tuple[Run, ...] = ()


class SourceTold(msgspec.Struct, frozen=True):
    """What was run of a source."""

    name: str
    file: str
    how: str
    part: str
    scale: float
    requests: int
    replica: str
    ttft_s: float
    tick_s: float
    smooth: bool


class Served(msgspec.Struct, frozen=True):
    """One strategy on one pool at one load. `ttft_s_p95` None: more than a twentieth never got a first token."""

    pool: str
    strategy: str
    load: float
    ttft_s_p95: float | None
    attainment: float


class Study(msgspec.Struct, frozen=True):
    """Everything."""

    version: int = VERSION
    goal: float = GOAL
    sources: tuple[SourceTold, ...] = ()
    cases: tuple[Case, ...] = ()
    strategies: tuple[Served, ...] = ()

    def case(self, source: str, cold_s: int) -> Case:
        """The case of that name; empty when it was not run."""
        found = (one for one in self.cases if (one.source, one.cold_s) == (source, cold_s))
        return next(found, Case(source=source, cold_s=cold_s))


def read_study(path: Path) -> Study:
    """The results file. Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Study)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}; allowed: what the study wrote"]) from None


def write_study(path: Path, study: Study) -> None:
    """One run a line, so that a change is seen as one."""
    text = msgspec.json.encode(study).decode()
    for begin in ('{"name":', '{"source":', '{"pool":'):
        text = text.replace(begin, "\n" + begin)
    for name in sorted({run.contender for case in study.cases for run in case.runs}):
        text = text.replace(f'["{name}",', f'\n["{name}",')
    write(path, (text + "\n").encode())


class Kept:
    """The pieces of a study in the making, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def case(self, source: str, cold_s: int) -> Case:
        """What there is of a case. Raises ConfigError for a file that is broken."""
        path = self._path(source, cold_s)
        if not path.is_file():
            return Case(source=source, cold_s=cold_s)
        return _decoded(path, Case)

    def keep(self, case: Case) -> None:
        """Write a case."""
        write(self._path(case.source, case.cold_s), msgspec.json.encode(case))

    def told(self, told: SourceTold) -> None:
        """Write what was run of a source."""
        write(self._folder / f"{told.name}.source.json", msgspec.json.encode(told))

    def strategies(self, served: Iterable[Served]) -> None:
        """Write the strategies."""
        write(self._folder / _SERVED, msgspec.json.encode(list(served)))

    def served(self) -> tuple[Served, ...]:
        """The strategies that were run. Raises ConfigError for a file that is broken."""
        path = self._folder / _SERVED
        return tuple(_decoded(path, list[Served])) if path.is_file() else ()

    def study(self, order: Iterable[str]) -> Study:
        """All of it, sources in this order."""
        place = {name: index for index, name in enumerate(order)}
        told = [_decoded(path, SourceTold) for path in self._folder.glob("*.source.json")]
        cases = [_decoded(path, Case) for path in self._folder.glob("*.case.json")]
        cases = [msgspec.structs.replace(one, runs=tuple(sorted(one.runs, key=_by_rung))) for one in cases]
        return Study(
            sources=tuple(sorted(told, key=lambda one: place[one.name])),
            cases=tuple(sorted(cases, key=lambda one: (place[one.source], one.cold_s))),
            strategies=self.served(),
        )

    def _path(self, source: str, cold_s: int) -> Path:
        return self._folder / f"{source}-{cold_s}.case.json"


def _by_rung(run: Run) -> tuple[str, int]:
    return run.contender, run.rung


def _decoded(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError([f"{path}: cannot be read: {error}; allowed: what the study wrote, or no file"]) from None
