"""A probe in memory: a replica's model is loaded `load_s` after its first look, unless a test says otherwise."""

import asyncio

import msgspec

from autoscaler.domain.base import Instant, ReplicaId
from autoscaler.domain.replica import Endpoint, ProbeVerdict
from autoscaler.ports.clock import Clock
from tests.support.faults import Faults

#: Longer than any deadline: the replica accepts and never answers.
FOREVER_S = 1e6
REFUSED = ProbeVerdict(alive=False, loaded=False, detail="refused")


class MemoryProbe:
    """`says[replica]` overrides the verdict; `silent` never answer; `generated` counts real inferences asked for."""

    def __init__(self, clock: Clock, *, load_s: float = 10.0) -> None:
        self.clock = clock
        self.load_s = load_s
        self.faults = Faults()
        self.closed = False
        self.says: dict[ReplicaId, ProbeVerdict] = {}
        self.silent: set[ReplicaId] = set()
        self.inside: dict[ReplicaId, int] = {}
        self.generated: list[tuple[Instant, ReplicaId]] = []
        self.looks: list[tuple[Instant, ReplicaId]] = []
        self.most_at_once = 0
        self._first: dict[ReplicaId, Instant] = {}
        self._now_looking = 0

    async def check(self, endpoint: Endpoint, *, generate: bool) -> ProbeVerdict:
        replica, now = endpoint.replica, self.clock.now()
        self.looks.append((now, replica))
        if generate:
            self.generated.append((now, replica))
        self._now_looking += 1
        self.most_at_once = max(self.most_at_once, self._now_looking)
        try:
            await self.faults.enter("check")
            if replica in self.silent:
                await asyncio.sleep(FOREVER_S)
        finally:
            self._now_looking -= 1
        first = self._first.setdefault(replica, now)
        if replica in self.says:
            return self.says[replica]
        if now - first < self.load_s:
            return REFUSED
        inside = self.inside.get(replica, 0)
        return ProbeVerdict(
            alive=True, loaded=True, running=inside, waiting=0, tokens_total=float(inside) * (now - first), boot="s1"
        )

    def set(self, replica: ReplicaId, **changes: object) -> None:
        """Make it answer like a loaded, idle server with these changes."""
        base = ProbeVerdict(alive=True, loaded=True, running=0, waiting=0, tokens_total=0.0, boot="s1")
        self.says[replica] = msgspec.structs.replace(base, **changes)

    async def aclose(self) -> None:
        self.closed = True
