"""The compute port over Auto Scaling groups.

Does: set a group's desired capacity, end chosen machines with decrement, show its machines with their launch's token.
Does not: choose zones, or act on a group that something else scales: it refuses and says what.
Invariant: desired capacity is set to the order's `total_after`, never to "one more"; a token raises it once.

How a token finds its machines: before the capacity is raised, the token is written into a tag of the group that goes to
each machine at its launch. So what comes carries it from its first moment, and a daemon that crashed in between finds
the token at the group: it sets the same capacity again (no effect when it was set), unless a machine with that token
is there, or a second tag says that the launch is over. One launch at a time: the next waits for the one before.
A launch is not accepted before its machines are there, so that it is looked at in each tick: when the group's last
activity failed, the capacity is lowered again and the reason is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from autoscaler.domain.base import Duration, InstanceId, Instant, Token, after, elapsed
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import Conflict, Fault, FaultKind, NoCapacity, PortFault, QuotaReached, Refused
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import Offer, Pool
from autoscaler.domain.replica import ComputeView, Instance, InstanceState, LaunchState, LaunchStatus
from autoscaler.ports.build import Context
from autoscaler.ports.compute import Compute
from providers._shared.aws import NO_CAPACITY, QUOTA, Account
from providers._shared.aws_fleet import INSTALLATION, POOL, PROTECTED, TOKEN, Machine, Owner, epoch_of, owner_of
from providers.compute.aws_asg import settings as wanted
from providers.compute.aws_asg.groups import DONE, Group, Groups, World

#: A pool of our installation that no observe() has named for so long is one that this config does not know.
_UNKNOWN_AFTER: Final = Duration(60.0)
#: How long a withdrawn token is remembered, seconds; memory keeps it while it is open.
_WITHDRAWN_FOR: Final = Duration(3600.0)
#: How old a look may be that a check before a drain is made from, seconds.
_RECENT: Final = Duration(30.0)
#: As SetInstanceProtection's own description says.
_PROTECTED_AT_ONCE: Final = 50
_GONE: Final = InstanceState.TERMINATED


class AsgCompute:
    """Auto Scaling groups of one account and region, for all pools of one installation."""

    def __init__(
        self, settings: wanted.Settings, context: Context, configure: Callable[[Any], None] | None = None
    ) -> None:
        self._clock, self._name = context.clock, context.name or "aws_asg"
        self._account = Account(settings.region, settings.profile, configure)
        self._groups = Groups(self._account, self._clock)
        self._withdrawn: dict[str, Instant] = {}
        self._before: dict[str, str] = {}
        self._shown: dict[InstanceId, Instance] = {}
        self._known: set[Owner] = set()
        self._since = self._clock.now()

    # --- looking ---

    async def observe(self, pool: Pool, launches: Sequence[OpenLaunch], not_older_than: Instant) -> ComputeView:
        self._known.add(owner_of(pool))
        world = await self._groups.shared.get(not_older_than)
        instances: list[Instance] = []
        states: dict[Token, LaunchState] = {}
        for offer in pool.offers:
            if offer.compute == self._name:
                settings = wanted.read(offer.request)
                group = self._ours(pool, settings, world)
                instances += self._machines(offer, settings, group, world)
                mine = [one for one in launches if one.placement.offer == offer.name]
                found = {one.token: self._state(pool, one, group, world) for one in mine}
                states |= {token: state for token, state in found.items() if state is not None}
        return ComputeView(
            compute=self._name,
            instances=tuple(instances),
            as_of=world.as_of,
            launches=states,
            foreign=self._foreign(pool, world),
        )

    def _ours(self, pool: Pool, settings: wanted.Settings, world: World) -> Group:
        group = world.groups.get(settings.group)
        if group is None or group.owner != owner_of(pool):
            raise Refused(
                f"no Auto Scaling group {settings.group} with the tags {INSTALLATION}={pool.installation} and "
                f"{POOL}={pool.name} in {settings.region}: make it, or tag it (PropagateAtLaunch)"
            )
        return group

    def _machines(self, offer: Offer, settings: wanted.Settings, group: Group, world: World) -> list[Instance]:
        """The group's machines under the offer's name; one that EC2 does not list yet is as it was last, or not yet."""
        found: list[Instance] = []
        for name in sorted(group.staying | group.leaving):
            machine = world.machines.get(name)
            if machine is None:
                found += [self._shown[name]] if name in self._shown else []
            elif machine.instance.state is not _GONE:
                made = _instance(machine, offer, settings, leaving=name in group.leaving)
                before = self._shown.get(name)
                self._shown[name] = before if before is not None and before == made else made
                found.append(self._shown[name])
        if len(self._shown) > 2 * len(world.machines) + 100:
            self._shown = {name: one for name, one in self._shown.items() if name in world.machines}
        return found

    def _state(self, pool: Pool, launch: OpenLaunch, group: Group, world: World) -> LaunchState | None:
        alive = [one for one in _carrying(launch.token, group, world) if one in group.staying]
        if alive and (len(alive) >= launch.count or not group.launching):
            return LaunchState(status=LaunchStatus.DONE, ids=tuple(alive))
        if not alive and not launch.withdrawn and _key(pool, launch.token) in self._withdrawn:
            fault = Fault(kind=FaultKind.REFUSED, detail=_why_withdrawn(launch.token))
            return LaunchState(status=LaunchStatus.FAILED, fault=fault)
        return None

    def _foreign(self, pool: Pool, world: World) -> tuple[Instance, ...]:
        young = elapsed(self._since, self._clock.now()) < _UNKNOWN_AFTER
        owners = {one.owner for one in world.groups.values()} - self._known
        names = {
            member
            for group in world.groups.values()
            if group.owner in owners and not (young and group.owner.installation == pool.installation)
            for member in group.staying
        }
        return tuple(world.machines[one].instance for one in sorted(names) if one in world.machines)

    # --- launching ---

    async def launch(self, pool: Pool, order: Launch) -> LaunchState:
        settings = wanted.read(order.request)
        if _key(pool, order.token) in self._withdrawn:
            raise Refused(_why_withdrawn(order.token))
        world = await self._groups.shared.get(self._clock.now())
        group = self._ours(pool, settings, world)
        carrying = _carrying(order.token, group, world)
        if (
            group.done == order.token or len(carrying) >= order.count
        ):  # those that ended too: they are not started again
            return await self._note(order, group, carrying)
        if not carrying and (group.token != order.token or group.desired < order.total_after):
            await self._raise(order, group)
            world = await self._groups.shared.get(self._clock.now())
            group = self._ours(pool, settings, world)
            carrying = _carrying(order.token, group, world)
        if len(carrying) >= order.count or (carrying and not group.launching):
            return await self._note(order, group, carrying)
        if fault := await self._failure(order.token, group):
            await self._lower(group)
            if carrying:
                return await self._note(order, group, carrying)
            raise fault
        raise Conflict(
            f"group {group.name} has launched {len(carrying)} of {order.count} so far; asked again in a tick"
        )

    async def _raise(self, order: Launch, group: Group) -> None:
        """Write the token at the group, then set the capacity; both may be done again."""
        await self._refuse_rivals(group, "Launch")
        if order.total_after > group.largest:
            raise QuotaReached(
                f"group {group.name} has max size {group.largest}, and {order.total_after} are wanted: raise it to the "
                "pool's capacity.max"
            )
        if group.token != order.token:
            if group.launching and group.desired < order.total_after:
                raise Conflict(f"group {group.name} still launches what it was asked for before ({group.token})")
            if not group.launching and group.desired >= order.total_after:
                raise Conflict(f"group {group.name} holds {group.desired} already, {order.total_after} are wanted")
            await self._tag(group.name, TOKEN, order.token, propagate=True)
        self._before = {order.token: await self._last_activity(group.name)}
        if group.desired < order.total_after:  # else it is getting what is missing already: that will carry the token
            await self._set(group.name, order.total_after)

    async def _note(self, order: Launch, group: Group, ids: Sequence[InstanceId]) -> LaunchState:
        """The launch is over: also when its machines have ended and EC2 has forgotten them."""
        if group.done != order.token:
            await self._tag(group.name, DONE, order.token, propagate=False)
        return LaunchState(status=LaunchStatus.DONE, ids=tuple(ids))

    async def _tag(self, name: str, key: str, value: str, *, propagate: bool) -> None:
        tag = {"Key": key, "Value": value, "PropagateAtLaunch": propagate}
        where = {"ResourceId": name, "ResourceType": "auto-scaling-group"}
        try:
            await self._account.call("autoscaling", "create_or_update_tags", Tags=[{**where, **tag}])
        finally:
            self._groups.shared.forget()

    async def _set(self, name: str, desired: int) -> None:
        try:
            await self._account.call(
                "autoscaling",
                "set_desired_capacity",
                AutoScalingGroupName=name,
                DesiredCapacity=desired,
                HonorCooldown=False,
            )
        finally:
            self._groups.shared.forget()

    async def _lower(self, group: Group) -> None:
        """Stop asking for what does not come.

        If one comes in this very moment, the group would choose which to end: those that are there are protected first
        (we can end them all the same).
        """
        if not group.launching:
            return
        names = sorted(group.staying)
        for first in range(0, len(names), _PROTECTED_AT_ONCE):
            await self._account.call(
                "autoscaling",
                "set_instance_protection",
                AutoScalingGroupName=group.name,
                InstanceIds=names[first : first + _PROTECTED_AT_ONCE],
                ProtectedFromScaleIn=True,
            )
        await self._set(group.name, max(group.smallest, len(names)))

    async def _activities(self, name: str) -> list[dict[str, Any]]:
        answer = await self._account.read(
            "autoscaling", "describe_scaling_activities", AutoScalingGroupName=name, MaxRecords=10
        )
        return list(answer["Activities"])

    async def _last_activity(self, name: str) -> str:
        return next((str(one["ActivityId"]) for one in await self._activities(name)), "")

    async def _failure(self, token: Token, group: Group) -> PortFault | None:
        """What the newest activity failed of, unless that was before this launch."""
        newest = next(iter(await self._activities(group.name)), None)
        if newest is None or newest["ActivityId"] == self._before.get(token):
            return None
        if newest.get("StatusCode") not in {"Failed", "Cancelled"}:
            return None
        return _fault(f"group {group.name}: {str(newest.get('StatusMessage', 'no reason'))[:200]}")

    async def withdraw(self, pool: Pool, token: Token) -> None:
        now = self._clock.now()
        self._withdrawn = {one: at for one, at in self._withdrawn.items() if elapsed(at, now) < _WITHDRAWN_FOR}
        self._withdrawn[_key(pool, token)] = now
        world = await self._groups.shared.get(now)
        for group in world.groups.values():
            if group.owner == owner_of(pool) and group.token == token:
                await self._lower(group)

    # --- changing ---

    async def terminate(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        refused: list[PortFault] = []
        for group, chosen in (await self._chosen(pool, ids)).items():
            try:
                await self._refuse_rivals(group, "Terminate")
                await self._end(group, chosen)
            except Refused as error:
                refused.append(error)
        if refused:
            raise refused[0]

    async def _chosen(self, pool: Pool, ids: Sequence[InstanceId]) -> dict[Group, list[InstanceId]]:
        world = await self._groups.shared.get(self._clock.now()) if ids else None
        groups = [one for one in world.groups.values() if one.owner == owner_of(pool)] if world else []
        chosen = {group: [one for one in ids if one in group.staying] for group in groups}
        return {group: names for group, names in chosen.items() if names}

    async def _end(self, group: Group, ids: Sequence[InstanceId]) -> None:
        may = max(0, group.desired - group.smallest)
        try:
            for one in ids[:may]:
                await self._account.call(
                    "autoscaling",
                    "terminate_instance_in_auto_scaling_group",
                    InstanceId=one,
                    ShouldDecrementDesiredCapacity=True,
                )
        finally:
            self._groups.shared.forget()
        if len(ids) > may:
            raise Refused(_too_small(group))

    async def _refuse_rivals(self, group: Group, process: str) -> None:
        found = await self._groups.rivals(group, self._clock.now())
        if process in group.suspended:
            found.append(f"its process {process} is suspended: resume it")
        if found:
            raise Refused(f"group {group.name} is not ours alone: {'; '.join(found)}")

    async def start(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        raise Refused("an Auto Scaling group has no standby that we could start: use aws_ec2 for it")

    async def stop(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        raise Refused("an Auto Scaling group replaces a machine that is stopped: use aws_ec2 for standby")

    async def precheck(self, pool: Pool, ids: Sequence[InstanceId]) -> dict[InstanceId, str]:
        world = await self._groups.shared.get(after(self._clock.now(), Duration(-_RECENT)))
        found: dict[InstanceId, str] = {}
        for group in world.groups.values():
            here = [one for one in ids if one in group.staying]
            if not here:
                continue
            try:
                await self._refuse_rivals(group, "Terminate")
            except Refused as error:
                found |= dict.fromkeys(here, str(error))
            found |= dict.fromkeys(here[max(0, group.desired - group.smallest) :], _too_small(group))
        tagged = [one for one in ids if one in world.machines and world.machines[one].instance.protected]
        return found | dict.fromkeys(tagged, f"it has the tag {PROTECTED}")

    # --- checking ---

    def check_offer(self, offer: Offer) -> list[str]:
        try:
            wanted.read(offer.request)
        except PortFault as error:
            return [f"offer {offer.name}: {error}"]
        return [f"offer {offer.name}: {line}" for line in wanted.mistakes(offer)]

    async def aclose(self) -> None:
        self._groups.shared.close()
        await self._account.aclose()


def _carrying(token: Token, group: Group, world: World) -> list[InstanceId]:
    """Machines of this group that were launched under a token, those that ended too."""
    return sorted(key for key, one in world.machines.items() if one.group == group.name and one.instance.token == token)


def _instance(machine: Machine, offer: Offer, settings: wanted.Settings, *, leaving: bool) -> Instance:
    instance = machine.instance
    return msgspec.structs.replace(
        instance,
        offer=offer.name,
        zone=offer.zones[0],
        state=InstanceState.STOPPING if leaving else instance.state,
        address=machine.public if settings.address == "public" else instance.address,
        epoch=epoch_of(instance.token),
    )


def _fault(text: str) -> PortFault:
    """What a failed activity means; its message has EC2's code in it, or EC2's sentence."""
    if any(code in text for code in NO_CAPACITY) or "sufficient" in text:
        return NoCapacity(text)
    if any(code in text for code in QUOTA) or "limit" in text:
        return QuotaReached(text)
    return Refused(text)


def _too_small(group: Group) -> str:
    return f"group {group.name} has min size {group.smallest} and desired capacity {group.desired}: lower its min size"


def _key(pool: Pool, token: Token) -> str:
    return f"{pool.installation}/{pool.name}/{token}"


def _why_withdrawn(token: Token) -> str:
    return f"launch {token} was withdrawn; it starts nothing any more"


if TYPE_CHECKING:
    _adapter: type[Compute] = AsgCompute
