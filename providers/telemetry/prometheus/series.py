"""Raw samples of a time-series store become looks at replicas, each at the instant at which it was scraped.

Does: pick a replica's series out of an answer, and read the pages of metrics that they once were.
Does not: ask, or sum up over replicas.
Invariant: a look's `at` is the time of the samples, never that of the query; a replica that is down, silent or behind
has a fault and no value, whatever its last value was.

Asked for is a range (`{...}[60s]`), not an instant: it gives each sample with its own time, does not bring back values
that are up to five minutes old, and holds the history of counters, so that a rate needs no second look.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from autoscaler.domain.base import NEVER, Duration, Instant
from autoscaler.domain.load import Signal
from autoscaler.domain.replica import Endpoint
from providers._shared.gpus import Gpus
from providers._shared.looks import Look, read_counters, read_gauges, read_start
from providers._shared.meter import Counters
from providers._shared.metrics_page import Page, Series, plain
from providers._shared.presets import GPU_UTILIZATION, PROCESS_START, Preset, Scaled

if TYPE_CHECKING:
    from providers.telemetry.prometheus.session import Row

UP: Final = "up"
#: The fault of a replica that the server does not show in the range at all.
NO_SAMPLE: Final = "no sample of it"


class Past(NamedTuple):
    """What a replica's counters showed at one scrape."""

    at: Instant
    counters: Counters
    started: float | None


class Rules(NamedTuple):
    """How samples are read. `missing_after`: how old a replica's newest sample may be, in seconds."""

    preset: Preset | None
    now: Instant
    missing_after: Duration
    gpus: Gpus


def names(preset: Preset | None, signals: Iterable[Signal], *, own_gpus: bool) -> list[str]:
    """The names of series that these signals need, in every spelling, with `up` and what shows that a zero is true.

    Histograms are many series, so only those that are needed are asked for.
    """
    if preset is None:
        return [UP]
    wanted = set(signals)
    gauges = [*preset.running, *preset.waiting, *PROCESS_START]
    counters = [*preset.arrivals, *preset.completions, *preset.tokens]
    if Signal.KV_CACHE_USE in wanted:
        gauges += _scaled(preset.kv_cache)
    if Signal.GPU_UTILIZATION in wanted and own_gpus:
        gauges += _scaled(GPU_UTILIZATION)
    if Signal.INPUT_TOKEN_RATE in wanted:
        counters += preset.prompt_tokens
    histograms = preset.ttft if Signal.TTFT_S_P95 in wanted else ()
    histograms += preset.e2e if Signal.E2E_S_P95 in wanted else ()
    every = [*gauges, *(f"{name}{end}" for name in counters for end in ("", "_total"))]
    every += [f"{name}_bucket" for name in histograms]
    return [UP, *spelled(every)]


def spelled(every: Iterable[str]) -> list[str]:
    """Each name as the server wrote it and as Prometheus may have stored it: with underscores for colons."""
    return list(dict.fromkeys(one for name in every for one in (name, name.replace(":", "_"))))


def gpu_names() -> list[str]:
    """The names that a GPU exporter may use, with `up`."""
    return [UP, *_scaled(GPU_UTILIZATION)]


def _scaled(gauges: Iterable[Scaled]) -> list[str]:
    return [gauge.name for gauge in gauges]


def selector(every: Sequence[str], matchers: str) -> str:
    """PromQL for all series of these names."""
    parts = [f'__name__=~"{"|".join(every)}"', *([matchers.strip().rstrip(",")] if matchers.strip() else [])]
    return f"{{{','.join(parts)}}}"


def by_label(rows: Sequence[Row], label: str) -> dict[str, list[Row]]:
    """The series of each value of a label."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.metric.get(label, ""), []).append(row)
    return found


def look_at(
    endpoint: Endpoint, rows: Sequence[Row], gpu_page: Page | None, rules: Rules, since: Instant = NEVER
) -> tuple[Look, tuple[Past, ...]]:
    """A replica as its newest scrape shows it, and its counters at that and every earlier scrape from `since` on."""
    up, series = _one_target(rows)
    fault = _down(up) or _behind(series or ([up] if up else []), rules)
    if fault:
        return Look(replica=endpoint.replica, at=rules.now, fault=fault), ()
    if rules.preset is None:
        return Look(replica=endpoint.replica, at=_newest([up] if up else series)), ()
    if not series:
        return Look(replica=endpoint.replica, at=rules.now, fault=f"none of {rules.preset.name}'s series"), ()
    pages = _pages(series, since)
    past = [Past(at, read_counters(page, rules.preset), read_start(page)) for at, page in pages]
    at, page = pages[-1]
    if past[-1].started == 0:  # a store that lost its data and answers with zeros; no server started in 1970
        return Look(replica=endpoint.replica, at=rules.now, fault="its process start is 0: its values are invented"), ()
    look = Look(
        replica=endpoint.replica,
        at=at,
        gpu_fault="" if gpu_page is None else gpu_page.fault,
        gauges=read_gauges(page, gpu_page, rules.preset, rules.gpus),
        counters=past[-1].counters,
        started=past[-1].started,
    )
    return look, tuple(past)


def gpu_page_of(rows: Sequence[Row], rules: Rules) -> Page:
    """The newest page of a replica's GPU exporter, or why there is none."""
    up, series = _one_target(rows)
    fault = _down(up) or _behind(series, rules)
    return Page(fault=f"GPU exporter: {fault}") if fault else _pages(series, _newest(series))[-1][1]


def _one_target(rows: Sequence[Row]) -> tuple[Row | None, list[Row]]:
    """A target's `up` and its other series.

    A replica that is scraped by two jobs, or by a pair of Prometheus servers behind one front, has everything twice,
    and a sum would be twice the load: of several targets the one that was scraped last counts alone.
    """
    ups = [row for row in rows if row.metric.get("__name__") == UP and row.values]
    series = [row for row in rows if row.metric.get("__name__") != UP and row.values]
    if not ups:
        return None, series
    up = max(ups, key=lambda row: (row.values[-1][0], sorted(row.metric.items())))
    if len(ups) > 1:
        own = {(label, value) for label, value in up.metric.items() if label != "__name__"}
        series = [row for row in series if own <= row.metric.items()]
    return up, series


def _down(up: Row | None) -> str:
    return "its scrape fails (up is 0)" if up is not None and float(up.values[-1][1]) == 0 else ""


def _behind(series: Sequence[Row], rules: Rules) -> str:
    if not series:
        return NO_SAMPLE
    age = rules.now - _newest(series)
    if age > rules.missing_after:
        return f"its newest sample is {age:.0f} s old"
    if age < -rules.missing_after:
        return f"its newest sample is dated {-age:.0f} s ahead: the clocks differ"
    return ""


def _newest(series: Sequence[Row]) -> Instant:
    return Instant(max(row.values[-1][0] for row in series))


def _pages(series: Sequence[Row], since: Instant) -> list[tuple[Instant, Page]]:
    """The pages that were scraped, oldest first, the newest always: all samples of one scrape carry one time."""
    since = min(since, _newest(series))
    pages: dict[float, dict[str, list[Series]]] = {}
    for row in series:
        name = plain(row.metric.get("__name__", ""))
        labels = {label: value for label, value in row.metric.items() if label != "__name__"}
        for at, value in row.values:
            if at < since:
                continue
            pages.setdefault(at, {}).setdefault(name, []).append(Series(labels, _number(value)))
    return [
        (Instant(at), Page({name: tuple(found) for name, found in page.items()})) for at, page in sorted(pages.items())
    ]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
