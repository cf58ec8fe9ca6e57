"""Commands that only look: plan, check, status, explain.

Does: show. Does not: change a cloud, a balancer, a replica or a ledger row (law 14).
Invariant: each exits 0 when all is well, 1 when a check failed, 3 when something cannot be reached.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autoscaler.cli.options import DEFAULT_CONFIG, ConfigPath, Json, chosen_pool, loaded, seconds
from autoscaler.cli.show import age, clean, document, note, number, table

PoolArgument = Annotated[str | None, typer.Argument(help="The pool; may be left out when there is only one.")]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    for command in (plan, check, status, explain):
        app.command()(command)


def plan(
    config: ConfigPath = DEFAULT_CONFIG,
    pool: Annotated[str | None, typer.Option("--pool", help="This pool only.")] = None,
    window: Annotated[str, typer.Option(help="How long to look before deciding; two ticks when left out.")] = "",
    as_json: Json = False,
) -> None:
    """Show what the daemon would do now; changes nothing.

    Looks twice with a window between, so that rates can be told and checks can pass, then decides once.
    """
    from autoscaler.cli import planning

    found = loaded(config)
    only = chosen_pool(found, pool) if pool else None
    planned = planning.plan(found, only, seconds(window, "--window") if window else None)
    if as_json:
        document([each.plain() for each in planned])
        return
    for each in planned:
        print(each.text())


def check(
    config: ConfigPath = DEFAULT_CONFIG,
    online: Annotated[bool, typer.Option("--online", help="Also reach what the config names.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    as_json: Json = False,
) -> None:
    """Check the config; with --online, also what it names."""
    from autoscaler.cli import checking
    from autoscaler.domain.faults import ConfigError

    try:
        result = checking.check(loaded(config), online=online)
    except ConfigError as error:
        if not as_json:
            raise
        document({"ok": False, "mistakes": error.mistakes, "findings": [], "reached": []})
        raise typer.Exit(2) from None
    if as_json:
        document(result.plain(strict=strict))
    else:
        for line in result.lines():
            print(clean(line))
    raise typer.Exit(result.exit_code(strict=strict))


def status(config: ConfigPath = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Every pool in a line.

    From the running daemon, else from the ledger, and it says which.
    """
    from autoscaler.cli import snapshot

    found = snapshot.all_pools(config)
    if as_json:
        document({**found.plain(), "pools": found.pools})
        return
    if remark := found.remark():
        note(remark)
    table(
        ("POOL", "MODE", "SERVING", "COMING", "DRAINING", "LOST", "WANTED", "TARGET", "TRUST", "AGE"),
        [_status_row(pool) for pool in found.pools],
    )
    for pool in found.pools:
        print(f"{clean(pool['name'])}: {clean(pool.get('trouble') or pool['sentence'])}")
        for alarm in pool.get("alarms") or []:
            print(f"  alarm: {clean(phrased(alarm))}")


def _status_row(pool: dict[str, Any]) -> tuple[object, ...]:
    capacity = pool.get("capacity") or {}
    shown = [number(capacity.get(key)) for key in ("in_service", "on_the_way", "draining", "lost")]
    sizes = [number(pool.get("wanted")), number(pool.get("target"))]
    return (pool["name"], pool["mode"], *shown, *sizes, pool.get("trust") or "-", age(pool.get("age_s")))


def phrased(reason: Any) -> str:
    """A reason of the API in the engine's own words."""
    import msgspec

    from autoscaler.domain.decision import Reason
    from autoscaler.engine.explain import phrase

    try:
        return phrase(msgspec.convert(reason, Reason))
    except msgspec.ValidationError:
        return str(reason)


def explain(pool: PoolArgument = None, config: ConfigPath = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Why a pool has its size, and what holds it back."""
    from autoscaler.cli import snapshot
    from autoscaler.domain.faults import ConfigError

    found = snapshot.one_pool(config, pool)
    if len(found.pools) > 1:
        raise ConfigError([f"pool: found nothing; allowed: {', '.join(each['name'] for each in found.pools)}"])
    shown = found.pools[0]
    if as_json:
        document({**found.plain(), **shown})
        return
    if remark := found.remark():
        note(remark)
    for line in explained(shown):
        print(clean(line))


def explained(pool: dict[str, Any]) -> list[str]:
    """The lines of `explain`."""
    bounds, capacity = pool.get("bounds") or {}, pool.get("capacity") or {}
    words = (("in_service", "in service"), ("on_the_way", "on the way"), ("draining", "draining"), ("lost", "lost"))
    has = [f"{number(capacity.get(key))} {word}" for key, word in words]
    lines = [
        f"{pool['name']} ({pool['mode']}), decided {age(pool.get('age_s'))} ago",
        f"  {pool.get('trouble') or pool['sentence']}",
        f"  wanted    {number(pool.get('wanted'))}",
        f"  target    {number(pool.get('target'))}  (min {number(bounds.get('min'))}, max {number(bounds.get('max'))})",
        f"  has       {', '.join(has)}",
        f"  telemetry {pool.get('trust') or '-'}: {pool.get('trust_why') or 'nothing to say'}",
    ]
    for opinion in pool.get("opinions") or []:
        said = opinion.get("recommendation") or {}
        why = opinion.get("broken") or phrased(said.get("reason"))
        lines.append(f"  policy    {opinion.get('policy')}: {number(said.get('target'))}  {why}")
    for key, title in (("blocks", "held back"), ("alarms", "alarm    ")):
        lines += [f"  {title} {phrased(reason)}" for reason in pool.get(key) or []]
    lines += [f"  doing     {action}" for action in pool.get("plan") or []]
    lines += _directed(pool.get("directives") or {})
    for replica in pool.get("replicas") or []:
        inside = f"running {number(replica.get('running'))}, waiting {number(replica.get('waiting'))}"
        traffic = f"traffic {replica.get('taking_traffic')}"
        detail = f"  {replica['detail']}" if replica.get("detail") else ""
        lines.append(f"  replica   {replica.get('id')}  {replica.get('phase')}  {traffic}  {inside}{detail}")
    return lines


def _directed(directives: dict[str, Any]) -> list[str]:
    """What operators have in force."""
    lines = []
    if directives.get("pause") not in (None, "none"):
        lines.append(f"  operator  paused: {directives['pause']}")
    if directives.get("at_least"):
        lines.append(f"  operator  at least {directives['at_least'].get('units')}")
    for key in ("protect", "drain", "replace"):
        lines += [f"  operator  {key} {each}" for each in sorted(directives.get(key) or [])]
    return lines
