"""`autoscaler simulate`: the pool of the daemon's own config on recorded traffic, in seconds, as a scorecard.

Does: read options, run, print, write files, and turn assertions into the exit code. Does not: simulate or judge.
Invariant: Ctrl-C keeps what was done, marked as partial; no assertion is judged on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoscaler.cli import lab_options as options
from autoscaler.cli.options import DEFAULT_CONFIG, ConfigPath, Json, PoolOption

if TYPE_CHECKING:
    from autoscaler.lab.assertions import Assertion
    from autoscaler.lab.saved import Run
    from autoscaler.lab.trial import Trial
    from autoscaler.lab.workload import Workload

Asserts = Annotated[
    list[str] | None, typer.Option("--assert", help="FIGURE>=NUMBER, as in 'slo_attainment>=0.99'; may be repeated.")
]
INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command()(simulate)


def simulate(  # noqa: PLR0917 - typer calls it by name
    workload: options.Workloads,
    config: ConfigPath = DEFAULT_CONFIG,
    pool: PoolOption = None,
    policies: options.Policies = None,
    world: options.World = None,
    replica: options.Replica = None,
    cold_start: options.ColdStart = None,
    strategy: options.Strategy = None,
    fault: options.Faults = None,
    seed: options.Seed = 0,
    scale: options.Scale = None,
    start: options.Start = None,
    begin: options.From = "0%",
    until: options.Until = "100%",
    asserts: Asserts = None,
    out: options.Out = None,
    as_json: Json = False,
) -> None:
    """Try a pool's policies on recorded traffic, before they touch money.

    Runs the daemon's own decide() over a simulated cloud. Exit code 1 when an assertion fails, 2 for bad input.
    """
    judge_from, use_until = options.shares(begin, until)
    found = options.world_of(
        world, replica=replica, cold_start=cold_start, strategy=strategy, scale=scale, start=start, faults=fault
    )
    from autoscaler.lab.assertions import read_assertions
    from autoscaler.lab.trial import load_workload, make_trial, read_pool

    bounds = read_assertions(asserts or [])
    trial = make_trial(read_pool(config, pool, policies), found, seed)
    traffic = [load_workload(path, found, seed, use_until) for path in workload]
    raise typer.Exit(carry_out(trial, traffic, judge_from, bounds, out, as_json=as_json))


def carry_out(
    trial: Trial, traffic: Sequence[Workload], judge_from: float, bounds: Sequence[Assertion], out: Path | None,
    *, as_json: bool,
) -> int:  # fmt: skip
    """Run each workload, tell of it and keep it; the exit code."""
    from autoscaler.cli.show import document, note
    from autoscaler.lab.saved import judge, plain

    told, code = [], 0
    for each in traffic:
        with options.progress(f"{trial.label} on {each.name}", quiet=as_json) as bar:
            result = trial.run(each, bar)
        run = judge(trial, result, judge_from)
        failures = [] if run.partial else [line for one in bounds if (line := one.failure(run.card))]
        code = INTERRUPTED if run.partial else max(code, int(bool(failures)))
        told.append({**plain(run), "partial": run.partial, "failed_assertions": failures})
        if not as_json:
            show(run, len(bounds), failures)
        if out is not None:
            folder = out if len(traffic) == 1 else out / each.name
            note(f"written: {keep(run, folder, failures)}")
        if run.partial:
            break
    if as_json:
        document({"exit_code": code, "runs": told})
    return code


def keep(run: Run, folder: Path, failures: Sequence[str]) -> str:
    """Write result, picture and report; which files."""
    from autoscaler.lab.picture import draw_run
    from autoscaler.lab.report import run_report
    from autoscaler.lab.saved import save, write

    image = draw_run(run)
    saved = save(run, folder)
    write(folder / "picture.png", image)
    report = write(folder / "report.html", run_report(run, image, failures).encode())
    return f"{report}, {saved}"


def show(run: Run, asserted: int, failures: Sequence[str]) -> None:
    """The scorecard on the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from autoscaler.cli.show import clean
    from autoscaler.lab.words import ROWS, shown, verdict

    console = Console(highlight=False)
    title = f"{run.label} on {run.result.workload}, seed {run.result.seed}"
    table = Table(title=Text(clean(title)), title_justify="left", box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")  # the words give way to the figures where the terminal is narrow
    for row in ROWS:
        table.add_row(row.name, shown(row.metric, run.card), row.means)
    console.print(table)
    console.print(Text(verdict(run.card, run.slo), style="bold"))
    if run.partial:
        console.print(Text(f"PARTIAL: {run.partial}; no assertion was judged", style="bold yellow"))
    for line in failures:
        console.print(Text(f"assertion failed: {line}", style="bold red"), soft_wrap=True)
    if asserted and not failures and not run.partial:
        console.print(Text(f"all {asserted} assertions hold", style="green"))
    console.print()
