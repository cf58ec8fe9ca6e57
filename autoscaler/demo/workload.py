"""Recorded traffic: read, checked, sliced and compressed in time.

It reads `arrival_s,input_tokens,output_tokens` (plain or gzip) and cuts a slice out of it. It thins nothing,
repeats nothing and draws nothing at random: a replay is the recording, only faster.

Invariant: arrivals are sorted, and every request has at least one token in and one out.
"""

import csv
import gzip
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")

Half = Literal["first", "second"]


class TraceError(ValueError):
    """The trace cannot be used; one line names the file, the place, what was found and what is allowed."""


class Arrival(NamedTuple):
    """One recorded request. *Units*: seconds from the start of the trace or slice."""

    at_s: float
    input_tokens: int
    output_tokens: int


def shipped_trace() -> Path:
    """The recording that ships with the package. Source: `data/README.md`."""
    return Path(str(resources.files("autoscaler.demo"))) / "data" / "azure2023_code.csv.gz"


def read_trace(path: Path) -> list[Arrival]:
    """Read a whole trace. Raises TraceError."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as lines:
            return list(_arrivals(path, lines))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{path}: cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        allowed = "CSV, plain or with a name that ends in .gz"
        raise TraceError(f"{path}: found bytes that are no text, allowed is {allowed}") from error
    except csv.Error as error:
        raise TraceError(f"{path}: is no CSV: {error}") from error


def cut(arrivals: Sequence[Arrival], start_s: float = 0.0, length_s: float = math.inf) -> list[Arrival]:
    """The arrivals in [start, start + length), counted from its start. Raises TraceError if none."""
    found = [a._replace(at_s=a.at_s - start_s) for a in arrivals if start_s <= a.at_s < start_s + length_s]
    if not found:
        ends_s = arrivals[-1].at_s if arrivals else 0.0
        raise TraceError(
            f"no request from {start_s:g} s for {length_s:g} s: the trace has requests from 0 to {ends_s:g} s"
        )
    return found


def half(arrivals: Sequence[Arrival], which: Half) -> list[Arrival]:
    """One half of the trace's time."""
    middle_s = arrivals[-1].at_s / 2
    return cut(arrivals, 0.0, middle_s) if which == "first" else cut(arrivals, middle_s)


def compress(arrivals: Iterable[Arrival], time_scale: float) -> list[Arrival]:
    """The same requests with every instant divided by the factor."""
    return [a._replace(at_s=a.at_s / time_scale) for a in arrivals]


def _arrivals(path: Path, lines: Iterable[str]) -> Iterator[Arrival]:
    rows = csv.reader(lines)
    header = next(rows, None)
    if header is None:
        raise TraceError(f"{path}: is empty, allowed is a header {','.join(_COLUMNS)} and a row a request")
    missing = [name for name in _COLUMNS if name not in header]
    if missing:
        raise TraceError(
            f"{path}: line 1: no column {', '.join(missing)}: found {','.join(header)[:80]}, "
            f"needed are {','.join(_COLUMNS)}"
        )
    at = [header.index(name) for name in _COLUMNS]
    last_s = 0.0
    count = 0
    for row in rows:
        where = f"{path}: line {rows.line_num}"
        if not row:
            continue
        found = [row[i] if i < len(row) else "" for i in at]
        arrival_s = _seconds(where, found[0])
        if arrival_s < last_s:
            raise TraceError(f"{where}: arrival_s: found {found[0]} after {last_s:g}, allowed is sorted order")
        last_s = arrival_s
        count += 1
        yield Arrival(arrival_s, _tokens(where, _COLUMNS[1], found[1]), _tokens(where, _COLUMNS[2], found[2]))
    if not count:
        raise TraceError(f"{path}: has a header and no request, needed is a row a request")


def _seconds(where: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise TraceError(f"{where}: arrival_s: found {text!r}, allowed is a number of seconds from 0")
    return found


def _tokens(where: str, column: str, text: str) -> int:
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        raise TraceError(f"{where}: {column}: found {text!r}, allowed is a whole number from 1")
    return found
