"""What is done to machines that exist: end, stop, start, tag; and what EC2 would refuse.

Does: change those of a fresh look that are ours, in batches; end the others when EC2 refuses some. Does not: launch.
Invariant: a machine is changed only when a fresh look shows it with this installation's and pool's tags, and never one
of an Auto Scaling group: the group would launch another in its place (aws_asg ends those).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from autoscaler.domain.base import Duration, InstanceId, Instant, after
from autoscaler.domain.faults import Refused
from autoscaler.domain.pool import Pool
from autoscaler.domain.replica import InstanceState
from autoscaler.ports.clock import Clock
from providers._shared.aws import Account
from providers._shared.aws_fleet import INSTALLATION, OFFER, POOL, PROTECTED, ZONE, Fleet, Machine, owner_of

#: Machines a call; karpenter-provider-aws batches as many.
_BATCH: Final = 500
#: How long a refusal to end a machine is believed, seconds: protection is lifted by a person, and nothing tells us.
_BELIEVED: Final = Duration(600.0)
#: How old a look may be that a check before a drain is made from, seconds.
_RECENT: Final = Duration(30.0)
_ALIVE: Final = frozenset(InstanceState) - {InstanceState.TERMINATED}
_STOPPABLE: Final = frozenset({InstanceState.PENDING, InstanceState.RUNNING})
_STARTABLE: Final = frozenset({InstanceState.STOPPED})


class Changes:
    """Changes to machines of one account and region."""

    def __init__(self, account: Account, fleet: Fleet, clock: Clock) -> None:
        self._account, self._fleet, self._clock = account, fleet, clock
        self._refusing: dict[InstanceId, tuple[Instant, str]] = {}

    def refusing(self) -> dict[InstanceId, str]:
        """Machines that EC2 lately refused to end, and why."""
        now = self._clock.now()
        self._refusing = {key: one for key, one in self._refusing.items() if one[0] > now}
        return {key: why for key, (_, why) in self._refusing.items()}

    async def start(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """Start those that are stopped; raises PortFault."""
        await self._each(pool, ids, "start_instances", _STARTABLE)

    async def stop(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """Stop those that run; raises PortFault."""
        await self._each(pool, ids, "stop_instances", _STOPPABLE)

    async def _each(self, pool: Pool, ids: Sequence[InstanceId], operation: str, states: Collection[object]) -> None:
        chosen = await self._ours(pool, ids, states)
        for first in range(0, len(chosen), _BATCH):
            await self._call(operation, chosen[first : first + _BATCH])

    async def terminate(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """End them; of several, EC2 refuses a whole zone for one that is protected: then the others again without it.

        Raises Refused with the first refusal after all others were ended.
        """
        chosen = await self._ours(pool, ids, _ALIVE)
        refusing = self.refusing()
        refused = [Refused(refusing[one]) for one in chosen if one in refusing]
        chosen = [one for one in chosen if one not in refusing]
        for first in range(0, len(chosen), _BATCH):
            refused += await self._end(chosen[first : first + _BATCH])
        if refused:
            raise refused[0]

    async def _end(self, left: list[InstanceId]) -> list[Refused]:
        refused: list[Refused] = []
        while left:
            try:
                await self._call("terminate_instances", left)
                break
            except Refused as error:
                named = {one for one in left if one in str(error)}
                if not named:
                    raise
                left = [one for one in left if one not in named]
                if "InvalidInstanceID" not in str(error):  # one that is not known (yet, any more) is not protected
                    refused.append(error)
                    until = after(self._clock.now(), _BELIEVED)
                    self._refusing |= dict.fromkeys(named, (until, f"EC2 refuses to end it: {error}"[:200]))
        return refused

    async def _ours(self, pool: Pool, ids: Sequence[InstanceId], states: Collection[object]) -> list[InstanceId]:
        """Those of `ids` that a fresh look shows as this pool's, in one of `states`."""
        if not ids:
            return []
        snapshot = await self._fleet.look(self._clock.now())
        mine = {one.instance.id: one for one in snapshot.by_owner.get(owner_of(pool), ()) if not one.group}
        return [one for one in ids if one in mine and mine[one].instance.state in states]

    async def _call(self, operation: str, ids: list[InstanceId]) -> None:
        try:
            await self._account.call("ec2", operation, InstanceIds=ids)
        finally:
            self._fleet.forget()

    async def precheck(self, ids: Sequence[InstanceId]) -> dict[InstanceId, str]:
        """Termination protection is told one machine at a time: ask only about those that are to go."""
        snapshot = await self._fleet.look(after(self._clock.now(), Duration(-_RECENT)))
        found: dict[InstanceId, str] = {}
        for one in ids:
            machine = snapshot.machines.get(one)
            if machine is None:
                continue
            if machine.group:
                found[one] = machine.instance.detail
            elif machine.instance.protected:
                found[one] = f"it has the tag {PROTECTED}"
            elif await self._termination_protected(one):
                found[one] = "EC2 termination protection (DisableApiTermination) is on"
        return found

    async def _termination_protected(self, instance: InstanceId) -> bool:
        try:
            answer = await self._account.read(
                "ec2", "describe_instance_attribute", InstanceId=instance, Attribute="disableApiTermination"
            )
        except Refused as error:
            if "InvalidInstanceID" in str(error):  # it is gone, and nothing stands against its end
                return False
            raise
        return bool(answer.get("DisableApiTermination", {}).get("Value"))

    async def adopt(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """Give machines that others started this pool's tags; raises Refused for what is not there or of a group."""
        machines = (await self._fleet.look(self._clock.now())).machines
        for one in ids:
            machine = machines.get(one)
            if machine is None or machine.instance.state not in _ALIVE:
                raise Refused(f"{one} cannot be adopted: EC2 lists no such machine with the tag {INSTALLATION}")
            if machine.group:
                raise Refused(
                    f"{one} cannot be adopted: it {machine.instance.detail}, which would replace it; "
                    "make the group an offer (aws_asg), or detach the machine from it"
                )
        try:
            for one in ids:  # zones differ, and are spelled as the offer does
                tags = _tags(pool, machines[one])
                shown = [{"Key": key, "Value": value} for key, value in tags.items()]
                await self._account.call("ec2", "create_tags", Resources=[one], Tags=shown)
        finally:
            self._fleet.forget()


def _tags(pool: Pool, machine: Machine) -> dict[str, str]:
    """What makes a machine this pool's: of its offers, one that has the machine's zone."""
    zone = machine.instance.zone
    offers = [one for one in pool.offers if one.compute.startswith("aws_ec2")] or list(pool.offers)
    pairs = [(one.name, name) for one in offers for name in one.zones if zone.endswith(name)]
    offer, spelled = pairs[0] if pairs else (offers[0].name, zone)
    return {INSTALLATION: pool.installation, POOL: pool.name, OFFER: offer, ZONE: spelled}
