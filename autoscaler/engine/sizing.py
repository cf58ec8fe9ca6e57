"""From a wanted size to the size that may be aimed at now: trust, directives, stabilisation, cooldown, steps.

Does: apply everything that holds a pool back, and say each thing that did. Does not: choose machines or placements.
Invariant: dwell is measured in time, never in ticks; a scale-in needs every guard to agree, a floor needs none.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from autoscaler.domain.base import Duration, Instant, elapsed
from autoscaler.domain.decision import Capacity, Observation, Reason
from autoscaler.domain.directives import Pause
from autoscaler.domain.load import Trust, TrustVerdict
from autoscaler.domain.memory import Memory, Wanted
from autoscaler.domain.pool import Pool
from autoscaler.engine.opinions import EPSILON, Composed

#: A silence of more than this many ticks counts as a restart: what happened meanwhile is not known.
GAP_TICKS = 3
#: A host may stall a process for a few seconds; only ticks shorter than about 2 s (a sped-up demo) ever feel this.
GAP_SHORTEST_S = 5.0
# A name of this module is found many times faster than the attribute of an enum, and these are asked for in each tick.
_TRUST: Final = Trust.TRUST
_HOLD: Final = Trust.HOLD
_UP_ONLY: Final = Trust.UP_ONLY
_FALLBACK: Final = Trust.FALLBACK
_PAUSE_OUT: Final = (Pause.OUT, Pause.BOTH)
_PAUSE_IN: Final = (Pause.IN, Pause.BOTH)


class Sized(msgspec.Struct, kw_only=True, frozen=True):
    """The size to aim at, why, what held it back, and the clocks for the next tick.

    `floor`: units that may be filled without regard to pace. `stable`: the least that every guard lets be aimed at,
    before the limit of a step. `size`: what Memory keeps of it, see there.
    """

    target: int
    floor: int
    stable: int
    size: int
    reason: Reason
    blocks: tuple[Reason, ...]
    window: tuple[Wanted, ...]
    history_since: Instant


class Question(msgspec.Struct, kw_only=True, frozen=True):
    """What sizing is asked about, in one value.

    `unhealthy`: why nothing may be scaled in for health's sake, or "". `blind`: what cannot be seen, or "".
    `resting`: units that failed together and may recover: not launched for again before they are given up (law 12).
    """

    pool: Pool
    memory: Memory
    observation: Observation
    composed: Composed
    trust: TrustVerdict
    capacity: Capacity
    unhealthy: str = ""
    blind: str = ""
    resting: float = 0.0


def size(question: Question) -> Sized:
    """The target in units."""
    pool, now = question.pool, question.observation.now
    current = math.floor(question.capacity.held + question.resting + EPSILON)
    floor = _floor(pool, question.observation)
    wanted, reason = _trusted(question, current)
    wanted = min(max(wanted, floor), pool.bounds.max)
    since = history_since(pool, question.memory, now)
    window = _window(question, wanted)
    blocks: list[Reason] = []
    target = stable = current
    if wanted > current:
        target = stable = _outwards(question, current, wanted, floor, blocks)
    elif wanted < current:
        target, stable = _inwards(question, current, wanted, window, since, blocks)
    if floor > max(pool.bounds.min, question.composed.wanted or 0):  # told last: it is no objection to go down to it
        blocks.append(Reason(code="floor", facts={"units": floor}))
    known = question.memory.size
    kept = target if known is None else min(max(target, known), max(target, wanted))
    return Sized(
        target=target, floor=floor, stable=stable, size=kept, reason=reason, blocks=tuple(blocks), window=window,
        history_since=since,
    )  # fmt: skip


def history_since(pool: Pool, memory: Memory, now: Instant) -> Instant:
    """Since when ticks have followed each other without a gap (law 8)."""
    if memory.history_since is None or memory.last_at is None:
        return now
    gap = elapsed(memory.last_at, now)
    return now if gap > max(GAP_TICKS * pool.pace.tick, GAP_SHORTEST_S) else memory.history_since


def _floor(pool: Pool, observation: Observation) -> int:
    at_least = observation.directives.at_least
    asked = at_least.units if at_least is not None and at_least.until > observation.now else 0
    return min(pool.bounds.max, max(pool.bounds.min, asked))


def _trusted(question: Question, current: int) -> tuple[int, Reason]:
    """The wanted size after the telemetry verdict; the size as it is where nothing may be concluded.

    That is the size last aimed at: a machine that is gone is replaced however blind telemetry is (law 12).
    """
    composed, trust = question.composed, question.trust
    current = max(current, question.memory.size or 0)
    if composed.broken is not None:
        return current, composed.broken
    if trust.level is _FALLBACK and question.pool.bounds.fallback is not None:
        fallback = question.pool.bounds.fallback
        return max(current, fallback), Reason(code="fallback", facts={"size": fallback, "why": trust.why})
    if trust.level is _HOLD:
        return current, Reason(code="telemetry_hold", facts={"why": trust.why})
    if composed.wanted is None:
        return current, composed.reason
    if trust.level is not _TRUST and composed.wanted < current:
        return current, Reason(code="up_only", facts={"why": trust.why, "wanted": composed.wanted})
    return composed.wanted, composed.reason


def _window(question: Question, wanted: int) -> tuple[Wanted, ...]:
    """The stabilisation window as its running maxima: older entries that a later, larger one hides are dropped.

    A tick that concluded nothing leaves no entry, so that one failed look does not begin the wait anew; after
    `stale_after` without a conclusion the size as it is counts as wanted.
    """
    pool, memory, now = question.pool, question.memory, question.observation.now
    horizon = pool.pace.scale_in.stabilization
    kept = [one for one in memory.window if elapsed(one.at, now) < horizon]
    composed = question.composed
    level, opinion = question.trust.level, composed.wanted if composed.broken is None else None
    # Where only the way up is open, an opinion that asks for more is a conclusion, one that asks for less is none.
    concluded = opinion is not None and (level is _TRUST or (level is _UP_ONLY and opinion >= wanted))
    if not concluded and kept and elapsed(kept[-1].at, now) <= pool.pace.stale_after:
        return tuple(kept)
    return (*(one for one in kept if one.units > wanted), Wanted(at=now, units=wanted))


def _outwards(question: Question, current: int, wanted: int, floor: int, blocks: list[Reason]) -> int:
    pool, now = question.pool, question.observation.now
    pace = pool.pace.scale_out
    if question.observation.directives.pause in _PAUSE_OUT:
        blocks.append(Reason(code="paused", facts={"direction": "out"}))
        return current
    wait = _remaining(question.memory.last_out_at, pace.cooldown, now)
    if wait > 0:
        if floor < wanted:
            blocks.append(Reason(code="cooldown_out", facts={"for_s": wait}))
        return max(current, min(floor, wanted))
    step = max(pace.max_step, math.floor(pace.max_growth * current + EPSILON))
    allowed = max(current + step, floor)
    if wanted > allowed:
        blocks.append(Reason(code="step_limit_out", facts={"step": step, "wanted": wanted}))
    return min(wanted, allowed)


def _inwards(
    question: Question, current: int, wanted: int, window: tuple[Wanted, ...], since: Instant, blocks: list[Reason]
) -> tuple[int, int]:
    """The target and what it would be without the limit of a step.

    A scale-in passes only when no guard objects; each that does is told.
    """
    now, pace = question.observation.now, question.pool.pace.scale_in
    blocks += _objections(question)
    short = pace.stabilization - elapsed(since, now)
    if short > 0:
        blocks.append(Reason(code="no_history", facts={"for_s": short}))
    highest = max(window, key=lambda one: (one.units, one.at))
    stable = max(wanted, highest.units)
    if stable >= current:
        left = pace.stabilization - elapsed(highest.at, now)
        blocks.append(Reason(code="stabilising", facts={"highest": highest.units, "for_s": left}))
    wait = _remaining(question.memory.last_in_at, pace.cooldown, now)
    if wait > 0:
        blocks.append(Reason(code="cooldown_in", facts={"for_s": wait}))
    if blocks:
        return current, current
    target = max(stable, current - pace.max_step)
    if target > stable:
        blocks.append(Reason(code="step_limit_in", facts={"step": pace.max_step, "wanted": wanted}))
    return target, stable


def _objections(question: Question) -> list[Reason]:
    """Who forbids a scale-in whatever the clocks say."""
    found: list[Reason] = []
    if question.observation.directives.pause in _PAUSE_IN:
        found.append(Reason(code="paused", facts={"direction": "in"}))
    distrusted = question.trust.why if question.trust.level is not _TRUST else ""
    told = (("unhealthy_share", question.unhealthy), ("blind", question.blind), ("telemetry_hold", distrusted))
    found += [Reason(code=code, facts={"why": why}) for code, why in told if why]
    if question.composed.broken is not None:
        found.append(question.composed.broken)
    veto = question.composed.veto
    if veto is not None:
        found.append(Reason(code="vetoed", facts={"by": veto.code, **veto.facts}))
    return found


def _remaining(last: Instant | None, cooldown: Duration, now: Instant) -> float:
    """Seconds of a cooldown still to go; 0 when it is over or never began."""
    return 0.0 if last is None else max(0.0, cooldown - elapsed(last, now))
