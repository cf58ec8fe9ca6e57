"""What operators said: its own rows in the ledger, read as part of the observation.

Does: carry pause, at-least, protect, drain and replace until they end. Does not: act.
Invariant: a directive never lowers a guard; it can only hold, raise within max, or mark a replica.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from autoscaler.domain.base import InstanceId, Instant, ReplicaId


class Pause(StrEnum):
    """Which direction is paused."""

    NONE = "none"
    IN = "in"
    OUT = "out"
    BOTH = "both"


class AtLeast(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Hold at least `units` until `until`."""

    units: int
    until: Instant


class Directives(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that operators have in force for one pool."""

    pause: Pause = Pause.NONE
    at_least: AtLeast | None = None
    protect: frozenset[InstanceId] = frozenset()
    drain: frozenset[ReplicaId] = frozenset()
    replace: frozenset[ReplicaId] = frozenset()
