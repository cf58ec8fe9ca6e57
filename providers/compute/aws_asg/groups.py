"""All our Auto Scaling groups of one account and region with their machines, in one look; and who else scales them.

Does: list groups by tag and their machines by group, tell what would undo or outrun us. Does not: change anything.
Invariant: a failed look raises; what one group lacks says nothing about another.

Names of processes, lifecycle states and refresh states: botocore's service model, verbatim.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

import msgspec

from autoscaler.domain.base import InstanceId, Instant
from autoscaler.ports.clock import Clock
from providers._shared.aws import Account
from providers._shared.aws_fleet import GROUP, INSTALLATION, POOL, TOKEN, Machine, Owner, machine_of
from providers._shared.shared_look import SharedLook

#: The group's tag with the token of the last launch that is over.
DONE: Final = "autoscaler:launched"
_REFRESHING: Final = frozenset({"Pending", "InProgress", "Cancelling", "RollbackInProgress", "Baking"})
#: Lifecycle states of machines that leave, or are no part of the group's capacity.
_LEAVING: Final = ("Terminating", "Terminated", "Detaching", "Detached")
_RESERVE: Final = "Warmed:"


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group as Auto Scaling describes it.

    `token`: of the launch that last raised it; `done`: of the last launch that is over.
    `staying`: machines that are there or come; `leaving`: on their way out.
    """

    name: str
    owner: Owner
    token: str
    done: str
    desired: int
    smallest: int
    largest: int
    staying: frozenset[InstanceId]
    leaving: frozenset[InstanceId]
    suspended: frozenset[str]
    own_ways: tuple[str, ...] = ()

    @property
    def launching(self) -> bool:
        """Whether it still tries to get machines."""
        return len(self.staying) < self.desired


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What one look showed. `as_of`: before it began."""

    as_of: Instant
    groups: dict[str, Group]
    machines: dict[InstanceId, Machine]


class Groups:
    """Looks, shared by all pools."""

    def __init__(self, account: Account, clock: Clock) -> None:
        self._account = account
        self.shared: SharedLook[World] = SharedLook(clock, self._look)
        self._last: dict[InstanceId, Machine] = {}

    async def _look(self, as_of: Instant) -> World:
        pages = await self._account.pages(
            "autoscaling",
            "describe_auto_scaling_groups",
            Filters=[{"Name": "tag-key", "Values": [INSTALLATION]}],
            PaginationConfig={"PageSize": 100},
        )
        groups = {one.name: one for page in pages for one in map(group_of, page["AutoScalingGroups"])}
        machines = await self._machines(sorted(groups)) if groups else {}
        self._last = machines
        return World(as_of=as_of, groups=groups, machines=machines)

    async def _machines(self, names: list[str]) -> dict[InstanceId, Machine]:
        filters = [{"Name": f"tag:{GROUP}", "Values": names}]
        pages = await self._account.pages(
            "ec2", "describe_instances", Filters=filters, PaginationConfig={"PageSize": 1000}
        )
        found: dict[InstanceId, Machine] = {}
        for page in pages:
            for reservation in page["Reservations"]:
                for machine in map(machine_of, reservation["Instances"]):
                    key = machine.instance.id
                    before = self._last.get(key)
                    found[key] = before if before == machine else machine
        return found

    async def rivals(self, group: Group, now: Instant) -> list[str]:
        """What scales this group besides us, each with the mend; raises PortFault."""
        name = group.name
        found = list(group.own_ways)
        answer = await self._account.read("autoscaling", "describe_policies", AutoScalingGroupName=name)
        found += [
            f"scaling policy {one['PolicyName']} ({one.get('PolicyType', 'SimpleScaling')}) is active: delete it"
            for one in answer.get("ScalingPolicies", ())
            if one.get("Enabled", True)
        ]
        answer = await self._account.read("autoscaling", "describe_scheduled_actions", AutoScalingGroupName=name)
        found += [
            f"scheduled action {one['ScheduledActionName']} will change it: delete it (a schedule policy does the same)"
            for one in answer.get("ScheduledUpdateGroupActions", ())
            if _is_ahead(one, now)
        ]
        answer = await self._account.read("autoscaling", "describe_instance_refreshes", AutoScalingGroupName=name)
        found += [
            f"instance refresh {one.get('InstanceRefreshId', '')} is {one['Status']}: wait for its end, or cancel it"
            for one in answer.get("InstanceRefreshes", ())
            if one.get("Status") in _REFRESHING
        ]
        return found


def _is_ahead(action: dict[str, Any], now: Instant) -> bool:
    start, end = _at(action.get("StartTime")), _at(action.get("EndTime"))
    if action.get("Recurrence"):
        return end is None or end > now
    return start is not None and start > now


def _at(moment: object) -> Instant | None:
    return Instant(moment.timestamp()) if isinstance(moment, datetime) else None


def group_of(item: dict[str, Any]) -> Group:
    """A group out of an answer of Auto Scaling."""
    tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}
    states = {InstanceId(one["InstanceId"]): str(one.get("LifecycleState", "")) for one in item.get("Instances", ())}
    leaving = {one for one, state in states.items() if state.startswith(_LEAVING)}
    reserve = {one for one, state in states.items() if state.startswith(_RESERVE)}
    suspended = frozenset(one["ProcessName"] for one in item.get("SuspendedProcesses", ()))
    return Group(
        name=item["AutoScalingGroupName"],
        owner=Owner(tags.get(INSTALLATION, ""), tags.get(POOL, "")),
        token=tags.get(TOKEN, ""),
        done=tags.get(DONE, ""),
        desired=int(item["DesiredCapacity"]),
        smallest=int(item["MinSize"]),
        largest=int(item["MaxSize"]),
        staying=frozenset(states.keys() - leaving - reserve),
        leaving=frozenset(leaving),
        suspended=suspended,
        own_ways=tuple(_own_ways(item, suspended)),
    )


def _own_ways(item: dict[str, Any], suspended: Collection[str]) -> list[str]:
    """What the group's own settings would do to machines that serve or still load."""
    found = []
    balancers = [*item.get("TargetGroupARNs", ()), *item.get("LoadBalancerNames", ()), *item.get("TrafficSources", ())]
    if balancers and "AddToLoadBalancer" not in suspended:
        found.append("it registers machines by itself, before their model is loaded: detach its load balancers")
    if "AZRebalance" not in suspended and len(item.get("AvailabilityZones", ())) > 1:
        found.append("AZRebalance is on and would end machines that serve: suspend that process")
    if "ELB" in str(item.get("HealthCheckType", "")) and "ReplaceUnhealthy" not in suspended:
        found.append("its health check type ELB would end machines that load or drain: make it EC2")
    types = item.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("Overrides", ())
    if item.get("DesiredCapacityType", "units") != "units" or any(one.get("WeightedCapacity") for one in types):
        found.append("its desired capacity does not count machines: take the weights and the capacity type out")
    if item.get("CapacityRebalance"):
        found.append("CapacityRebalance would end machines that serve: turn it off")
    if item.get("MaxInstanceLifetime"):
        found.append("MaxInstanceLifetime would end machines that serve: set it to 0")
    return found
