"""How a model server spends its time: continuous batching of prefill and decode, as arithmetic.

It works out which sequence gets which token when, from a GPU profile: each step decodes one token of
every running sequence and prefills a bounded number of prompt tokens, first come, first served. A step
lasts `itl_alpha + itl_beta * decoding + prefill tokens / prefill rate`. The profile's inter-token times
were measured with some prefill going on, so adding prefill on top errs on the slow side.

It does not read a clock, sleep, or know about HTTP: instants are seconds handed in by the caller.

Invariant: every submitted sequence that is not cancelled is emitted exactly `output_tokens` tokens, and
sequences start their prefill in the order in which they were submitted.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.demo.profile import GpuProfile


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the server, from arrival to its last token."""

    input_tokens: int
    output_tokens: int
    arrived_s: float
    prefill_left: int
    emitted: int = 0

    @property
    def finished(self) -> bool:
        """Whether the last token is out."""
        return self.emitted >= self.output_tokens


class Emission(NamedTuple):
    """Tokens that left the GPU for one sequence; `at_s` is the instant of the last of them."""

    sequence: Sequence
    tokens: int
    at_s: float


@dataclass(slots=True)
class _Step:
    started_s: float
    ends_s: float
    prefill: list[tuple[Sequence, int]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a batch; the names are vLLM's."""

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    kv_cache_tokens: int = 300_000


class ContinuousBatch:
    """The sequences of one model server, waiting and running, and the step in progress."""

    def __init__(self, profile: GpuProfile, limits: Limits, utilization_window_s: float = 15.0) -> None:
        """Begin idle; `utilization_window_s` is what `gpu_utilization` looks back over."""
        self._profile = profile
        self._limits = limits
        self._window_s = utilization_window_s
        self._waiting: deque[Sequence] = deque()
        self._prefilling: deque[Sequence] = deque()
        self._decoding: dict[Sequence, None] = {}
        self._reserved_tokens = 0
        self._step: _Step | None = None
        self._busy: deque[tuple[float, float]] = deque()

    @property
    def waiting(self) -> int:
        """Sequences whose prefill has not begun (what vLLM counts as waiting)."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences that hold a slot: in prefill or in decode."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV cache that is filled, 0 to 1."""
        in_prefill = sum(s.input_tokens - s.prefill_left for s in self._prefilling)
        in_decode = sum(s.input_tokens + s.emitted for s in self._decoding)
        return (in_prefill + in_decode) / self._limits.kv_cache_tokens

    @property
    def next_step_end_s(self) -> float | None:
        """When the step in progress ends, or nothing while idle."""
        return self._step.ends_s if self._step else None

    def fits(self, input_tokens: int, output_tokens: int) -> bool:
        """Whether such a request could ever run; one that is larger than the KV cache could not."""
        return input_tokens + output_tokens <= self._limits.kv_cache_tokens

    def submit(self, input_tokens: int, output_tokens: int, now_s: float) -> Sequence:
        """Queue a request. Call `advance(now_s)` first, so that the past is settled without it."""
        tokens_in, tokens_out = max(1, input_tokens), max(1, output_tokens)
        sequence = Sequence(tokens_in, tokens_out, now_s, prefill_left=tokens_in)
        self._waiting.append(sequence)
        if self._step is None:
            self._begin_step(now_s)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Forget a sequence whose client went away; the step in progress still takes its time."""
        if sequence in self._decoding:
            del self._decoding[sequence]
            self._reserved_tokens -= sequence.input_tokens + sequence.output_tokens
        elif sequence in self._prefilling:
            self._prefilling.remove(sequence)
            self._reserved_tokens -= sequence.input_tokens + sequence.output_tokens
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def advance(self, now_s: float) -> list[Emission]:
        """Settle every step that has ended by `now_s` and return what was emitted, in order."""
        emissions: list[Emission] = []
        while self._step is not None and self._step.ends_s <= now_s:
            step = self._step
            ended_s = step.ends_s
            if step.prefill or not self._decoding:
                emissions.extend(self._end_step(step))
            else:
                ended_s = self._end_decode_run(step, now_s, emissions)
            self._note_busy(step.started_s, ended_s)
            self._begin_step(ended_s)
        return emissions

    def gpu_utilization(self, now_s: float) -> float:
        """Share of the last window with a step in progress, 0 to 1: what DCGM's utilisation means."""
        since_s = now_s - self._window_s
        while self._busy and self._busy[0][1] <= since_s:
            self._busy.popleft()
        busy_s = sum(end - max(start, since_s) for start, end in self._busy)
        if self._step is not None:
            busy_s += max(0.0, now_s - max(self._step.started_s, since_s))
        return min(1.0, busy_s / self._window_s)

    def _begin_step(self, now_s: float) -> None:
        budget = self._limits.max_num_batched_tokens - len(self._decoding)
        prefill: list[tuple[Sequence, int]] = []
        for sequence in self._prefilling:
            budget = _take(sequence, budget, prefill)
        while self._waiting and budget > 0 and self._has_room(self._waiting[0]):
            sequence = self._waiting.popleft()
            self._reserved_tokens += sequence.input_tokens + sequence.output_tokens
            self._prefilling.append(sequence)
            budget = _take(sequence, budget, prefill)
        if not prefill and not self._decoding:
            self._step = None
            return
        tokens = sum(share for _, share in prefill)
        length_s = tokens / self._profile.prefill_tokens_per_s
        if self._decoding:
            length_s += self._profile.itl_s(len(self._decoding))
        self._step = _Step(now_s, now_s + length_s, prefill)

    def _has_room(self, sequence: Sequence) -> bool:
        needed = sequence.input_tokens + sequence.output_tokens
        return (
            self.running < self._limits.max_num_seqs and self._reserved_tokens + needed <= self._limits.kv_cache_tokens
        )

    def _end_step(self, step: _Step) -> list[Emission]:
        emissions = [Emission(s, 1, step.ends_s) for s in self._decoding]
        for sequence, share in step.prefill:
            sequence.prefill_left -= share
        while self._prefilling and self._prefilling[0].prefill_left <= 0:
            sequence = self._prefilling.popleft()
            self._decoding[sequence] = None
            emissions.append(Emission(sequence, 1, step.ends_s))
        self._book(emissions)
        return emissions

    def _end_decode_run(self, step: _Step, now_s: float, emissions: list[Emission]) -> float:
        """Settle as many equal steps at once as end by `now_s`, unless a prompt joins or a sequence ends."""
        itl_s = step.ends_s - step.started_s
        steps = 1
        if not self._prefilling and not (self._waiting and self._has_room(self._waiting[0])):
            left = min(s.output_tokens - s.emitted for s in self._decoding)
            steps = max(1, min(left, int((now_s - step.started_s) / itl_s)))
        ended_s = step.started_s + steps * itl_s
        run = [Emission(s, steps, ended_s) for s in self._decoding]
        self._book(run)
        emissions.extend(run)
        return ended_s

    def _book(self, emissions: list[Emission]) -> None:
        for sequence, tokens, _ in emissions:
            sequence.emitted += tokens
            if sequence.finished:
                del self._decoding[sequence]
                self._reserved_tokens -= sequence.input_tokens + sequence.output_tokens

    def _note_busy(self, started_s: float, ended_s: float) -> None:
        if self._busy and self._busy[-1][1] == started_s:
            started_s = self._busy.pop()[0]
        self._busy.append((started_s, ended_s))


def _take(sequence: Sequence, budget: int, prefill: list[tuple[Sequence, int]]) -> int:
    share = min(sequence.prefill_left, budget)
    if share > 0:
        prefill.append((sequence, share))
    return budget - max(share, 0)
