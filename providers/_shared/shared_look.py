"""One look that serves all who ask for it: pools of one account tick together, and an account is asked once.

Does: let askers share a call under way and its answer for as long as that is young enough. Does not: retry or look by
itself. Invariant: one call at a time; its failure is the answer of everybody whom its success would have served, so a
service that refuses is not asked again by each pool in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from autoscaler.domain.base import NEVER, Instant
from autoscaler.ports.clock import Clock

T = TypeVar("T")


class SharedLook(Generic[T]):
    """`look` makes the call; it is given the instant before it began, which is how old its answer is."""

    def __init__(self, clock: Clock, look: Callable[[Instant], Awaitable[T]]) -> None:
        self._clock, self._look = clock, look
        self._begun = NEVER
        self._task: asyncio.Task[T] | None = None
        self._running: set[asyncio.Task[T]] = set()

    async def get(self, not_older_than: Instant) -> T:
        """What a look that began at `not_older_than` or later gave; raises what it raised."""
        while self._task is not None and not self._task.done() and self._begun < not_older_than:
            await asyncio.wait([self._task])
        if self._task is None or self._begun < not_older_than:
            self._begun = self._clock.now()
            self._task = asyncio.create_task(self._made(self._begun))
            self._running.add(self._task)
            self._task.add_done_callback(self._ended)
        return await asyncio.shield(self._task)  # who asked may stop waiting; the others go on

    async def _made(self, begun: Instant) -> T:
        return await self._look(begun)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever still waits, and to nobody's log

    def forget(self) -> None:
        """Look anew next time: something was changed."""
        self._task = None

    def close(self) -> None:
        """End what is under way."""
        for task in list(self._running):
            task.cancel()
