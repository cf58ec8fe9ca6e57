"""The compute port over hosts that exist already.

Does: claim hosts by token and start them, show what is claimed, stop what is to end, adopt what runs. Does not: keep
anything in memory that a restart would miss but how lately a host was asked.
Invariant: a host is claimed on disk before its start command is run, so for one token each host is started once and no
second host takes its place, whatever is killed in between; what somebody else started is never claimed but by `adopt`.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from autoscaler.domain.base import Duration, InstanceId, Instant, Token, after
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import Fault, FaultKind, NoCapacity, Refused
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import Offer, Pool
from autoscaler.domain.replica import ComputeView, Instance, LaunchState, LaunchStatus
from autoscaler.ports.build import Context
from autoscaler.ports.compute import Adopter, Compute
from providers.compute.static_hosts import accounts
from providers.compute.static_hosts import settings as wanted
from providers.compute.static_hosts.inventory import hosts_of
from providers.compute.static_hosts.machines import Machines, has_ended, unreachable
from providers.compute.static_hosts.settings import Host, Settings
from providers.compute.static_hosts.sight import Sight, settings_of, told_of
from providers.compute.static_hosts.state import Book, Claim, Given, Stage, State, key_of
from providers.compute.static_hosts.status import Power
from providers.compute.static_hosts.view import Known

_P = ParamSpec("_P")
_T = TypeVar("_T")

_THREADS: Final = 8
#: Another round with other hosts is begun only as long as the call's own deadline (60 s) leaves room for it.
_ROUNDS_WITHIN_S: Final = 20.0
_NO_STANDBY: Final = "static_hosts has no standby: every host that is stopped is one; terminate it instead"


class StaticHosts:
    """The hosts of all pools of one installation that are scaled by starting and stopping what exists."""

    def __init__(self, context: Context) -> None:
        self._clock, self._name = context.clock, context.name or "static_hosts"
        self._book = Book(context.state_dir)
        self._machines = Machines(self._book, context.clock)
        self._sight = Sight(context, self._machines)
        self._callers = ThreadPoolExecutor(_THREADS, thread_name_prefix="static_hosts")
        self._known = Known()
        self._failed_at: dict[str, Instant] = {}

    async def _in_thread(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        call = functools.partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._callers, call)

    # --- observing ---

    async def observe(self, pool: Pool, launches: Sequence[OpenLaunch], not_older_than: Instant) -> ComputeView:
        self._sight.know(pool)
        return await self._in_thread(self._observe, pool, launches, not_older_than)

    def _observe(self, pool: Pool, launches: Sequence[OpenLaunch], not_older_than: Instant) -> ComputeView:
        now = self._clock.now()
        state = self._book.load()
        seen = self._sight.see(pool, state, not_older_than)
        opened = {launch.token for launch in launches}
        shown: list[Instance] = []
        asked: list[Instant] = []
        for claim, settings in seen.claims:
            look = seen.looks[settings, claim.host.name]
            asked.append(look.at)
            self._known.note(claim, look.status)
            # A host whose start is under way is its launch's, until nobody has that launch open any more.
            if has_ended(claim, look.status) or (claim.stage is Stage.STARTING and claim.token in opened):
                continue
            shown.append(self._known.show(claim, settings, look.status, now))
        self._known.keep({claim.instance for claim in state.claims.values()} | {one.id for one in shown})
        states = {one.token: _launch_state(pool, state, one, shown) for one in launches}
        return ComputeView(
            compute=self._name,
            instances=tuple(sorted(shown, key=lambda one: one.id)),
            as_of=min(asked, default=now),
            launches={token: found for token, found in states.items() if found is not None},
            unreachable_zones=tuple(sorted(seen.unreadable)),
            foreign=tuple(self._sight.foreign(pool, state, seen)),
        )

    # --- launching ---

    async def launch(self, pool: Pool, order: Launch) -> LaunchState:
        settings = wanted.read(order.request)
        if missing := wanted.missing_program(settings):
            raise Refused(missing)
        return await self._in_thread(self._launch, pool, order, settings)

    def _launch(self, pool: Pool, order: Launch, settings: Settings) -> LaunchState:
        begun, tried, notes = time.monotonic(), set[str](), list[str]()
        offer = pool.offer(order.placement.offer)
        self._machines.ports[settings] = offer.ports if offer is not None else ()
        while True:
            free = [host for host in self._free(pool, order, settings, notes) if host.name not in tried]
            claims = self._book.change(
                functools.partial(accounts.claim_hosts, pool=pool, order=order, free=free, now=self._clock.now())
            )
            starting = [claim for claim in claims if claim.stage is Stage.STARTING]
            self._known.up.update(dict.fromkeys((claim.instance for claim in starting), False))
            failed = self._machines.start_all(starting)
            tried |= {one.host for one in failed}
            notes += [f"{one.host}: {one.why}" for one in failed]
            self._failed_at.update(dict.fromkeys((one.host for one in failed), self._clock.now()))
            if not failed or time.monotonic() - begun > _ROUNDS_WITHIN_S:
                break
        ids = self._book.change(lambda state: accounts.close(state, pool, order))
        if len(ids) >= order.count:
            return LaunchState(status=LaunchStatus.DONE, ids=ids)
        told = "; ".join(dict.fromkeys(notes)) or "all are in use"
        short = NoCapacity(f"no free host in zone {order.placement.zone}: {told}"[:1000])
        if not ids:
            raise short
        return LaunchState(status=LaunchStatus.DONE, ids=ids, fault=short.fault)

    def _free(self, pool: Pool, order: Launch, settings: Settings, notes: list[str]) -> list[Host]:
        """Hosts of the zone that nobody has and that say so now; those that failed lately come last."""
        state = self._book.load()
        if accounts.is_complete(state, pool, order):
            return []
        listed = hosts_of(settings, settings.deadline)
        here = [host for host in listed if host.zone == order.placement.zone]
        ended = [claim for host in here if (claim := state.claims.get(host.name)) and claim.stop_at is not None]
        now = self._clock.now()
        asked = [(settings, host, now) for host in here if host.name not in state.claims]
        looks = self._machines.look_at_all([*asked, *((settings, claim.host, now) for claim in ended)])
        free = []
        for claim in ended:  # what was seen to have stopped needs nobody to end it any more
            if has_ended(claim, looks[settings, claim.host.name].status):
                self._machines.end(claim)
                free.append(claim.host)
        for _, host, _ in asked:
            status = looks[settings, host.name].status
            told = told_of(pool, host, settings, status)
            if told is not None and told.token == order.token:  # our file was lost, and the host tells of this launch
                self._book.change(functools.partial(accounts.recover, claim=told))
            elif not settings.status or status.power is Power.STOPPED:
                free.append(host)
            else:
                notes.append(f"{host.name}: {status.detail or status.power.value + ', and not by us'}")
        order_of = {host.name: number for number, host in enumerate(here)}
        return sorted(free, key=lambda host: (self._failed_at.get(host.name, Instant(0.0)), order_of[host.name]))

    async def withdraw(self, pool: Pool, token: Token) -> None:
        await self._in_thread(self._book.change, lambda state: accounts.withdraw(state, pool, token))

    # --- ending ---

    async def start(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        raise Refused(_NO_STANDBY)

    async def stop(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        raise Refused(_NO_STANDBY)

    async def terminate(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self._in_thread(self._terminate, pool, frozenset(ids))

    def _terminate(self, pool: Pool, ids: frozenset[InstanceId]) -> None:
        state = self._book.load()
        known = {claim.instance: claim for claim in state.claims.values() if claim.of(pool)}
        if ids - known.keys():  # ended already, or known by their tags only
            seen = self._sight.see(pool, state, after(self._clock.now(), Duration(-pool.pace.tick)))
            known |= {claim.instance: claim for claim, _ in seen.claims}
        chosen = [known[name] for name in sorted(ids & known.keys())]
        if not chosen:
            return
        now = self._clock.now()
        marked = self._book.change(
            lambda state: [accounts.mark(state, one, now, self._known.boots.get(one.instance, "")) for one in chosen]
        )
        offers = self._sight.offers(pool)
        pairs = [(settings_of(offers, claim), claim) for claim in marked if claim is not None]
        troubles = self._machines.stop_all(pairs)
        for settings, claim in pairs:
            self._let_go(claim, settings)
        if troubles:
            raise unreachable(troubles)

    def _let_go(self, claim: Claim, settings: Settings) -> None:
        """A host that was to stop, cannot be asked, and was taken off the list: a person has taken it away."""
        listed = self._sight.listed(settings, settings.deadline)
        off = listed.fault is None and claim.host.name not in {host.name for host in listed.hosts}
        if off and settings.status:
            look = self._machines.look(settings, claim.host, Instant(claim.stop_at or 0.0))
            if look.status.power is Power.UNKNOWN:
                self._machines.end(claim)

    async def precheck(self, pool: Pool, ids: Sequence[InstanceId]) -> dict[InstanceId, str]:
        return {}

    async def adopt(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self._in_thread(self._adopt, pool, ids)

    def _adopt(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        offers = {
            host.name: (offer, host)
            for offer, one in self._sight.offers(pool).values()
            for host in self._sight.listed(one, one.deadline).hosts
        }
        for name in ids:
            if name not in offers:
                raise Refused(f"{name} is not in a list of hosts of pool {pool.name}; add it there first")
            offer, host = offers[name]
            token = Token(f"adopted-{int(self._clock.now())}")
            claim = Claim(
                installation=pool.installation, pool=pool.name, token=token, offer=offer.name, host=host,
                request=offer.request, at=self._clock.now(), stage=Stage.STARTED,
            )  # fmt: skip
            self._book.change(functools.partial(accounts.adopt, claim=claim, pool=pool))

    def check_offer(self, offer: Offer) -> list[str]:
        try:
            settings = wanted.read(offer.request)
        except Refused as error:
            return [f"offer {offer.name}: {error}"]
        mistakes = [missing] if (missing := wanted.missing_program(settings)) else []
        zones = sorted({host.zone for host in settings.hosts} - set(offer.zones))
        if zones:
            mistakes.append(f"hosts: zone {', '.join(zones)} is not in its zones; allowed: {', '.join(offer.zones)}")
        return [f"offer {offer.name}: {mistake}" for mistake in mistakes]

    async def aclose(self) -> None:
        self._machines.close()
        self._callers.shutdown(wait=False, cancel_futures=True)


def _launch_state(pool: Pool, state: State, launch: OpenLaunch, shown: Sequence[Instance]) -> LaunchState | None:
    """What is known of a token; None when nothing is."""
    given = state.tokens.get(key_of(pool, launch.token), Given())
    ids = given.ids or tuple(one.id for one in shown if one.token == launch.token)
    if ids:  # also those that ended already: a token never starts them again
        done = given.final or len(ids) >= launch.count
        return LaunchState(status=LaunchStatus.DONE if done else LaunchStatus.PENDING, ids=ids)
    if given.withdrawn:
        fault = Fault(kind=FaultKind.REFUSED, detail=accounts.withdrawn(launch.token))
        return LaunchState(status=LaunchStatus.FAILED, fault=fault)
    return None


if TYPE_CHECKING:
    _adapter: type[Compute] = StaticHosts
    _adopter: type[Adopter] = StaticHosts
