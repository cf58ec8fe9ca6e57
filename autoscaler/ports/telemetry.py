"""The telemetry port: how busy the pool is.

Does: state the contract. Does not: judge readings (engine.trust does).
Invariant: absence is a value, never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from autoscaler.domain.load import LoadSample, Signal
from autoscaler.domain.replica import Endpoint
from autoscaler.ports.diagnosis import Lack


class Telemetry(Protocol):
    """Reads the signals of one pool."""

    async def sample(self, signals: frozenset[Signal], replicas: Sequence[Endpoint]) -> LoadSample:
        """Readings of `signals` over `replicas` (those in service), each with age, coverage and state.

        Raises Unreachable only when nothing at all can be known; one signal that fails is an ABSENT reading.
        """
        ...

    async def aclose(self) -> None:
        """Release sockets."""
        ...


@runtime_checkable
class Diagnosing(Protocol):
    """A telemetry that can say, with no replica in service yet, what its source lacks."""

    async def lacks(self, signals: frozenset[Signal]) -> list[Lack]:
        """What these signals need and the source does not have; raises Unreachable."""
        ...
