"""Where new capacity is asked for: offers in order, zones spread, marks and breakers respected.

Does: turn units into launches with tokens, within max, the budget and the breakers. Does not: decide how many units.
Invariant: live plus launching capacity never exceeds max, nor the budget in $/h, by an action of ours (law 3).
"""

from __future__ import annotations

import math

import msgspec

from autoscaler.domain.base import NEVER, Instant, Token, after
from autoscaler.domain.decision import Action, Fact, Reason, Start
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import Breaker, OpenLaunch
from autoscaler.domain.pool import Offer, Placement, Pool
from autoscaler.domain.replica import Replica
from autoscaler.engine import launches as book_keeping
from autoscaler.engine.launches import Launches
from autoscaler.engine.opinions import EPSILON


class Site(msgspec.Struct, kw_only=True):
    """What placing works on: what exists, what is open, and the room that is left.

    `dark`: (compute, zone) that did not answer: what is launched there could not be seen.
    """

    pool: Pool
    now: Instant
    token_prefix: str
    replicas: list[Replica]
    book: Launches
    existing: float
    visible: frozenset[str]
    dark: frozenset[tuple[str, str]] = frozenset()
    actions: list[Action] = []
    blocks: list[Reason] = []
    launched: list[OpenLaunch] = []


def usd_per_h(site: Site) -> float:
    """What runs or is asked for, in US dollars an hour; each machine once."""
    machines = {one.instance: one.usd_per_h for one in site.replicas if one.phase not in (Phase.GONE, Phase.STANDBY)}
    total = sum(machines.values())
    for launch in site.book.open:
        offer = site.pool.offer(launch.placement.offer)
        total += site.book.missing[launch.token] * (offer.usd_per_h if offer else 0.0)
    return total


def place(site: Site, units: float) -> float:
    """Plan launches for at least `units` where there is room; returns the units that were placed."""
    left, spent = units, usd_per_h(site)
    room = site.pool.bounds.max - site.existing
    placed = 0.0
    if site.book.throttled_until > site.now:
        site.blocks.append(Reason(code="throttled", facts={"for_s": site.book.throttled_until - site.now}))
        return placed
    for offer in site.pool.offers:
        while left > EPSILON:
            count, why = _count(site, offer, left, room, spent)
            zone = _next_zone(site, offer) if count else None
            if not count or zone is None:
                site.blocks += [why] if why is not None else []
                break
            won = _order(site, offer, zone, count)
            left, placed, room = left - won, placed + won, room - won
            spent += won / offer.capacity * offer.usd_per_h
    return placed


def _count(site: Site, offer: Offer, left: float, room: float, spent: float) -> tuple[int, Reason | None]:
    """How many machines of an offer may be asked for now at one place, and what forbids more."""
    facts: dict[str, Fact] = {"offer": offer.name}
    if offer.compute not in site.visible:
        return 0, Reason(code="compute_blind", facts=facts)
    mark = site.book.marks.get(offer.name)
    if mark is not None or _next_zone(site, offer) is None:
        return 0, Reason(
            code="marked", facts={**facts, "why": mark.why if mark else "no zone has capacity or can be seen"}
        )
    wanted = math.ceil(left / offer.capacity - EPSILON)
    if wanted * offer.capacity > room + EPSILON:
        wanted = math.floor(room / offer.capacity + EPSILON)
        if wanted <= 0:
            return 0, Reason(code="no_room", facts={**facts, "max": site.pool.bounds.max, "existing": site.existing})
    budget = site.pool.budget_usd_per_h
    if budget is not None and offer.usd_per_h > 0:
        affordable = math.floor((budget - spent) / offer.usd_per_h + EPSILON)
        if affordable <= 0:
            return 0, Reason(code="budget", facts={**facts, "usd_per_h": spent, "budget": budget})
        wanted = min(wanted, affordable)
    return _after_breaker(site, offer, _share_of_zones(offer, wanted), facts)


def _share_of_zones(offer: Offer, wanted: int) -> int:
    """Machines for one launch: the rest goes to the next zone, so that one empty zone does not hold all."""
    return math.ceil(wanted / len(offer.zones))


def _after_breaker(site: Site, offer: Offer, wanted: int, facts: dict[str, Fact]) -> tuple[int, Reason | None]:
    """A failing template is tried one machine at a time, with growing delays (law 11)."""
    breaker = site.book.breakers.get(offer.name, Breaker())
    if breaker.failures == 0:
        return wanted, None
    told: dict[str, Fact] = {
        **facts,
        "failures": breaker.failures,
        "for_s": max(0.0, breaker.retry_at - site.now),
        "why": breaker.last_failure,
    }
    coming = [one for one in [*site.book.open, *site.launched] if not one.withdrawn]
    trying = any(one.placement.offer == offer.name for one in coming) or any(
        one.offer == offer.name and one.phase in (Phase.BOOTING, Phase.LOADING) for one in site.replicas
    )
    if site.now < breaker.retry_at or trying:
        code = "breaker_open" if breaker.tripped else "backing_off"
        return 0, Reason(code=code, facts=told)
    return 1, None


def _next_zone(site: Site, offer: Offer) -> str | None:
    """The unmarked zone with the fewest machines of this pool; ties go to the order of the config."""
    used = dict.fromkeys(offer.zones, 0)
    for replica in site.replicas:
        if replica.zone in used and replica.phase is not Phase.GONE:
            used[replica.zone] += 1
    for launch in [*site.book.open, *site.launched]:
        if launch.placement.zone in used:
            used[launch.placement.zone] += site.book.missing.get(launch.token, launch.count)
    free = [
        zone
        for zone in offer.zones
        if Placement(offer=offer.name, zone=zone).key not in site.book.marks and (offer.compute, zone) not in site.dark
    ]
    return min(free, key=lambda zone: used[zone]) if free else None


def _order(site: Site, offer: Offer, zone: str, count: int) -> float:
    """One open launch; its token is (epoch, pool, sequence, index): an account is shared by many pools."""
    token = Token(f"{site.token_prefix}-{len(site.launched)}")
    placement = Placement(offer=offer.name, zone=zone)
    same = {one.instance for one in site.replicas if (one.offer, one.zone) == (offer.name, zone) and _counts(one)}
    asked = sum(
        site.book.missing.get(one.token, one.count)
        for one in [*site.book.open, *site.launched]
        if one.placement == placement and not one.withdrawn
    )
    launch = OpenLaunch(
        token=token,
        placement=placement,
        count=count,
        units=count * offer.capacity,
        total_after=len(same) + asked + count,
        request=offer.request,
        at=site.now,
        expires_at=after(site.now, site.pool.pace.launch_deadline),
        resend_after=NEVER,
    )
    site.launched.append(launch)
    site.actions.append(book_keeping.order_of(launch))
    return float(launch.units)


def _counts(replica: Replica) -> bool:
    return replica.phase not in (Phase.GONE, Phase.TERMINATING, Phase.STANDBY)


def start_standby(site: Site, units: float) -> float:
    """Start stopped machines before launching new ones; returns the units that will come."""
    won = 0.0
    room = site.pool.bounds.max - site.existing
    for replica in sorted((one for one in site.replicas if one.phase is Phase.STANDBY), key=lambda one: one.id):
        if won + EPSILON >= units or won + replica.units > room + EPSILON:
            break
        site.actions.append(Start(instance=replica.instance, offer=replica.offer))
        won += replica.units
    return won
