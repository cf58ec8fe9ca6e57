"""Settings that are allowed and yet a bad idea: one line each, with the way to mend it.

Does: look at a complete Config, without the network. Does not: refuse anything (load does that).
Invariant: equal configs give equal findings, in the order of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec

from autoscaler.config.durations import format_duration as told
from autoscaler.config.load import is_loopback
from autoscaler.config.schema import Choice, Config, PoolConfig
from autoscaler.domain.base import Duration
from autoscaler.domain.load import Signal


class Severity(StrEnum):
    """`error` fails the check; `warning` may be meant so; `note` only says what a setting does."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line: how bad, where, what, and what to do about it."""

    severity: Severity
    path: str
    what: str
    mend: str

    def line(self) -> str:
        """As printed."""
        return f"{self.severity}: {self.path}: {self.what}; {self.mend}"


Rule = Callable[[PoolConfig], Iterator[Finding]]
_LATENCY: Final = frozenset({Signal.TTFT_S_P95, Signal.E2E_S_P95})


def _warn(path: str, what: str, mend: str) -> Finding:
    return Finding(severity=Severity.WARNING, path=path, what=what, mend=mend)


def _flat(choices: tuple[Choice, ...]) -> Iterator[Choice]:
    """Policies with those inside composing ones, in the order of the file."""
    for choice in choices:
        yield choice
        yield from _flat(choice.children)


def _signals(pool: PoolConfig) -> set[Signal]:
    """What the policies name as `signal`, the confirming ones of a latency policy included."""
    found: set[Signal] = set()
    for choice in _flat(pool.policies):
        settings: Any = choice.settings
        named = [getattr(settings, "signal", None), *(getattr(each, "signal", None) for each in _confirms(settings))]
        found |= {signal for signal in named if isinstance(signal, Signal)}
    return found


def _confirms(settings: Any) -> tuple[Any, ...]:
    confirm = getattr(settings, "confirm", ())
    return confirm if isinstance(confirm, tuple) else ()


def _boot(pool: PoolConfig) -> Iterator[Finding]:
    rule, pace = pool.pool.ready, pool.pool.pace
    boot = Duration(rule.give_up_after / 2)  # a typical boot, where nobody states one
    if pace.scale_in.stabilization < boot:
        yield _warn(
            f"{pool.path}.pace.scale_in.stabilization",
            f"{told(pace.scale_in.stabilization)} is shorter than a boot (taken as {told(boot)}, half of "
            "ready_when.give_up_after): what is let go in a lull cannot be back in time",
            f"set it to {told(boot)} or more, or give_up_after to twice what a load really takes",
        )
    if pace.scale_in.cooldown < pace.tick:
        yield _warn(
            f"{pool.path}.pace.scale_in.cooldown",
            f"{told(pace.scale_in.cooldown)} is shorter than a tick ({told(pace.tick)}), so it holds nothing back",
            f"set it to {told(pace.tick)} or more",
        )
    if pace.scale_in.cooldown < pace.scale_out.cooldown:
        yield _warn(
            f"{pool.path}.pace.scale_in.cooldown",
            f"{told(pace.scale_in.cooldown)} is shorter than that of scale_out ({told(pace.scale_out.cooldown)})",
            "a pool should leave more slowly than it comes: make it the longer one",
        )
    if pace.min_age > 0 and pace.orphan_grace < rule.give_up_after:
        yield _warn(
            f"{pool.path}.pace.orphan_grace",
            f"{told(pace.orphan_grace)} is shorter than ready_when.give_up_after ({told(rule.give_up_after)}): an "
            "adopted machine that still loads would be ended",
            f"set it to {told(rule.give_up_after)} or more",
        )


def _clocks(pool: PoolConfig) -> Iterator[Finding]:
    pace, drain = pool.pool.pace, pool.pool.drain
    if pace.stale_after < 2 * pace.tick:
        yield _warn(
            f"{pool.path}.pace.stale_after",
            f"{told(pace.stale_after)} is shorter than two ticks ({told(2 * pace.tick)}): one late scrape is blindness",
            f"set it to {told(3 * pace.tick)} or more",
        )
    if pace.fallback_after < pace.stale_after and pool.pool.bounds.fallback is not None:
        yield _warn(
            f"{pool.path}.pace.fallback_after",
            f"{told(pace.fallback_after)} is shorter than stale_after ({told(pace.stale_after)})",
            f"set it to {told(2 * pace.stale_after)} or more",
        )
    if drain.deadline <= 0:
        yield _warn(
            f"{pool.path}.drain.deadline",
            "0 s cuts every running request at each scale-in",
            "set it to the longest request that must survive",
        )
    if drain.lost_deadline > drain.deadline:
        yield _warn(
            f"{pool.path}.drain.lost_deadline",
            f"{told(drain.lost_deadline)} is longer than the deadline of a healthy replica ({told(drain.deadline)})",
            "make it the shorter one",
        )


def _looks(pool: PoolConfig) -> Iterator[Finding]:
    """One replica that hangs must not take longer to be given up than the look, or the patience, that it is part of."""
    pace = pool.pool.pace
    page = getattr(pool.telemetry.settings, "timeout", None) if pool.telemetry else None
    whole = Duration(max(2.0, pace.tick * 2.0 / 3.0))  # what a tick waits for its observation (runtime.observer)
    if isinstance(page, float) and page >= whole:
        yield _warn(
            f"{pool.path}.telemetry.timeout",
            f"{told(Duration(page))} for one replica is no less than what a tick waits for all ({told(whole)}): one "
            "that hangs blinds the whole pool",
            f"set it to {told(Duration(whole / 2))} or less",
        )
    look = getattr(pool.probe.settings, "timeout", None)
    if isinstance(look, float) and look > pace.unhealthy_after:
        yield _warn(
            f"{pool.path}.ready_when.timeout",
            f"{told(Duration(look))} is longer than pace.unhealthy_after ({told(pace.unhealthy_after)}), which a "
            "replica that hangs then outlasts",
            f"set it to {told(Duration(pace.unhealthy_after / 3))} or less",
        )


def _delays(pool: PoolConfig) -> Iterator[Finding]:
    """A source whose newest word is older than what counts as stale would blind the pool for ever."""
    if pool.telemetry is None:
        return
    stale_after = pool.pool.pace.stale_after
    settings: Any = pool.telemetry.settings
    delay = getattr(settings, "delay", None)  # of a source that is late by nature
    if isinstance(delay, float) and stale_after < delay:
        yield Finding(
            severity=Severity.ERROR,
            path=f"{pool.path}.pace.stale_after",
            what=f"{told(stale_after)} is shorter than {told(Duration(delay))}, the age that {pool.telemetry.kind}'s "
            "readings reach by nature: the pool would be blind",
            mend=f"set it to {told(Duration(delay))} or more",
        )


def _bounds(pool: PoolConfig) -> Iterator[Finding]:
    bounds = pool.pool.bounds
    if bounds.min == bounds.max:
        yield Finding(
            severity=Severity.NOTE,
            path=f"{pool.path}.capacity",
            what=f"min and max are both {bounds.min}: the pool is pinned, failed replicas are replaced and no more",
            mend="widen the bounds to let it scale",
        )
    if bounds.min == 0:
        yield _warn(
            f"{pool.path}.capacity.min",
            "0 lets the pool go to nothing, and the first request then waits for a boot that it must itself cause",
            "set 1, unless something outside holds requests meanwhile",
        )
    smallest = min(offer.capacity for offer in pool.pool.offers)
    if smallest > bounds.max:
        yield Finding(
            severity=Severity.ERROR,
            path=f"{pool.path}.capacity.max",
            what=f"{bounds.max} is less than the {smallest} units of the smallest offer: nothing can be launched",
            mend=f"set it to {smallest} or more",
        )


def _budget(pool: PoolConfig) -> Iterator[Finding]:
    budget = pool.pool.budget_usd_per_h
    if budget is None:
        return
    free = [offer.name for offer in pool.pool.offers if offer.usd_per_h == 0]
    if free:
        yield _warn(
            f"{pool.path}.budget", f"offers without a price ({', '.join(free)}) do not count", "give each usd_per_hour"
        )
    cheapest = min(offer.usd_per_h / offer.capacity for offer in pool.pool.offers)
    if cheapest * pool.pool.bounds.max > budget:
        yield Finding(
            severity=Severity.NOTE,
            path=f"{pool.path}.budget",
            what=f"{budget:g} $/h ends before max, which costs {cheapest * pool.pool.bounds.max:g} $/h",
            mend=f"about {int(budget // cheapest)} units fit",
        )


def _balancers(pool: PoolConfig) -> Iterator[Finding]:
    if not pool.balancers:
        yield _warn(
            f"{pool.path}.balancers",
            "none: replicas count as in service as soon as they are ready, and nobody sends them requests",
            "name the balancer, unless clients find replicas by themselves",
        )


def _gates(pool: PoolConfig) -> Iterator[Finding]:
    signals = _signals(pool)
    if signals == {Signal.GPU_UTILIZATION}:
        yield _warn(
            f"{pool.path}.policies",
            "gpu_utilization is the only gate: it is near 1 with one request as with a hundred",
            "add target_tracking on queue_length or running",
        )
    leaves = {choice.kind for choice in _flat(pool.policies) if not choice.children}
    if leaves == {"latency_slo"} or (signals and signals <= _LATENCY):
        yield _warn(
            f"{pool.path}.policies",
            "only latencies: they say when to grow, and nothing says when the pool may shrink",
            "add target_tracking on queue_length, running or gpu_utilization",
        )


def _steps(pool: PoolConfig) -> Iterator[Finding]:
    """Thresholds that overlap after n-1: load that asks for one less would ask for one more a tick later."""
    for choice in _flat(pool.policies):
        settings: Any = choice.settings
        way_in, steps = getattr(settings, "scale_in", None), getattr(settings, "steps", ())
        below = getattr(way_in, "below", None)
        lowest = getattr(steps[0], "at_least", None) if steps else None
        if below is None or lowest is None:
            continue
        held = max(2, pool.pool.bounds.min + 1)
        after = below * held / (held - 1)
        if after >= lowest:
            yield _warn(
                f"{choice.path}.scale_in.below",
                f"{below:g} a unit at {held} units is {after:g} at {held - 1}, which reaches the step at {lowest:g}",
                f"set it below {lowest * (held - 1) / held:g}",
            )


def _ports(pool: PoolConfig) -> Iterator[Finding]:
    ports = [offer.name for offer in pool.pool.offers if len(set(offer.ports)) != len(offer.ports)]
    if ports:
        yield Finding(
            severity=Severity.ERROR,
            path=f"{pool.path}.offers",
            what=f"the same port twice in {', '.join(ports)}",
            mend="write each port once",
        )


RULES: Final[tuple[Rule, ...]] = (
    _bounds, _budget, _ports, _balancers, _gates, _steps, _boot, _clocks, _looks, _delays,
)  # fmt: skip


def lint(config: Config) -> list[Finding]:
    """Every finding, pool by pool in the order of the file."""
    found: list[Finding] = []
    if config.admin.token is None:
        found.append(
            Finding(
                severity=Severity.NOTE,
                path="admin",
                what="no token: the admin API takes no directives, the command line writes them to the ledger",
                mend="set AUTOSCALER_ADMIN_TOKEN or admin.token_file",
            )
        )
    elif not is_loopback(config.admin.host):
        found.append(_warn("admin.listen", "the token crosses the network in clear text", "put TLS in front of it"))
    for pool in config.pools:
        for rule in RULES:
            found.extend(rule(pool))
    return found
