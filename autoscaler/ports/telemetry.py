"""The telemetry port: how busy the pool is.

Does: state the contract. Does not: judge readings (engine.trust does).
Invariant: absence is a value, never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from autoscaler.domain.base import Duration, Instant
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


class History(NamedTuple):
    """Load of the past: counts in bins of `width` seconds from `start` on; None where a bin is not known.

    An empty column: the source does not have it. `detail`: what the counts are, in words, and why they may not be all.
    """

    start: Instant
    width: Duration
    requests: tuple[float | None, ...]
    input_tokens: tuple[float | None, ...] = ()
    output_tokens: tuple[float | None, ...] = ()
    detail: str = ""


@runtime_checkable
class Remembering(Protocol):
    """A telemetry whose source keeps the past, for backtests."""

    async def history(self, start: Instant, end: Instant, width: Duration) -> History:
        """The pool's load from `start` to `end`, whatever replicas it had; raises Unreachable, Refused."""
        ...
