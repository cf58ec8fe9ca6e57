"""The daemon's records through decide() again: which decisions change, and what differs first.

Each record holds all that went into its decision, so equal code and config give an equal decision. With other policies
the pool stays as it was recorded (what they would have launched never came), but each keeps its own memory from one
record to the next.

Does: decide again, compare, and say the first difference in words. Does not: read a ledger or print.
Invariant: pure; a record that was made by this very code and config never counts as changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from autoscaler.domain.decision import Decision, Opinion, Reason, Record
from autoscaler.domain.pool import Pool
from autoscaler.engine.decide import decide
from autoscaler.engine.explain import doing, phrase
from autoscaler.ports.policy import Policy


class Replayed(NamedTuple):
    """One record again. `changes`: what differs, first things first; empty: nothing."""

    record: Record
    decision: Decision
    changes: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """For --json."""
        then, now = self.record.decision, self.decision
        return {
            "sequence": self.record.sequence,
            "utc": self.record.calendar.utc,
            "changes": list(self.changes),
            "then": {"wanted": then.wanted, "target": then.target, "does": doing(then.plan), "sentence": then.sentence},
            "now": {"wanted": now.wanted, "target": now.target, "does": doing(now.plan), "sentence": now.sentence},
        }


def replay(records: Iterable[Record], pool: Pool, policies: Sequence[Policy], *, other: bool) -> Iterator[Replayed]:
    """Decide each record again. `other`: these are not the policies that made them, and keep their own memory."""
    carries: dict[str, str] = {}
    for record in records:
        memory = record.memory_before
        if other:
            memory = msgspec.structs.replace(memory, carries=carries)
        decision = decide(pool, policies, memory, record.observation, record.calendar)
        carries = decision.memory.carries
        # The loop adds the config's hash to what decide() returns, before it saves.
        kept = msgspec.structs.replace(decision.memory, config_hash=record.decision.memory.config_hash)
        decision = msgspec.structs.replace(decision, memory=kept)
        yield Replayed(record, decision, tuple(_changes(record.decision, decision)))


def _changes(then: Decision, now: Decision) -> Iterator[str]:
    """What differs, in the order in which a decision comes about."""
    if then == now:
        return
    told = 0
    for line in _steps(then, now):
        told += 1
        yield line
    if not told:
        yield "only what it remembers for the next tick" if then.memory != now.memory else "only its words or numbers"


def _steps(then: Decision, now: Decision) -> Iterator[str]:
    if then.trust != now.trust:
        yield f"trust: {then.trust.level} ({then.trust.why}) -> {now.trust.level} ({now.trust.why})"
    yield from _opinions(then.opinions, now.opinions)
    if then.wanted != now.wanted:
        yield f"wanted: {_shown(then.wanted)} -> {_shown(now.wanted)}"
    if then.target != now.target:
        yield f"target: {then.target} ({phrase(then.reason)}) -> {now.target} ({phrase(now.reason)})"
    for name in ("blocks", "alarms"):
        before, after = _phrases(getattr(then, name)), _phrases(getattr(now, name))
        if before != after:
            yield f"{name}: {'; '.join(before) or 'none'} -> {'; '.join(after) or 'none'}"
    if then.plan != now.plan:
        did, does = doing(then.plan), doing(now.plan)
        yield f"does: {did} -> {does}" if did != does else f"does: {did}, elsewhere or in another order"


def _opinions(then: Sequence[Opinion], now: Sequence[Opinion]) -> Iterator[str]:
    before, after = {one.policy: one for one in then}, {one.policy: one for one in now}
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if _opinion(old) != _opinion(new):
            yield f"{name}: {_opinion(old)} -> {_opinion(new)}"


def _opinion(one: Opinion | None) -> str:
    if one is None:
        return "not asked"
    said = one.recommendation
    size = "no opinion" if said.target is None else f"{said.target:g}"
    return f"{size}{' and a veto' if said.veto_in else ''} ({one.broken or phrase(said.reason)})"


def _phrases(reasons: Sequence[Reason]) -> list[str]:
    return [phrase(one) for one in reasons]


def _shown(value: int | None) -> str:
    return "no opinion" if value is None else str(value)
