"""Options of the command line as settings of the world file: they are laid over it and checked with it.

Does: translate. Does not: check what a value may be (the world file does). Invariant: an option not given changes
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from autoscaler.config.durations import parse_duration
from autoscaler.domain.faults import ConfigError
from autoscaler.lab.settings import TroubleKind

_FAULT: Final = re.compile(r"([a-z_]+)@([^+:,]+)(?:\+([^:,]+))?(?::([^,]+))?((?:,(?:share|factor)=[0-9.]+)*)")


class Wishes(NamedTuple):
    """What the command line says about the world; None or empty: nothing."""

    replica: str | None = None
    cold_start: str | None = None
    strategy: str | None = None
    scale: float | None = None
    start: int | None = None
    faults: Sequence[str] = ()

    def over(self, troubles: object) -> dict[str, Any]:
        """As keys of the world file; `troubles`: those of the file, to which these are added. Raises ConfigError."""
        found: dict[str, Any] = {}
        if self.replica is not None:
            found["hardware"] = {"*": self.replica}
        if self.cold_start is not None:
            found["cold_start"] = self.cold_start
        if self.strategy is not None:
            found["front"] = {"strategy": self.strategy}
        if self.scale is not None:
            found["workload"] = {"scale": self.scale}
        if self.start is not None:
            found["start"] = self.start
        if self.faults:
            known = troubles if isinstance(troubles, list) else []
            found["troubles"] = [*known, *_troubles(self.faults)]
        return found


def _troubles(texts: Sequence[str]) -> list[dict[str, Any]]:
    made, mistakes = [], []
    for text in texts:
        try:
            made.append(_trouble(text))
        except ValueError as error:
            told = f"found {text[:60]!r}" + (f" ({error})" if str(error) else "")
            form = "KIND@AT+FOR, as in telemetry_gap@1h+5m, with :WHERE, ,share=0.5 or ,factor=2 behind it"
            mistakes.append(f"fault: {told}; allowed: {form}; kinds: {', '.join(TroubleKind)}")
    if mistakes:
        raise ConfigError(mistakes)
    return made


def _trouble(text: str) -> dict[str, Any]:
    match = _FAULT.fullmatch(text.strip())
    if match is None:
        raise ValueError
    kind, at, lasts, where, more = match.groups()
    if kind not in set(TroubleKind):
        raise ValueError(f"no kind of fault is called {kind[:40]}")
    found: dict[str, Any] = {"kind": kind, "at_s": parse_duration(at), "for_s": parse_duration(lasts or 0)}
    if where:
        found["where"] = where
    for pair in more.split(",")[1:]:
        key, _, value = pair.partition("=")
        found[key] = float(value)
    return found
