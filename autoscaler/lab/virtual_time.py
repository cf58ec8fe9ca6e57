"""Virtual time: an event loop whose clock leaps to the next timer, so that an hour of ticks takes milliseconds.

Everything real asyncio does (timeouts, gather, cancellation) works as ever; only waiting is free. Threads may run, but
their time is not counted. Time stands on a grid of 2^-22 s, which is what a float of seconds since 1970 can tell: the
loop's clock and the instants made of it never disagree by rounding.

Does: run a coroutine on such a loop, give its clock, and tell when an instant is over. Does not: know what runs on it.
Invariant: time never goes back, and moves only when nothing is left to do at the present instant.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from typing_extensions import override

from autoscaler.domain.base import Duration, Instant

T = TypeVar("T")

#: Real seconds that a loop with nothing scheduled waits for a thread before it calls the scenario stuck.
STUCK_S: Final = 20.0
#: Seconds between two instants that can be told apart.
GRID_S: Final = 2.0**-22


class Stuck(RuntimeError):
    """Every task waits, and no timer will ever end that."""


class _Leaping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0
        self.patient: list[asyncio.Future[None]] = []  # who waits for the end of the present instant

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.patient and (timeout is None or timeout > 0):
            served, self.patient = self.patient, []
            for one in served:
                if not one.done():
                    one.set_result(None)
            return super().select(0)
        if timeout is None:
            ready = super().select(STUCK_S)
            if not ready:
                raise Stuck("all tasks wait for each other")
            return ready
        ready = super().select(0)
        if not ready and timeout > 0:
            self.ahead = math.ceil((self.ahead + timeout) / GRID_S) * GRID_S
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which sleeping costs nothing."""

    def __init__(self) -> None:
        self.leaping = _Leaping()
        super().__init__(self.leaping)

    @override
    def time(self) -> float:
        """Seconds slept so far."""
        return self.leaping.ahead


async def quiet() -> None:
    """Return when nothing else is left to do at this instant; at once on a loop of real time, which has no such end."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        waits: asyncio.Future[None] = loop.create_future()
        loop.leaping.patient.append(waits)
        await waits


class VirtualClock:
    """The clock of the running virtual loop, which began at `start`."""

    def __init__(self, start: Instant) -> None:
        self._start = float(start)

    def now(self) -> Instant:
        """The present instant."""
        return Instant(self._start + asyncio.get_running_loop().time())

    async def sleep(self, wait: Duration) -> None:
        """Return after `wait` virtual seconds."""
        await asyncio.sleep(max(0.0, wait))


def run_virtual(scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a scenario in virtual time; tasks it leaves behind are cancelled. Raises Stuck, and what it raises."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario())
