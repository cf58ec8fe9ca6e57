"""Requests of many coroutines, handled by one thread in batches.

Does: gather what is asked within a few milliseconds, hand it to the thread, give each asker its own answer.
Does not: know what a request is.
Invariant: the event loop never waits for the thread; every request that was taken is answered, by a value or an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from autoscaler.domain.faults import Unreachable

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Batches(Generic[Request, Answer]):
    """One thread and its queue, for use from one event loop.

    `handle` runs in the thread and answers each request of a batch in its place; an answer that is an exception is
    raised to its asker. `upkeep` runs in the thread after the answers were given. `linger`: how long the first request
    waits for company, seconds. `most`: requests in a batch, at most.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Sequence[Request]], Sequence[Answer | Exception]],
        *,
        upkeep: Callable[[int], None] | None = None,
        linger: float = 0.0,
        most: int = 1000,
    ) -> None:
        self._name = name
        self._handle = handle
        self._upkeep = upkeep
        self._linger = linger
        self._most = most
        self._waiting: list[tuple[Request, asyncio.Future[Answer]]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def ask(self, request: Request) -> Answer:
        """Answer `request`; cancelling takes it back as long as its batch has not begun."""
        if self._thread is None:
            raise Unreachable(f"{self._name} is closed")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush(self._thread), name=self._name)
        return await future

    async def _flush(self, thread: ThreadPoolExecutor) -> None:
        try:
            await asyncio.sleep(self._linger)
            while self._waiting:
                taken, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                batch = [(request, future) for request, future in taken if not future.done()]
                if batch:
                    await self._answer(thread, batch)
        finally:
            # Only when this task was cancelled, at the loop's end: nobody may wait for ever.
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()

    async def _answer(self, thread: ThreadPoolExecutor, batch: list[tuple[Request, asyncio.Future[Answer]]]) -> None:
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(thread, self._handle, [request for request, _ in batch])
        futures = [future for _, future in batch]
        try:
            await asyncio.wait({job})
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise
        broken = job.exception()
        answers: Sequence[Answer | BaseException] = [broken] * len(batch) if broken else job.result()
        for future, answer in zip(futures, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        if self._upkeep is not None and not broken:
            await self._keep_up(thread, self._upkeep, len(batch))

    @staticmethod
    async def _keep_up(thread: ThreadPoolExecutor, upkeep: Callable[[int], None], handled: int) -> None:
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(thread, upkeep, handled)
        await asyncio.wait({job})
        if error := job.exception():  # nobody asked for it, so nobody is told but the loop's log
            loop.call_exception_handler({"message": "upkeep of the ledger failed", "exception": error})

    async def aclose(self, last: Callable[[], None]) -> None:
        """Answer what is queued, run `last` in the thread, and end it; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._flusher is not None:
            await asyncio.wait({self._flusher})
        await asyncio.get_running_loop().run_in_executor(thread, last)
        thread.shutdown()
