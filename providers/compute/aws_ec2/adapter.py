"""The compute port over EC2.

Does: launch by client token, show the account's machines from one shared snapshot, end, stop and start ours.
Does not: retry, choose a zone, or touch a machine of an Auto Scaling group (aws_asg does).
Invariant: a machine is changed only when a fresh look shows it with this installation's and pool's tags.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from autoscaler.domain.base import NEVER, Duration, InstanceId, Instant, Token, elapsed
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import Conflict, Fault, FaultKind, PortFault, Refused
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import Offer, Pool
from autoscaler.domain.replica import ComputeView, Instance, InstanceState, LaunchState, LaunchStatus, Notice
from autoscaler.ports.build import Context
from autoscaler.ports.compute import Compute
from autoscaler.ports.diagnosis import DiagnosingPart, Lack
from providers._shared.aws import Account
from providers.compute.aws_ec2 import diagnosis, orders
from providers.compute.aws_ec2 import settings as wanted
from providers.compute.aws_ec2.fleet import Fleet, Machine, Owner, Snapshot, owner_of
from providers.compute.aws_ec2.notices import Notices

#: Machines a call; karpenter-provider-aws batches as many.
_BATCH: Final = 500
#: A pool of our installation that no observe() has named for so long is one that this config does not know.
_UNKNOWN_AFTER: Final = Duration(60.0)
#: How long subnets of a zone are remembered, seconds: they change by a person's hand.
_SUBNETS_FOR: Final = Duration(600.0)
_ENDED: Final = frozenset({InstanceState.TERMINATED})


class Ec2Compute:
    """EC2 of one account and region, for all pools of one installation."""

    def __init__(
        self, settings: wanted.Settings, context: Context, configure: Callable[[Any], None] | None = None
    ) -> None:
        self._clock, self._name = context.clock, context.name or "aws_ec2"
        self._account = Account(settings.region, settings.profile, configure)
        self._fleet = Fleet(self._account, self._clock)
        self._notices: dict[str, Notices] = {}
        self._told: dict[str, tuple[Instant, tuple[Notice, ...]]] = {}
        self._reading = asyncio.Lock()
        self._subnets: tuple[Instant, dict[str, str]] = (NEVER, {})
        self._withdrawn: set[str] = set()
        self._refusing: dict[InstanceId, str] = {}
        self._known: set[Owner] = {Owner(context.installation, context.pool)}
        self._since = self._clock.now()

    async def observe(self, pool: Pool, launches: Sequence[OpenLaunch], not_older_than: Instant) -> ComputeView:
        self._known.add(owner_of(pool))
        snapshot = await self._fleet.look(not_older_than)
        mine = snapshot.by_owner.get(owner_of(pool), ())
        states = {one.token: self._state(pool, one, mine) for one in launches}
        shown = tuple(self._shown(pool, one) for one in mine if one.instance.state not in _ENDED)
        return ComputeView(
            compute=self._name,
            instances=shown,
            as_of=snapshot.as_of,
            launches={token: state for token, state in states.items() if state is not None},
            notices=await self._announced(pool, shown, snapshot, not_older_than),
            foreign=self._foreign(pool, snapshot),
        )

    def _shown(self, pool: Pool, machine: Machine) -> Instance:
        """The very instance of the snapshot where nothing is to be added, so that unchanged stays identical."""
        instance = machine.instance
        changes: dict[str, Any] = {}
        settings = self._settings_of(pool, instance.offer)
        if settings is not None and settings.address == "public":
            changes["address"] = machine.public
        why = self._refusing.get(instance.id)
        if why and not instance.protected:
            changes |= {"protected": True, "detail": why}
        return msgspec.structs.replace(instance, **changes) if changes else instance

    @staticmethod
    def _settings_of(pool: Pool, name: str) -> wanted.Settings | None:
        offer = pool.offer(name)
        if offer is None or not offer.compute.startswith("aws_ec2"):
            return None
        return wanted.read(offer.request)

    def _foreign(self, pool: Pool, snapshot: Snapshot) -> tuple[Instance, ...]:
        young = elapsed(self._since, self._clock.now()) < _UNKNOWN_AFTER
        return tuple(
            one.instance
            for owner, ones in snapshot.by_owner.items()
            # All pools share this adapter and name themselves in their first tick.
            if owner not in self._known and not (young and owner.installation == pool.installation)
            for one in ones
            if one.instance.state not in _ENDED
        )

    def _state(self, pool: Pool, launch: OpenLaunch, mine: tuple[Machine, ...]) -> LaunchState | None:
        seen = tuple(sorted(one.instance.id for one in mine if one.instance.token == launch.token))
        if seen:  # also those that ended already: a token never starts them again
            return LaunchState(status=LaunchStatus.DONE, ids=seen)
        if launch.withdrawn or _key(pool, launch.token) in self._withdrawn:
            return LaunchState(
                status=LaunchStatus.FAILED, fault=Fault(kind=FaultKind.REFUSED, detail=_withdrawn(launch.token))
            )
        return None

    async def _announced(
        self, pool: Pool, shown: tuple[Instance, ...], snapshot: Snapshot, not_older_than: Instant
    ) -> tuple[Notice, ...]:
        queues = {found.notices_queue for offer in pool.offers if (found := self._settings_of(pool, offer.name))}
        ids = {one.id for one in shown}
        alive = {key for key, one in snapshot.machines.items() if one.instance.state not in _ENDED}
        told: list[Notice] = []
        for queue in sorted(queues - {""}):
            told += [one for one in await self._read_queue(queue, alive, not_older_than) if one.instance in ids]
        return tuple(told)

    async def _read_queue(self, queue: str, alive: set[InstanceId], not_older_than: Instant) -> tuple[Notice, ...]:
        """One look at a queue serves all pools, as one look at the machines does."""
        async with self._reading:
            at, notices = self._told.get(queue, (NEVER, ()))
            if at < not_older_than:
                at = self._clock.now()
                reader = self._notices.setdefault(queue, Notices(self._account, self._clock, queue))
                notices = await reader.look(alive)
                self._told[queue] = (at, notices)
            return notices

    async def launch(self, pool: Pool, order: Launch) -> LaunchState:
        settings = wanted.read(order.request)
        if _key(pool, order.token) in self._withdrawn:
            raise Refused(_withdrawn(order.token))
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
        finally:
            self._fleet.forget()
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
        at, found = self._subnets
        if elapsed(at, self._clock.now()) > _SUBNETS_FOR or not set(settings.subnets) & set(found.values()):
            answer = await self._account.read("ec2", "describe_subnets", SubnetIds=sorted(settings.subnets))
            listed = sorted(answer["Subnets"], key=lambda one: str(one["SubnetId"]), reverse=True)
            found = {one["AvailabilityZone"]: one["SubnetId"] for one in listed}
            self._subnets = (self._clock.now(), found)
        return found

    async def withdraw(self, pool: Pool, token: Token) -> None:
        """EC2 answers a launch at once, with machines or an error: there is nothing to take back but the intent."""
        self._withdrawn.add(_key(pool, token))

    async def start(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self._change(pool, ids, "start_instances", frozenset({InstanceState.STOPPED}))

    async def stop(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self._change(pool, ids, "stop_instances", frozenset({InstanceState.PENDING, InstanceState.RUNNING}))

    async def terminate(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        alive = frozenset(InstanceState) - {InstanceState.TERMINATED}
        try:
            await self._change(pool, ids, "terminate_instances", alive)
        except Refused as error:
            # In one call of several machines, EC2 ends those of other zones all the same: look, never assume.
            for one in ids:
                if one in str(error):
                    self._refusing[one] = f"EC2 refuses to end it: {error}"[:200]
            raise

    async def _change(
        self, pool: Pool, ids: Sequence[InstanceId], operation: str, from_states: frozenset[InstanceState]
    ) -> None:
        """Do `operation` to those of `ids` that are ours and in one of `from_states`, `_BATCH` a call."""
        if not ids:
            return
        snapshot = await self._fleet.look(self._clock.now())
        mine = {one.instance.id: one for one in snapshot.by_owner.get(owner_of(pool), ())}
        chosen = [one for one in ids if one in mine and mine[one].instance.state in from_states]
        try:
            for first in range(0, len(chosen), _BATCH):
                await self._account.call("ec2", operation, InstanceIds=chosen[first : first + _BATCH])
        finally:
            self._fleet.forget()

    async def precheck(self, pool: Pool, ids: Sequence[InstanceId]) -> dict[InstanceId, str]:
        """Termination protection is told one machine at a time: ask only about those that are to go."""
        snapshot = await self._fleet.look(NEVER)
        found: dict[InstanceId, str] = {}
        for one in ids:
            machine = snapshot.machines.get(one)
            if machine is None:
                continue
            if machine.instance.protected:
                found[one] = f"it has the tag {orders.PROTECTED}"
            elif await self._termination_protected(one):
                found[one] = "EC2 termination protection (DisableApiTermination) is on"
        return found

    async def _termination_protected(self, instance: InstanceId) -> bool:
        try:
            answer = await self._account.read(
                "ec2", "describe_instance_attribute", InstanceId=instance, Attribute="disableApiTermination"
            )
        except Refused:  # not found: it is gone, and nothing stands against its end
            return False
        return bool(answer.get("DisableApiTermination", {}).get("Value"))

    async def adopt(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """Give machines that others started this pool's tags; raises PortFault."""
        tags = {orders.INSTALLATION: pool.installation, orders.POOL: pool.name, orders.OFFER: pool.offers[0].name}
        shown = [{"Key": key, "Value": value} for key, value in tags.items()]
        try:
            await self._account.call("ec2", "create_tags", Resources=list(ids), Tags=shown)
        finally:
            self._fleet.forget()

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
        await self._account.aclose()


def _key(pool: Pool, token: Token) -> str:
    return f"{pool.installation}/{pool.name}/{token}"


def _withdrawn(token: Token) -> str:
    return f"launch {token} was withdrawn; it starts nothing any more"


if TYPE_CHECKING:
    _adapter: type[Compute] = Ec2Compute
    _part: type[DiagnosingPart] = Ec2Compute
