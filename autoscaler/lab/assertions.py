"""Assertions on a scorecard: `slo_attainment>=0.99`, `flaps<=4`, as a check in CI wants them.

Does: read them, and say which failed by how much. Does not: exit.
Invariant: a figure that is not known fails every assertion on it: nothing is held by default.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from autoscaler.config.mistakes import close_match
from autoscaler.domain.faults import ConfigError
from autoscaler.lab.scorecard import METRICS, Scorecard

_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM: Final = re.compile(r"\s*(\w+)\s*(>=|<=|==|>|<)\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(%?)\s*")


class Assertion(NamedTuple):
    """One bound on one figure."""

    text: str
    metric: str
    sign: str
    bound: float

    def failure(self, card: Scorecard) -> str:
        """How it failed, in one line; empty when it holds."""
        value = getattr(card, self.metric)
        if value is None:
            return f"{self.text}: {self.metric} is not known, nothing got that far"
        if _COMPARE[self.sign](value, self.bound):
            return ""
        away = abs(value - self.bound)
        side = f"{away:.4g} {'above' if value > self.bound else 'below'}" if away else "just that"
        return f"{self.text}: {self.metric} is {value:.6g}, {side}"


def read_assertions(texts: Sequence[str]) -> list[Assertion]:
    """The assertions as written. Raises ConfigError with every mistake and the list of figures."""
    found, mistakes = [], []
    for text in texts:
        match = _FORM.fullmatch(text)
        if match is None:
            mistakes.append(f"assert: found {text[:60]!r}; allowed: FIGURE>=NUMBER, with >=, <=, >, < or ==")
            continue
        metric, sign, number, percent = match.groups()
        if metric not in METRICS:
            told = f"found {metric[:60]!r}{close_match(metric, METRICS)}"
            mistakes.append(f"assert: {told}; allowed: {', '.join(METRICS)}")
            continue
        found.append(Assertion(text.strip(), metric, sign, float(number) / (100.0 if percent else 1.0)))
    if mistakes:
        raise ConfigError(mistakes)
    return found
