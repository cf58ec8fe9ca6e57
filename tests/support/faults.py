"""Faults on demand for the in-memory providers: fail the next calls, fail until told otherwise, or be slow."""

import asyncio
from collections import Counter

from autoscaler.domain.faults import PortFault


class Faults:
    """Per method: `fail(name, fault, times)`, `mend(name)`, `delay[name]` in seconds; `calls[name]` counts."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.delay: dict[str, float] = {}
        self._failing: dict[str, tuple[PortFault, float]] = {}

    def fail(self, name: str, fault: PortFault, times: float = float("inf")) -> None:
        self._failing[name] = (fault, times)

    def mend(self, name: str) -> None:
        self._failing.pop(name, None)
        self.delay.pop(name, None)

    async def enter(self, name: str) -> None:
        """What every provider method calls first."""
        self.calls[name] += 1
        if name in self.delay:
            await asyncio.sleep(self.delay[name])
        if name in self._failing:
            fault, left = self._failing[name]
            if left <= 1:
                del self._failing[name]
            else:
                self._failing[name] = (fault, left - 1)
            raise fault
