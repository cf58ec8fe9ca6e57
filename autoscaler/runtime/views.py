"""What the admin API shows of a pool, as plain values.

Does: choose and name the fields. Does not: judge them; `status` and `explain` print these very fields.
Invariant: a field that is not known is null, never 0 or an empty text standing for it.
"""

from collections import Counter as Tally
from typing import Any

import msgspec

from autoscaler.domain.base import Instant
from autoscaler.runtime.loop import Status


def short(status: Status, now: Instant) -> dict[str, Any]:
    """One line of the list of pools."""
    decision, pool = status.decision, status.parts.pool
    shown: dict[str, Any] = {
        "name": pool.name,
        "mode": pool.mode.value,
        "phases": {},
        "capacity": None,
        "wanted": None,
        "target": None,
        "trust": None,
        "sentence": "no decision yet",
        "at": None,
        "age_s": None,
        "alarms": [],
        "trouble": status.trouble or None,
        "overruns": status.overruns,
    }
    if decision is None:
        return shown
    shown |= {
        "phases": dict(Tally(replica.phase.value for replica in decision.replicas)),
        "capacity": {**msgspec.to_builtins(decision.capacity), "held": decision.capacity.held},
        "wanted": decision.wanted,
        "target": decision.target,
        "trust": decision.trust.level.value,
        "sentence": decision.sentence,
        "at": decision.at,
        "age_s": round(now - decision.at, 3),
        "alarms": msgspec.to_builtins(decision.alarms),
    }
    return shown


def full(status: Status, now: Instant) -> dict[str, Any]:
    """Everything that explains one pool."""
    decision, pool = status.decision, status.parts.pool
    shown = short(status, now)
    shown["bounds"] = msgspec.to_builtins(pool.bounds)
    shown["replicas"] = msgspec.to_builtins(decision.replicas) if decision else []
    shown["opinions"] = msgspec.to_builtins(decision.opinions) if decision else []
    shown["blocks"] = msgspec.to_builtins(decision.blocks) if decision else []
    shown["plan"] = [action.key for action in decision.plan] if decision else []
    shown["trust_why"] = decision.trust.why if decision else None
    directives = status.observation.directives if status.observation else None
    shown["directives"] = msgspec.to_builtins(directives) if directives is not None else None
    return shown
