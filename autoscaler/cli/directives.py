"""What an operator says: scale, drain, replace, protect, pause, resume.

Does: give the daemon a directive over its API, or write the same row into the ledger. Does not: act on a machine.
Invariant: a directive never lowers a guard; the daemon reads it at its next tick, wherever it came from.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from autoscaler.cli.options import DEFAULT_CONFIG, ConfigPath, Json, PoolOption, chosen_pool, loaded, seconds
from autoscaler.cli.show import clean, document

ReplicaArgument = Annotated[str, typer.Argument(help="The replica, INSTANCE:PORT, as `explain` shows it.")]


class Direction(StrEnum):
    """What to pause."""

    IN = "in"
    OUT = "out"
    BOTH = "both"


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    for command in (scale, drain, replace, protect, pause, resume):
        app.command()(command)


def scale(
    pool: Annotated[str, typer.Argument(help="The pool.")],
    at_least: Annotated[int, typer.Option("--at-least", min=0, help="Units to hold; 0 ends it.")],
    duration: Annotated[str, typer.Option("--for", help="For how long: 30m, 2h, 1d.")] = "1h",
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Hold at least N units for a time."""
    for_s = seconds(duration, "--for")
    if not 0 < for_s <= 30 * 86400:
        raise typer.BadParameter("allowed: more than 0 s, at most 30d", param_hint="--for")
    said = f"at least {at_least} for {duration}" if at_least else "no floor but min"
    _say(config, pool, "at-least", {"units": at_least, "for_s": for_s}, said, as_json=as_json)


def drain(
    replica: ReplicaArgument, pool: PoolOption = None, config: ConfigPath = DEFAULT_CONFIG, as_json: Json = False
) -> None:
    """Let one replica finish its requests and go."""
    _say(config, pool, "drain", {"replica": replica}, f"{replica} drains", as_json=as_json)


def replace(
    replica: ReplicaArgument, pool: PoolOption = None, config: ConfigPath = DEFAULT_CONFIG, as_json: Json = False
) -> None:
    """Bring another replica up, then let this one go."""
    _say(config, pool, "replace", {"replica": replica}, f"{replica} is replaced", as_json=as_json)


def protect(
    instance: Annotated[str, typer.Argument(help="The machine, or a replica on it.")],
    off: Annotated[bool, typer.Option("--off", help="End the protection.")] = False,
    pool: PoolOption = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Never choose this machine to leave."""
    said = f"{instance} is {'no longer ' if off else ''}protected"
    _say(config, pool, "protect", {"instance": instance, "on": not off}, said, as_json=as_json)


def pause(
    pool: Annotated[str, typer.Argument(help="The pool.")],
    direction: Annotated[Direction, typer.Option(help="Scaling in, out, or both.")] = Direction.BOTH,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Stop scaling a pool, in one direction or both."""
    _say(config, pool, "pause", {"direction": direction.value}, f"scaling {direction} is paused", as_json=as_json)


def resume(
    pool: Annotated[str, typer.Argument(help="The pool.")],
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """End a pause."""
    _say(config, pool, "resume", {}, "scaling goes on", as_json=as_json)


def _say(path: Any, pool: str | None, verb: str, body: dict[str, Any], said: str, *, as_json: bool) -> None:
    from autoscaler.cli import directing

    config = loaded(path)
    chosen = chosen_pool(config, pool)
    done = directing.direct(config, chosen, verb, body)
    if as_json:
        document({"pool": chosen.pool.name, "said": said, "through": done.through, "directives": done.directives})
    else:
        print(clean(f"{chosen.pool.name}: {said} ({done.through})"))
