"""Virtual time as the lab has it, with a clock that a test may set."""

from typing_extensions import override

from autoscaler.domain.base import Instant
from autoscaler.lab import virtual_time
from autoscaler.lab.virtual_time import run_virtual

__all__ = ["START", "VirtualClock", "run_virtual"]

START = Instant(1_700_000_000.0)


class VirtualClock(virtual_time.VirtualClock):
    """The clock of the running virtual loop; `jump` moves it like a wall clock that is set."""

    def __init__(self, start: Instant = START) -> None:
        super().__init__(start)
        self._jumped = 0.0

    @override
    def now(self) -> Instant:
        return Instant(super().now() + self._jumped)

    def jump(self, seconds: float) -> None:
        self._jumped += seconds
