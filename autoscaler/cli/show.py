"""How a command shows things: aligned text for people, one JSON document for programs.

Does: tables, ages, JSON, and making foreign text safe for a terminal. Does not: fetch or compute anything.
Invariant: no control character of somebody else's text reaches the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def clean(text: object) -> str:
    """The text with every control character shown as a question mark."""
    return "".join(each if each.isprintable() else "?" for each in str(text))


def document(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=True, sort_keys=False, default=str))


def note(text: str) -> None:
    """A remark beside the output, on standard error."""
    print(clean(text), file=sys.stderr)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns aligned to the left, two blanks apart; the last one is as long as it is."""
    lines = [list(head), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def age(seconds: object) -> str:
    """`12s`, `3m5s`: an age in words, `?` when it is not known."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return "?"
    from autoscaler.config.durations import format_duration

    return format_duration(max(0, round(seconds))) or "0s"


def number(value: object) -> str:
    """`-` for nothing, whole numbers without a fraction."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
