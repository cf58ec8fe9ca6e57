"""decide(): the one function of the product; the daemon, plan, the simulator and replay are shells around it.

Does: values in, decision out: reconcile, judge, ask, size, plan, remember, explain. Does not: I/O, clock, random.
Invariant: pure. Two calls with equal arguments return equal decisions, whatever the order of replicas (law 13).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from autoscaler.domain.base import Instant, elapsed
from autoscaler.domain.decision import Calendar, Decision, Observation, Opinion, Reason, Situation
from autoscaler.domain.directives import Pause
from autoscaler.domain.lifecycle import HELD, Phase
from autoscaler.domain.load import Signal, TrustVerdict
from autoscaler.domain.memory import Memory, OpenLaunch
from autoscaler.domain.pool import Pool
from autoscaler.domain.replica import Traffic
from autoscaler.engine import explain, launches, opinions, placing, planner, reconcile, sizing, trust, victims
from autoscaler.engine.joined import capacity_of, resting
from autoscaler.engine.launches import Launches
from autoscaler.engine.opinions import EPSILON
from autoscaler.engine.planner import Draft
from autoscaler.engine.sizing import Question, Sized
from autoscaler.ports.policy import Policy

replace = msgspec.structs.replace

# A name of this module is found many times faster than the attribute of an enum, and these are asked for in each tick.
_IN_SERVICE: Final = Phase.IN_SERVICE
_STANDBY: Final = Phase.STANDBY
_NO: Final = Traffic.NO


def decide(
    pool: Pool, policies: Sequence[Policy], memory: Memory, observation: Observation, calendar: Calendar
) -> Decision:
    """The decision of one tick. Raises InvariantBroken on a bug of ours, never on what the world does."""
    decision = conclude(pool, policies, memory, observation, calendar)
    return replace(decision, sentence=explain.sentence(pool, decision))


def conclude(
    pool: Pool, policies: Sequence[Policy], memory: Memory, observation: Observation, calendar: Calendar
) -> Decision:
    """The decision without its sentence, which takes a tenth of the time: for weeks of simulated ticks."""
    joined = reconcile.join(pool, memory, observation)
    book = launches.settle(pool, memory, observation)
    ended = dict.fromkeys(joined.load_failures, "the machine ended before its model had loaded")
    launches.count_loads(book, pool, ended, joined.became_ready, observation.now)
    capacity = capacity_of(joined, book.requested_units(), book.withdrawn_units())
    needed: frozenset[Signal] = frozenset().union(*(policy.signals() for policy in policies))
    verdict = trust.judge(pool, observation, needed, joined.serving, memory.blind_since)
    situation = Situation(
        now=observation.now, capacity=capacity, load=observation.load, trust=verdict, replicas=tuple(joined.replicas)
    )
    asked = opinions.ask(pool, policies, memory, situation, calendar)
    composed = opinions.compose(asked)
    unhealthy = planner.unhealthy_share(joined)
    question = Question(
        pool=pool, memory=memory, observation=observation, composed=composed, trust=verdict, capacity=capacity,
        unhealthy=unhealthy, blind=_blind(pool, observation), resting=resting(joined) if unhealthy else 0.0,
    )  # fmt: skip
    sized = sizing.size(question)
    draft = Draft(pool=pool, memory=memory, observation=observation, joined=joined)
    planner.keep_members(draft)
    _end_what_must_end(draft, book, unhealthy)
    opened = _change_size(draft, book, sized, capacity.existing)
    room = pool.bounds.max - capacity.existing - sum(one.units for one in opened)
    victims.replace_marked(draft, sized.target, room, unhealthy or question.blind)
    past = _Past(sized=sized, opened=opened, asked=asked, verdict=verdict, calendar=calendar)
    next_memory = _remember(draft, book, past)
    return Decision(
        pool=pool.name, at=observation.now, sequence=next_memory.sequence, trust=verdict, opinions=asked,
        capacity=capacity, wanted=composed.wanted, target=sized.target, reason=sized.reason,
        blocks=(*sized.blocks, *draft.blocks), alarms=_alarms(draft, book), plan=tuple(draft.actions),
        replicas=situation.replicas, sentence="", memory=next_memory,
    )  # fmt: skip


def _blind(pool: Pool, observation: Observation) -> str:
    """Which source could not be read; a blind source holds the pool's scale-in."""
    blind = sorted({one.compute for one in pool.offers if one.compute not in observation.computes})
    blind += sorted({one.name for one in pool.balancers if one.name not in observation.balancers})
    for view in observation.computes.values():
        blind += [f"zone {zone}" for zone in sorted(view.unreachable_zones)]
    return f"cannot see {', '.join(blind)}" if blind else ""


def _dark(observation: Observation) -> frozenset[tuple[str, str]]:
    """(compute, zone) that did not answer."""
    views = observation.computes.items()
    return frozenset((name, zone) for name, view in views for zone in view.unreachable_zones)


def _end_what_must_end(draft: Draft, book: Launches, unhealthy: str) -> None:
    """Everything that ends whatever the load: failed replicas, failed loads, finished drains."""
    if not draft.joined.restless:
        return
    planner.replace_lost(draft, unhealthy)
    failed = planner.end_failed_loads(draft)
    launches.count_loads(book, draft.pool, failed, [], draft.now)
    planner.finish_drains(draft)


def _change_size(draft: Draft, book: Launches, sized: Sized, existing: float) -> list[OpenLaunch]:
    """Send what is open, then move towards the target; returns the launches opened now."""
    held = _held(draft, book)
    draft.actions += launches.resend(book, draft.observation)
    short = sized.target - held
    if short > EPSILON:
        return _grow(draft, book, short, existing)
    if short < -EPSILON:
        gone = _withdraw(draft, book, -short)
        if -short - gone > EPSILON:
            gone += victims.scale_in(draft, -short - gone, held - gone - sized.stable, sized.floor)
        if gone:
            draft.last_in_at = draft.now
    return []


def _grow(draft: Draft, book: Launches, short: float, existing: float) -> list[OpenLaunch]:
    """Recall, start and launch for so many units; returns the launches opened now."""
    if draft.observation.directives.pause in (Pause.OUT, Pause.BOTH):
        return []
    site = placing.Site(
        pool=draft.pool, now=draft.now,
        token_prefix=f"{draft.memory.epoch}-{draft.pool.name}-{draft.memory.sequence + 1}",
        replicas=draft.joined.replicas, book=book, existing=existing, visible=draft.joined.visible,
        dark=_dark(draft.observation),
    )  # fmt: skip
    won = victims.recall(draft, short)
    won += placing.start_standby(site, short - won)
    won += placing.place(site, short - won) if short - won > EPSILON else 0.0
    if won:
        draft.last_out_at = draft.now
    draft.actions += site.actions
    draft.blocks += site.blocks
    return site.launched


def _held(draft: Draft, book: Launches) -> float:
    """Units that serve or will, after what this plan already ends, less what is marked for replacement.

    Many that failed together count as long as they may recover, as in the question to sizing.
    """
    held = book.requested_units() + draft.joined.steady_units()
    if planner.unhealthy_share(draft.joined):
        held += resting(draft.joined)
    for replica in draft.joined.restless:  # no steady one has been told to leave yet: the size's sake comes last
        intent = draft.intent(replica.id)
        if intent.phase in HELD and not intent.replace:
            held += replica.units
    return held


def _withdraw(draft: Draft, book: Launches, units: float) -> float:
    """Take back launches that have shown no machine yet, newest first."""
    won = 0.0
    for index in range(len(book.open) - 1, -1, -1):
        launch = book.open[index]
        weight = book.units_of(launch)
        whole = book.missing[launch.token] == launch.count
        if launch.withdrawn or not whole or won + weight > units + EPSILON:
            continue
        book.open[index] = replace(launch, withdrawn=True)
        draft.actions = [one for one in draft.actions if one.key != f"launch:{launch.token}"]
        draft.actions.append(launches.withdrawal_of(launch))
        won += weight
    return won


def _alarms(draft: Draft, book: Launches) -> tuple[Reason, ...]:
    """What a person should look at: from reconciling, from launches, and breakers that are open."""
    alarms = [*draft.joined.alarms, *book.alarms]
    for name, breaker in sorted(book.breakers.items()):
        if breaker.tripped:
            alarms.append(
                Reason(
                    code="breaker_tripped",
                    facts={"offer": name, "failures": breaker.failures, "why": breaker.last_failure},
                )
            )
    alarms += [
        Reason(code="source_fault", facts={"source": one.source, "detail": one.fault.detail})
        for one in draft.observation.faults
    ]
    alarms += [
        Reason(code="no_traffic", facts={"replica": one.id})
        for one in draft.joined.restless
        if one.phase is _IN_SERVICE
        and one.taking_traffic is _NO
        and elapsed(one.since, draft.now) > draft.pool.settle + draft.pool.pace.tick
    ]
    return tuple(alarms)


class _Past(msgspec.Struct):
    """What this tick concluded, for the next Memory."""

    sized: Sized
    opened: list[OpenLaunch]
    asked: tuple[Opinion, ...]
    verdict: TrustVerdict
    calendar: Calendar


def _remember(
    draft: Draft,
    book: Launches,
    past: _Past,
) -> Memory:
    """The next Memory: everything the next tick or a crash needs, nothing else."""
    memory, now = draft.memory, draft.now
    month = past.calendar.utc[:7]
    spent = memory.spend_usd if month == memory.spend_month else 0.0
    return replace(
        memory,
        sequence=memory.sequence + 1,
        last_at=now,
        history_since=past.sized.history_since,
        launches=(*book.open, *past.opened),
        intents=draft.joined.intents,
        window=past.sized.window,
        size=past.sized.size,
        last_out_at=draft.last_out_at or memory.last_out_at,
        last_in_at=draft.last_in_at or memory.last_in_at,
        marks=book.marks,
        breakers=book.breakers,
        carries={one.policy: one.recommendation.carry for one in past.asked if one.recommendation.carry},
        blind_since=past.verdict.blind_since,
        replace_paced_at=draft.paced_at or memory.replace_paced_at,
        throttled_until=book.throttled_until,
        spend_usd=spent + _spend_since(draft, memory.last_at, now),
        spend_month=month,
        cut_total=memory.cut_total + draft.cut,
    )


def _spend_since(draft: Draft, last: Instant | None, now: Instant) -> float:
    """US dollars spent since the last tick, at the prices of the offers."""
    if last is None:
        return 0.0
    joined = draft.joined
    machines = {one.instance: one.usd_per_h for one in joined.steady}
    machines |= {one.instance: one.usd_per_h for one in joined.restless if one.phase is not _STANDBY}
    return math.fsum(machines.values()) * max(0.0, elapsed(last, now)) / 3600.0
