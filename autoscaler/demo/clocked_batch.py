"""A batch that runs by the clock: it wakes when tokens are due and hands them to whoever waits.

It binds `batching` to the event loop's clock, with time compressed by a factor. To stay cheap it wakes at
most every few milliseconds and groups the tokens of a sequence into chunks; what is measured in tokens and
seconds stays exact, because the batch settles its steps by arithmetic and not by wake-ups.

Invariant: tokens are handed over in order, and a stream ends exactly when its sequence did.
"""

import asyncio

from autoscaler.demo.batching import ContinuousBatch, Sequence

_WAKE_GAP_S = 0.004  # while some prompt is due: the first token must not be late
_CHUNK_S = 0.03  # wall time that one chunk covers once a stream has begun


class TokenStream:
    """The tokens of one sequence, as they come out."""

    def __init__(self, sequence: Sequence) -> None:
        """Begin with nothing out."""
        self.sequence = sequence
        self.taken = 0
        self._pending = 0
        self._left = sequence.output_tokens
        self._told_at: float | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """Whether every token was taken."""
        return self.complete and not self._pending

    @property
    def complete(self) -> bool:
        """Whether every token was pushed. The sequence itself may be further: it is settled in bulk."""
        return self._left == 0

    def push(self, tokens: int, now: float) -> None:
        """Add tokens, and wake the taker for the first, for the last, and once a chunk."""
        self._pending += tokens
        self._left -= tokens
        due = self._told_at is None or now - self._told_at >= _CHUNK_S or self.complete
        if due and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if due:
            self._told_at = now

    async def take(self) -> int:
        """Wait for tokens and take those that are there."""
        if not (self._pending and (self.taken == 0 or self.complete)):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        tokens, self._pending = self._pending, 0
        self.taken += tokens
        return tokens


class ClockedBatch:
    """A continuous batch under the event loop's clock, `time_scale` times as fast."""

    def __init__(self, batch: ContinuousBatch, time_scale: float) -> None:
        """Must be made inside a running loop."""
        self.batch = batch
        self._time_scale = time_scale
        self._loop = asyncio.get_running_loop()
        self._streams: dict[Sequence, TokenStream] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._woke_at = 0.0
        self._stalled = False

    @property
    def now_s(self) -> float:
        """The batch's clock: scaled seconds."""
        return self._loop.time() * self._time_scale

    def submit(self, input_tokens: int, output_tokens: int) -> TokenStream:
        """Queue a request and return the stream of its tokens."""
        self._settle()
        sequence = self.batch.submit(input_tokens, output_tokens, self.now_s)
        stream = self._streams[sequence] = TokenStream(sequence)
        self._arm()
        return stream

    def cancel(self, stream: TokenStream) -> None:
        """Forget a stream; one that has ended is forgotten already."""
        if self._streams.pop(stream.sequence, None) is not None:
            self._settle()
            self.batch.cancel(stream.sequence)

    def stall(self, *, on: bool) -> None:
        """Stop all progress, as a GPU that hangs does; off again, what was due comes out at once."""
        self._stalled = on
        if not on:
            self._arm()

    def settle(self) -> None:
        """Bring the batch up to now, so that what is read from it is current."""
        self._settle()

    def _settle(self) -> None:
        if self._stalled:
            return
        now = self._loop.time()
        for sequence, tokens, _ in self.batch.advance(now * self._time_scale):
            stream = self._streams.get(sequence)
            if stream is not None:
                stream.push(tokens, now)
                if stream.complete:
                    del self._streams[sequence]

    def _arm(self) -> None:
        ends_s = self.batch.next_step_end_s
        if ends_s is None or self._stalled:
            return
        due = max(ends_s / self._time_scale, self._woke_at + _WAKE_GAP_S)
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._woke_at = self._loop.time()
        self._settle()
        self._arm()
