"""`autoscaler compare`: policies, workloads and seeds side by side, as a table and as cost against objective.

Does: make jobs of the options, run them, print, write. Does not: simulate or sum up.
Invariant: Ctrl-C keeps the runs that ended, says that it is not all, and exits with 130.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoscaler.cli import lab_options as options
from autoscaler.cli.options import Json, PoolOption

if TYPE_CHECKING:
    from autoscaler.lab.compare import Comparison, Job
    from autoscaler.lab.overrides import Wishes

_INTERRUPTED = 130

Results = Annotated[list[Path] | None, typer.Argument(help="Results of earlier runs: files, or folders of them.")]
Configs = Annotated[list[Path] | None, typer.Option("--config", "-c", help="A config to run; may be repeated.")]
PolicyFiles = Annotated[
    list[Path] | None, typer.Option("--policies", help="Policies to try in the first config's pool; may be repeated.")
]
WorkloadFiles = Annotated[
    list[Path] | None, typer.Option("--workload", "-w", help="A trace or rate series; may be repeated.")
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Runs of each, with seeds from --seed on.")]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Processes; the number of cores if left out.")]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command()(compare)


def compare(  # noqa: PLR0917 - typer calls it by name
    results: Results = None,
    config: Configs = None,
    policies: PolicyFiles = None,
    workload: WorkloadFiles = None,
    pool: PoolOption = None,
    world: options.World = None,
    replica: options.Replica = None,
    cold_start: options.ColdStart = None,
    strategy: options.Strategy = None,
    fault: options.Faults = None,
    seed: options.Seed = 0,
    seeds: Seeds = 1,
    scale: options.Scale = None,
    start: options.Start = None,
    begin: options.From = "0%",
    until: options.Until = "100%",
    jobs: Jobs = None,
    out: options.Out = None,
    as_json: Json = False,
) -> None:
    """Compare policies by what they cost and what they miss.

    Each config runs with its own policies, the first one also with those of each --policies file; results that were
    kept by --out stand beside them.
    """
    judge_from, use_until = options.shares(begin, until)
    options.numba_there()
    from autoscaler.domain.faults import ConfigError
    from autoscaler.lab.compare import Job, read_results, run_all
    from autoscaler.lab.compare import compare as summed
    from autoscaler.lab.overrides import Wishes

    if bool(config) != bool(workload) or not (config or results) or (policies and not config):
        raise ConfigError(["compare: allowed: --config with --workload, or results of earlier runs, or both"])
    wishes = Wishes(replica, cold_start, strategy, scale, start, fault or ())
    made = [
        Job(label, path, pool, other, world, wishes, traffic, one, judge_from, use_until, out)
        for label, path, other in contenders(config or [], policies or [])
        for traffic in workload or []
        for one in range(seed, seed + seeds)
    ]
    check(made, wishes)
    earlier = read_results(results or [])
    with options.progress(f"{len(made)} runs", quiet=as_json) as bar:
        done, whole = run_all(made, min(jobs or os.cpu_count() or 1, len(made)), bar)
    comparison = summed([*earlier, *done])
    told(comparison, len(made) - len(done), as_json=as_json)
    if out is not None:
        keep(comparison, out, whole=whole)
    raise typer.Exit(0 if whole else _INTERRUPTED)


def contenders(configs: list[Path], policies: list[Path]) -> list[tuple[str, Path, Path | None]]:
    """(label, config, policies) of each, under names of their own."""
    found: list[tuple[str, Path, Path | None]] = [(path.stem, path, None) for path in configs]
    found += [(path.stem, configs[0], path) for path in policies]
    names = [label for label, _, _ in found]
    return [
        (label if names.count(label) == 1 else f"{label}-{index + 1}", path, other)
        for index, (label, path, other) in enumerate(found)
    ]


def check(jobs: list[Job], wishes: Wishes) -> None:
    """Every mistake of a config or policy file before anything runs; one in a workload is told by its run."""
    from autoscaler.domain.faults import ConfigError
    from autoscaler.lab.trial import make_trial, read_pool
    from autoscaler.lab.world_file import read_world

    mistakes: list[str] = []
    for config, pool, policies, world in dict.fromkeys((one.config, one.pool, one.policies, one.world) for one in jobs):
        try:
            make_trial(read_pool(config, pool, policies), read_world(world, wishes))
        except ConfigError as error:
            mistakes += error.mistakes
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))


def told(comparison: Comparison, missing: int, *, as_json: bool) -> None:
    """The table on the terminal, or the document."""
    from autoscaler.cli.show import document

    if as_json:
        document(comparison.plain(complete=not missing))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from autoscaler.cli.show import clean

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    head, rows = cells(comparison)
    for workload in dict.fromkeys(row[0] for row in rows):
        table = Table(
            title=Text(clean(workload), style="bold"),
            title_justify="left",
            box=None,
            pad_edge=False,
            header_style="dim",
        )
        for place, name in enumerate(head[1:]):
            table.add_column(name, justify="left" if place in {0, len(head) - 2} else "right", no_wrap=place > 0)
        for row in rows:
            if row[0] == workload:
                table.add_row(*(Text(clean(cell)) for cell in row[1:]))
        console.print(table)
        console.print()
    console.print(Text(f"Goal {comparison.goal:.4g}. * is on the frontier: no other beats it in both.", style="dim"))
    if missing:
        console.print(Text(f"PARTIAL: {missing} runs were not made", style="bold yellow"))


def cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The table as text, cheapest first within a workload; its first column is the workload."""
    head = ["workload", "policy", "inside", "worst", "TTFT p95", "GPU hours", "cost", "failed", "cut", "flaps", "goal"]
    order = list(dict.fromkeys(one.workload for one in comparison.rows))
    rows = sorted(comparison.rows, key=lambda one: (order.index(one.workload), comparison.cost(one)))
    return head, [
        [
            one.workload, one.label, f"{one.slo_attainment:.3%}", f"{one.slo_attainment_worst:.3%}",
            "-" if one.ttft_s_p95 is None else f"{one.ttft_s_p95:.2f} s", f"{one.gpu_hours:,.2f}",
            f"${one.cost_usd:,.2f}" if one.cost_usd else "-", f"{one.failed:g}", f"{one.cut:g}", f"{one.flaps:g}",
            f"{'kept' if one.keeps_goal else 'missed'}{' *' if one.on_frontier else ''}",
        ]
        for one in rows
    ]  # fmt: skip


def keep(comparison: Comparison, out: Path, *, whole: bool) -> None:
    """Write the table, the chart and the page."""
    import json

    from autoscaler.cli.show import note
    from autoscaler.lab import report
    from autoscaler.lab.picture import draw_frontier
    from autoscaler.lab.saved import write

    chart = draw_frontier(comparison.points(), comparison.goal, comparison.cost_words)
    head, rows = cells(comparison)
    words = (
        "Each policy by what it cost (to the right: more) and the share of requests outside the objective (upwards: "
        "more, on a logarithmic scale). Those on the grey line are beaten by none in both."
    )
    parts = [] if whole else [report.sentence("This is a partial comparison: it was interrupted.", "verdict missed")]
    parts += [
        report.picture(chart, words),
        report.heading("Figures"),
        report.sentence(f"Means over seeds, and the worst seed; goal {comparison.goal:.4g}; * is on the frontier."),
    ]
    for workload in dict.fromkeys(row[0] for row in rows):
        body = [row[1:] for row in rows if row[0] == workload]
        parts.append(report.table(workload, head[1:], body, frozenset(range(1, len(head) - 2))))
    write(out / "compare.json", json.dumps(comparison.plain(complete=whole), indent=1).encode())
    write(out / "compare.png", chart)
    page = write(out / "compare.html", report.page("Policies compared", parts).encode())
    note(f"written: {page}")
