"""What a part of a pool lacks, as `check --online` tells it: optional beside each port.

Does: state the contract. Does not: change or start anything; asking is free of consequences.
Invariant: one line a cause: what follows from a lack that was named is not told again.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from autoscaler.domain.pool import Pool


class Lack(NamedTuple):
    """One thing that is not there, and how to mend it; each a part of a sentence. `stops`: the pool cannot work so."""

    what: str
    mend: str
    stops: bool = False


@runtime_checkable
class DiagnosingPart(Protocol):
    """A compute or a balancer that can say what stands in the way of this pool."""

    async def lacks(self, pool: Pool, preset: str) -> list[Lack]:
        """What this pool needs and is not there; raises PortFault when nothing can be known.

        `preset`: the model server that the pool's probe expects; "" when it says none.
        """
        ...
