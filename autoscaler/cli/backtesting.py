"""`autoscaler backtest`: the load of the last days out of the pool's own Prometheus, and the pool tried on it.

Does: ask the telemetry for its history, make a workload of it, simulate, keep both. Does not: simulate or query itself.
Invariant: only reads; what was not known of the past is told beside the figures.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from autoscaler.cli import lab_options as options
from autoscaler.cli import simulating
from autoscaler.cli.options import DEFAULT_CONFIG, ConfigPath, Json, PoolOption, chosen_pool, loaded, seconds

if TYPE_CHECKING:
    from autoscaler.config.schema import Config, PoolConfig
    from autoscaler.ports.telemetry import History

_BINS_MAX = 200_000

Since = Annotated[str, typer.Option("--since", help="How much of the past, such as 7d.")]
Step = Annotated[str, typer.Option("--step", help="Width of a bin, such as 1m: at least two scrapes.")]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command()(backtest)


def backtest(  # noqa: PLR0917 - typer calls it by name
    config: ConfigPath = DEFAULT_CONFIG,
    pool: PoolOption = None,
    since: Since = "7d",
    step: Step = "1m",
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
    asserts: simulating.Asserts = None,
    out: options.Out = None,
    as_json: Json = False,
) -> None:
    """Try a pool's policies on its own load of the last days.

    --out also keeps that load as workload.csv.gz, for simulate, compare and tune.
    """
    judge_from, _ = options.shares(begin, "100%")
    found = options.world_of(
        world, replica=replica, cold_start=cold_start, strategy=strategy, scale=scale, start=start, faults=fault
    )
    from autoscaler.cli.show import note
    from autoscaler.domain.faults import ConfigError
    from autoscaler.lab.assertions import read_assertions
    from autoscaler.lab.backtest import save_trace, workload_of
    from autoscaler.lab.trial import make_trial, read_pool

    bounds = read_assertions(asserts or [])
    span_s, width_s = seconds(since, "--since"), seconds(step, "--step")
    if width_s <= 0 or not 2 * width_s <= span_s <= _BINS_MAX * width_s:
        raise ConfigError([f"--step: found {step!r} for {since!r}; allowed: 2 to {_BINS_MAX:,} steps in that time"])
    whole = loaded(config)
    mine = chosen_pool(whole, pool)
    trial = make_trial(read_pool(config, pool, policies), found, seed)
    past = workload_of(asyncio.run(_history(whole, mine, span_s, width_s)), found, mine.pool.name, seed)
    for line in past.notes:
        note(f"{mine.pool.name}: {line}")
    if out is not None:
        note(f"written: {save_trace(past.workload, out / 'workload.csv.gz')}")
    raise typer.Exit(simulating.carry_out(trial, [past.workload], judge_from, bounds, out, as_json=as_json))


async def _history(whole: Config, mine: PoolConfig, span_s: float, width_s: float) -> History:
    """The pool's load of the last `span_s` seconds. Raises ConfigError when its telemetry keeps no past, PortFault."""
    import msgspec

    from autoscaler import wiring
    from autoscaler.domain.base import Duration, Instant
    from autoscaler.domain.faults import ConfigError
    from autoscaler.ports.telemetry import Remembering
    from autoscaler.runtime.clock import SystemClock

    clock = SystemClock()
    wired = wiring.build(msgspec.structs.replace(whole, pools=(mine,)), clock, read_only=True)
    try:
        telemetry = wired.pools[0].telemetry
        if not isinstance(telemetry, Remembering):
            kind = mine.telemetry.kind if mine.telemetry else "none"
            raise ConfigError([f"{mine.path}.telemetry: {kind} keeps no past; allowed: prometheus"])
        end = Instant(clock.now() // width_s * width_s)
        return await telemetry.history(Instant(end - span_s // width_s * width_s), end, Duration(width_s))
    finally:
        await wiring.close(wired)
