"""The tables of docs/policy-study.md, made of the results file and put between their marks in the page.

Does: write tables. Does not: run, or write a word of the text.
Invariant: equal results, equal tables; text outside the marks is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from autoscaler.domain.faults import ConfigError
from autoscaler.lab.study.contenders import BY_NAME, CLAIRVOYANT, FIXED, SLO
from autoscaler.lab.study.figures import Entry, Row, gap, rows, summed
from autoscaler.lab.study.records import Served, Study

_MARK: Final = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NAMES: Final = {
    FIXED: "fixed size",
    "tracking queue": "target tracking, queue",
    "tracking running": "target tracking, running",
    "forecast": "the same with `forecast`",
}
_SHOWN: Final = tuple(name for name in BY_NAME if name != CLAIRVOYANT)


def fill(path: Path, study: Study) -> None:
    """Make the tables of a page anew. Raises ConfigError when it cannot be read or names a table that is none."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}; allowed: the study's page"]) from None
    path.write_text(filled(text, study), "utf-8")


def filled(text: str, study: Study) -> str:
    """The page with its tables. Raises ConfigError."""

    def table(found: re.Match[str]) -> str:
        if found[2] not in _TABLES:
            raise ConfigError([f"table: found {found[2][:60]!r}; allowed: {', '.join(_TABLES)}"])
        return f"{found[1]}{_TABLES[found[2]](study)}\n{found[3]}"

    return _MARK.sub(table, text)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _name(contender: str) -> str:
    return _NAMES.get(contender, f"`{contender}`")


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _percent(share: float) -> str:
    """Never rounded up over the goal."""
    return f"{int(share * 10000) / 100:.2f} %"


def _summary(study: Study) -> str:
    body = [
        [_name(one.contender), f"{one.holds} of {one.cases}", _times(one.ratio), _times(one.ratio_at_goal),
         f"{one.reached} of {one.cases}"]
        for one in summed(rows(study)) if one.contender != CLAIRVOYANT
    ]  # fmt: skip
    head = ["policy", "holds 99 %", "GPU hours, where held", "GPU hours at 99 %", "can reach 99 %"]
    return _table(head, body)


def _cases(study: Study) -> str:
    body = [
        [
            *_case(row),
            "-" if row.best_h is None else f"{row.best_h:.1f}",
            *(_entry(row.entries.get(one)) for one in _SHOWN),
        ]
        for row in rows(study)
    ]
    return _table(["case", "cold start", "clairvoyant, GPU h", "best fixed, GPU h", *map(_name, _SHOWN)], body)


def _case(row: Row) -> list[str]:
    return [row.source, f"{row.cold_s} s", _hours(row.clairvoyant_h)]


def _hours(hours: float | None) -> str:
    return "-" if hours is None else f"{hours:.1f}"


def _entry(entry: Entry | None) -> str:
    if entry is None:
        return ""
    ratio = f"{entry.run.second.gpu_hours:.0f} h" if entry.ratio is None else f"{entry.ratio:.2f}"
    shown = f"{_percent(entry.run.second.attainment)}, {ratio}"
    return f"**{shown}**" if entry.holds else shown


def _at_goal(study: Study) -> str:
    body = [
        [*_case(row), *(_times(row.entries[one].ratio_at_goal) if one in row.entries else "" for one in _SHOWN)]
        for row in rows(study)
    ]
    return _table(["case", "cold start", "clairvoyant, GPU h", *map(_name, _SHOWN)], body)


def _smooth(study: Study) -> str:
    body = []
    for row in rows(study):
        found = gap(row) if row.smooth else None
        if found is not None:
            best, as_run, at_goal = found
            share = _percent(row.entries[SLO].run.second.attainment)
            body.append(
                [row.source, f"{row.cold_s} s", _name(best), share, f"{as_run - 1:+.0%}", f"{at_goal - 1:+.0%}"]
            )
    return _table(["case", "cold start", "best of the others", "`slo` holds", "`slo` as run", "`slo` at 99 %"], body)


def _sources(study: Study) -> str:
    body = [
        [one.name, f"`{one.file}`", one.how, one.part, f"{one.scale:g}", f"{one.requests:,}", one.replica,
         f"{one.ttft_s:g} s", f"{one.tick_s:g} s"]
        for one in study.sources
    ]  # fmt: skip
    return _table(["name", "file", "how", "part", "scale", "requests", "replica", "objective", "tick"], body)


def _strategies(study: Study) -> str:
    columns = list(dict.fromkeys((one.pool, one.load) for one in study.strategies))
    found = {(one.strategy, one.pool, one.load): one for one in study.strategies}
    body = []
    for name in dict.fromkeys(one.strategy for one in study.strategies):
        cells = [found.get((name, *column)) for column in columns]
        body.append([name, *("" if one is None else _served(one) for one in cells)])
    return _table(["strategy", *(f"{pool}, load {load:.0%}" for pool, load in columns)], body)


def _served(one: Served) -> str:
    late = "never" if one.ttft_s_p95 is None else f"{one.ttft_s_p95:.2f} s"
    return f"{late}, {_percent(one.attainment)}"


_TABLES: Final[dict[str, Callable[[Study], str]]] = {
    "summary": _summary, "cases": _cases, "at_goal": _at_goal, "smooth": _smooth, "sources": _sources,
    "strategies": _strategies,
}  # fmt: skip
