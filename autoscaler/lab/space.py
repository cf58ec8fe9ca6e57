"""The parameters of a pool that a search may change, by their path in the pool's own section: `policies[0].target`.

Where nobody says which, they are the numbers of its policies' Settings, each from a quarter to four times what it is
now, less what the Settings refuse: they are the only ones who know what may be.

Does: find parameters, narrow their ranges to what is allowed, put values in. Does not: search.
Invariant: a value from a range gives a pool that its config would have taken, or the trial says why not.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from autoscaler.config import modules
from autoscaler.config.durations import parse_duration
from autoscaler.config.hints import settings_of
from autoscaler.config.mistakes import close_match
from autoscaler.config.modules import Group
from autoscaler.domain.base import Duration
from autoscaler.domain.faults import ConfigError
from autoscaler.lab.trial import Chosen
from autoscaler.lab.world_file import Range

_STEP: Final = re.compile(r"([A-Za-z_]\w*)((?:\[\d{1,3}\])*)")
_WIDTH: Final = 4.0
_HALVINGS: Final = 10
_TYPED: Final = re.compile(r"\s*([^=\s]+)\s*=\s*([0-9.]+)\s*\.\.\s*([0-9.]+)\s*(log)?\s*")

Value = float | str | bool


class Parameter(NamedTuple):
    """One parameter: its path, what it is now (None: its default, not known here), and where it is searched."""

    path: str
    now: Value | None
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Value, ...] = ()

    def words(self) -> str:
        """The range in words."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        kind = ", whole" if self.whole else ""
        return f"{self.low:g} to {self.high:g}{kind}{', by factors' if self.log else ''}"


def steps_of(path: str) -> list[str | int]:
    """`policies[0].target` as keys and places. Raises ConfigError."""
    steps: list[str | int] = []
    for part in path.split("."):
        match = _STEP.fullmatch(part)
        if match is None:
            raise ConfigError([f"tune: found {path[:60]!r}; allowed: a path in the pool, such as policies[0].target"])
        steps.append(match[1])
        steps += [int(one) for one in re.findall(r"\d+", match[2])]
    return steps


def look_up(mapping: Mapping[str, Any], path: str) -> Any:
    """What stands at a path; None where nothing does."""
    here: Any = mapping
    for step in steps_of(path):
        try:
            here = here[step]
        except (KeyError, IndexError, TypeError):
            return None
    return here


def present(chosen: Chosen, path: str) -> Any:
    """What a parameter is now: as it is written, else the default that stands in its place; None: neither is known."""
    written = look_up(chosen.mapping, path)
    if written is not None:
        return written
    first, *rest = steps_of(path)
    here: Any = {"pace": chosen.config.pool.pace, "drain": chosen.config.pool.drain}.get(str(first))
    if first == "policies" and rest and isinstance(rest[0], int) and rest[0] < len(chosen.config.policies):
        here, rest = chosen.config.policies[rest[0]].settings, rest[1:]
    for step in rest:
        here = getattr(here, str(step), None)
    return here


def put(mapping: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """A copy of the pool's section with these values. Raises ConfigError for a path that leads nowhere."""
    made: dict[str, Any] = copy.deepcopy(dict(mapping))
    for path, value in values.items():
        *before, last = steps_of(path)
        here: Any = made
        try:
            for step in before:
                here = here.setdefault(step, {}) if isinstance(here, dict) else here[step]
            here[last] = value
        except (KeyError, IndexError, TypeError, AttributeError):
            told = f"found {path[:60]!r}, which leads nowhere"
            raise ConfigError([f"tune: {told}; allowed: a path in the pool"]) from None
    return made


def read_ranges(texts: list[str]) -> dict[str, Range]:
    """`PATH=LOW..HIGH`, with `log` behind it where wanted. Raises ConfigError with every mistake."""
    found, mistakes = dict[str, Range](), []
    for text in texts:
        match = _TYPED.fullmatch(text)
        told = f"found {text[:60]!r}"
        if match is not None:
            path, low, high, log = match.groups()
            try:
                found[path] = Range(low=float(low), high=float(high), log=bool(log))
                continue
            except ValueError as error:
                told += f" ({error})"
        mistakes.append(f"param: {told}; allowed: PATH=LOW..HIGH, as in policies[0].target=1..20")
    if mistakes:
        raise ConfigError(mistakes)
    return found


def space_of(chosen: Chosen, ranges: Mapping[str, Range]) -> list[Parameter]:
    """The parameters to search: those named, else the numbers of the policies. Raises ConfigError for none."""
    if ranges:
        return [_named(chosen, path, one) for path, one in ranges.items()]
    numbers = _numbers(chosen.mapping.get("policies", []), "policies")
    found = [one for path, now in numbers if (one := _around(chosen, path, now)) is not None]
    if not found:
        raise ConfigError(["tune: the policies have no number to search; allowed: --param, or tune in --world"])
    return found


def _named(chosen: Chosen, path: str, given: Range) -> Parameter:
    now = present(chosen, path)
    if given.choices:
        for choice in given.choices:
            _accept(chosen, path, choice)
        return Parameter(path, now, choices=given.choices)
    low, high = given.low or 0.0, given.high or 0.0
    _accept(chosen, path, _kept(low))
    _accept(chosen, path, _kept(high))
    return Parameter(path, _number(now), low, high, given.log, _is_whole(chosen, path, low, high))


def _accept(chosen: Chosen, path: str, value: Value) -> None:
    """Raise ConfigError with the config's own words when it refuses this value."""
    try:
        chosen.changed(put(chosen.mapping, {path: value}))
    except ConfigError as error:
        settings = [key for key in chosen.mapping if isinstance(key, str)]
        hint = close_match(path.partition(".")[0].partition("[")[0], settings)
        raise ConfigError([f"tune: {path}={value} is refused{hint}: {error.mistakes[0]}"]) from None


def _numbers(policies: object, path: str) -> Iterator[tuple[str, float]]:
    """Path and present value of each number above 0 in the policies' Settings, given or by default."""
    for index, mapping in enumerate(policies if isinstance(policies, list) else []):
        here = f"{path}[{index}]"
        kind = str(mapping.get("kind"))
        settings = modules.settings_type(modules.load(Group.POLICY, kind, here), kind, here)
        for setting in settings_of(settings):
            if setting.type in {float, int, Duration}:
                now = _number(mapping.get(setting.key, setting.default))
                if now:
                    yield f"{here}.{setting.key}", now
        yield from _numbers(mapping.get("of"), f"{here}.of")


def _number(value: object) -> float | None:
    """A number or a duration as a number; None for what is neither."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(parse_duration(value)) if isinstance(value, str) else float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _kept(value: float) -> float:
    """A whole number as an int: a setting that is one takes no 3.0."""
    return int(value) if value == int(value) else value


def _allows(chosen: Chosen, path: str, value: float) -> bool:
    try:
        chosen.changed(put(chosen.mapping, {path: _kept(value)}))
    except ConfigError:
        return False
    return True


def _is_whole(chosen: Chosen, path: str, low: float, high: float) -> bool:
    """Whether a number between two is refused, which only a setting of whole numbers does."""
    inside = low + (high - low) * 0.3819660113
    between = inside if inside != int(inside) else inside + 0.25
    return not _allows(chosen, path, between) and low == int(low) and high == int(high)


def _around(chosen: Chosen, path: str, now: float) -> Parameter | None:
    """From a quarter to four times what it is now, less what is refused."""
    whole = _is_whole(chosen, path, math.floor(now), math.ceil(now) + 1.0) and now == int(now)
    ends = []
    for factor in (1.0 / _WIDTH, _WIDTH):
        good, bad = 1.0, factor
        if _allows(chosen, path, _rounded(now * factor, whole=whole)):
            good = factor
        else:
            for _ in range(_HALVINGS):
                middle = math.sqrt(good * bad)
                if _allows(chosen, path, _rounded(now * middle, whole=whole)):
                    good = middle
                else:
                    bad = middle
        ends.append(_rounded(now * good, whole=whole))
    low, high = ends
    return Parameter(path, now, low, high, log=True, whole=whole) if low < high else None


def _rounded(value: float, *, whole: bool) -> float:
    return float(max(1, round(value))) if whole else value
