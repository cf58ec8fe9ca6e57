"""The real clock: the one place of the program that reads the time.

Does: give a wall clock that never goes back within this process. Does not: promise anything across restarts
(Memory.last_at does that).
Invariant: `now` never decreases and always moves on: when the wall clock is set back, time goes on at its old offset.
"""

import asyncio
import time

from autoscaler.domain.base import Duration, Instant
from autoscaler.domain.decision import Calendar


class SystemClock:
    """Wall-clock seconds since the Unix epoch, made monotone by the machine's monotonic clock."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> Instant:
        """The present instant. A step forward of the wall clock is followed, a step back is not."""
        ticking = time.monotonic()
        self._offset = max(self._offset, time.time() - ticking)
        return Instant(ticking + self._offset)

    async def sleep(self, wait: Duration) -> None:
        """Return after `wait` seconds; at once when it is not positive."""
        await asyncio.sleep(max(0.0, wait))


def calendar_at(now: Instant) -> Calendar:
    """The wall calendar that belongs to an instant: a function of its argument only, so a replay gets the same one."""
    return Calendar(utc=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(now)))
