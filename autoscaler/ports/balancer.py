"""The balancer port: who gets requests.

Does: state the contract; tests/contract/test_balancer.py executes it. Does not: decide who is ready.
Invariant: every call is idempotent; only members that this pool's binding owns are touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autoscaler.domain.pool import BalancerTraits
from autoscaler.domain.replica import BalancerView, Endpoint


class Balancer(Protocol):
    """One binding of one pool to one balancer target. All methods but `traits` raise PortFault."""

    def traits(self) -> BalancerTraits:
        """What this balancer can do, under the binding's name."""
        ...

    async def members(self) -> BalancerView:
        """All members with state, traffic, weight and active counts; raises Unreachable rather than guess."""
        ...

    async def admit(self, endpoints: Sequence[Endpoint]) -> None:
        """Give these endpoints requests, with their weights; already admitted is success; ends a drain."""
        ...

    async def reweigh(self, endpoints: Sequence[Endpoint]) -> None:
        """Set the weights of these members; unknown members are left out, never added."""
        ...

    async def drain(self, endpoints: Sequence[Endpoint]) -> None:
        """No new requests, running ones finish; already draining or gone is success."""
        ...

    async def evict(self, endpoints: Sequence[Endpoint]) -> None:
        """Remove from the target; running requests end normally where the balancer can; already gone is success."""
        ...

    async def aclose(self) -> None:
        """Release sockets; the balancer keeps running with its present members."""
        ...


class Local(Protocol):
    """What a balancer may offer besides Balancer when it is a process of this machine, which the adapter starts."""

    async def check_start(self) -> None:
        """Raise Refused when it could not be started here; asked before a daemon starts, and starts nothing."""
        ...
