"""A page of metrics in Prometheus' text format, read with suspicion.

Does: pick the wanted families out of a page, and add up or average their series. Does not: fetch, or know which server
wrote it. The parsing of each line is prometheus_client's; it takes TorchServe's trailing comma in `{a="b",}`.
Invariant: read_page never raises; a page that cannot be trusted whole has a `fault` and no samples.

Unwanted lines are sorted out first by their name: the parser is pure Python and, with long lines, slow enough that a
hostile page could hold up the loop.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from providers._shared.presets import Scaled

#: What is asked for: the plain text format, in which names keep their colons.
ACCEPT: Final = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
_CONTENT_TYPES: Final = frozenset({"text/plain", "application/openmetrics-text", "application/octet-stream", ""})
_NAME = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*[{ \t]")
_LINE_LIMIT: Final = 4096
#: All wanted lines of a page: parsing so much takes half a second; a server with eight engines writes a fifth of it.
_BYTES_LIMIT: Final = 512 * 1024
_LINES_LIMIT: Final = 20_000
#: SGLang's ranks of one engine each show the whole: the largest counts, not the sum.
_RANKS: Final = ("tp_rank", "pp_rank", "moe_ep_rank")
#: Where a ratio may lie: rounding may pass 1 a little; DCGM's blank is 9.22e18.
_RATIO_SLACK: Final = 0.01

#: Cumulative counts by upper edge; a plain counter is the single bucket below infinity.
Buckets = dict[float, float]


class Series(msgspec.Struct, frozen=True):
    """One line."""

    labels: Mapping[str, str]
    value: float


class Page(msgspec.Struct, frozen=True):
    """The wanted families of one page by plain name; `fault` says why there is none."""

    families: Mapping[str, tuple[Series, ...]] = {}
    fault: str = ""


def plain(name: str) -> str:
    """The name under which a family is looked up: colons and `_total` do not matter."""
    return name.replace(":", "_").removesuffix("_total")


def read_page(body: bytes, wanted: frozenset[str], content_type: str = "") -> Page:
    """Read the families whose plain names are in `wanted`."""
    if content_type not in _CONTENT_TYPES:
        return Page(fault=f"metrics: found content type {content_type[:60]!r}, not text")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return Page(fault="metrics: not text in UTF-8")
    if text and not text.endswith("\n"):
        return Page(fault="metrics: cut off, the last line has no end")
    lines, fault = _wanted_lines(text, wanted)
    if fault:
        return Page(fault=fault)
    found: dict[str, list[Series]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines)):
            for sample in family.samples:
                found.setdefault(plain(sample.name), []).append(Series(dict(sample.labels), float(sample.value)))
    except (ValueError, IndexError, OverflowError) as error:
        return Page(fault=f"metrics: a line cannot be read: {str(error)[:100]!r}")
    return Page({name: tuple(series) for name, series in found.items()})


def _wanted_lines(text: str, wanted: frozenset[str]) -> tuple[list[str], str]:
    lines: list[str] = []
    size = 0
    known: dict[str, bool] = {}
    for line in text.split("\n"):
        if not line or line[0] in "#{" or line.isspace():
            continue
        match = _NAME.match(line)
        if match is None:
            return [], f"metrics: found {line[:60]!r}, which is no line of a metrics page"
        name = match[1]
        if name not in known:
            known[name] = plain(name) in wanted
        if not known[name]:
            continue
        size += len(line)
        if len(line) > _LINE_LIMIT or size > _BYTES_LIMIT or len(lines) > _LINES_LIMIT:
            return [], f"metrics: {name} has more or longer lines than a model server writes"
        lines.append(line)
    return lines, ""


def _counting(series: Iterable[Series]) -> list[Series] | None:
    """The series that count, once each; None when one of them is no number: a part is not the whole."""
    found = list(series)
    if any(not math.isfinite(one.value) or one.value < 0 for one in found):
        return None
    # SGLang with priorities shows each priority and, with an empty one, all of them.
    overall = [one for one in found if not one.labels.get("priority")]
    largest: dict[tuple[tuple[str, str], ...], Series] = {}
    for one in overall or found:
        key = tuple(sorted((label, value) for label, value in one.labels.items() if label not in _RANKS))
        if key not in largest or largest[key].value < one.value:
            largest[key] = one
    return list(largest.values())


def total(page: Page, names: Iterable[str]) -> float | None:
    """The sum over the series of the first family that is there; None when none is."""
    for name in names:
        series = _counting(page.families.get(plain(name), ()))
        if series:
            value = math.fsum(one.value for one in series)
            return value if math.isfinite(value) else None
    return None


def sum_of(page: Page, names: tuple[str, ...]) -> float | None:
    """The sum over several families, of which the first must be there."""
    if not names:
        return None
    first = total(page, names[:1])
    return None if first is None else first + sum(total(page, (name,)) or 0.0 for name in names[1:])


def ratio_of(value: float, gauge: Scaled) -> float | None:
    """A gauge's value as a share of the whole, 0..1; None when it lies outside, as a blank value does."""
    ratio = value / gauge.full
    return min(ratio, 1.0) if 0.0 <= ratio <= 1.0 + _RATIO_SLACK else None


def mean_ratio(page: Page, gauges: Iterable[Scaled]) -> float | None:
    """The mean over the series of the first gauge with a value in its range, 0..1; values outside are dropped."""
    for gauge in gauges:
        ratios = [ratio_of(one.value, gauge) for one in page.families.get(plain(gauge.name), ())]
        usable = [ratio for ratio in ratios if ratio is not None]
        if usable:
            return math.fsum(usable) / len(usable)
    return None


def histogram(page: Page, names: Iterable[str]) -> Buckets | None:
    """Cumulative counts by upper edge, summed over all labels; None when absent or contradictory."""
    for name in names:
        buckets = _buckets(page.families.get(f"{plain(name)}_bucket", ()))
        if buckets is not None:
            return buckets
    return None


def _buckets(series: tuple[Series, ...]) -> Buckets | None:
    buckets: Buckets = {}
    for one in series:
        try:
            edge = float(one.labels.get("le", ""))
        except ValueError:
            return None
        if math.isnan(edge) or not math.isfinite(one.value) or one.value < 0:
            return None
        buckets[edge] = buckets.get(edge, 0.0) + one.value
    ordered = dict(sorted(buckets.items()))
    counts = list(ordered.values())
    # Without the last bucket the page is incomplete; counts that fall are from series with unlike edges.
    if math.inf not in ordered or any(late < early for early, late in pairwise(counts)):
        return None
    return ordered
