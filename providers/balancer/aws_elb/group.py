"""The balancer port over a target group of an ALB or NLB.

Does: register and deregister in batches, show health, keep the group's attributes and its weight as configured.
Does not: make load balancers, or decide when a drain is over: it shows `draining` for as long as ELB does.
Invariant: only the endpoints that it is given are ever changed; nothing is changed by looking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from autoscaler.domain.faults import Refused
from autoscaler.domain.pool import BalancerTraits, Pool
from autoscaler.domain.replica import BalancerView, Endpoint, Traffic
from autoscaler.ports.balancer import Balancer
from autoscaler.ports.build import Context
from autoscaler.ports.diagnosis import DiagnosingPart, Lack
from providers._shared.aws import Account
from providers.balancer.aws_elb import diagnosis
from providers.balancer.aws_elb.health import member_of
from providers.balancer.aws_elb.settings import STRATEGIES, Settings

#: Targets a call. No maximum is documented; the in-tree Kubernetes provider sends as many.
BATCH: Final = 100
#: The most that a forward action takes as weight.
_MOST: Final = 999
#: Two bindings of this daemon may weigh in the same listener, and its action is written whole.
_WEIGHING: Final[dict[str, asyncio.Lock]] = {}


class TargetGroup:
    """One target group; `configure` is handed to the account (see there)."""

    def __init__(self, settings: Settings, context: Context, configure: Callable[[Any], None] | None = None) -> None:
        self._settings, self._clock = settings, context.clock
        self._name = context.name or "aws_elb"
        self._account = Account(settings.place, settings.profile, configure)
        self._prepared = False

    def traits(self) -> BalancerTraits:
        return BalancerTraits(
            name=self._name,
            strategies=STRATEGIES[self._settings.family],
            settle=self._settings.settle,
            # An ALB sends each request where it likes; an NLB only each new connection.
            drain_stops="requests" if self._settings.family == "application" else "connections",
            # An address that was deregistered may not come back before its delay is over.
            recall=self._settings.target_type == "instance",
        )

    async def members(self) -> BalancerView:
        as_of = self._clock.now()
        answer = await self._account.read("elbv2", "describe_target_health", TargetGroupArn=self._settings.target_group)
        found = [member_of(one) for one in answer["TargetHealthDescriptions"]]
        members = sorted((one for one in found if one is not None), key=lambda one: one.endpoint)
        return BalancerView(balancer=self._name, members=tuple(members), as_of=as_of)

    async def admit(self, endpoints: Sequence[Endpoint]) -> None:
        await self._prepare()
        await self._each("register_targets", endpoints)
        await self._weigh()

    async def reweigh(self, endpoints: Sequence[Endpoint]) -> None:
        """A target has no weight of its own; the group's follows its members."""
        await self._weigh()

    async def drain(self, endpoints: Sequence[Endpoint]) -> None:
        await self._each("deregister_targets", endpoints)
        await self._weigh()

    async def evict(self, endpoints: Sequence[Endpoint]) -> None:
        await self.drain(endpoints)

    async def _each(self, operation: str, endpoints: Sequence[Endpoint]) -> None:
        targets = [self._target(one) for one in endpoints]
        for first in range(0, len(targets), BATCH):
            await self._account.call(
                "elbv2", operation, TargetGroupArn=self._settings.target_group, Targets=targets[first : first + BATCH]
            )

    def _target(self, endpoint: Endpoint) -> dict[str, Any]:
        by_id = self._settings.target_type == "instance"
        return {"Id": endpoint.instance if by_id else endpoint.host, "Port": endpoint.port}

    async def _prepare(self) -> None:
        """Set the attributes that the strategy needs, once, and only where they differ."""
        wanted = self._settings.attributes()
        if self._prepared or not wanted:
            return
        group = self._settings.target_group
        answer = await self._account.read("elbv2", "describe_target_group_attributes", TargetGroupArn=group)
        is_now = {one["Key"]: one["Value"] for one in answer["Attributes"]}
        differing = [{"Key": key, "Value": value} for key, value in wanted.items() if is_now.get(key) != value]
        if differing:
            await self._account.call(
                "elbv2", "modify_target_group_attributes", TargetGroupArn=group, Attributes=differing
            )
        self._prepared = True

    async def _weigh(self) -> None:
        """Make this group's weight in the listener's forward action its number of admitted members."""
        listener = self._settings.listener
        if not listener:
            return
        async with _WEIGHING.setdefault(listener, asyncio.Lock()):
            view = await self.members()
            weight = min(_MOST, sum(one.traffic is not Traffic.NO or "initial" in one.reason for one in view.members))
            answer = await self._account.read("elbv2", "describe_listeners", ListenerArns=[listener])
            actions = answer["Listeners"][0]["DefaultActions"]
            await self._set_weight(listener, actions, weight)

    async def _set_weight(self, listener: str, actions: list[dict[str, Any]], weight: int) -> None:
        forward = next((one for one in actions if one["Type"] == "forward"), None)
        groups = forward.get("ForwardConfig", {}).get("TargetGroups", []) if forward else []
        ours = next((one for one in groups if one["TargetGroupArn"] == self._settings.target_group), None)
        if forward is None or ours is None:
            raise Refused(f"listener {listener} does not forward to {self._settings.target_group} by default")
        before, ours["Weight"] = ours.get("Weight"), weight
        # ELB refuses an action in which every weight is 0; and with no member anywhere, weights mean nothing.
        if before == weight or not any(one.get("Weight", 0) for one in groups):
            return
        forward.pop("TargetGroupArn", None)  # the short form beside the long one is refused when they differ
        await self._account.call("elbv2", "modify_listener", ListenerArn=listener, DefaultActions=actions)

    async def lacks(self, pool: Pool, preset: str) -> list[Lack]:
        """See ports/diagnosis.py."""
        return await diagnosis.lacks(self._account, self._settings, pool, preset)

    async def aclose(self) -> None:
        await self._account.aclose()


if TYPE_CHECKING:
    _adapter: type[Balancer] = TargetGroup
    _part: type[DiagnosingPart] = TargetGroup
