"""The simulated telemetry: the signals of a pool as a scraper of its model servers would tell them, and how it fails.

Does: answer sample as ports/telemetry.py has it: looks at the moments when it is asked, rates and quantiles over a
window, age, gaps and lies. Does not: judge. GPU utilisation is the share of the window in which a step ran.
Invariant: a quantile of fewer than 20 samples is QUIET; a replica that does not answer adds nothing, not even 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.base import Duration, Instant, ReplicaId
from autoscaler.domain.faults import Unreachable
from autoscaler.domain.load import (
    QUANTILE_SAMPLES_MIN,
    Idleness,
    Kind,
    LoadSample,
    Reading,
    ReadingState,
    ReplicaLoad,
    Signal,
)
from autoscaler.lab import kernel as k
from autoscaler.lab import metering as m
from autoscaler.lab.cloud import START
from autoscaler.lab.events import chance
from autoscaler.lab.fleet import Fleet
from autoscaler.lab.settings import TelemetrySettings, TroubleKind
from autoscaler.lab.troubles import Troubles

_SOURCE: Final = "lab"
# A name of this module is found many times faster than the attribute of an enum, and these are asked for in each tick.
_GAP: Final = TroubleKind.TELEMETRY_GAP
_FROZEN: Final = TroubleKind.TELEMETRY_FROZEN
_ZERO: Final = TroubleKind.TELEMETRY_ZERO
_PARTIAL: Final = TroubleKind.TELEMETRY_PARTIAL
_OK: Final = ReadingState.OK
_MEAN: Final = Kind.MEAN
_QUEUE: Final = Signal.QUEUE_LENGTH
_KINDS: Final = {
    Signal.QUEUE_LENGTH: Kind.TOTAL,
    Signal.RUNNING: Kind.TOTAL,
    Signal.GPU_UTILIZATION: Kind.MEAN,
    Signal.KV_CACHE_USE: Kind.MEAN,
    Signal.REQUEST_RATE: Kind.TOTAL,
    Signal.TOKEN_RATE: Kind.TOTAL,
    Signal.INPUT_TOKEN_RATE: Kind.TOTAL,
}
_QUANTILES: Final = {
    Signal.TTFT_S_P95: (slice(m.TTFT, m.E2E), k.TTFT_EDGES),
    Signal.E2E_S_P95: (slice(m.E2E, m.SUMS), k.E2E_EDGES),
}
_INSTANT: Final = frozenset({Signal.QUEUE_LENGTH, Signal.RUNNING, Signal.KV_CACHE_USE, Signal.GPU_UTILIZATION})
#: What the balancer's own counters can tell.
_AT_GATEWAY: Final = {Signal.REQUEST_RATE: 0, Signal.INPUT_TOKEN_RATE: 1}


class Scrape:
    """The telemetry of one pool. `slots`: the kernel's slot of each replica that answers, kept by the world."""

    def __init__(
        self, fleet: Fleet, settings: TelemetrySettings, troubles: Troubles, slots: dict[ReplicaId, int], seed: int
    ) -> None:
        self._fleet = fleet
        self._settings = settings
        self._troubles = troubles
        self._slots = slots
        self._seed = seed
        self._looks = m.new_looks(len(fleet.state.num))
        self._turn = 0
        self._sums: list[float] = []
        self._asked: tuple[list[int], NDArray[np.int64]] = [], np.array([], dtype=np.int64)
        self._samples: deque[LoadSample] = deque()
        self._known: dict[tuple[float, float], ReplicaLoad] = {}
        self._gate: deque[tuple[float, int, int]] = deque()  # when, requests and input tokens that had come by then
        self._counted = (0, 0)  # requests of which the tokens are summed, and their sum
        self.now_s = 0.0

    def sample(self, signals: frozenset[Signal], replicas: Sequence[ReplicaId]) -> LoadSample:
        """One look. Raises Unreachable when nothing can be known."""
        if self._troubles.now(_GAP, self.now_s) is not None:
            raise Unreachable("the telemetry source does not answer")
        at = Instant(START + self.now_s)
        if self._troubles.now(_FROZEN, self.now_s) is not None and self._samples:
            return _retold(self._samples[-1], at)
        fresh = self._look(signals, replicas, at)
        self._samples.append(fresh)
        while len(self._samples) > 1 and self._samples[1].at <= at - self._settings.delay_s:
            self._samples.popleft()
        found = self._samples[0]
        if found.at > at - self._settings.delay_s:
            raise Unreachable("nothing has been collected yet")
        return found

    def _look(self, signals: frozenset[Signal], replicas: Sequence[ReplicaId], at: Instant) -> LoadSample:
        if len(self._fleet.state.num) > self._looks.who.shape[1]:
            self._longer(len(self._fleet.state.num))
        answering = self._answering(replicas)
        m.look(
            self._fleet.state, self._looks, self._turn, self._slots_of(answering), self.now_s, self._settings.window_s
        )
        self._turn += 1
        sums, gauges = self._looks.sums, self._looks.gauges
        if self._troubles.now(_ZERO, self.now_s) is not None:
            gauges[:] = 0.0
            kept = sums[[m.COVERED, m.OVER_S, m.SEEN]]
            sums[:] = 0.0
            sums[[m.COVERED, m.OVER_S, m.SEEN]] = kept
        self._sums = sums.tolist()  # reading one number of an array takes several times as long
        gate = self._at_gateway() if self._settings.gateway else None
        expected = len(replicas)
        readings = {one: self._reading(one, at, expected, gate) for one in sorted(signals)}
        known = self._known
        loads = gauges[: len(answering)].tolist()
        told = self._sums[m.COVERED] > 0
        idleness = Idleness(
            arrivals=self._sums[m.ARRIVED] if told else None, completions=self._sums[m.COMPLETED] if told else None
        )
        return LoadSample(
            at=at, readings=readings, idleness=idleness,
            replicas={one: known.get((a, b)) or self._load(a, b) for one, (a, b) in zip(answering, loads, strict=True)},
        )  # fmt: skip

    def _slots_of(self, replicas: list[ReplicaId]) -> NDArray[np.int64]:
        """Their slots; the very array of the last look when they are the same."""
        slots = [self._slots[one] for one in replicas]
        if slots != self._asked[0]:
            self._asked = slots, np.array(slots, dtype=np.int64)
        return self._asked[1]

    def _longer(self, slots: int) -> None:
        before = self._looks
        self._looks = m.new_looks(slots)
        had = before.who.shape[1]
        self._looks.tally[:, :had], self._looks.who[:, :had] = before.tally, before.who
        self._looks.at[:] = before.at

    def _answering(self, replicas: Sequence[ReplicaId]) -> list[ReplicaId]:
        partial = self._troubles.now(_PARTIAL, self.now_s)
        found = [one for one in replicas if one in self._slots]
        if partial is None:
            return found
        return [one for one in found if chance(self._seed, f"partial {one}").random() >= partial.share]

    def _load(self, running: float, waiting: float) -> ReplicaLoad:
        made = self._known[running, waiting] = ReplicaLoad(running=running, waiting=waiting)
        return made

    def _at_gateway(self) -> tuple[float, float]:
        """Requests and input tokens a second that came to the balancer over the window."""
        arrived, (counted, tokens) = self._fleet.arrived, self._counted
        tokens += int(self._fleet.state.prompt[counted:arrived].sum())
        self._counted = (arrived, tokens)
        self._gate.append((self.now_s, arrived, tokens))
        while len(self._gate) > 1 and self._gate[1][0] <= self.now_s - self._settings.window_s:
            self._gate.popleft()
        then_s, requests, before = self._gate[0]
        over = self.now_s - then_s
        return ((arrived - requests) / over, (tokens - before) / over) if over > 0 else (0.0, 0.0)

    def _reading(self, signal: Signal, at: Instant, expected: int, gate: tuple[float, float] | None) -> Reading:
        sums = self._sums
        if gate is not None and signal in _AT_GATEWAY:
            return Reading(
                signal=signal, kind=Kind.TOTAL, state=ReadingState.OK, at=at, value=gate[_AT_GATEWAY[signal]],
                window=Duration(self._settings.window_s), source="gateway",
            )  # fmt: skip
        held = self._fleet.held if gate is not None and signal is _QUEUE else 0
        seen, covered = int(sums[m.SEEN]), int(sums[m.COVERED])
        here = seen if signal in _INSTANT else covered
        if here == 0 and not held:
            kind = _KINDS.get(signal, Kind.QUANTILE)
            detail = "no replica to ask" if not expected else "no replica answered, or each was seen once only"
            return Reading(
                signal=signal, kind=kind, state=ReadingState.ABSENT, at=at, expected=expected, source=_SOURCE,
                detail=detail,
            )  # fmt: skip
        if signal in _QUANTILES:
            return self._quantile(signal, at, expected)
        kind, value = _KINDS[signal], sums[_SUMS[signal]] + held
        if kind is _MEAN:
            value /= max(1.0, sums[m.SEEN])
        return Reading(
            signal=signal, kind=kind, state=_OK, at=at, value=value, covered=here,
            expected=expected, window=Duration(0.0 if signal in _INSTANT else sums[m.OVER_S]), source=_SOURCE,
        )  # fmt: skip

    def _quantile(self, signal: Signal, at: Instant, expected: int) -> Reading:
        sums = self._looks.sums
        part, edges = _QUANTILES[signal]
        counts = sums[part]
        samples = int(counts.sum())
        quiet = samples < QUANTILE_SAMPLES_MIN
        return Reading(
            signal=signal, kind=Kind.QUANTILE, state=ReadingState.QUIET if quiet else ReadingState.OK, at=at,
            value=None if quiet else float(m.quantile(counts, edges, 0.95)), covered=int(sums[m.COVERED]),
            expected=expected, samples=samples, window=Duration(float(sums[m.OVER_S])), source=_SOURCE,
            detail=f"{samples} samples, {QUANTILE_SAMPLES_MIN} are needed" if quiet else "",
        )  # fmt: skip


#: Where a signal's sum is in a look.
_SUMS: Final = {
    Signal.QUEUE_LENGTH: m.WAITING,
    Signal.RUNNING: m.RUNNING,
    Signal.GPU_UTILIZATION: m.UTIL_SUM,
    Signal.KV_CACHE_USE: m.KV_SUM,
    Signal.REQUEST_RATE: m.REQUESTS,
    Signal.TOKEN_RATE: m.TOKENS,
    Signal.INPUT_TOKEN_RATE: m.PROMPTS,
}


def _retold(sample: LoadSample, at: Instant) -> LoadSample:
    """Old values, told as fresh."""
    readings = {name: msgspec.structs.replace(one, at=at) for name, one in sample.readings.items()}
    return msgspec.structs.replace(sample, at=at, readings=readings)
