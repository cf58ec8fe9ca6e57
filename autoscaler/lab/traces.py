"""Files of recorded traffic: request traces and rate series, read line by line with every mistake told.

Does: read `arrival_s,input_tokens,output_tokens` and `start_s,requests`, plain or gzip; extra columns are left alone.
Does not: ship a trace, or guess what a broken line meant.
Invariant: a file that is read has been checked whole; a mistake names file, line, what was found and what is expected.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.faults import ConfigError
from autoscaler.lab.workload import REQUESTS_MAX, Tokens, Workload, from_counts, limit_requests

#: The two forms, by their first columns.
REQUEST_COLUMNS: Final = ("arrival_s", "input_tokens", "output_tokens")
RATE_COLUMNS: Final = ("start_s", "requests")
_CV_COLUMN: Final = "interarrival_cv"
#: Stands in for a length that the trace does not know (a blank): ServeGen m-large's medians, see workload.Tokens.
UNKNOWN_INPUT: Final = 601
UNKNOWN_OUTPUT: Final = 53
_LONGEST: Final = 10_000_000


class Drawing(NamedTuple):
    """How a rate series becomes requests. `cv` None: the file's own column where it has one, else Poisson."""

    tokens: Tokens = Tokens()
    seed: int = 0
    cv: float | None = None
    scale: float = 1.0


def read_workload(path: Path, drawing: Drawing | None = None) -> Workload:
    """The workload of a file of either form. Raises ConfigError: what, where, what is allowed."""
    drawing = drawing or Drawing()
    with _opened(path) as lines:
        rows = csv.reader(lines)
        header = _header(path, rows)
        try:
            if header[:3] == REQUEST_COLUMNS:
                found = _requests(path, rows)
                return found if drawing.scale == 1.0 else found.scaled(drawing.scale, drawing.seed)
            return _rates(path, rows, header, drawing)
        except (csv.Error, UnicodeDecodeError, EOFError, OSError) as error:
            raise ConfigError(
                [f"{path}: line {rows.line_num + 1}: cannot be read: {error}; expected: CSV text"]
            ) from None


def _opened(path: Path) -> TextIO:
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        return (
            gzip.open(path, "rt", encoding="utf-8", newline="") if zipped else path.open(encoding="utf-8", newline="")
        )
    except OSError as error:
        raise ConfigError([f"{path}: cannot be opened: {error.strerror}; allowed: a .csv or .csv.gz file"]) from None


def _header(path: Path, rows: Iterator[list[str]]) -> tuple[str, ...]:
    expected = f"expected: a header '{','.join(REQUEST_COLUMNS)}' or '{','.join(RATE_COLUMNS)}'"
    try:
        first = next(rows, None)
    except (csv.Error, UnicodeDecodeError, EOFError, OSError) as error:
        raise ConfigError([f"{path}: line 1: cannot be read: {error}; {expected}"]) from None
    if first is None:
        raise ConfigError([f"{path}: is empty; {expected}"])
    header = tuple(cell.strip().lstrip("\ufeff") for cell in first)
    if header[:3] != REQUEST_COLUMNS and header[:2] != RATE_COLUMNS:
        raise ConfigError([f"{path}: line 1: found {','.join(header)[:80]!r}; {expected}"])
    return header


def _requests(path: Path, rows: Iterator[list[str]]) -> Workload:
    arrival: list[float] = []
    prompt: list[int] = []
    output: list[int] = []
    unknown = {1, 2}
    last = 0.0
    for number, row in enumerate(rows, start=2):
        if not row:
            continue
        if unknown:
            unknown -= {column for column in unknown if column < len(row) and row[column].strip()}
        at, tokens_in, tokens_out = _plain(row) or (
            _number(path, number, row, 0, REQUEST_COLUMNS),
            _length(path, number, row, 1, UNKNOWN_INPUT),
            _length(path, number, row, 2, UNKNOWN_OUTPUT),
        )
        if at < last:
            _mistake(path, number, f"arrival_s {row[0]!r} after {last:g}", "time that never runs backwards, from 0 on")
        last = at
        arrival.append(at)
        prompt.append(tokens_in)
        output.append(max(1, tokens_out))
        if len(arrival) > REQUESTS_MAX:
            limit_requests(str(path), len(arrival))
    limit_requests(str(path), len(arrival))
    return Workload(
        name=_name(path),
        arrival_s=np.array(arrival),
        input_tokens=np.array(prompt, dtype=np.int32),
        output_tokens=np.array(output, dtype=np.int32),
        duration_s=max(last, 1.0),
        source=f"requests of {path.name}",
        unknown=frozenset(REQUEST_COLUMNS[column] for column in unknown),
    )


def _plain(row: list[str]) -> tuple[float, int, int] | None:
    """A row with nothing to remark, as nearly all are, in a third of the time; None: look at it cell by cell."""
    try:
        at, tokens_in, tokens_out = float(row[0]), int(row[1]), int(row[2])
    except (ValueError, IndexError):
        return None
    fits = 0 <= at < math.inf and 0 <= tokens_in <= _LONGEST and 0 <= tokens_out <= _LONGEST
    return (at, tokens_in, tokens_out) if fits else None


def _rates(path: Path, rows: Iterator[list[str]], header: tuple[str, ...], drawing: Drawing) -> Workload:
    starts: list[float] = []
    counts: list[float] = []
    spread: list[float] = []
    cv_at = header.index(_CV_COLUMN) if _CV_COLUMN in header else None
    for number, row in enumerate(rows, start=2):
        if not row:
            continue
        at = _number(path, number, row, 0, RATE_COLUMNS)
        if starts and at <= starts[-1]:
            _mistake(path, number, f"start_s {row[0]!r} after {starts[-1]:g}", "bins whose starts rise")
        width = starts[1] - starts[0] if len(starts) > 1 else 0.0
        if width and abs(at - starts[-1] - width) > 1e-6 * width:
            _mistake(
                path,
                number,
                f"a bin that starts at {row[0]!r}",
                f"bins of equal width, the next at {starts[-1] + width:g}",
            )
        starts.append(at)
        counts.append(_number(path, number, row, 1, RATE_COLUMNS))
        cell = row[cv_at].strip() if cv_at is not None and len(row) > cv_at else ""
        spread.append(_number(path, number, row, cv_at, header) if cell and cv_at is not None else 1.0)
    if len(starts) < 2:
        raise ConfigError([f"{path}: found {len(starts)} bins; expected: at least two, so that their width is known"])
    if not math.isfinite(drawing.scale) or drawing.scale <= 0:
        raise ConfigError([f"{path}: scale: found {drawing.scale:g}; allowed: a number above 0"])
    cv: float | NDArray[np.float64] = np.array(spread) if drawing.cv is None else drawing.cv
    width = starts[1] - starts[0]
    requests = np.array(counts) * drawing.scale
    limit_requests(str(path), int(requests.sum()) or int(requests.any()))
    drawn = from_counts(_name(path), width, requests, drawing.tokens, drawing.seed, cv)
    return drawn._replace(source=f"drawn from the counts of {path.name}, times {drawing.scale:g}, seed {drawing.seed}")


def _number(path: Path, line: int, row: list[str], at: int, columns: tuple[str, ...]) -> float:
    """A number from 0 on. Raises ConfigError."""
    expected = f"{columns[at]} as a number from 0 on"
    if at >= len(row):
        _mistake(path, line, f"{len(row)} cells ({','.join(row)[:60]!r})", f"at least {','.join(columns)}")
    try:
        value = float(row[at])
    except ValueError:
        _mistake(path, line, f"{columns[at]} {row[at][:60]!r}", expected)
        raise
    if not 0 <= value < math.inf:
        _mistake(path, line, f"{columns[at]} {row[at][:60]!r}", expected)
    return value


def _length(path: Path, line: int, row: list[str], at: int, unknown: int) -> int:
    """Tokens, a whole number from 0 on; a blank is one that is not known."""
    if at < len(row) and not row[at].strip():
        return unknown
    value = _number(path, line, row, at, REQUEST_COLUMNS)
    if value != int(value) or value > _LONGEST:
        _mistake(
            path, line, f"{REQUEST_COLUMNS[at]} {row[at][:60]!r}", f"a whole number up to {_LONGEST:,}, or a blank"
        )
    return int(value)


def _mistake(path: Path, line: int, found: str, expected: str) -> None:
    raise ConfigError([f"{path}: line {line}: found {found}; expected: {expected}"])


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv")
