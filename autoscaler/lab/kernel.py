"""Replicas between two instants, compiled: queues, continuous batching, chunked prefill, dispatch, drain and death.

A replica works in steps. A step takes alpha + beta x (sequences that emit a token in it) + kv x (tokens reserved in the
KV cache) + prefill x (prompt tokens read in it), seconds; each decoding sequence emits one token a step. Prompts wait
first come first served for a chunk of prompt tokens a step; the step in which the last of them is read emits the first
output token. A sequence is let in at the end of a step when a place in the batch is free and its prompt and output fit
into the KV cache. While nothing comes, goes or changes its kind of work all steps take equally long, so the kernel
jumps to the end of the last of them: its work goes with the number of requests, not of tokens.

Does: move replicas and requests on. Does not: know machines, balancers' lag, telemetry or time zones (the fleet does).
Invariant: a request is in exactly one of: not yet arrived, held, waiting, in prefill, decoding, ended.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.lab.compiling import inner

#: Upper edges of vLLM's histograms, seconds (vllm/v1/metrics/loggers.py, 0.11); the bucket above the last is last.
TTFT_EDGES: Final = np.array(
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
     160.0, 640.0, 2560.0)
)  # fmt: skip
E2E_EDGES: Final = np.array(
    (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
     1920.0, 7680.0)
)  # fmt: skip

# What became of a request.
PENDING: Final = 0
OK: Final = 1
FAILED: Final = 2
CUT: Final = 3

# Columns of State.num: seconds, but for the weights.
T0, STEP_S, NEXT, ALPHA, BETA, KV_S, PREFILL, WEIGHT, TURN, EMPTY_AT = range(10)
NUMS: Final = 10
# Columns of State.cnt; USED is 0 in a free slot, else a number that no other replica of the run has.
STEP, STEPS, MODE, DECODING, PREFILLING, P_HEAD, P_TAIL, P_DONE, W_HEAD, W_TAIL = range(10)
WAITING, KV, KV_MAX, BATCH_MAX, CHUNK, OWED, USED = range(10, 17)
CNTS: Final = 17
# Columns of State.tally: counters of one replica since its slot was taken.
BUSY_S, TOKENS, PROMPT_TOKENS, ARRIVALS, COMPLETIONS, TTFT_AT = range(6)
E2E_AT: Final = TTFT_AT + len(TTFT_EDGES) + 1
TALLIES: Final = E2E_AT + len(E2E_EDGES) + 1
# Entries of State.glob. QUEUED: requests waiting in replicas, STEPPING: replicas in the middle of a step, both at the
# last instant that all were moved on to.
CURSOR, OPENS, ROUND, HELD, H_HEAD, H_TAIL, STRATEGY, CLIENTS, SEED, GAVE_UP, QUEUED, STEPPING = range(12)
GLOBS: Final = 12

# Kinds of work of a replica in its present run of equal steps.
IDLE, DECODE, WHOLE_CHUNKS, MIXED = range(4)

# Strategies of the balancer.
ROUND_ROBIN, LEAST_CONNECTIONS, LEAST_LOAD, WEIGHTED, SOURCE_HASH, CENTRAL = range(6)

NEVER: Final = 1e300

#: A heap entry is a step and, in its lower bits, a request: their number is bounded by that.
SHIFT: Final = 24
MASK: Final = (1 << SHIFT) - 1


class State(NamedTuple):
    """All arrays of a run.

    The first seven have an entry a request, the next four a row a slot. `heap` has a replica's decoding sequences by
    the step in which each ends: step << SHIFT | request. `open` lists the open slots.
    """

    arrival: NDArray[np.float64]
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    after: NDArray[np.int32]
    ttft: NDArray[np.float32]
    e2e: NDArray[np.float32]
    status: NDArray[np.uint8]
    num: NDArray[np.float64]
    cnt: NDArray[np.int64]
    heap: NDArray[np.int64]
    tally: NDArray[np.float64]
    open: NDArray[np.int64]
    glob: NDArray[np.int64]


@inner
def push(s: State, r: int, step: int, i: int) -> None:
    """Put a decoding sequence, by the step in which it ends, into the replica's heap."""
    heap, entry = s.heap[r], (step << SHIFT) | i
    at = s.cnt[r, DECODING]
    s.cnt[r, DECODING] = at + 1
    while at > 0:
        above = (at - 1) >> 1
        if heap[above] <= entry:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = entry


@inner
def pop(s: State, r: int) -> int:
    """Take the sequence that ends first out of the heap."""
    heap = s.heap[r]
    first = heap[0] & MASK
    size = s.cnt[r, DECODING] - 1
    s.cnt[r, DECODING] = size
    last = heap[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= last:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = last
    return int(first)


@inner
def bucket(edges: NDArray[np.float64], value: float) -> int:
    """The bucket that holds a value: the first whose upper edge is not below it."""
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) >> 1
        if edges[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def needs(s: State, r: int, i: int) -> int:
    """KV tokens that a sequence will hold at its end; one longer than the whole cache may run alone."""
    return int(min(s.prompt[i] + s.output[i], s.cnt[r, KV_MAX]))


@inner
def finish(s: State, r: int, i: int, now: float) -> None:
    """A sequence emitted its last token."""
    s.status[i] = OK
    took = now - s.arrival[i]
    s.e2e[i] = took
    s.cnt[r, KV] -= needs(s, r, i)
    s.cnt[r, OWED] -= s.prompt[i] + s.output[i]
    s.tally[r, COMPLETIONS] += 1
    s.tally[r, E2E_AT + bucket(E2E_EDGES, took)] += 1


@inner
def first_token(s: State, r: int, now: float) -> None:
    """The prompt at the head has been read: it emits its first token and decodes from now on."""
    c = s.cnt[r]
    i = c[P_HEAD]
    c[P_HEAD] = s.after[i]
    c[PREFILLING] -= 1
    c[P_DONE] = 0
    took = now - s.arrival[i]
    s.ttft[i] = took
    s.tally[r, TOKENS] += 1
    s.tally[r, PROMPT_TOKENS] += s.prompt[i]
    s.tally[r, TTFT_AT + bucket(TTFT_EDGES, took)] += 1
    if s.output[i] <= 1:
        finish(s, r, i, now)
    else:
        push(s, r, c[STEP] + s.output[i] - 1, i)


@inner
def has_room(s: State, r: int) -> bool:
    """Whether the request at the head of the queue may enter the batch."""
    c = s.cnt[r]
    inside = c[DECODING] + c[PREFILLING]
    if c[WAITING] == 0 or inside >= c[BATCH_MAX]:
        return False
    return bool(inside == 0 or c[KV] + needs(s, r, c[W_HEAD]) <= c[KV_MAX])


@inner
def let_in(s: State, r: int) -> None:
    """Move requests from the queue into the batch while there is room."""
    c = s.cnt[r]
    while has_room(s, r):
        i = c[W_HEAD]
        c[W_HEAD] = s.after[i]
        c[WAITING] -= 1
        c[KV] += needs(s, r, i)
        s.after[i] = -1
        if c[PREFILLING] == 0:
            c[P_HEAD] = i
        else:
            s.after[c[P_TAIL]] = i
        c[P_TAIL] = i
        c[PREFILLING] += 1


@inner
def begin(s: State, r: int, now: float) -> None:
    """At the end of a step: let requests in and begin the next run of equal steps."""
    let_in(s, r)
    c, x = s.cnt[r], s.num[r]
    x[T0] = now
    if c[PREFILLING] + c[DECODING] == 0:
        c[MODE], c[STEPS] = IDLE, 0
        x[NEXT], x[EMPTY_AT] = NEVER, now
        return
    steps = (s.heap[r, 0] >> SHIFT) - c[STEP] if c[DECODING] else np.int64(1 << 60)
    emitting, tokens = c[DECODING], 0
    if c[PREFILLING] == 0:
        c[MODE] = DECODE
    else:
        left = s.prompt[c[P_HEAD]] - c[P_DONE]
        if left >= c[CHUNK]:
            c[MODE] = WHOLE_CHUNKS
            tokens = c[CHUNK]
            steps = min(steps, left // c[CHUNK])
        else:
            c[MODE] = MIXED
            steps = 1
            i = c[P_HEAD]
            while i >= 0:
                if left == 0:
                    emitting += 1  # a sequence without a prompt: its first token is decoded as all others
                if tokens + left > c[CHUNK]:
                    tokens = c[CHUNK]
                    break
                tokens += left
                i = s.after[i]
                left = s.prompt[i] if i >= 0 else 0
    c[STEPS] = steps
    x[STEP_S] = x[ALPHA] + x[BETA] * emitting + x[KV_S] * c[KV] + x[PREFILL] * tokens
    x[NEXT] = now + steps * x[STEP_S]


@inner
def read_prompts(s: State, r: int, now: float) -> None:
    """Apply the run of steps that just ended to the prompts."""
    c = s.cnt[r]
    if c[MODE] == WHOLE_CHUNKS:
        c[P_DONE] += c[STEPS] * c[CHUNK]
        if c[P_DONE] >= s.prompt[c[P_HEAD]]:
            first_token(s, r, now)
        return
    budget = c[CHUNK]
    while c[PREFILLING] > 0:
        left = s.prompt[c[P_HEAD]] - c[P_DONE]
        if left > budget:
            c[P_DONE] += budget
            return
        budget -= left
        first_token(s, r, now)


@inner
def turn(s: State, r: int) -> None:
    """The end of a run of equal steps: tokens, ends, first tokens, and what comes next."""
    c, x = s.cnt[r], s.num[r]
    now = x[NEXT]
    c[STEP] += c[STEPS]
    s.tally[r, BUSY_S] += c[STEPS] * x[STEP_S]
    s.tally[r, TOKENS] += c[STEPS] * c[DECODING]
    while c[DECODING] > 0 and s.heap[r, 0] >> SHIFT <= c[STEP]:
        finish(s, r, pop(s, r), now)
    if c[MODE] != DECODE:
        read_prompts(s, r, now)
    begin(s, r, now)


@inner
def run(s: State, r: int, until: float) -> None:
    """Move one replica on to `until`."""
    while s.num[r, NEXT] <= until:
        turn(s, r)


@inner
def interrupt(s: State, r: int, now: float) -> None:
    """End the run of equal steps with the step that is under way, so that a newcomer can enter after it."""
    c, x = s.cnt[r], s.num[r]
    done = max(0, min(int((now - x[T0]) / x[STEP_S]), c[STEPS] - 1))
    if done > 0:
        c[STEP] += done
        x[T0] += done * x[STEP_S]
        s.tally[r, BUSY_S] += done * x[STEP_S]
        s.tally[r, TOKENS] += done * c[DECODING]
        if c[MODE] == WHOLE_CHUNKS:
            c[P_DONE] += done * c[CHUNK]
    c[STEPS] = 1
    x[NEXT] = x[T0] + x[STEP_S]


@inner
def give(s: State, r: int, i: int, now: float) -> None:
    """A request reaches a replica, which has been moved on to `now`."""
    c = s.cnt[r]
    s.after[i] = -1
    if c[WAITING] == 0:
        c[W_HEAD] = i
    else:
        s.after[c[W_TAIL]] = i
    c[W_TAIL] = i
    c[WAITING] += 1
    c[OWED] += s.prompt[i] + s.output[i]
    s.tally[r, ARRIVALS] += 1
    if c[MODE] == IDLE:
        begin(s, r, now)
    elif c[STEPS] > 1 and has_room(s, r):
        interrupt(s, r, now)
