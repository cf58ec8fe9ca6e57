"""Policies of policies: the highest, the lowest, a ceiling, a veto.

    highest   target = largest of the children's targets
    lowest    target = smallest of the children's targets
    ceiling   no target of its own; ceiling = smallest of the children's targets: others decide, up to there
    veto      no target of its own; no scale-in while a child wants what is held or more

In each, a child without an opinion counts as absent, the lowest ceiling of the children holds, and so does any veto.
Units: capacity. Source: HPA and ASG take the largest over metrics; Nomad's groups let up beat none beat down.
Assumes: the children speak of the same pool. Does not: know what a child is; a child may be composed again.
Invariant: each child gets back exactly the carry that it gave, by its place (nested JSON); after a change in the number
of children all begin anew.

Reason codes (facts): `highest`, `lowest` (of, target, policy, why), `ceiling` (of, ceiling, policy, why), `veto_in`
(of, policy, why), `veto_none` (of), `no_opinion` (of, and `why`, the first child's code).
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from autoscaler.domain.decision import Calendar, Fact, Reason, Recommendation, Situation
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Pool
from autoscaler.ports.policy import Policy


class How(StrEnum):
    """How children become one."""

    HIGHEST = "highest"
    LOWEST = "lowest"
    CEILING = "ceiling"
    VETO = "veto"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`as`: how. `of`: the children as the user wrote them; whoever builds this policy has built them before."""

    how: How = msgspec.field(name="as")
    of: tuple[dict[str, Any], ...] = ()


class _Carry(msgspec.Struct, frozen=True, kw_only=True):
    v: int = 1
    of: tuple[str, ...] = ()


class Compose:
    """See the module."""

    def __init__(self, how: How, children: Sequence[Policy]) -> None:
        self._how = how
        self._children = tuple(children)
        self.name = f"{how}({', '.join(child.name for child in children)})"

    def signals(self) -> frozenset[Signal]:
        return frozenset().union(*(child.signals() for child in self._children))

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        carries = _carries(carry, len(self._children))
        opinions = [
            child.recommend(pool, situation, own, calendar) for child, own in zip(self._children, carries, strict=True)
        ]
        ceilings = [opinion.ceiling for opinion in opinions if opinion.ceiling is not None]
        vetoed = any(opinion.veto_in for opinion in opinions)
        made = self._combine(opinions, situation.capacity.held)
        if made.ceiling is not None:
            ceilings.append(made.ceiling)
        nested = msgspec.json.encode(_Carry(of=tuple(opinion.carry for opinion in opinions))).decode()
        return Recommendation(
            target=made.target,
            reason=made.reason,
            ceiling=min(ceilings, default=None),
            veto_in=made.veto_in or vetoed,
            carry=nested if any(opinion.carry for opinion in opinions) else "",
        )

    def _combine(self, opinions: Sequence[Recommendation], held: float) -> Recommendation:
        facts: dict[str, Fact] = {"of": len(opinions)}
        sized = [(opinion.target, place) for place, opinion in enumerate(opinions) if opinion.target is not None]
        if not sized:
            facts |= {"why": opinions[0].reason.code}
            return Recommendation(target=None, reason=Reason(code="no_opinion", facts=facts))
        # Of equal targets the first child's is taken, so that the reason does not depend on chance.
        highest = max(sized, key=lambda found: (found[0], -found[1]))
        target, place = highest if self._how in {How.HIGHEST, How.VETO} else min(sized)
        facts |= {"policy": self._children[place].name, "why": opinions[place].reason.code}
        if self._how in {How.HIGHEST, How.LOWEST}:
            return Recommendation(target=target, reason=Reason(code=self._how, facts={**facts, "target": target}))
        if self._how is How.CEILING:
            reason = Reason(code="ceiling", facts={**facts, "ceiling": target})
            return Recommendation(target=None, reason=reason, ceiling=target)
        if target < held:
            return Recommendation(target=None, reason=Reason(code="veto_none", facts={"of": len(opinions)}))
        return Recommendation(target=None, reason=Reason(code="veto_in", facts=facts), veto_in=True)


def _carries(carry: str, count: int) -> tuple[str, ...]:
    try:
        found = msgspec.json.decode(carry, type=_Carry) if carry else _Carry()
    except msgspec.DecodeError:
        found = _Carry()
    return found.of if found.v == 1 and len(found.of) == count else ("",) * count


def build(settings: Settings, children: Sequence[Policy]) -> Compose:
    """The children combined as the settings say. Raises ValueError without a child."""
    if not children:
        raise ValueError("of: found no policy, needed is at least one")
    return Compose(settings.how, children)
