"""One look at a pool's hosts: the claimed ones now, the idle ones now and then.

Does: read lists, ask hosts within a part of a tick, find out what is ours and what is somebody else's.
Does not: change a claim or tell a host anything.
Invariant: neither a list nor a host that hangs can keep the others from being seen: each step has a fifth of a tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from autoscaler.domain.base import Duration, Instant, PoolName, elapsed
from autoscaler.domain.faults import PortFault
from autoscaler.domain.pool import Offer, Pool
from autoscaler.domain.replica import Instance
from autoscaler.ports.build import Context
from providers.compute.static_hosts import settings as wanted
from providers.compute.static_hosts.inventory import hosts_of
from providers.compute.static_hosts.machines import Look, Machines, taken_over
from providers.compute.static_hosts.settings import Host, Settings
from providers.compute.static_hosts.state import Claim, State, from_tag
from providers.compute.static_hosts.status import Power, Status
from providers.compute.static_hosts.view import foreign_claim, foreign_host

#: How often a host that is not in use is asked, and a list read again: nothing depends on it but what is reported.
_IDLE_EVERY: Final = Duration(60.0)
_LIST_EVERY: Final = Duration(30.0)
#: A pool of our installation that no observe() has named for so long is one that this config does not know.
_UNKNOWN_AFTER: Final = Duration(60.0)
#: Three steps (lists, hosts, hosts that tell of us) must fit in the two thirds of a tick, at least 2 s, that we have.
_STEP_OF_TICK: Final = 0.2
_STEP_MIN_S: Final = 0.6
_ALIVE: Final = frozenset({Power.RUNNING, Power.STARTING, Power.STOPPING})


class List(NamedTuple):
    """A list as it was last read, or why it could not be."""

    at: Instant
    hosts: tuple[Host, ...]
    fault: PortFault | None = None


class Seen(NamedTuple):
    """Claims with their settings, hosts that nobody has with theirs, and what all of them said.

    `unreadable`: zones of offers whose list could not be read: nothing can be launched there.
    """

    claims: list[tuple[Claim, Settings]]
    unclaimed: list[tuple[Host, Settings]]
    looks: Mapping[tuple[Settings, str], Look]
    unreadable: frozenset[str]


class Sight:
    """Looks, for all pools of an adapter."""

    def __init__(self, context: Context, machines: Machines) -> None:
        self._clock, self._named, self._machines = context.clock, context.name, machines
        self._lists: dict[Settings, List] = {}
        self._pools: set[tuple[str, PoolName]] = {(context.installation, context.pool)}
        self._since = context.clock.now()

    def know(self, pool: Pool) -> None:
        """A pool of this config."""
        self._pools.add((pool.installation, pool.name))

    def offers(self, pool: Pool) -> dict[str, tuple[Offer, Settings]]:
        """The offers of a pool that are ours, by name."""
        found = {}
        for offer in pool.offers:
            if not self._named or offer.compute == self._named:
                settings = wanted.read(offer.request)
                self._machines.ports[settings] = offer.ports
                found[offer.name] = offer, settings
        return found

    def listed(self, settings: Settings, patience: float) -> List:
        """A list, as it was at most half a minute ago."""
        known, now = self._lists.get(settings), self._clock.now()
        if known is None or elapsed(known.at, now) >= _LIST_EVERY:
            try:
                known = List(now, hosts_of(settings, min(settings.deadline, patience)))
            except PortFault as fault:
                known = List(now, (), fault)
            self._lists[settings] = known
        return known

    def see(self, pool: Pool, state: State, not_older_than: Instant) -> Seen:
        """Look at a pool."""
        step = max(_STEP_MIN_S, pool.pace.tick * _STEP_OF_TICK)
        offers = self.offers(pool)
        claims = [(claim, settings_of(offers, claim)) for claim in state.claims.values() if claim.of(pool)]
        unclaimed: list[tuple[Host, Settings]] = []
        unreadable: set[str] = set()
        for offer, settings in offers.values():
            found = self.listed(settings, step)
            unreadable |= set(offer.zones) if found.fault is not None else set()
            unclaimed += [(host, settings) for host in found.hosts if host.name not in state.claims]
        idle = Instant(min(not_older_than, self._clock.now() - _IDLE_EVERY))
        asked = [(settings, claim.host, not_older_than) for claim, settings in claims]
        asked += [(settings, host, idle) for host, settings in unclaimed]
        looks = self._machines.look_at_all(asked, step)
        told = [(host, one) for host, one in unclaimed if told_of(pool, host, one, looks[one, host.name].status)]
        if told:  # hosts tell of us though our file does not: it was lost, or is on another machine
            looks |= self._machines.look_at_all([(one, host, not_older_than) for host, one in told], step)
            again = [(told_of(pool, host, one, looks[one, host.name].status), one) for host, one in told]
            claims += [(claim, one) for claim, one in again if claim is not None]
        ours = {claim.host.name for claim, _ in claims}
        rest = [one for one in unclaimed if one[0].name not in ours]
        return Seen(claims, rest, looks, frozenset(unreadable))

    def foreign(self, pool: Pool, state: State, seen: Seen) -> Iterator[Instance]:
        """What is not ours: claims of others in our file, and hosts that run without a claim."""
        late = elapsed(self._since, self._clock.now()) >= _UNKNOWN_AFTER
        for claim in state.claims.values():
            known = (claim.installation, PoolName(claim.pool)) in self._pools
            if claim.installation != pool.installation or (late and not known):
                yield foreign_claim(claim)
        for claim, settings in seen.claims:
            look = seen.looks[settings, claim.host.name]
            if taken_over(claim, look.status):
                yield foreign_host(claim.host, look.status, look.at)
        for host, settings in seen.unclaimed:
            look = seen.looks[settings, host.name]
            if look.status.power in _ALIVE and not self._is_known(look.status.tag):
                yield foreign_host(host, look.status, look.at)

    def _is_known(self, tag: str) -> bool:
        """Whether a tag names another pool of this config, which shows the host itself."""
        parts = tag.split("/")
        return len(parts) > 1 and (parts[0], PoolName(parts[1])) in self._pools


def settings_of(offers: Mapping[str, tuple[Offer, Settings]], claim: Claim) -> Settings:
    """The settings of a claim's offer as they are today; those of its launch when the offer is gone."""
    found = offers.get(claim.offer)
    return found[1] if found is not None else wanted.read(claim.request)


def told_of(pool: Pool, host: Host, settings: Settings, status: Status) -> Claim | None:
    """The claim of this pool that a host which is up tells of by its tag."""
    if status.power not in _ALIVE or not status.tag:
        return None
    claim = from_tag(status.tag, host, msgspec.json.encode(settings).decode())
    return claim if claim is not None and claim.of(pool) else None
