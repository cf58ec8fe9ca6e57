"""All our machines of one account and region in one snapshot, which serves every pool that asks in a tick.

Does: page through DescribeInstances once (1,000 machines a call), keep what a launch just answered until it is listed.
Does not: change anything. Invariant: a failed look raises and leaves the last snapshot as it was; nothing is invented,
and a machine that was launched a moment ago is "not listed yet", not gone.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, Final, NamedTuple

from autoscaler.domain.base import Duration, InstanceId, Instant, Token, elapsed
from autoscaler.domain.pool import Pool
from autoscaler.domain.replica import Instance, InstanceState
from autoscaler.ports.clock import Clock
from providers._shared.aws import Account
from providers.compute.aws_ec2 import orders

#: EC2's words, and ours. Terminated machines stay visible for about an hour and only close launches.
_STATES: Final = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "stopping": InstanceState.STOPPING,
    "shutting-down": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPED,
    "terminated": InstanceState.TERMINATED,
}
_FILTER: Final = [{"Name": "tag-key", "Values": [orders.INSTALLATION]}]


class Owner(NamedTuple):
    """Whose machine it is; both names are there, else it is nobody's that we know."""

    installation: str
    pool: str


class Machine(NamedTuple):
    """A machine as EC2 lists it. `market`: on_demand, spot, capacity_block."""

    owner: Owner
    instance: Instance
    public: str | None = None
    ended_by: str = ""


class Snapshot(NamedTuple):
    """What one look showed. `as_of`: before it began, since what changes during it may be missing from it."""

    as_of: Instant
    machines: dict[InstanceId, Machine]
    by_owner: dict[Owner, tuple[Machine, ...]]


class Fleet:
    """Looks, shared; and the machines that launches answered with."""

    def __init__(self, account: Account, clock: Clock) -> None:
        self._account, self._clock = account, clock
        self._looking = asyncio.Lock()
        self._snapshot: Snapshot | None = None
        self._fresh: dict[InstanceId, tuple[Machine, Instant]] = {}

    async def look(self, not_older_than: Instant) -> Snapshot:
        """The snapshot, looked at anew when it is older than asked; raises PortFault."""
        async with self._looking:
            if self._snapshot is None or self._snapshot.as_of < not_older_than:
                as_of = self._clock.now()
                pages = await self._account.pages(
                    "ec2", "describe_instances", Filters=_FILTER, PaginationConfig={"PageSize": 1000}
                )
                self._snapshot = self._joined(as_of, pages)
            return self._snapshot

    def forget(self) -> None:
        """Look anew next time: we changed something."""
        self._snapshot = None

    def launched(self, listed: list[dict[str, Any]], grace: Duration) -> list[Machine]:
        """Keep what RunInstances answered for `grace` seconds, until a look lists it."""
        until = Instant(self._clock.now() + grace)
        machines = [machine for item in listed if (machine := _machine(item)) is not None]
        self._fresh |= {machine.instance.id: (machine, until) for machine in machines}
        self.forget()
        return machines

    def _joined(self, as_of: Instant, pages: list[dict[str, Any]]) -> Snapshot:
        listed = [item for page in pages for reservation in page["Reservations"] for item in reservation["Instances"]]
        machines = {one.instance.id: one for item in listed if (one := _machine(item)) is not None}
        self._fresh = {
            key: kept for key, kept in self._fresh.items() if key not in machines and elapsed(as_of, kept[1]) > 0
        }
        machines |= {key: machine for key, (machine, _) in self._fresh.items()}
        last = self._snapshot.machines if self._snapshot else {}
        by_owner: dict[Owner, list[Machine]] = {}
        for key in machines:
            same = last.get(key)
            if same == machines[key]:  # the very object again: whoever compares two ticks is spared the work
                machines[key] = same
            by_owner.setdefault(machines[key].owner, []).append(machines[key])
        return Snapshot(as_of, machines, {owner: tuple(ones) for owner, ones in by_owner.items()})


def owner_of(pool: Pool) -> Owner:
    """Whose machines a pool's are."""
    return Owner(pool.installation, pool.name)


def _machine(item: dict[str, Any]) -> Machine | None:
    tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}
    owner = Owner(tags.get(orders.INSTALLATION, ""), tags.get(orders.POOL, ""))
    if not all(owner):  # an empty name owns nothing
        return None
    state = _STATES.get(item["State"]["Name"], InstanceState.PENDING)
    started = item["LaunchTime"]
    why = item.get("StateReason", {}).get("Code", "")
    instance = Instance(
        id=InstanceId(item["InstanceId"]),
        token=Token(tags.get(orders.TOKEN, "")),
        offer=tags.get(orders.OFFER, ""),
        zone=tags.get(orders.ZONE, "") or item.get("Placement", {}).get("AvailabilityZone", ""),
        state=state,
        launched_at=_instant(started),
        address=item.get("PrivateIpAddress"),
        # EC2 sets LaunchTime anew when a stopped machine starts: it names the boot.
        boot=started.isoformat() if isinstance(started, datetime) else str(started),
        epoch=tags.get(orders.EPOCH, ""),
        protected=tags.get(orders.PROTECTED, "").lower() == "true",
        detail=_detail(state, why, owner, tags),
    )
    return Machine(owner, instance, item.get("PublicIpAddress") or None, why)


def _detail(state: InstanceState, why: str, owner: Owner, tags: dict[str, str]) -> str:
    if tags.get("aws:autoscaling:groupName"):
        return f"belongs to the Auto Scaling group {tags['aws:autoscaling:groupName']}"
    if why and state is not InstanceState.RUNNING and why != "pending":
        return why
    return f"installation {owner.installation}, pool {owner.pool}"


def _instant(at: object) -> Instant:
    return Instant(at.timestamp()) if isinstance(at, datetime) else Instant(0.0)
