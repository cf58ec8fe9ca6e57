"""Reasons turned into sentences, in one place.

Does: one English phrase a reason code, one sentence a decision: wanted, has, does, held back by what, for how long.
Does not: decide, format for terminals, or know clock times (only "for 42 s").
Invariant: every reason renders; an unknown code (a user's policy) renders as its name and its facts.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from autoscaler.domain.decision import Action, Decision, Fact, Launch, Reason, Terminate
from autoscaler.domain.load import Trust
from autoscaler.domain.pool import Mode, Pool

TEMPLATES: Final[dict[str, str]] = {
    # sizing
    "telemetry_hold": "holding: {why}",
    "up_only": "{wanted} would do, but telemetry allows no scale-in: {why}",
    "fallback": "telemetry is blind ({why}), so at least the fallback of {size}",
    "no_policy": "no policy has an opinion",
    "policy_broken": "policy {policy} is broken ({what}): the pool stays as it is",
    "policy_ceiling": "a policy's ceiling allows {ceiling}",
    "paused": "scale-{direction} is paused by an operator",
    "unhealthy_share": "no scale-in while {why}",
    "blind": "no scale-in while the daemon {why}",
    "vetoed": "scale-in vetoed: {inner}",
    "floor": "an operator holds at least {units}",
    "no_history": "no scale-in for {for_s} s more: not a full window seen yet",
    "stabilising": "scale-in waits {for_s} s more: {highest} was wanted within the window",
    "cooldown_in": "scale-in cools down for {for_s} s more",
    "cooldown_out": "scale-out cools down for {for_s} s more",
    "step_limit_out": "at most +{step} in one step",
    "step_limit_in": "at most -{step} in one step",
    # placing
    "throttled": "the provider asked us to slow down: no launch for {for_s} s",
    "compute_blind": "{offer}: its compute cannot be seen, so nothing is launched there",
    "marked": "{offer} is skipped for a while: {why}",
    "no_room": "{offer}: no room under max {max} ({existing} exist, leaving ones included)",
    "budget": "{offer}: {usd_per_h} $/h runs already, the budget is {budget} $/h",
    "backing_off": "{offer}: {failures} failed loads in a row, next try in {for_s} s ({why})",
    "breaker_open": "{offer}: breaker open after {failures} failed loads, none worked; one trial in {for_s} s ({why})",
    # planning
    "replacing": "{waiting} marked for replacement wait until the others carry the target ({have} do)",
    "replacement_paced": "replacing one at a time: {why}",
    # alarms
    "machine_vanished": "{replica} vanished while {phase}: not by our choice",
    "foreign_machines": "{count} on {compute} belong to no pool here, not touched; first {instance} ({detail})",
    "foreign_members": "{count} in {balancer} are not ours, not touched; first {endpoint} ({detail})",
    "launch_expired": "launch {token} at {placement} showed no machine by its deadline",
    "no_capacity": "{placement} has no capacity: {detail}",
    "quota_reached": "{placement}: quota reached: {detail}",
    "launch_refused": "{placement}: launch refused: {detail}",
    "breaker_tripped": "{offer}: breaker open: {failures} machines in a row never got ready ({why}); only rare trials",
    "source_fault": "{source}: {detail}",
    "no_traffic": "{replica} is admitted but the balancer sends it nothing",
    # policies
    "above_target": "{signal} {value} at {target} a unit needs {wanted}",
    "below_target": "{signal} {value} at {target} a unit needs only {wanted}",
    "within_tolerance": "{signal} {value} is within tolerance of {target}",
    "at_cap": "{signal} {value} is at its cap",
    "load_from_zero": "{signal} {value} with nothing running",
    "nothing_in_service": "nothing is in service to measure {signal}",
    "signal_absent": "{signal} is not known: {why}",
    "signal_quiet": "{signal} is quiet: {samples} samples",
    "signal_unusable": "{signal} may not be used: {why}",
    "missing_replicas": "{signal} {value}, but too few replicas answered to tell which way",
    "slo_breach": "{signal} {value} s breaks the objective of {objective} s, and {by} {at} agrees",
    "slo_breach_waits": "{signal} {value} s breaks the objective of {objective} s; {on_the_way} on the way already",
    "slo_breach_settling": "{signal} {value} s breaks {objective} s; what just joined gets {wait_s} s to show",
    "slo_breach_unconfirmed": "{signal} {value} s breaks the objective of {objective} s, but no queue or use agrees",
    "slo_near": "{signal} {value} s is near its objective of {objective} s",
    "slo_kept": "{signal} {value} s keeps its objective of {objective} s",
    "step_out": "{signal} {value} is at or above {at_least}: {add} more",
    "step_waits": "{signal} {value} is at or above {at_least}; {on_the_way} on the way already",
    "step_in": "{signal} {value} is below {below}: {remove} less",
    "between_steps": "{signal} {value} is between the steps",
    "highest": "the highest of {of}: {why}",
    "lowest": "the lowest of {of}: {why}",
    "ceiling": "at most {ceiling}: {why}",
    "veto_in": "{policy} forbids scale-in: {why}",
    "veto_none": "none of {of} forbids scale-in",
    "no_opinion": "none of {of} has an opinion: {why}",
    "fixed": "fixed at {size}",
    "forecast": "{signal} {expected} expected within {lead_s} s ({way}), times {headroom} for its errors",
    "forecast_learning": "the forecast of {signal} has seen {minutes} minutes only",
    "slo_work": "work {work} now, {expected} expected within {lead_s} s ({way}), a unit bears {bears}",
    "slo_learning": "still learning: work {work} now, {expected} expected, {held} held",
    "scheduled": "{size} by the clock, since {start}",
    "unscheduled": "{size} by the clock: no window is open",
    "no_calendar": "the time of day is not known",
    "request_rate": "{rate} requests/s over {window_s} s, {per_replica} a unit, need {wanted}",
    "stable": "{inside} requests inside, {target} a unit, need {wanted}",
    "panic": "{inside} requests inside {in_service} in service: panic, need {wanted}",
}

#: Short words for an action's kind.
VERBS: Final[dict[str, str]] = {
    "launch": "launch", "withdraw": "withdraw", "start": "start", "stop": "stop", "admit": "admit",
    "reweigh": "reweigh", "drain": "drain", "recall": "recall", "evict": "evict", "terminate": "terminate",
}  # fmt: skip


def number(value: Fact) -> str:
    """A fact as text: at most three significant digits, no trailing zeros."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


class _Facts(dict[str, str]):
    """Facts for a template; one that is missing shows as a question mark instead of raising."""

    def __missing__(self, key: str) -> str:
        del key
        return "?"


def phrase(reason: Reason) -> str:
    """One reason in words."""
    facts = {key: number(value) for key, value in reason.facts.items()}
    if reason.code == "vetoed":  # the veto's own reason travels inside it
        inner = {key: value for key, value in reason.facts.items() if key != "by"}
        facts["inner"] = phrase(Reason(code=str(reason.facts.get("by", "?")), facts=inner))
    template = TEMPLATES.get(reason.code)
    if template is None:
        told = ", ".join(f"{key} {value}" for key, value in facts.items())
        name = reason.code.replace("_", " ")
        return f"{name} ({told})" if told else name
    return template.format_map(_Facts(facts))


def doing(plan: tuple[Action, ...]) -> str:
    """What a plan does, counted by kind and where it matters by place; "nothing" when it is empty."""
    counts: Counter[str] = Counter()
    for action in plan:
        kind = VERBS[action.__struct_config__.tag]  # type: ignore[index]  # the tag of our union is always text
        if isinstance(action, Launch):
            counts[f"{kind} at {action.placement.key}"] += action.count
        elif isinstance(action, Terminate):
            counts[f"{kind} ({action.why})"] += 1
        else:
            counts[kind] += 1
    return (
        ", ".join(
            f"{kind} {count}" if " " not in kind else f"{_counted(kind, count)}" for kind, count in counts.items()
        )
        or "nothing"
    )


def _counted(kind: str, count: int) -> str:
    verb, _, rest = kind.partition(" ")
    return f"{verb} {count} {rest}".rstrip()


def sentence(pool: Pool, decision: Decision) -> str:
    """The whole decision in one sentence that an operator can read at three in the morning."""
    has = [f"{number(decision.capacity.in_service)} in service"]
    for units, words in (
        (decision.capacity.on_the_way, "on the way"),
        (decision.capacity.draining, "draining"),
        (decision.capacity.lost, "lost"),
    ):
        if units:
            has.append(f"{number(units)} {words}")
    wants = "no opinion on size" if decision.wanted is None else f"wants {decision.wanted}"
    parts = [f"{wants} ({phrase(decision.reason)})", f"has {', '.join(has)}", f"aims at {decision.target}"]
    verb = "would do" if pool.mode is Mode.ADVISE else "does"
    parts.append(f"{verb}: {doing(decision.plan)}")
    if decision.trust.level is not Trust.TRUST:
        known = decision.trust.why in parts[0]  # the reason for the size has said it already
        parts.append(f"trust {decision.trust.level.value}{'' if known else f': {decision.trust.why}'}")
    parts += [phrase(block) for block in decision.blocks]
    parts += [f"ALARM {phrase(alarm)}" for alarm in decision.alarms]
    return "; ".join(parts)
