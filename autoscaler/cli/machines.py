"""`adopt` and `retire`: whole machines, by an operator's word.

Does: ask, then do one thing to one machine. Does not: choose machines.
Invariant: a machine of a pool is never ended here but drained by the daemon; only one that carries our installation's
tags and belongs to no pool of the config is ended, after its pool's name was given.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autoscaler.cli.options import DEFAULT_CONFIG, ConfigPath, Json, chosen_pool, loaded
from autoscaler.cli.show import clean, document

InstanceArgument = Annotated[str, typer.Argument(help="The machine's id.")]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command()(adopt)
    app.command()(retire)


def adopt(
    pool: Annotated[str, typer.Argument(help="The pool that takes it.")],
    instance: InstanceArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Give a machine that no pool knows to a pool.

    It is then checked, admitted and paid like the others.
    """
    from autoscaler.cli import adopting

    found = loaded(config)
    chosen = chosen_pool(found, pool)
    if not yes:
        typer.confirm(f"Give {instance} to the pool {pool}, which may later terminate it?", abort=True, err=True)
    _done(adopting.adopt(found, chosen, instance), instance, as_json=as_json)


def retire(
    instance: InstanceArgument,
    tagged: Annotated[
        str | None, typer.Option("--tagged", help="The pool in its tags, when the config has no such pool any more.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Let a whole machine go.

    One of a pool drains and ends; one of a pool that is gone from the config ends at once.
    """
    from autoscaler.cli import adopting

    found = loaded(config)
    if not yes:
        typer.confirm(f"Retire {instance}?", abort=True, err=True)
    _done(adopting.retire(found, instance, tagged), instance, as_json=as_json)


def _done(said: str, instance: str, *, as_json: bool) -> None:
    value: dict[str, Any] = {"instance": instance, "said": said}
    if as_json:
        document(value)
    else:
        print(clean(f"{instance}: {said}"))
