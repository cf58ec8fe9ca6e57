"""`autoscaler demo`: the whole product on one machine, under recorded traffic.

Does: pass options on. Does not: anything else. Invariant: the demo's modules load only when it runs.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from autoscaler.cli.options import seconds


class Half(StrEnum):
    """Which half of the trace."""

    FIRST = "first"
    SECOND = "second"


class Balancer(StrEnum):
    """What stands before the replicas."""

    ENVOY = "envoy"
    HAPROXY = "haproxy"


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command()(demo)


def demo(  # noqa: PLR0917 - typer calls it by name
    duration: Annotated[str | None, typer.Option(help="Time of traffic, such as 60s; all of it if left out.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Another trace, CSV.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn by lot.")] = 1,
    policy: Annotated[Path | None, typer.Option(help="A YAML file with the policies to use.")] = None,
    half: Annotated[Half | None, typer.Option(help="Half of the trace.")] = None,
    balancer: Annotated[Balancer, typer.Option(help="Envoy comes along; HAProxy must be installed.")] = Balancer.ENVOY,
    out: Annotated[Path, typer.Option(help="The folder for the picture.")] = Path("demo-out"),
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the summary to this file.")] = None,
) -> None:
    """See it work on this machine, under recorded traffic.

    Starts a balancer and stand-in replicas, replays a trace, and shows the pool grow and shrink.
    """
    wanted = None if duration is None else seconds(duration, "--duration")
    from autoscaler.demo import run

    which: Literal["first", "second"] | None = None if half is None else "first" if half is Half.FIRST else "second"
    options = run.Options(
        duration=wanted,
        trace=trace,
        seed=seed,
        policy=policy,
        json_path=json_path,
        half=which,
        out=out,
        balancer="haproxy" if balancer is Balancer.HAPROXY else "envoy",
    )
    raise typer.Exit(run.main(options))
