"""The compute port: machines that come, stop and go.

Does: state the contract; tests/contract/test_compute.py executes it. Does not: know load, balancers or models.
Invariant: calls return on acceptance; work that outlives a tick is state that a later observe() shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autoscaler.domain.base import InstanceId, Instant, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import Offer, Pool
from autoscaler.domain.replica import ComputeView, LaunchState


class Compute(Protocol):
    """One provider in one account and region. All methods raise PortFault; every call has a deadline set around it."""

    async def observe(self, pool: Pool, launches: Sequence[OpenLaunch], not_older_than: Instant) -> ComputeView:
        """The pool's machines, with the state of each open launch.

        May lag, never invents; raises Unreachable or marks a zone when it cannot know, never an empty list instead.
        Only machines that carry our ownership tags (installation and pool) appear in `instances`.
        """
        ...

    async def launch(self, pool: Pool, order: Launch) -> LaunchState:
        """Ask for `order.count` machines; the same token gives the same machines, whatever crashed in between.

        Fewer than asked is an answer, not an error. Raises NoCapacity, QuotaReached, Throttled, Refused, Unreachable.
        """
        ...

    async def withdraw(self, pool: Pool, token: Token) -> None:
        """Take back a launch that has produced no machine yet; unknown token is success."""
        ...

    async def start(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """Start stopped machines (standby); raises Refused where the compute has no standby."""
        ...

    async def stop(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """Stop machines and keep their disks (standby); raises Refused where the compute has no standby."""
        ...

    async def terminate(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """End machines; returns when accepted; already gone is success; touches only machines with our tags."""
        ...

    async def precheck(self, pool: Pool, ids: Sequence[InstanceId]) -> dict[InstanceId, str]:
        """Which of these removals would be refused, and why; an empty dict means all would be accepted."""
        ...

    def check_offer(self, offer: Offer) -> list[str]:
        """Mistakes in an offer's request that can be found without the network, one line each."""
        ...

    async def aclose(self) -> None:
        """Release sockets and threads; machines are left as they are."""
        ...


class Adopter(Protocol):
    """What a compute may offer besides Compute: `autoscaler adopt`, where it is missing the command says so."""

    async def adopt(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        """Give machines that others started this pool's tags; already ours is success; raises PortFault."""
        ...
