"""The policies' opinions, asked, checked and composed into one wanted size.

Does: run each policy, catch one that breaks, compose: highest target, lowest ceiling, any veto.
Does not: apply trust, pace or bounds.
Invariant: a broken policy leaves the pool as it is in both directions; it is never silently replaced by another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from autoscaler.domain.decision import Calendar, Opinion, Reason, Recommendation, Situation
from autoscaler.domain.memory import Memory
from autoscaler.domain.pool import Pool
from autoscaler.ports.policy import Policy

CARRY_BYTES_MAX = 64 * 1024
#: Float noise that must not buy a machine.
EPSILON = 1e-9


class Composed(msgspec.Struct, kw_only=True, frozen=True):
    """The composed opinion. `wanted`: units, None when nobody had one.

    `veto`: who forbids scale-in. `broken`: who broke.
    """

    wanted: int | None
    reason: Reason
    veto: Reason | None = None
    broken: Reason | None = None


def ask(
    pool: Pool, policies: Sequence[Policy], memory: Memory, situation: Situation, calendar: Calendar
) -> tuple[Opinion, ...]:
    """Every policy's opinion under a stable name (`0:target_tracking`)."""
    opinions = []
    for index, policy in enumerate(policies):
        name = f"{index}:{policy.name}"
        carry = memory.carries.get(name, "")
        try:
            answer: object = policy.recommend(pool, situation, carry, calendar)
            broken = _what_is_wrong(answer)
        except Exception as error:  # noqa: BLE001 - an opinion is not ours; what it raises must not stop the pool
            answer, broken = None, f"{type(error).__name__}: {error}"[:300]
        if broken or not isinstance(answer, Recommendation):
            reason = Reason(code="policy_broken", facts={"policy": name, "what": broken})
            answer = Recommendation(target=None, reason=reason, carry=carry)
        opinions.append(Opinion(policy=name, recommendation=answer, broken=broken))
    return tuple(opinions)


def _what_is_wrong(answer: object) -> str:
    """Why an answer cannot be used; empty when it can."""
    if not isinstance(answer, Recommendation):
        return f"returned {type(answer).__name__}, not a Recommendation"
    for name, value in (("target", answer.target), ("ceiling", answer.ceiling)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{name} is {type(value).__name__}, not a number"
        if not math.isfinite(value) or value < 0:
            return f"{name} is {value}, not a finite number of at least 0"
    if not isinstance(answer.carry, str) or len(answer.carry.encode()) > CARRY_BYTES_MAX:
        return f"carry is not text of at most {CARRY_BYTES_MAX} bytes"
    return ""


def compose(opinions: Sequence[Opinion]) -> Composed:
    """Highest target, then the lowest ceiling, any veto; the reason is that of the opinion that decided."""
    broken = next((one.recommendation.reason for one in opinions if one.broken), None)
    targets = [
        (math.ceil(one.recommendation.target - EPSILON), -index, one.recommendation.reason)
        for index, one in enumerate(opinions)
        if one.recommendation.target is not None
    ]
    veto = next((one.recommendation.reason for one in opinions if one.recommendation.veto_in), None)
    if not targets:
        silent = opinions[0].recommendation.reason if opinions else Reason(code="no_policy")
        return Composed(wanted=None, reason=silent, veto=veto, broken=broken)
    wanted, _, reason = max(targets, key=lambda one: (one[0], one[1]))
    ceilings = [one.recommendation.ceiling for one in opinions if one.recommendation.ceiling is not None]
    if ceilings and min(ceilings) < wanted:
        wanted = math.floor(min(ceilings) + EPSILON)
        reason = Reason(code="policy_ceiling", facts={"ceiling": wanted})
    return Composed(wanted=wanted, reason=reason, veto=veto, broken=broken)
