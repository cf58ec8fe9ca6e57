"""The machines of one account and region in one snapshot, which serves every pool that asks in a tick.

Does: page through DescribeInstances once (1,000 machines a call), keep what a launch just answered until it is listed.
Does not: change anything. Invariant: a failed look raises and leaves the last snapshot as it was; nothing is invented,
and a machine that was launched a moment ago is "not listed yet", not gone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

from autoscaler.domain.base import Duration, InstanceId, Instant, Token, elapsed
from autoscaler.domain.pool import Pool
from autoscaler.domain.replica import Instance, InstanceState
from autoscaler.ports.clock import Clock
from providers._shared.aws import Account
from providers._shared.shared_look import SharedLook

INSTALLATION: Final = "autoscaler:installation"
POOL: Final = "autoscaler:pool"
TOKEN: Final = "autoscaler:token"
OFFER: Final = "autoscaler:offer"
ZONE: Final = "autoscaler:zone"
EPOCH: Final = "autoscaler:epoch"
#: An operator's own tag: a machine that has it with the value "true" is never ended by us.
PROTECTED: Final = "autoscaler:protected"
#: EC2 sets it on each machine of an Auto Scaling group, and nobody else can.
GROUP: Final = "aws:autoscaling:groupName"

#: EC2's words, and ours. Terminated machines stay visible for about an hour and only close launches.
_STATES: Final = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "stopping": InstanceState.STOPPING,
    "shutting-down": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPED,
    "terminated": InstanceState.TERMINATED,
}


class Owner(NamedTuple):
    """Whose machine it is; both names are there, else it is nobody's that we know."""

    installation: str
    pool: str


class Machine(NamedTuple):
    """A machine as EC2 lists it. `group`: its Auto Scaling group, "" for none. `why`: EC2's reason for its state."""

    owner: Owner
    instance: Instance
    public: str | None = None
    why: str = ""
    group: str = ""


class Snapshot(NamedTuple):
    """What one look showed. `as_of`: before it began, since what changes during it may be missing from it."""

    as_of: Instant
    machines: dict[InstanceId, Machine]
    by_owner: dict[Owner, tuple[Machine, ...]]


class Fleet:
    """Looks, shared; and the machines that launches answered with. `filters`: of DescribeInstances, when it is made."""

    def __init__(self, account: Account, clock: Clock, filters: Callable[[], list[dict[str, Any]]]) -> None:
        self._account, self._clock, self._filters = account, clock, filters
        self._shared: SharedLook[Snapshot] = SharedLook(clock, self._look)
        self._last: dict[InstanceId, Machine] = {}
        self._fresh: dict[InstanceId, tuple[Machine, Instant]] = {}

    async def look(self, not_older_than: Instant) -> Snapshot:
        """The snapshot, looked at anew when it is older than asked; raises PortFault."""
        return await self._shared.get(not_older_than)

    async def _look(self, as_of: Instant) -> Snapshot:
        pages = await self._account.pages(
            "ec2", "describe_instances", Filters=self._filters(), PaginationConfig={"PageSize": 1000}
        )
        return self._joined(as_of, pages)

    def forget(self) -> None:
        """Look anew next time: we changed something."""
        self._shared.forget()

    def close(self) -> None:
        """End what is under way."""
        self._shared.close()

    def launched(self, listed: list[dict[str, Any]], grace: Duration) -> list[Machine]:
        """Keep what RunInstances answered for `grace` seconds, until a look lists it."""
        until = Instant(self._clock.now() + grace)
        machines = [machine_of(item) for item in listed]
        self._fresh |= {machine.instance.id: (machine, until) for machine in machines}
        self.forget()
        return machines

    def _joined(self, as_of: Instant, pages: list[dict[str, Any]]) -> Snapshot:
        listed = [item for page in pages for reservation in page["Reservations"] for item in reservation["Instances"]]
        machines = {one.instance.id: one for one in map(machine_of, listed)}
        self._fresh = {
            key: kept for key, kept in self._fresh.items() if key not in machines and elapsed(as_of, kept[1]) > 0
        }
        machines |= {key: machine for key, (machine, _) in self._fresh.items()}
        by_owner: dict[Owner, list[Machine]] = {}
        for key in machines:
            before = self._last.get(key)
            if before == machines[key]:  # the very object again: whoever compares two ticks is spared the work
                machines[key] = before
            if all(machines[key].owner):  # an empty name owns nothing
                by_owner.setdefault(machines[key].owner, []).append(machines[key])
        self._last = machines
        return Snapshot(as_of, machines, {owner: tuple(ones) for owner, ones in by_owner.items()})


def owner_of(pool: Pool) -> Owner:
    """Whose machines a pool's are."""
    return Owner(pool.installation, pool.name)


def epoch_of(token: str) -> str:
    """The ledger epoch in a token (`{epoch}-{pool}-{sequence}-{index}`)."""
    return token.partition("-")[0]


def machine_of(item: dict[str, Any]) -> Machine:
    """A machine out of an answer of EC2."""
    tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}
    owner = Owner(tags.get(INSTALLATION, ""), tags.get(POOL, ""))
    named = item["State"]["Name"]
    # A state that is not known is none that ends a machine: its own check says whether it serves.
    state = _STATES.get(named, InstanceState.RUNNING)
    started = item["LaunchTime"]
    why = item.get("StateReason", {}).get("Code", "")
    group = tags.get(GROUP, "")
    instance = Instance(
        id=InstanceId(item["InstanceId"]),
        token=Token(tags.get(TOKEN, "")),
        offer=tags.get(OFFER, ""),
        zone=tags.get(ZONE, "") or item.get("Placement", {}).get("AvailabilityZone", ""),
        state=state,
        launched_at=_instant(started),
        address=item.get("PrivateIpAddress") or None,
        # EC2 sets LaunchTime anew when a stopped machine starts: it names the boot.
        boot=started.isoformat() if isinstance(started, datetime) else str(started),
        epoch=tags.get(EPOCH, ""),
        protected=tags.get(PROTECTED, "").lower() == "true",
        detail=_detail(named, why, owner, group),
    )
    return Machine(owner, instance, item.get("PublicIpAddress") or None, why, group)


def _detail(named: str, why: str, owner: Owner, group: str) -> str:
    if named not in _STATES:
        return f"EC2 calls its state {named!r}, which is not known here"
    if group:
        return f"belongs to the Auto Scaling group {group}"
    if why and named != "running" and why != "pending":
        return why
    return f"installation {owner.installation}, pool {owner.pool}"


def _instant(at: object) -> Instant:
    return Instant(at.timestamp()) if isinstance(at, datetime) else Instant(0.0)
