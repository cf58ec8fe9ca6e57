"""Members of all balancers, found by our id or by endpoint.

Does: answer which members a replica has, and which members belong to replicas that are gone. Does not: change anything.
Invariant: a member is a stray only under an id or endpoint that we knew, and only when every compute was seen (law 7).
"""

from __future__ import annotations

from autoscaler.domain.base import ReplicaId
from autoscaler.domain.decision import Observation
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import Intent
from autoscaler.domain.pool import Pool
from autoscaler.domain.replica import Member


class Members:
    """All members of all balancers, by our id and by endpoint."""

    def __init__(self, observation: Observation) -> None:
        self._by_id: dict[ReplicaId, dict[str, Member]] = {}
        self._by_endpoint: dict[str, dict[str, Member]] = {}
        for name in sorted(observation.balancers):
            for member in observation.balancers[name].members:
                if member.replica is not None:
                    self._by_id.setdefault(member.replica, {})[name] = member
                else:
                    self._by_endpoint.setdefault(member.endpoint, {})[name] = member

    def of(self, rid: ReplicaId, host: str | None, port: int) -> dict[str, Member]:
        """A replica's member by balancer name."""
        by_id = self._by_id.get(rid, {})
        by_endpoint = self._by_endpoint.get(f"{host}:{port}") if host and self._by_endpoint else None
        return {**by_endpoint, **by_id} if by_endpoint else by_id

    def strays(
        self,
        intents: dict[ReplicaId, Intent],
        before: dict[ReplicaId, Intent],
        pool: Pool,
        observation: Observation,
    ) -> list[tuple[str, Member, ReplicaId]]:
        """Members under our ids whose replica is gone: only when every compute of the pool was seen."""
        if any(offer.compute not in observation.computes for offer in pool.offers):
            return []
        strays = []
        for rid in sorted(self._by_id):
            known = intents.get(rid)
            if known is None or known.phase is Phase.GONE:
                strays += [(name, member, rid) for name, member in sorted(self._by_id[rid].items())]
        for rid, intent in sorted(before.items()):
            known = intents.get(rid)
            if intent.host and (known is None or known.phase is Phase.GONE):
                port = rid.rpartition(":")[2]
                found = self._by_endpoint.get(f"{intent.host}:{port}", {})
                strays += [(name, member, rid) for name, member in sorted(found.items())]
        return strays
