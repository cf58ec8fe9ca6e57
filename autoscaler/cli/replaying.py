"""`autoscaler replay`: the daemon's records through today's decide(), or through another policy or config.

Does: read records from the ledger, replay, list what changed. Does not: decide or write anything.
Invariant: the ledger is opened for reading only. Exit code 1 when the same config decides otherwise than it did.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoscaler.cli import lab_options as options
from autoscaler.cli.options import DEFAULT_CONFIG, ConfigPath, Json, PoolOption, chosen_pool, loaded, seconds

if TYPE_CHECKING:
    from autoscaler.config.schema import Config, PoolConfig
    from autoscaler.domain.base import PoolName
    from autoscaler.domain.decision import Record
    from autoscaler.lab.replay import Replayed
    from autoscaler.ports.ledger import Ledger

Since = Annotated[str, typer.Option("--since", help="Records of this long until the newest, such as 2h.")]
Against = Annotated[
    Path | None, typer.Option("--against", help="Another config, whose pool of this name decides instead.")
]
_RECORDS_MAX = 200_000
_LISTED = 20


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command()(replay)


def replay(
    config: ConfigPath = DEFAULT_CONFIG,
    pool: PoolOption = None,
    since: Since = "2d",
    policies: options.Policies = None,
    against: Against = None,
    as_json: Json = False,
) -> None:
    """Decide again what the daemon decided, and list what changes.

    With the config as it is this tells whether today's code decides as it did then; with --policies or --against it
    tells what another policy would have said, of the pool as it was.
    """
    whole = loaded(config)
    mine = chosen_pool(whole, pool)
    window_s = seconds(since, "--since")
    other = policies is not None or against is not None
    theirs = _other(against or config, mine, policies) if other else None
    with options.progress(f"replaying {mine.pool.name}", quiet=as_json) as bar:
        found = asyncio.run(_replayed(whole, mine, theirs, window_s, bar))
    changed = [one for one in found if one.changes]
    made_by = found[-1].record.decision.memory.config_hash
    _told(mine, found, changed, edited=not other and made_by not in {"", mine.config_hash}, as_json=as_json)
    raise typer.Exit(int(bool(changed) and not other))


def _other(path: Path, mine: PoolConfig, policies: Path | None) -> PoolConfig:
    """The pool of another config, or this one with other policies. Raises ConfigError."""
    from autoscaler.lab.trial import read_pool

    return read_pool(path, mine.pool.name, policies).config


async def _replayed(
    whole: Config, mine: PoolConfig, theirs: PoolConfig | None, window_s: float, bar: options.Progress
) -> list[Replayed]:
    """Every record of the window again. Raises Unreachable when there is none."""
    import msgspec

    from autoscaler import wiring
    from autoscaler.config.sections import build_policy
    from autoscaler.domain.faults import Unreachable
    from autoscaler.lab.replay import replay as again
    from autoscaler.runtime.clock import SystemClock

    wired = wiring.build(msgspec.structs.replace(whole, pools=(mine,)), SystemClock(), read_only=True)
    try:
        records = await _records(wired.ledger, mine.pool.name, window_s, bar)
        if not records:
            raise Unreachable(f"the ledger has no full record of {mine.pool.name} in that time")
        (parts,) = wired.pools
        pool, policies = parts.pool, parts.policies
        if theirs is not None:
            # What a balancer can do is known of the one that the records are about.
            pool = msgspec.structs.replace(theirs.pool, balancers=pool.balancers)
            policies = tuple(build_policy(one) for one in theirs.policies)
        found = []
        for one in again(records, pool, policies, other=theirs is not None):
            found.append(one)
            bar(len(records) + len(found), 2 * len(records))
        return found
    finally:
        await wiring.close(wired)


async def _records(ledger: Ledger, pool: PoolName, window_s: float, bar: options.Progress) -> list[Record]:
    """The full records of the last `window_s` seconds before the newest, oldest first."""
    from autoscaler.domain.base import NEVER

    ticks = await ledger.summaries(pool, NEVER, _RECORDS_MAX)
    wanted = [one for one in ticks if one.at >= ticks[0].at - window_s]
    found = []
    for one in reversed(wanted):
        record = await ledger.record(pool, one.sequence)
        if record is not None:  # full records go before their summaries
            found.append(record)
            bar(len(found), 2 * len(wanted))
    return found


def _told(mine: PoolConfig, found: list[Replayed], changed: list[Replayed], *, edited: bool, as_json: bool) -> None:
    """What changed, first things first."""
    from autoscaler.cli.show import clean, document, note

    if edited:
        note("the config has been changed since the newest record was made")
    if as_json:
        counts = {"pool": mine.pool.name, "records": len(found), "changed": len(changed)}
        document({**counts, "config_changed_since": edited, "decisions": [one.plain() for one in changed]})
        return
    for one in changed[:_LISTED]:
        print(clean(f"{one.record.calendar.utc}  #{one.record.sequence}"))
        for line in one.changes:
            print(f"  {clean(line)}")
    if len(changed) > _LISTED:
        print(f"and {len(changed) - _LISTED} more; --json lists all")
    span = f"{found[0].record.calendar.utc} to {found[-1].record.calendar.utc}"
    print(clean(f"{mine.pool.name}: {len(changed)} of {len(found)} decisions change ({span})"))
