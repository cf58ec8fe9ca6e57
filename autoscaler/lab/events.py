"""What happens next: an agenda of instants in the world's own time, and chance that does not depend on who asks first.

Does: keep callables by instant; give a generator of random numbers by name. Does not: know what they do.
Invariant: equal instants happen in the order in which they were entered; a name and a seed give the same numbers.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections.abc import Callable

import numpy as np


class Agenda:
    """Events by instant, seconds of the workload."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._entered = 0

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        """Enter an event; one at infinity never happens."""
        if when_s < math.inf:
            self._entered += 1
            heapq.heappush(self._heap, (when_s, self._entered, what))

    def next_s(self) -> float:
        """When the next event is, infinity when there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def happen(self) -> None:
        """Let the next event happen."""
        heapq.heappop(self._heap)[2]()


def chance(seed: int, name: str) -> np.random.Generator:
    """Random numbers of one thing, whatever else is drawn."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])
