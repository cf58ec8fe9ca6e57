"""Virtual time: an event loop whose clock leaps to the next timer, so that an hour of ticks takes milliseconds.

Everything real asyncio does (timeouts, gather, cancellation) works as ever; only waiting is free. Threads may run, but
their time is not counted. `run_virtual` runs one coroutine on such a loop.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from typing_extensions import override

from autoscaler.domain.base import Duration, Instant

T = TypeVar("T")

#: Real seconds that a loop with nothing scheduled waits for a thread before it calls the scenario stuck.
STUCK_S = 20.0
START = Instant(1_700_000_000.0)


class Stuck(RuntimeError):
    """Every task waits, and no timer will ever end that."""


class _Leaping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            ready = super().select(STUCK_S)
            if not ready:
                raise Stuck("all tasks wait for each other")
            return ready
        ready = super().select(0)
        if not ready and timeout > 0:
            self.ahead += timeout
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


class VirtualClock:
    """The clock of the running virtual loop, beginning at `start`; `jump` moves it like a wall clock that is set."""

    def __init__(self, start: Instant = START) -> None:
        self._start = float(start)

    def now(self) -> Instant:
        return Instant(self._start + asyncio.get_running_loop().time())

    async def sleep(self, wait: Duration) -> None:
        await asyncio.sleep(max(0.0, wait))

    def jump(self, seconds: float) -> None:
        self._start += seconds


def run_virtual(scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a scenario in virtual time; tasks it leaves behind are cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario())
