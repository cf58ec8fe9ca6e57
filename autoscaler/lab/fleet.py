"""The replicas of one run as slots of the compiled kernel: taken, opened, closed, ended, and read.

Does: own the arrays, move them on in time, answer what is inside a replica and what telemetry would scrape.
Does not: know machines, zones, prices or how long anything takes to appear (the world does).
Invariant: time never goes back; a slot is open only between `open` and `close`, and its counters begin at 0.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.faults import InvariantBroken
from autoscaler.lab import dispatch
from autoscaler.lab import kernel as k
from autoscaler.lab.hardware import Hardware
from autoscaler.lab.kernel import State
from autoscaler.lab.workload import Workload

T = TypeVar("T", bound=np.generic)

#: Strategies by the names that balancers use; `central` is one queue before all replicas, for checks and comparison.
STRATEGIES: Final = {
    "round_robin": k.ROUND_ROBIN,
    "least_connections": k.LEAST_CONNECTIONS,
    "least_load": k.LEAST_LOAD,
    "weighted": k.WEIGHTED,
    "source_hash": k.SOURCE_HASH,
    "central": k.CENTRAL,
}
_FIRST_SLOTS: Final = 32


class Inside(NamedTuple):
    """Requests in a replica, and the share of its KV cache that they hold."""

    running: int
    waiting: int
    kv_use: float


class Fleet:
    """All slots of one run. Instants are seconds of the workload."""

    def __init__(self, workload: Workload, strategy: str, *, clients: int, seed: int, batch_max: int) -> None:
        count = workload.requests
        self.now_s = 0.0
        self._batch_max = batch_max
        self._free: list[int] = []
        self._slots = 0
        self._taken = 0
        self._open: list[int] = []
        glob = np.zeros(k.GLOBS, dtype=np.int64)
        glob[k.STRATEGY], glob[k.CLIENTS] = STRATEGIES[strategy], clients
        glob[k.SEED] = seed * 1_000_003 % 2_000_000_011
        self.state = State(
            arrival=workload.arrival_s,
            prompt=workload.input_tokens,
            output=workload.output_tokens,
            after=np.full(count, -1, dtype=np.int32),
            ttft=np.full(count, np.nan, dtype=np.float32),
            e2e=np.full(count, np.nan, dtype=np.float32),
            status=np.zeros(count, dtype=np.uint8),
            num=np.zeros((0, k.NUMS)),
            cnt=np.zeros((0, k.CNTS), dtype=np.int64),
            heap=np.zeros((0, batch_max), dtype=np.int64),
            tally=np.zeros((0, k.TALLIES)),
            open=np.zeros(0, dtype=np.int64),
            glob=glob,
        )
        self._grow(_FIRST_SLOTS)

    def _grow(self, slots: int) -> None:
        """Make room for so many slots."""
        s = self.state
        more = slots - len(s.num)

        def longer(rows: NDArray[T]) -> NDArray[T]:
            return np.concatenate([rows, np.zeros((more, *rows.shape[1:]), dtype=rows.dtype)])

        self.state = s._replace(
            num=longer(s.num),
            cnt=longer(s.cnt),
            heap=longer(s.heap),
            tally=longer(s.tally),
            open=longer(s.open),
        )

    @property
    def slots(self) -> int:
        """Rows in use or used before."""
        return self._slots

    @property
    def held(self) -> int:
        """Requests at the balancer that no replica could take."""
        return int(self.state.glob[k.HELD])

    @property
    def arrived(self) -> int:
        """Requests that have come so far."""
        return int(self.state.glob[k.CURSOR])

    def advance(self, until_s: float, patience_s: float) -> None:
        """Move on to `until_s`; requests held for longer than `patience_s` fail."""
        if until_s < self.now_s:
            raise InvariantBroken(f"the fleet's time would go back from {self.now_s} to {until_s} s")
        dispatch.advance(self.state, self._slots, until_s, patience_s)
        self.now_s = until_s

    def take(self, hardware: Hardware, weight: float) -> int:
        """A slot for a new replica, closed; its counters begin at 0."""
        if hardware.max_batch > self._batch_max:
            raise InvariantBroken(f"a batch of {hardware.max_batch} in a fleet of {self._batch_max}")
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._slots
            self._slots += 1
            if slot >= len(self.state.num):
                self._grow(2 * slot)
        x, c = self.state.num[slot], self.state.cnt[slot]
        x[:], c[:], self.state.tally[slot] = 0.0, 0, 0.0
        x[k.WEIGHT], x[k.NEXT], x[k.EMPTY_AT] = weight, k.NEVER, self.now_s
        c[k.KV_MAX], c[k.BATCH_MAX], c[k.CHUNK] = hardware.kv_tokens, hardware.max_batch, hardware.chunk
        self.change(slot, hardware)
        self._taken += 1
        c[k.USED] = self._taken
        return slot

    def change(self, slot: int, hardware: Hardware) -> None:
        """Work at this speed from the next run of equal steps on."""
        x = self.state.num[slot]
        x[k.ALPHA], x[k.BETA] = hardware.alpha_s / hardware.speed, hardware.beta_s / hardware.speed
        x[k.KV_S] = hardware.kv_s / hardware.speed
        x[k.PREFILL] = 1.0 / (hardware.prefill_tokens_per_s * hardware.speed)

    def open(self, slot: int, weight: float) -> None:
        """From now on it gets requests; what was held is given out."""
        self.state.num[slot, k.WEIGHT] = weight
        if slot not in self._open:
            self._open.append(slot)
            self._set_open()
            if self.held:
                dispatch.hand_out(self.state, self.now_s, np.inf)

    def close(self, slot: int) -> None:
        """From now on it gets none; what is inside goes on."""
        if slot in self._open:
            self._open.remove(slot)
            self._set_open()

    def _set_open(self) -> None:
        self.state.open[: len(self._open)] = self._open
        self.state.glob[k.OPENS] = len(self._open)

    def is_open(self, slot: int) -> bool:
        """Whether it gets requests."""
        return slot in self._open

    def end(self, slot: int, status: int) -> int:
        """The replica ends and its slot is free; requests inside get `status`, and their number is returned."""
        self.close(slot)
        lost = int(dispatch.kill(self.state, slot, status))
        self.state.cnt[slot, k.USED] = 0
        self._free.append(slot)
        return lost

    def inside(self, slot: int) -> Inside:
        """What is inside a replica now."""
        c = self.state.cnt[slot]
        return Inside(int(c[k.DECODING] + c[k.PREFILLING]), int(c[k.WAITING]), float(c[k.KV] / c[k.KV_MAX]))

    def empty_since(self, slot: int) -> float | None:
        """Since when a replica has been empty; None while it is not."""
        c = self.state.cnt[slot]
        busy = c[k.DECODING] + c[k.PREFILLING] + c[k.WAITING]
        return None if busy else float(self.state.num[slot, k.EMPTY_AT])

    def waiting(self) -> int:
        """Requests that wait in replicas or at the balancer, as of the last `advance`."""
        return int(self.state.glob[k.QUEUED]) + self.held

    def stepping(self) -> int:
        """Replicas that are in the middle of a step, as of the last `advance`."""
        return int(self.state.glob[k.STEPPING])

    def unfinished(self) -> int:
        """Requests that have come and not ended."""
        return int(np.count_nonzero(self.state.status[: self.arrived] == k.PENDING))
