"""Durations as people write them: `30s`, `5m`, `2h`, `1d`, `1h30m`, `250ms`, or a plain number of seconds.

Does: translate both ways. Does not: know instants, calendars or time zones.
Invariant: a duration is finite, not negative, and at most ten years; `parse_duration(format_duration(d)) == d`.
"""

from __future__ import annotations

import math
import re
from typing import Final

from autoscaler.domain.base import Duration

#: What a message says is allowed.
ALLOWED: Final = "a duration such as 30s, 5m, 2h or 1d, or a number of seconds"
#: Longer is taken for a slip of the unit, seconds.
LONGEST: Final = 10 * 365 * 86400.0

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_NUMBER: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_TEXT_LONGEST: Final = 64


def parse_duration(value: object) -> Duration:
    """Seconds from `30s`, `1h30m`, `0.5` or a number; raises ValueError, whose text says what is allowed."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"allowed: {ALLOWED}")  # noqa: TRY004 - pydantic takes a ValueError for a mistake
    seconds = _of_text(value.strip()) if isinstance(value, str) else _of_number(value)
    if not math.isfinite(seconds) or not 0 <= seconds <= LONGEST:
        raise ValueError("allowed: 0 s to 3650 days")
    return Duration(seconds)


def _of_number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int of a thousand digits
        return math.inf


def _of_text(text: str) -> float:
    if len(text) <= _TEXT_LONGEST:
        if _NUMBER.fullmatch(text):
            return float(text)
        parts = list(_PART.finditer(text))
        if parts and "".join(part.group() for part in parts) == text:
            return math.fsum(float(part[1]) * _UNITS[part[2]] for part in parts)
    raise ValueError(f"allowed: {ALLOWED}")


def format_duration(seconds: float) -> str:
    """The shortest text that reads back as the same duration: `90s` is `1m30s`, 0.25 is `0.25s`."""
    whole = round(seconds)
    if seconds < 1 or abs(seconds - whole) > 1e-9:
        return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
