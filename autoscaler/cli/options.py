"""Options that several commands share.

Does: name them once. Does not: read a file. Invariant: nothing heavy is imported until a command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from autoscaler.config.schema import Config, PoolConfig

ConfigPath = Annotated[
    Path,
    typer.Option("--config", "-c", envvar="AUTOSCALER_CONFIG", help="The YAML file.", show_default=True),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]
PoolOption = Annotated[str | None, typer.Option("--pool", help="The pool; may be left out when there is only one.")]

DEFAULT_CONFIG = Path("autoscaler.yaml")


def loaded(path: Path) -> Config:
    """The checked configuration; raises ConfigError."""
    from autoscaler.config.load import load

    return load(path)


def chosen_pool(config: Config, name: str | None) -> PoolConfig:
    """The pool of that name, or the only one; raises ConfigError that names them all."""
    from autoscaler.config.mistakes import close_match
    from autoscaler.domain.faults import ConfigError

    names = [pool.pool.name for pool in config.pools]
    if name is None and len(names) == 1:
        return config.pools[0]
    for pool in config.pools:
        if pool.pool.name == name:
            return pool
    found = "nothing" if name is None else f"{name[:60]!r}{close_match(name, names)}"
    raise ConfigError([f"pool: found {found}; allowed: {', '.join(names)}"])


def seconds(text: str, option: str) -> float:
    """A duration option in seconds; raises ConfigError."""
    from autoscaler.config.durations import parse_duration
    from autoscaler.domain.faults import ConfigError

    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError([f"{option}: found {text[:60]!r}; {error}"]) from None
