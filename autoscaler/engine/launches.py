"""Open launches, marks and breakers: what became of what was asked for.

Does: close each launch on machines that carry its token, a definite refusal, or expiry; mark placements without
capacity; count failed loads. Does not: plan new launches (engine.planner does).
Invariant: a launch that is not closed is sent again with the same token and never planned again (law 6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from autoscaler.domain.base import NEVER, Duration, Instant, Token, after
from autoscaler.domain.decision import (
    Launch,
    Observation,
    Outcome,
    OutcomeStatus,
    Reason,
    Start,
    Stop,
    Terminate,
    Withdraw,
)
from autoscaler.domain.faults import Fault, FaultKind
from autoscaler.domain.memory import Breaker, Mark, Memory, OpenLaunch
from autoscaler.domain.pool import Placement, Pool
from autoscaler.domain.replica import LaunchStatus

replace = msgspec.structs.replace

#: A quota is lifted by people, not by waiting: its mark stands this many times longer than one for no capacity.
QUOTA_MARK_FACTOR = 10

#: The longest wait before a launch is sent again, as a part of the launch deadline.
LONGEST_WAIT: Final = 0.15

_UNHEARD: Final = frozenset({FaultKind.THROTTLED, FaultKind.UNREACHABLE})
_TAKEN = (OutcomeStatus.DONE, OutcomeStatus.ACCEPTED)


class Launches(msgspec.Struct, kw_only=True):
    """Working result: launches still open with their missing machines, next marks, breakers, throttle, alarms."""

    open: list[OpenLaunch] = []
    missing: dict[Token, int] = {}
    marks: dict[str, Mark] = {}
    breakers: dict[str, Breaker] = {}
    throttled_until: Instant = NEVER
    alarms: list[Reason] = []

    def marked(self, placement: Placement) -> bool:
        """Whether a placement or its whole offer is skipped for a while."""
        return placement.key in self.marks or placement.offer in self.marks

    def units_of(self, launch: OpenLaunch) -> float:
        """Units of a launch of which no machine shows yet."""
        return self.missing[launch.token] * launch.units / launch.count

    def requested_units(self) -> float:
        """Units asked for of which no machine shows yet."""
        return sum(self.units_of(one) for one in self.open if not one.withdrawn)

    def withdrawn_units(self) -> float:
        """Units taken back, of which machines may still come: the compute has not yet said that none will."""
        return sum(self.units_of(one) for one in self.open if one.withdrawn)


def settle(pool: Pool, memory: Memory, observation: Observation) -> Launches:
    """Update launches, marks and the throttle from what was seen and from the outcomes of the last tick."""
    now = observation.now
    book = Launches(
        marks={key: mark for key, mark in memory.marks.items() if mark.until > now},
        breakers=dict(memory.breakers),
        throttled_until=memory.throttled_until,
    )
    outcomes = {outcome.action.key: outcome for outcome in observation.outcomes}
    if memory.launches:
        shown = Counter(one.token for view in observation.computes.values() for one in view.instances)
        for launch in memory.launches:
            _settle_one(book, pool, observation, launch, shown[launch.token], outcomes)
    # What was not accepted yet at a place that is now known to have nothing is asked for elsewhere.
    book.open = [
        replace(one, withdrawn=True) if not one.accepted and book.marked(one.placement) else one for one in book.open
    ]
    for outcome in observation.outcomes:
        by_compute = isinstance(outcome.action, Launch | Withdraw | Start | Stop | Terminate)
        if by_compute and outcome.fault is not None and outcome.fault.kind is FaultKind.THROTTLED:
            wait = Duration(max(outcome.fault.retry_after_s, float(pool.pace.tick)))
            book.throttled_until = Instant(max(book.throttled_until, after(now, wait)))
    return book


def _settle_one(
    book: Launches,
    pool: Pool,
    observation: Observation,
    launch: OpenLaunch,
    shown: int,
    outcomes: dict[str, Outcome],
) -> None:
    now = observation.now
    missing = max(0, launch.count - shown)
    if missing == 0:
        return
    offer = pool.offer(launch.placement.offer)
    view = observation.computes.get(offer.compute) if offer else None
    state = view.launches.get(launch.token) if view else None
    outcome = outcomes.get(f"launch:{launch.token}")
    fault = outcome.fault if outcome is not None else None
    if state is not None and state.status is LaunchStatus.FAILED and state.fault is not None:
        fault = state.fault
    if fault is not None and fault.kind in (FaultKind.NO_CAPACITY, FaultKind.QUOTA_REACHED, FaultKind.REFUSED):
        _refused(book, pool, launch, fault, now)
        return
    withdrawn = outcomes.get(f"withdraw:{launch.token}")
    if launch.withdrawn and withdrawn is not None and withdrawn.fault is None and withdrawn.status in _TAKEN:
        return
    if state is not None and state.status is LaunchStatus.DONE and len(state.ids) < launch.count and shown:
        return  # fewer than asked is an answer; what is still needed is planned anew
    kept = launch
    if now >= launch.expires_at and _expires(pool, observation, launch):
        if launch.withdrawn:
            return
        kept = _taken_back(book, pool, launch, now)
    if outcome is not None and outcome.status in (OutcomeStatus.DONE, OutcomeStatus.ACCEPTED):
        kept = replace(kept, accepted=True, unheard=0)
    elif fault is not None:
        kept = _waits(pool, kept, fault, now)
    book.open.append(kept)
    book.missing[launch.token] = missing


def _taken_back(book: Launches, pool: Pool, launch: OpenLaunch, now: Instant) -> OpenLaunch:
    """An expired launch: a machine that comes late would be one too many, and is counted until it is certain.

    One that was never heard says nothing about its template (law 10).
    """
    facts: dict[str, str | float | int] = {"token": launch.token, "placement": launch.placement.key}
    book.alarms.append(Reason(code="launch_expired", facts=facts))
    if not launch.unheard:
        _count_failure(book, pool, launch.placement.offer, now, "no machine appeared before the launch deadline")
    return replace(launch, withdrawn=True, expires_at=after(now, pool.pace.launch_deadline))


def _waits(pool: Pool, launch: OpenLaunch, fault: Fault, now: Instant) -> OpenLaunch:
    """When it is sent again: the wait doubles with each answer that is none, and is at least what was asked for.

    A part of the launch deadline bounds it, so that a launch is tried some times before it expires. A Conflict is an
    answer: what it waits for is looked at in the next tick.
    """
    unheard = launch.unheard + 1 if fault.kind in _UNHEARD else 0
    grown = float(pool.pace.tick) * 2.0 ** max(0, min(unheard, 30) - 1)
    bounded = max(float(pool.pace.tick), min(grown, float(pool.pace.launch_deadline) * LONGEST_WAIT))
    wait = Duration(max(fault.retry_after_s, bounded))
    return replace(launch, resend_after=after(now, wait), unheard=unheard)


def _expires(pool: Pool, observation: Observation, launch: OpenLaunch) -> bool:
    """Whether a machine of this launch would have been seen by now: its place answered, and no call is under way."""
    if observation.in_flight & {f"launch:{launch.token}", f"withdraw:{launch.token}"}:
        return False
    offer = pool.offer(launch.placement.offer)
    if offer is None:
        return all(one.compute in observation.computes for one in pool.offers)
    view = observation.computes.get(offer.compute)
    return view is not None and launch.placement.zone not in view.unreachable_zones


def _refused(book: Launches, pool: Pool, launch: OpenLaunch, fault: Fault, now: Instant) -> None:
    """A definite no: mark what it is about, and nothing else (throttling and auth never mark a zone)."""
    pace = pool.pace
    facts: dict[str, str | float | int] = {"placement": launch.placement.key, "detail": fault.detail}
    if fault.kind is FaultKind.NO_CAPACITY:
        book.marks[launch.placement.key] = Mark(until=after(now, pace.no_capacity_memory), why=fault.detail)
        book.alarms.append(Reason(code="no_capacity", facts=facts))
    elif fault.kind is FaultKind.QUOTA_REACHED:
        until = after(now, Duration(pace.no_capacity_memory * QUOTA_MARK_FACTOR))
        book.marks[launch.placement.offer] = Mark(until=until, why=fault.detail)
        book.alarms.append(Reason(code="quota_reached", facts=facts))
    else:
        _count_failure(book, pool, launch.placement.offer, now, fault.detail)
        book.alarms.append(Reason(code="launch_refused", facts=facts))


def _count_failure(book: Launches, pool: Pool, offer: str, now: Instant, why: str) -> None:
    book.breakers[offer] = failed_again(pool, book.breakers.get(offer, Breaker()), now, why)


def failed_again(pool: Pool, breaker: Breaker, now: Instant, why: str) -> Breaker:
    """One more failed load in a row: the delay doubles, and a template that never became ready trips the breaker.

    A tripped breaker lets one trial through each `backoff_max`; a template that works closes it (law 11).
    """
    pace = pool.pace
    failures = breaker.failures + 1
    tripped = not breaker.ever_ready and failures >= pace.breaker_after
    doubled = min(float(pace.backoff_max), float(pace.backoff_first) * 2.0 ** min(failures - 1, 30))
    wait = float(pace.backoff_max) if tripped else doubled
    return replace(
        breaker, failures=failures, retry_at=after(now, Duration(wait)), tripped=tripped, last_failure=why[:300]
    )


def count_loads(book: Launches, pool: Pool, failed: Mapping[str, str], ready: list[str], now: Instant) -> None:
    """Feed what was seen of loads into the breakers: one failure an offer a tick (offer to why), a success resets."""
    if not (failed or ready):
        return
    for offer in sorted(failed.keys() - set(ready)):
        _count_failure(book, pool, offer, now, failed[offer])
    for offer in sorted(set(ready)):
        book.breakers[offer] = Breaker(ever_ready=True)


def resend(book: Launches, observation: Observation) -> list[Launch | Withdraw]:
    """Open launches that must be sent (again) in this tick, and withdrawals that nobody has confirmed.

    Not those in flight, nor a launch that was accepted or backs off, nor any launch while throttled.
    """
    now, sent = observation.now, list[Launch | Withdraw]()
    for launch in book.open:
        if observation.in_flight & {f"launch:{launch.token}", f"withdraw:{launch.token}"}:
            continue
        if launch.withdrawn:
            sent.append(withdrawal_of(launch))
        elif not launch.accepted and now >= max(launch.resend_after, book.throttled_until):
            sent.append(order_of(launch))
    return sent


def order_of(launch: OpenLaunch) -> Launch:
    """The action that sends an open launch; equal for every attempt."""
    return Launch(
        token=launch.token,
        placement=launch.placement,
        count=launch.count,
        total_after=launch.total_after,
        request=launch.request,
    )


def withdrawal_of(launch: OpenLaunch) -> Withdraw:
    """The action that takes an open launch back."""
    return Withdraw(token=launch.token, placement=launch.placement)
