"""The compute port over EC2.

Does: launch by client token, and show the account's machines from one shared snapshot. Does not: retry, choose a zone,
or show a machine of an Auto Scaling group as a pool's (aws_asg does).
Invariant: one token gives one set of machines; a launch of which nothing is known is never taken for one that failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from autoscaler.domain.base import Duration, InstanceId, Instant, Token, after, elapsed
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import Conflict, Fault, FaultKind, PortFault, Refused, Unreachable
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import Mode, Offer, Pool
from autoscaler.domain.replica import ComputeView, Instance, InstanceState, LaunchState, LaunchStatus, Notice
from autoscaler.ports.build import Context
from autoscaler.ports.compute import Adopter, Compute
from autoscaler.ports.diagnosis import DiagnosingPart, Lack
from providers._shared.aws import NO_CAPACITY, QUOTA, Account
from providers._shared.aws_fleet import INSTALLATION, Fleet, Machine, Owner, Snapshot, owner_of
from providers.compute.aws_ec2 import diagnosis, orders
from providers.compute.aws_ec2 import settings as wanted
from providers.compute.aws_ec2.changes import Changes
from providers.compute.aws_ec2.notices import Notices

#: A pool of our installation that no observe() has named for so long is one that this config does not know.
_UNKNOWN_AFTER: Final = Duration(60.0)
#: How long subnets of a zone are remembered, seconds: they change by a person's hand.
_SUBNETS_FOR: Final = Duration(600.0)
#: How long a withdrawn token is remembered, seconds; memory keeps it for as long as it is open (OpenLaunch.withdrawn).
_WITHDRAWN_FOR: Final = Duration(3600.0)
_TAKEN_BACK: Final = frozenset({"SpotInstanceTermination", "SpotInstanceShutdown"})
_GONE: Final = InstanceState.TERMINATED


class Ec2Compute:
    """EC2 of one account and region, for all pools of one installation."""

    def __init__(
        self, settings: wanted.Settings, context: Context, configure: Callable[[Any], None] | None = None
    ) -> None:
        self._clock, self._name, self._looking = context.clock, context.name or "aws_ec2", context.looking
        self._account = Account(settings.region, settings.profile, configure)
        self._fleet = Fleet(self._account, self._clock, lambda: [{"Name": "tag-key", "Values": [INSTALLATION]}])
        self._changes = Changes(self._account, self._fleet, self._clock)
        self._notices: dict[str, Notices] = {}
        self._subnets: dict[tuple[str, ...], tuple[Instant, dict[str, str]]] = {}
        self._withdrawn: dict[str, Instant] = {}
        self._unanswered: dict[str, Instant] = {}
        self._dressed: dict[InstanceId, Instance] = {}
        self._known: set[Owner] = {Owner(context.installation, context.pool)}
        self._since = self._clock.now()

    # --- looking ---

    async def observe(self, pool: Pool, launches: Sequence[OpenLaunch], not_older_than: Instant) -> ComputeView:
        self._known.add(owner_of(pool))
        snapshot = await self._fleet.look(not_older_than)
        mine = [one for one in snapshot.by_owner.get(owner_of(pool), ()) if not one.group]
        offers = {offer.name: wanted.read(offer.request) for offer in pool.offers if _is_ours(offer)}
        states = {one.token: self._state(pool, one, mine) for one in launches}
        shown = self._shown(mine, offers, snapshot)
        return ComputeView(
            compute=self._name,
            instances=shown,
            as_of=snapshot.as_of,
            launches={token: state for token, state in states.items() if state is not None},
            notices=await self._announced(pool, shown, snapshot, not_older_than, offers.values()),
            foreign=self._foreign(pool, snapshot),
        )

    def _shown(
        self, mine: Sequence[Machine], offers: Mapping[str, wanted.Settings], snapshot: Snapshot
    ) -> tuple[Instance, ...]:
        """The very instances of the snapshot where nothing is to be added, so that unchanged stays identical."""
        public = {name for name, settings in offers.items() if settings.address == "public"}
        refusing = self._changes.refusing()
        if len(self._dressed) > len(snapshot.machines):
            self._dressed = {key: one for key, one in self._dressed.items() if key in snapshot.machines}
        alive = [one for one in mine if one.instance.state is not _GONE]
        return tuple(
            self._dress(one, public=one.instance.offer in public, why=refusing.get(one.instance.id, ""))
            if one.instance.offer in public or one.instance.id in refusing
            else one.instance
            for one in alive
        )

    def _dress(self, machine: Machine, *, public: bool, why: str) -> Instance:
        changes: dict[str, Any] = {"address": machine.public} if public else {}
        changes |= {"protected": True, "detail": why} if why else {}
        made = msgspec.structs.replace(machine.instance, **changes)
        before = self._dressed.get(made.id)
        if before == made:
            return before
        self._dressed[made.id] = made
        return made

    def _foreign(self, pool: Pool, snapshot: Snapshot) -> tuple[Instance, ...]:
        """Whose owner no config knows, and machines of a group that no offer of this pool names."""
        young = elapsed(self._since, self._clock.now()) < _UNKNOWN_AFTER
        by_group = any(offer.compute.startswith("aws_asg") for offer in pool.offers)
        found: list[Machine] = []
        for owner, ones in snapshot.by_owner.items():
            if owner == owner_of(pool):
                found += [one for one in ones if one.group and not by_group]
            # All pools share this adapter and name themselves in their first tick.
            elif owner not in self._known and not (young and owner.installation == pool.installation):
                found += ones
        return tuple(one.instance for one in found if one.instance.state is not _GONE)

    def _state(self, pool: Pool, launch: OpenLaunch, mine: Sequence[Machine]) -> LaunchState | None:
        carrying = [one for one in mine if one.instance.token == launch.token]
        alive = sorted(one.instance.id for one in carrying if one.instance.state is not _GONE)
        if alive:
            return LaunchState(status=LaunchStatus.DONE, ids=tuple(alive))
        if carrying:  # a token never starts them again
            ids = tuple(sorted(one.instance.id for one in carrying))
            return LaunchState(status=LaunchStatus.FAILED, ids=ids, fault=_ended(carrying))
        if not launch.withdrawn and _key(pool, launch.token) in self._withdrawn:
            fault = Fault(kind=FaultKind.REFUSED, detail=_why_withdrawn(launch.token))
            return LaunchState(status=LaunchStatus.FAILED, fault=fault)
        return None

    async def _announced(
        self,
        pool: Pool,
        shown: tuple[Instance, ...],
        snapshot: Snapshot,
        not_older_than: Instant,
        offers: Iterable[wanted.Settings],
    ) -> tuple[Notice, ...]:
        queues = sorted({one.notices_queue for one in offers} - {""})
        if not queues:
            return ()
        alive = {key for key, one in snapshot.machines.items() if one.instance.state is not _GONE}
        ids, acting = {one.id for one in shown}, pool.mode is Mode.ACT and not self._looking
        told: list[Notice] = []
        for queue in queues:
            if queue not in self._notices:
                self._notices[queue] = Notices(self._account, self._clock, queue)
            found = await self._notices[queue].look(not_older_than, alive, acting=acting)
            told += [one for one in found if one.instance in ids]
        return tuple(told)

    # --- launching ---

    async def launch(self, pool: Pool, order: Launch) -> LaunchState:
        settings, key = wanted.read(order.request), _key(pool, order.token)
        if key in self._withdrawn:
            raise Refused(_why_withdrawn(order.token))
        offer = pool.offer(order.placement.offer)
        if offer is None:
            raise Refused(f"offer {order.placement.offer} is no longer in the config of pool {pool.name}")
        zone = settings.zone(order.placement.zone)
        subnet = (await self._subnets_of(settings)).get(zone, "") if settings.subnets else ""
        if settings.subnets and not subnet:
            raise Refused(f"none of the subnets {', '.join(settings.subnets)} is in {zone}")
        asked = orders.run_instances(pool, order, settings, offer.market, subnet)
        try:
            answer = await self._account.call("ec2", "run_instances", **asked)
        except Conflict:  # the token was used with other parameters: what it gave then is what it gives
            return await self._given(pool, order)
        except (Unreachable, asyncio.CancelledError):
            self._unanswered[key] = after(self._clock.now(), settings.not_found_grace)
            raise
        finally:
            self._fleet.forget()
        self._unanswered.pop(key, None)
        machines = self._fleet.launched(answer["Instances"], settings.not_found_grace)
        return LaunchState(status=LaunchStatus.DONE, ids=tuple(sorted(one.instance.id for one in machines)))

    async def _given(self, pool: Pool, order: Launch) -> LaunchState:
        snapshot = await self._fleet.look(self._clock.now())
        mine = snapshot.by_owner.get(owner_of(pool), ())
        ids = tuple(sorted(one.instance.id for one in mine if one.instance.token == order.token))
        if not ids:
            raise Conflict(f"token {order.token} was used with other parameters, and its machines are not listed yet")
        return LaunchState(status=LaunchStatus.DONE, ids=ids)

    async def _subnets_of(self, settings: wanted.Settings) -> dict[str, str]:
        """The first subnet of each zone, by id: the same every time, since a token is bound to its parameters."""
        names, now = tuple(sorted(settings.subnets)), self._clock.now()
        self._subnets = {key: one for key, one in self._subnets.items() if elapsed(one[0], now) <= _SUBNETS_FOR}
        if names not in self._subnets:
            answer = await self._account.read("ec2", "describe_subnets", SubnetIds=list(names))
            listed = sorted(answer["Subnets"], key=lambda one: str(one["SubnetId"]), reverse=True)
            self._subnets[names] = (now, {one["AvailabilityZone"]: one["SubnetId"] for one in listed})
        return self._subnets[names][1]

    async def withdraw(self, pool: Pool, token: Token) -> None:
        """EC2 answers a launch at once, with machines or an error: there is nothing to take back but the intent.

        Unless a launch got no answer: raises Unreachable until a machine of it would have been listed by now.
        """
        now, key = self._clock.now(), _key(pool, token)
        self._withdrawn = {one: at for one, at in self._withdrawn.items() if elapsed(at, now) < _WITHDRAWN_FOR}
        self._unanswered = {one: until for one, until in self._unanswered.items() if until > now}
        self._withdrawn[key] = now
        if key in self._unanswered:
            left = elapsed(now, self._unanswered[key])
            raise Unreachable(f"launch {token} got no answer: whether it made machines is known in {left:.0f} s")

    # --- changing ---

    async def start(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self._changes.start(pool, ids)

    async def stop(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self._changes.stop(pool, ids)

    async def terminate(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self._changes.terminate(pool, ids)

    async def precheck(self, pool: Pool, ids: Sequence[InstanceId]) -> dict[InstanceId, str]:
        return await self._changes.precheck(ids)

    async def adopt(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """See ports/compute.py."""
        await self._changes.adopt(pool, ids)

    # --- checking ---

    def check_offer(self, offer: Offer) -> list[str]:
        try:
            settings = wanted.read(offer.request)
        except PortFault as error:
            return [f"offer {offer.name}: {error}"]
        return [f"offer {offer.name}: {line}" for line in wanted.mistakes(settings, offer.market, offer.zones)]

    async def lacks(self, pool: Pool, preset: str) -> list[Lack]:
        """See ports/diagnosis.py."""
        del preset  # which model server it is does not matter to EC2
        offers = [offer for offer in pool.offers if offer.compute == self._name]
        return await diagnosis.lacks(self._account, pool, offers, f"{self._clock.now():.0f}")

    async def aclose(self) -> None:
        self._fleet.close()
        for one in self._notices.values():
            one.close()
        await self._account.aclose()


def _is_ours(offer: Offer) -> bool:
    return offer.compute.startswith("aws_ec2")


def _ended(machines: Sequence[Machine]) -> Fault:
    """What the end of a launch's machines, before anybody saw them run, says about the next launch."""
    said = machines[0].why or "no reason"
    code = said.rpartition(".")[2]
    kind = FaultKind.REFUSED
    if code in NO_CAPACITY | _TAKEN_BACK:
        kind = FaultKind.NO_CAPACITY
    elif code in QUOTA:
        kind = FaultKind.QUOTA_REACHED
    names = ", ".join(sorted(one.instance.id for one in machines))
    return Fault(kind=kind, detail=f"{names} ended before it was seen to run; EC2 says {said}")


def _key(pool: Pool, token: Token) -> str:
    return f"{pool.installation}/{pool.name}/{token}"


def _why_withdrawn(token: Token) -> str:
    return f"launch {token} was withdrawn; it starts nothing any more"


if TYPE_CHECKING:
    _adapter: type[Compute] = Ec2Compute
    _adopter: type[Adopter] = Ec2Compute
    _part: type[DiagnosingPart] = Ec2Compute
