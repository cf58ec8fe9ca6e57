"""`autoscaler ledger`: copies of it, out and back.

Does: backup while a daemon may run, restore while none does. Does not: look inside.
Invariant: a failed command leaves the ledger and every other file as they were.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autoscaler.cli.options import DEFAULT_CONFIG, ConfigPath, Json, loaded
from autoscaler.cli.show import clean, document, note

app = typer.Typer(help="Copies of the ledger, out and back.", no_args_is_help=True, rich_markup_mode=None)

FileArgument = Annotated[Path, typer.Argument(help="The backup.")]


@app.command()
def backup(file: FileArgument, config: ConfigPath = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Copy the ledger into a new file, also while the daemon runs."""
    found = loaded(config)
    size = _function(found, "backup")(found.ledger.settings, file)
    others = [str(other) for other in _others(found) if other.exists()]
    if as_json:
        document({"file": str(file), "bytes": size, "not_in_it": others})
        return
    print(clean(f"{file}: {size} bytes"))
    for other in others:
        note(f"not in it: {other}, which belongs with it: copy it too")


@app.command()
def restore(file: FileArgument, config: ConfigPath = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Put a backup in the ledger's place; the daemon must be stopped."""
    found = loaded(config)
    kept = _function(found, "restore")(found.ledger.settings, file)
    others = [str(other) for other in _others(found)]
    if as_json:
        document({"file": str(file), "kept": str(kept) if kept else None, "not_in_it": others})
        return
    print(clean(f"restored from {file}" + (f"; what stood there is now {kept}" if kept else "")))
    for other in others:
        note(f"not in it: {other}, which belongs with it: put its own copy back too")


def _others(config: Any) -> list[Path]:
    from autoscaler import wiring

    return wiring.beside_ledger(config)


def _function(config: Any, name: str) -> Any:
    from autoscaler import wiring
    from autoscaler.domain.faults import ConfigError

    found = getattr(wiring.ledger_module(config), name, None)
    if found is None:
        raise ConfigError([f"ledger: {config.ledger.kind} has no {name} of its own; allowed: the database's own tools"])
    return found
