"""What one replica's counters did over a window of time.

Does: turn raw counters, which restart with their process, into growth between two looks. Does not: read pages or any
clock.
Invariant: growth is never negative; a counter that went back has grown by what it shows now, as Prometheus has it, and
a replica that is seen for the first time has not grown at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from autoscaler.domain.base import Duration, Instant, elapsed
from providers._shared.metrics_page import Buckets

#: Marks a window: more would not make it more exact, and memory stays bounded however often we are asked.
_MARKS: Final = 30
#: A replica that was silent for so many windows is looked at as a new one: what grew meanwhile is no recent load.
_FORGET: Final = 10
#: Starts of a process that lie closer together are one start, seen through a clock that was set.
_SAME_START_S: Final = 1.5

Counters = Mapping[str, Buckets]


class Growth(NamedTuple):
    """What a family grew by, and in how many seconds."""

    buckets: Buckets
    over: Duration


class _Mark(NamedTuple):
    at: Instant
    grown: dict[str, Buckets]


class Meter:
    """The counters of one replica. A counter is a histogram with one bucket."""

    def __init__(self, window: Duration) -> None:
        self._window = window
        self._raw: dict[str, Buckets] = {}
        self._grown: dict[str, Buckets] = {}
        self._marks: deque[_Mark] = deque()
        self._started: float | None = None

    def advance(self, at: Instant, counters: Counters, started: float | None) -> bool:
        """Take in one look, at or after the last one; tells whether a counter or the whole process started again."""
        if self._marks and elapsed(self._marks[-1].at, at) > _FORGET * self._window:
            self._forget()
        restarted = started is not None and self._started is not None and abs(started - self._started) > _SAME_START_S
        if restarted:
            self._raw = {family: {} for family in self._raw}
        went_back = restarted
        for family, raw in counters.items():
            went_back |= self._grow(family, raw)
        self._started = self._started if started is None else started
        self._mark(at)
        return went_back

    def growth(self, family: str) -> Growth | None:
        """Growth since the youngest look that is at least a window old, or since the oldest; None before the second."""
        if family not in self._grown or len(self._marks) < 2:
            return None
        over = elapsed(self._marks[0].at, self._marks[-1].at)
        if over <= 0:
            return None
        before = self._marks[0].grown.get(family, {})
        return Growth({edge: now - before.get(edge, 0.0) for edge, now in self._grown[family].items()}, over)

    def _forget(self) -> None:
        self._raw.clear()
        self._grown.clear()
        self._marks.clear()
        self._started = None

    def _grow(self, family: str, raw: Buckets) -> bool:
        last = self._raw.get(family)
        self._raw[family] = dict(raw)
        if last is None:
            # A server that makes a series with its first event: it was zero while its page did not show it.
            self._grown[family] = dict.fromkeys(raw, 0.0) if not self._marks else dict(raw)
            return False
        if self._grown[family].keys() != raw.keys():
            # Other edges are another process's: growth is counted from its start, and not compared with older marks.
            self._grown[family] = dict(raw)
            for mark in self._marks:
                mark.grown.pop(family, None)
            return True
        back = any(raw[edge] < value for edge, value in last.items())
        base = {} if back else last
        grown = self._grown[family]
        self._grown[family] = {edge: grown.get(edge, 0.0) + value - base.get(edge, 0.0) for edge, value in raw.items()}
        return back

    def _mark(self, at: Instant) -> None:
        marks = self._marks
        mark = _Mark(at, dict(self._grown))
        close = len(marks) >= 2 and elapsed(marks[-2].at, at) < self._window / _MARKS
        if close:
            marks[-1] = mark
        else:
            marks.append(mark)
        while len(marks) > 2 and elapsed(marks[1].at, at) >= self._window:
            marks.popleft()
