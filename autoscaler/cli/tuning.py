"""`autoscaler tune`: the parameters of a pool's policies that cost least and keep the goal.

Does: read options, show the search space and what came of it, write the policies. Does not: search.
Invariant: Ctrl-C keeps the trials that ended; exit code 1 when none of them keeps the goal.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoscaler.cli import lab_options as options
from autoscaler.cli.options import DEFAULT_CONFIG, ConfigPath, Json, PoolOption, seconds

if TYPE_CHECKING:
    from autoscaler.lab.tune import Problem, Tried, Tuned

_INTERRUPTED = 130

Params = Annotated[
    list[str] | None,
    typer.Option("--param", help="PATH=LOW..HIGH, as in 'policies[0].target=1..20 log'; repeatable."),
]
Goal = Annotated[str | None, typer.Option("--goal", help="Share of requests inside the objective, such as 99%.")]
Trials = Annotated[int, typer.Option("--trials", min=1, help="Trials of this process.")]
Timeout = Annotated[str | None, typer.Option("--timeout", help="Begin no trial after this time, such as 30m.")]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage", envvar="AUTOSCALER_TUNE_STORAGE", show_envvar=True,
        help="A database that several machines share: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
    ),
]  # fmt: skip
Study = Annotated[str, typer.Option("--study", help="The study's name in that database.")]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command()(tune)


def tune(  # noqa: PLR0917 - typer calls it by name
    workload: options.Workloads,
    config: ConfigPath = DEFAULT_CONFIG,
    pool: PoolOption = None,
    policies: options.Policies = None,
    param: Params = None,
    goal: Goal = None,
    trials: Trials = 100,
    timeout: Timeout = None,
    storage: Storage = None,
    study: Study = "tune",
    world: options.World = None,
    replica: options.Replica = None,
    cold_start: options.ColdStart = None,
    strategy: options.Strategy = None,
    fault: options.Faults = None,
    seed: options.Seed = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds that each trial is the mean of.")] = 1,
    scale: options.Scale = None,
    start: options.Start = None,
    begin: options.From = "0%",
    until: options.Until = "100%",
    out: options.Out = None,
    as_json: Json = False,
) -> None:
    """Search the parameters that cost least and keep the goal.

    Tune on the first half (--until 50%) and judge on the second with simulate --from 50%: what fits a past does not
    always fit what comes.
    """
    judge_from, use_until = options.shares(begin, until)
    found = options.world_of(
        world, replica=replica, cold_start=cold_start, strategy=strategy, scale=scale, start=start, faults=fault
    )
    import msgspec

    from autoscaler.lab.space import read_ranges, space_of
    from autoscaler.lab.trial import load_workload, make_trial, read_pool
    from autoscaler.lab.tune import Limits, Problem, Where
    from autoscaler.lab.tune import tune as search

    if goal is not None:
        share = options.share(goal, "--goal")
        found = msgspec.structs.replace(found, slo=msgspec.structs.replace(found.slo, goal=max(share, 1e-9)))
    limits = Limits(trials, None if timeout is None else seconds(timeout, "--timeout"))
    chosen = read_pool(config, pool, policies)
    space = space_of(chosen, {**found.tune, **read_ranges(param or [])})
    traffic = {
        one: [load_workload(path, found, one, use_until) for path in workload] for one in range(seed, seed + seeds)
    }
    trial = make_trial(chosen, found, seed)
    for each in traffic[seed]:
        trial.check(each)
    problem = Problem(chosen, found, traffic, judge_from, space)
    with options.progress(f"tuning {chosen.config.pool.name}", quiet=as_json) as bar:
        tuned = search(problem, Where(storage, study), limits, seed, bar)
    told(problem, tuned, as_json=as_json)
    if out is not None and tuned.trials:
        keep(problem, tuned, out)
    raise typer.Exit(_INTERRUPTED if not tuned.whole else int(tuned.best is None))


def plain(problem: Problem, tuned: Tuned) -> dict[str, Any]:
    """For --json and the file."""
    import msgspec

    return {
        "version": 1,
        "complete": tuned.whole,
        "goal": problem.world.slo.goal,
        "space": {one.path: one.words() for one in problem.space},
        "before": msgspec.to_builtins(tuned.before),
        "best": msgspec.to_builtins(tuned.best),
        "trials_here": tuned.made_here,
        "trials": msgspec.to_builtins(tuned.trials),
    }


def told(problem: Problem, tuned: Tuned, *, as_json: bool) -> None:
    """What came of it."""
    from autoscaler.cli.show import document

    if as_json:
        document(plain(problem, tuned))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, name in enumerate(("parameter", "before", "best", "searched")):
        table.add_column(name, justify="right" if place in {1, 2} else "left", no_wrap=True)
    best = {} if tuned.best is None else tuned.best.values
    for one in problem.space:
        now = "default" if one.now is None else _short(one.now)
        table.add_row(Text(one.path), Text(now), Text(_short(best.get(one.path))), Text(one.words()))
    console.print(table)
    for name, tried in (("before", tuned.before), ("best", tuned.best)):
        if tried is not None:
            console.print(Text(f"{name}: {_figures(tried)}", style="bold" if name == "best" else ""))
    count = f"{len(tuned.trials)} trials in the study, {tuned.made_here} made here"
    if not tuned.whole:
        console.print(Text(f"PARTIAL: interrupted; {count}", style="bold yellow"))
    else:
        console.print(Text(count, style="dim"))
    if tuned.best is None and tuned.trials:
        nearest = max(tuned.trials, key=lambda one: one.slo_attainment)
        line = f"no trial keeps the goal of {problem.world.slo.goal:g}; nearest: {_figures(nearest)}"
        console.print(Text(line, style="bold red"))


def _short(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _figures(one: Tried) -> str:
    price = f"${one.cost_usd:,.2f}, " if one.cost_usd else ""
    return f"{one.slo_attainment:.3%} inside, {price}{one.gpu_hours:,.2f} GPU hours, {one.flaps:g} flaps"


def keep(problem: Problem, tuned: Tuned, out: Path) -> None:
    """Write every trial, a picture, and the best pool: its policies alone for --policies, and its whole section."""
    import json

    import yaml

    from autoscaler.cli.show import note
    from autoscaler.lab.picture import Point, draw_frontier
    from autoscaler.lab.saved import write
    from autoscaler.lab.space import put

    name = problem.chosen.config.pool.name
    points = [Point("trial", name, one.cost, one.slo_attainment) for one in tuned.trials]
    points += [Point(label, name, one.cost, one.slo_attainment)
               for label, one in (("before", tuned.before), ("best", tuned.best)) if one is not None]  # fmt: skip
    words = "cost, US dollars" if all(one.cost_usd for one in tuned.trials) else "GPU hours"
    write(out / "tune.json", json.dumps(plain(problem, tuned), indent=1).encode())
    write(out / "tune.png", draw_frontier(points, problem.world.slo.goal, words))
    if tuned.best is None:
        return
    best = put(problem.chosen.mapping, tuned.best.values)
    write(out / "policies.yaml", yaml.safe_dump({"policies": best["policies"]}, sort_keys=False).encode())
    write(out / "pool.yaml", yaml.safe_dump({"pools": [best]}, sort_keys=False).encode())
    note(f"written: {out / 'policies.yaml'}, {out / 'pool.yaml'}, {out / 'tune.json'}, {out / 'tune.png'}")
