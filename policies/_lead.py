"""How long a cold start takes, measured on the pool itself.

Does: watch replicas from on their way to in service, and give a high quantile of the times that took. Does not: wait
for a launch that shows no machine yet, or believe times older than the last few.
Invariant: the answer is positive; with nothing measured it is the prior, and what has been under way longer than
anything measured counts as at least that long.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from autoscaler.domain.base import Duration, Instant, ReplicaId
from autoscaler.domain.lifecycle import ON_THE_WAY, Phase
from autoscaler.domain.replica import Replica

#: Cold starts remembered.
_KEPT: Final = 24
#: Of these, the share that may have taken longer than the answer.
_ABOVE: Final = 0.1
#: Most replicas on their way that are watched at once; the carry stays bounded.
_WATCHED: Final = 256


class Lead(msgspec.Struct, frozen=True, array_like=True):
    """`coming`: replicas last seen on their way. `took`: seconds, oldest first."""

    coming: tuple[ReplicaId, ...] = ()
    took: tuple[float, ...] = ()


def watch(lead: Lead, replicas: Iterable[Replica], now: Instant) -> tuple[Lead, float]:
    """What is known now, and the age in seconds of the oldest replica on its way (0 when there is none)."""
    watched, took = lead.coming, lead.took
    coming: list[ReplicaId] = []
    oldest = 0.0
    for one in replicas:
        if one.phase in ON_THE_WAY:
            coming.append(one.id)
            oldest = max(oldest, now - one.launched_at)
        elif one.phase is Phase.IN_SERVICE and one.id in watched:
            took = (*took[1 - _KEPT :], max(0.0, one.since - one.launched_at))
    if tuple(took) == lead.took and tuple(coming) == watched:
        return lead, oldest
    return Lead(tuple(coming[:_WATCHED]), took), oldest


def lead_s(lead: Lead, oldest_s: float, prior: Duration, most: Duration) -> float:
    """Seconds from a launch to traffic, at most `most`. `prior`: what is believed before anything was measured."""
    if not lead.took:
        return min(max(prior, oldest_s), most)
    ordered = sorted(lead.took)
    measured = ordered[min(len(ordered) - 1, int(len(ordered) * (1.0 - _ABOVE)))]
    return max(1.0, min(max(measured, oldest_s), most))
