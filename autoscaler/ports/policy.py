"""The policy port: one opinion about size.

Does: state the contract. Does not: guard bounds, pace or trust; the engine does, after composing the opinions.
Invariant: sync and pure; equal input gives an equal answer; state lives in `carry` only.
"""

from __future__ import annotations

from typing import Protocol

from autoscaler.domain.decision import Calendar, Recommendation, Situation
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Pool


class Policy(Protocol):
    """An opinion about the size of a pool, in units of capacity."""

    name: str

    def signals(self) -> frozenset[Signal]:
        """The signals it needs to be sampled."""
        ...

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        """Its opinion on this tick. `carry` is what it returned last time, empty at first."""
        ...
