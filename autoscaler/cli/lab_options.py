"""Options that the lab's commands share, and how they show progress.

Does: name them once. Does not: simulate. Invariant: nothing of the lab is imported until a command runs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from autoscaler.lab.world_file import WorldFile

Progress = Callable[[float, float], None]

Workloads = Annotated[
    list[Path], typer.Option("--workload", "-w", help="A trace or rate series, CSV or CSV.GZ; may be repeated.")
]
World = Annotated[Path | None, typer.Option("--world", help="A YAML file about hardware, cloud, objective and so on.")]
Replica = Annotated[
    str | None, typer.Option("--replica", help="The set-up that ships by this name, for every offer's replicas.")
]
ColdStart = Annotated[str | None, typer.Option("--cold-start", help="Median time from order to service, such as 5m.")]
Strategy = Annotated[str | None, typer.Option("--strategy", help="The balancer's, in place of the config's.")]
Scale = Annotated[float | None, typer.Option("--scale", help="Traffic times this.")]
Start = Annotated[int | None, typer.Option("--start", help="Units in service at first; the pool's min if left out.")]
Faults = Annotated[
    list[str] | None, typer.Option("--fault", help="KIND@AT+FOR[:WHERE], as in telemetry_gap@1h+5m; may be repeated.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of everything that is drawn by lot.")]
From = Annotated[str, typer.Option("--from", help="Judge from this share of the workload on, such as 50%.")]
Until = Annotated[str, typer.Option("--until", help="Use only this first share of the workload.")]
Policies = Annotated[Path | None, typer.Option("--policies", help="A YAML file whose policies replace the pool's.")]
Out = Annotated[Path | None, typer.Option("--out", help="The folder for results, pictures and reports.")]


def share(text: str, option: str) -> float:
    """A share, `50%` or `0.5`, from 0 to 1. Raises ConfigError."""
    from autoscaler.domain.faults import ConfigError

    number = text.strip()
    try:
        value = float(number.removesuffix("%")) / (100.0 if number.endswith("%") else 1.0)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ConfigError([f"{option}: found {text[:60]!r}; allowed: a share such as 50% or 0.5"])
    return value


def shares(start: str, end: str) -> tuple[float, float]:
    """`--from` and `--until`, both of the whole workload, as (judge from, of what is used; use until)."""
    from autoscaler.domain.faults import ConfigError

    first, last = share(start, "--from"), share(end, "--until")
    if first >= last:
        raise ConfigError([f"--from: found {start!r} with --until {end!r}; allowed: a share below --until"])
    return first / last, last


def numba_there() -> None:
    """Say in one line when the extra is not installed. Raises ConfigError."""
    from autoscaler.lab.extra import require_lab

    require_lab()


def world_of(
    path: Path | None, *, replica: str | None, cold_start: str | None, strategy: str | None, scale: float | None,
    start: int | None, faults: list[str] | None,
) -> WorldFile:  # fmt: skip
    """The world of these options. Raises ConfigError."""
    numba_there()
    from autoscaler.lab.overrides import Wishes
    from autoscaler.lab.world_file import read_world

    return read_world(path, Wishes(replica, cold_start, strategy, scale, start, faults or ()))


@contextlib.contextmanager
def progress(text: str, *, quiet: bool = False) -> Iterator[Progress]:
    """A bar with the time left on standard error, where that is a terminal; else silence."""
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _whole: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)
