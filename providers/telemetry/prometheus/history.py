"""The load of the past out of a Prometheus server: how many requests and tokens a pool had in each bin of time.

Counts are `increase()` of the preset's counters over every target that `replicas.selector` lets through, whatever
replicas the pool had then; a signal with a query of the user's own is the mean of that rate over the bin. What this
cannot know: a counter's value before its first scrape (a replica that was born within the bin), and where the server
counts no arrivals but completions, a request stands in the bin in which it ended.

Does: ask, in pieces that a server grants, and put bins in order. Does not: fill gaps (the lab does, and says so).
Invariant: a bin that no answer covers is None, never 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from autoscaler.domain.base import Duration, Instant
from autoscaler.domain.faults import Refused
from autoscaler.domain.load import Kind, Signal
from autoscaler.ports.telemetry import History
from providers._shared.presets import PRESETS, Preset
from providers.telemetry.prometheus.settings import Query, Settings

if TYPE_CHECKING:
    from providers.telemetry.prometheus.session import Answer, Span

#: Points of one answer; servers grant 11,000.
_POINTS: Final = 2000

AskRange = Callable[[str, "Span"], Awaitable["Answer"]]
Bins = tuple[float | None, ...]


async def history(ask: AskRange, settings: Settings, over: tuple[Instant, Instant, Duration]) -> History:
    """Load from start to end in bins of a width. Raises Unreachable; Refused when nothing counts requests."""
    preset = PRESETS[settings.preset] if settings.preset is not None else None
    requests = _expression(Signal.REQUEST_RATE, settings, preset, over[2])
    if requests is None:
        raise Refused(
            "telemetry: nothing counts requests; allowed: a preset that does, or queries.request_rate of kind total"
        )
    prompt = _expression(Signal.INPUT_TOKEN_RATE, settings, preset, over[2])
    output = _expression(Signal.TOKEN_RATE, settings, preset, over[2])
    warnings: list[str] = []
    columns = [() if one is None else await _bins(ask, one, over, warnings) for one in (requests, prompt, output)]
    own = Signal.REQUEST_RATE in settings.queries
    counted = "by queries.request_rate" if own else "on arrival" if preset and preset.arrivals else "when they ended"
    detail = "; ".join([f"requests counted {counted}", *dict.fromkeys(warnings)])
    return History(over[0], over[2], columns[0], columns[1], columns[2], detail)


def _expression(signal: Signal, settings: Settings, preset: Preset | None, width: Duration) -> str | None:
    """PromQL for what was counted in the `width` seconds before an instant; None when nothing counts it."""
    if (query := settings.queries.get(signal)) is not None:
        return _of_query(query, width)
    if preset is None:
        return None
    if signal is Signal.REQUEST_RATE:
        first, *others = [_increase(one, settings, width) for one in preset.arrivals or preset.completions] or [""]
        return " + ".join([first, *(f"({one} or vector(0))" for one in others)]) or None
    names = preset.prompt_tokens if signal is Signal.INPUT_TOKEN_RATE else preset.tokens
    return " or ".join(_increase(one, settings, width) for one in names) or None


def _increase(name: str, settings: Settings, width: Duration) -> str:
    spelled = re.escape(name).replace(":", "[:_]").replace("\\", "\\\\")
    matchers = settings.replicas.selector.strip().rstrip(",")
    series = f'{{__name__=~"{spelled}(_total)?"{f",{matchers}" if matchers else ""}}}'
    return f"sum(increase({series}[{round(1000 * width)}ms]))"


def _of_query(query: Query, width: Duration) -> str | None:
    if query.kind is not Kind.TOTAL:
        return None
    step = max(1, round(width / 10))
    return f"sum(avg_over_time(({query.promql})[{round(1000 * width)}ms:{step}s])) * {width:g}"


async def _bins(ask: AskRange, promql: str, over: tuple[Instant, Instant, Duration], warnings: list[str]) -> Bins:
    """One value a bin; bin k ends at start + (k + 1) x width, which is the instant that is asked about."""
    from providers.telemetry.prometheus.session import Span

    start, end, width = over
    count = max(0, int((end - start) / width + 1e-9))
    found: dict[int, float] = {}
    for first in range(0, count, _POINTS):
        last = min(count, first + _POINTS) - 1
        answer = await ask(promql, Span(start + (first + 1) * width, start + (last + 1) * width, width))
        warnings += answer.warnings
        values: Sequence[tuple[float, str]] = answer.rows[0].values if answer.rows else ()
        for at, text in values:
            value = float(text)
            if math.isfinite(value):
                found[round((at - start) / width) - 1] = max(0.0, value)
    return tuple(found.get(index) for index in range(count))
