"""Members of all balancers, found by our id or by endpoint.

Does: answer which members a replica has, and which members belong to replicas that are gone. Does not: change anything.
Invariant: a member is a stray only under an id or endpoint that we knew, and only when every compute was seen (law 7).
"""

from __future__ import annotations

from typing import Final

from autoscaler.domain.base import ReplicaId
from autoscaler.domain.decision import Observation
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import Intent
from autoscaler.domain.pool import Pool
from autoscaler.domain.replica import Member

#: A name of this module is found many times faster than the attribute of an enum.
_GONE: Final = Phase.GONE


class Members:
    """All members of all balancers, by our id where the balancer stores it, else by endpoint."""

    def __init__(self, observation: Observation) -> None:
        self._by_id: dict[str, dict[ReplicaId, Member]] = {}
        self._by_endpoint: dict[str, dict[str, Member]] = {}
        for name in sorted(observation.balancers):
            members = observation.balancers[name].members
            self._by_id[name] = {one.replica: one for one in members if one.replica is not None}
            if len(self._by_id[name]) < len(members):
                self._by_endpoint[name] = {one.endpoint: one for one in members if one.replica is None}
        self._claimed: set[str] | None = None

    def of(self, rid: ReplicaId, host: str | None, port: int) -> dict[str, Member]:
        """A replica's member by balancer name."""
        by_id = {name: members[rid] for name, members in self._by_id.items() if rid in members}
        if not host or not self._by_endpoint:
            return by_id
        address = f"{host}:{port}"
        return {name: found[address] for name, found in self._by_endpoint.items() if address in found} | by_id

    def one(self, balancer: str, rid: ReplicaId, host: str | None, port: int) -> Member | None:
        """A replica's member in one balancer, which was seen."""
        found = self._by_id[balancer].get(rid)
        if found is None and host and balancer in self._by_endpoint:
            return self._by_endpoint[balancer].get(f"{host}:{port}")
        return found

    def left_over(self, rid: ReplicaId, host: str | None, intents: dict[ReplicaId, Intent]) -> dict[str, Member]:
        """Members of a replica that is gone. An endpoint that a living replica has taken over is that one's."""
        address = f"{host}:{rid.rpartition(':')[2]}"
        found = {name: members[rid] for name, members in self._by_id.items() if rid in members}
        if host and self._by_endpoint and address not in self._living(intents):
            found |= {name: members[address] for name, members in self._by_endpoint.items() if address in members}
        return found

    def _living(self, intents: dict[ReplicaId, Intent]) -> set[str]:
        if self._claimed is None:
            living = {rid: one.host for rid, one in intents.items() if one.phase is not _GONE}
            self._claimed = {f"{host}:{rid.rpartition(':')[2]}" for rid, host in living.items()}
        return self._claimed

    def strays(
        self, intents: dict[ReplicaId, Intent], pool: Pool, observation: Observation, *, settled: bool
    ) -> list[tuple[str, Member, ReplicaId]]:
        """Members whose replica is gone: only when every compute of the pool was seen.

        A replica of which memory knows nothing counts as gone only when every zone was seen and the ledger has
        watched for a while (`settled`): an empty ledger, or a look that lags, takes nobody out of traffic.
        """
        if any(offer.compute not in observation.computes for offer in pool.offers):
            return []
        complete = settled and not any(view.unreachable_zones for view in observation.computes.values())
        gone = {rid: one.host for rid, one in intents.items() if one.phase is _GONE}
        if complete:
            gone |= {rid: None for members in self._by_id.values() for rid in members if rid not in intents}
        return [
            (name, member, rid)
            for rid in sorted(gone)
            for name, member in sorted(self.left_over(rid, gone[rid], intents).items())
        ]
