"""`autoscaler run`: the daemon.

Does: hold the ledger, wire, start the supervisor, read the config again on SIGHUP. Does not: decide or act.
Invariant: nothing is started before the config is whole, the ledger is held and readable, and the port is free.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autoscaler.cli.options import DEFAULT_CONFIG, ConfigPath, loaded

if TYPE_CHECKING:
    from autoscaler.config.schema import Config
    from autoscaler.runtime.parts import Checkpoint, PoolParts


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command()(run)


def run(config: ConfigPath = DEFAULT_CONFIG) -> None:
    """Run the daemon.

    SIGTERM ends it between actions; SIGHUP reads the config again.
    """
    serve(config)


def serve(path: Path, checkpoint: Checkpoint | None = None) -> None:
    """Run the daemon of this config to its end; raises ConfigError or PortFault when it cannot start.

    `checkpoint` is called at the runtime's named points: a test ends the process there.
    """
    import asyncio  # as all that is heavy: `--help` loads this module too

    found = loaded(path)
    make_state_dir(found)
    with held(found):
        asyncio.run(_run(found, path, checkpoint))


def make_state_dir(config: Config) -> None:
    """Make the state folder, for this user only; raises ConfigError when it cannot be made or others can write to it.

    Its mode is left alone when it was there: whoever made it (systemd, an image) may have had a reason.
    """
    from autoscaler.domain.faults import ConfigError
    from autoscaler.ports.trusted import mistake_in

    folder = Path(config.state_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if mistake := mistake_in(folder, folder.stat()):
            raise ConfigError([f"state_dir: {folder}: {mistake}"])
    except OSError as error:
        what = f"state_dir: {config.state_dir}: {error.strerror or type(error).__name__}"
        raise ConfigError([f"{what}; allowed: a folder that can be made and written"]) from None


def held(config: Config) -> contextlib.AbstractContextManager[Any]:
    """The claim on the ledger, where its kind knows one; raises Refused that names who has it."""
    from autoscaler import wiring

    hold = getattr(wiring.ledger_module(config), "hold", None)
    claim: contextlib.AbstractContextManager[Any] = hold(config.ledger.settings) if hold else contextlib.nullcontext()
    return claim


async def _run(config: Config, path: Path, checkpoint: Checkpoint | None) -> None:
    from autoscaler import wiring
    from autoscaler.runtime import notify, supervisor
    from autoscaler.runtime.api import ApiSettings
    from autoscaler.runtime.clock import SystemClock
    from autoscaler.runtime.journal import open_journal

    clock = SystemClock()
    wired = wiring.build(config, clock)
    try:
        for parts in wired.pools:  # a ledger that is locked, full or of a newer schema is told now, and once
            await wired.ledger.load(parts.pool.name)
            await _check_start(parts)
    except BaseException:
        await wiring.close(wired)
        raise
    tune_collector()
    token = config.admin.token.reveal() if config.admin.token else None
    options = supervisor.Options(
        clock=clock,
        api=ApiSettings(host=config.admin.host or "0.0.0.0", port=config.admin.port, token=token),  # noqa: S104 - as asked
        journal=open_journal(config.log.format.value, level=config.log.level.value),
        reload=lambda: wiring.build_pools(loaded(path), clock),
        checkpoint=checkpoint or supervisor.no_checkpoint,
        tell=notify.tell,
    )
    await supervisor.run(wired.pools, wired.ledger, options)


def tune_collector() -> None:
    """Let Python look for cyclic garbage as seldom as a daemon wants it that makes next to none.

    A tick makes tens of thousands of values that die by their counts; looking among them for cycles every 700, and now
    and then among all that was ever imported, took a sixth of the CPU of 300 pools. What there is in cycles (an error
    with its traceback) is small, and waits for 20,000 others at most.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def _check_start(parts: PoolParts) -> None:
    """Tell now what this machine lacks, rather than launch replicas that no balancer could ever have.

    Only of parts that we start here: one that is elsewhere may come back, and must not keep the other pools waiting.
    """
    for balancer in parts.balancers.values():
        check: Callable[[], Awaitable[None]] | None = getattr(balancer, "check_start", None)
        if check is not None:
            await check()
