"""The command `autoscaler`: which commands there are, and what an error becomes.

Does: put the groups together, turn errors into one line each and an exit code; with --json, into a document on standard
output too. Does not: hold any command's work, or turn bad usage (an unknown option) into a document.
Invariant: importing this module loads no ORM, no web framework and no SDK, so that `--help` answers at once.

Exit codes: 0 fine; 1 a check or assertion failed; 2 bad usage or config; 3 cannot reach something.
"""

from __future__ import annotations

import os
import sys

import typer

from autoscaler import __version__
from autoscaler.cli import (
    backtesting,
    comparing,
    demo,
    directives,
    ledger,
    look,
    machines,
    replaying,
    run,
    simulating,
    tuning,
)

app = typer.Typer(
    name="autoscaler",
    help="Keeps pools of LLM replicas, behind real load balancers, at the size that the load needs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        print(f"autoscaler {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Keeps pools of LLM replicas, behind real load balancers, at the size that the load needs."""


for group in (run, look, directives, machines):
    group.register(app)
app.add_typer(ledger.app, name="ledger")
demo.register(app)
simulating.register(app)
comparing.register(app)
tuning.register(app)
replaying.register(app)
backtesting.register(app)


def _errors() -> tuple[type[Exception], ...]:
    """The errors that become a line; looked up only once something was raised."""
    from autoscaler.domain.faults import ConfigError, PortFault

    return ConfigError, PortFault


def _told(error: Exception) -> int:
    from autoscaler.cli.show import clean, document
    from autoscaler.domain.faults import ConfigError

    lines = error.mistakes if isinstance(error, ConfigError) else [str(error)]
    for line in lines:
        print(f"error: {clean(line)}", file=sys.stderr)
    code = 2 if isinstance(error, ConfigError) else 3
    if "--json" in sys.argv[1:]:
        document({"error": "; ".join(lines), "errors": lines, "exit_code": code})
    return code


def main() -> None:
    """Run one command and leave with its exit code."""
    try:
        app()
    except _errors() as error:
        sys.exit(_told(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `autoscaler status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)


if __name__ == "__main__":
    main()
