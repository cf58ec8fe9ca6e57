"""The balancer port over a Classic load balancer.

Does: register machines, show their health. Does not: know ports: a Classic load balancer sends to the port of its
listener on every machine, so each machine has one replica. Its connection draining delays the answer of nothing: a
machine that left is no longer listed at once, while running requests end within the balancer's own timeout.
Invariant: only the endpoints that it is given are ever changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autoscaler.domain.faults import Refused
from autoscaler.domain.pool import BalancerTraits, Pool
from autoscaler.domain.replica import BalancerView, Endpoint
from autoscaler.ports.balancer import Balancer
from autoscaler.ports.build import Context
from autoscaler.ports.diagnosis import DiagnosingPart, Lack
from providers._shared.aws import Account
from providers.balancer.aws_elb import diagnosis
from providers.balancer.aws_elb.group import BATCH
from providers.balancer.aws_elb.health import classic_member_of
from providers.balancer.aws_elb.settings import STRATEGIES, Settings


class ClassicBalancer:
    """One Classic load balancer, by name."""

    def __init__(self, settings: Settings, context: Context, configure: Callable[[Any], None] | None = None) -> None:
        self._settings, self._clock = settings, context.clock
        self._name = context.name or "aws_elb"
        self._account = Account(settings.place, settings.profile, configure)
        self._port = 0

    def traits(self) -> BalancerTraits:
        return BalancerTraits(
            name=self._name, strategies=STRATEGIES["classic"], settle=self._settings.settle, drain_stops="connections"
        )

    async def members(self) -> BalancerView:
        as_of, port = self._clock.now(), await self._port_behind()
        answer = await self._account.read(
            "elb", "describe_instance_health", LoadBalancerName=self._settings.load_balancer
        )
        members = sorted((classic_member_of(one, port) for one in answer["InstanceStates"]), key=lambda m: m.endpoint)
        return BalancerView(balancer=self._name, members=tuple(members), as_of=as_of)

    async def _port_behind(self) -> int:
        """The port on every machine: that of the first listener, looked up once."""
        if not self._port:
            answer = await self._account.read(
                "elb", "describe_load_balancers", LoadBalancerNames=[self._settings.load_balancer]
            )
            listeners = answer["LoadBalancerDescriptions"][0]["ListenerDescriptions"]
            if not listeners:
                raise Refused(f"load balancer {self._settings.load_balancer} has no listener, so no port to send to")
            self._port = int(listeners[0]["Listener"]["InstancePort"])
        return self._port

    async def admit(self, endpoints: Sequence[Endpoint]) -> None:
        port = await self._port_behind()
        wrong = [one.address for one in endpoints if one.port != port]
        if wrong:
            raise Refused(f"{wrong[0]}: load balancer {self._settings.load_balancer} sends to port {port} only")
        await self._each("register_instances_with_load_balancer", endpoints)

    async def reweigh(self, endpoints: Sequence[Endpoint]) -> None:
        """There are no weights."""

    async def drain(self, endpoints: Sequence[Endpoint]) -> None:
        await self._each("deregister_instances_from_load_balancer", endpoints)

    async def evict(self, endpoints: Sequence[Endpoint]) -> None:
        await self.drain(endpoints)

    async def _each(self, operation: str, endpoints: Sequence[Endpoint]) -> None:
        instances = [{"InstanceId": one.instance} for one in endpoints]
        for first in range(0, len(instances), BATCH):
            await self._account.call(
                "elb",
                operation,
                LoadBalancerName=self._settings.load_balancer,
                Instances=instances[first : first + BATCH],
            )

    async def lacks(self, pool: Pool, preset: str) -> list[Lack]:
        """See ports/diagnosis.py."""
        del preset  # its health check is a text of its own, and rarely one of HTTP
        return await diagnosis.classic_lacks(self._account, self._settings, pool)

    async def aclose(self) -> None:
        await self._account.aclose()


if TYPE_CHECKING:
    _adapter: type[Balancer] = ClassicBalancer
    _part: type[DiagnosingPart] = ClassicBalancer
