"""The probe port: is the model of this replica loaded, and does it move?

Does: state the contract. Does not: remember (runtime.prober does) or decide.
Invariant: a failed look is a verdict, not an exception; the probe follows no redirect and reads a bounded answer.
"""

from __future__ import annotations

from typing import Protocol

from autoscaler.domain.replica import Endpoint, ProbeVerdict


class Probe(Protocol):
    """Looks at one replica at a time; used for many concurrently."""

    async def check(self, endpoint: Endpoint, *, generate: bool) -> ProbeVerdict:
        """One look. `generate`: also ask for a minimal real inference (only before admission)."""
        ...

    async def aclose(self) -> None:
        """Release sockets."""
        ...
