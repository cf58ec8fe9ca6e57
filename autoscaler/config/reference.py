"""docs/config.md, made from the schema and the installed modules, so that it cannot drift (a test compares).

Does: list every setting with what is allowed and its default. Does not: explain how to choose.
Invariant: equal code gives equal text; a setting that the schema has is in the text.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import msgspec

from autoscaler.config import modules, schema
from autoscaler.config.durations import format_duration
from autoscaler.config.environment import variables
from autoscaler.config.hints import Hint, Setting, allowed, settings_of
from autoscaler.config.modules import Group
from autoscaler.domain.base import Duration
from autoscaler.domain.faults import ConfigError
from autoscaler.domain.pool import DrainRule, Pace, ScaleIn, ScaleOut

_INTRO: Final = """# Settings

This page is made from the code: `python -m autoscaler.config.reference > docs/config.md`. A test compares the two.

One YAML file, by default `autoscaler.yaml` in the working folder (`--config`, or `AUTOSCALER_CONFIG`). Paths in it are
relative to its own folder. Every mistake is told at once, with its path, what was found and what is allowed.
Durations are `30s`, `5m`, `2h`, `1d`, `1h30m`, `250ms`, or a plain number of seconds.

A secret is never written in the file: it is refused there. It comes from the environment or from a mounted file.

## Environment

Laid over the file, setting by setting; `__` goes one section deeper.
"""

_SECTIONS: Final[tuple[tuple[str, type[msgspec.Struct]], ...]] = (
    ("The file", schema.FileSection),
    ("`admin`", schema.AdminSection),
    ("`log`", schema.Log),
    ("A pool: `pools[]`", schema.PoolSection),
    ("`capacity`", schema.CapacitySection),
    ("`budget`", schema.BudgetSection),
    ("An offer: `offers[]`", schema.OfferSection),
    ("`ready_when`", schema.ReadySection),
    ("A balancer: `balancers[]`", schema.BalancerSection),
    ("`telemetry`", schema.TelemetrySection),
    ("A policy: `policies[]`", schema.PolicySection),
    ("`pace`", Pace),
    ("`pace.scale_out`", ScaleOut),
    ("`pace.scale_in`", ScaleIn),
    ("`drain`", DrainRule),
)

_GROUPS: Final = (
    (Group.COMPUTE, "Computes: `compute` of an offer"),
    (Group.BALANCER, "Balancers"),
    (Group.TELEMETRY, "Telemetry"),
    (Group.PROBE, "Probes: `kind` of `ready_when`"),
    (Group.LEDGER, "Ledgers: `ledger: {url: ...}`, or the address alone; the kind is the address's scheme"),
    (Group.POLICY, "Policies"),
)


def reference() -> str:
    """The whole page."""
    lines = [_INTRO, *(f"- `{name}`" for name in variables())]
    lines += ["- `AUTOSCALER_CONFIG`: the file itself"]
    for title, struct in _SECTIONS:
        lines += ["", f"## {title}", "", *_described(struct)]
    for group, title in _GROUPS:
        lines += ["", f"## {title}"]
        for kind in modules.kinds(group):
            if modules.is_ours(group, kind):
                lines += _kind(group, kind)
    return "\n".join(lines) + "\n"


def _kind(group: Group, kind: str) -> list[str]:
    """One provider or policy; what is not installed is named only."""
    try:
        struct = modules.settings_type(modules.load(group, kind, kind), kind, kind)
    except ConfigError:
        return ["", f"### `{kind}`", "", "Its package is not installed here."]
    return ["", f"### `{kind}`", "", *_described(struct)]


def _described(struct: type[msgspec.Struct]) -> Iterator[str]:
    yield inspect.cleandoc(struct.__doc__ or "")
    yield ""
    settings = list(settings_of(struct))
    if not settings:
        yield "It has no settings of its own."
        return
    yield "| setting | allowed | default |"
    yield "|---|---|---|"
    for setting in settings:
        cells = (f"`{setting.key}`", allowed(Hint(setting.type)), _default(setting))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(setting: Setting) -> str:
    value = setting.default
    if setting.required:
        return "needed"
    if setting.type is Duration or getattr(setting.type, "__origin__", None) is Duration:
        return f"`{format_duration(value)}`"
    if isinstance(value, msgspec.Struct):
        return "see below"
    return _plain(value)


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Enum):
        value = value.value
    if value in ("", (), {}, frozenset()):
        return "empty"
    return f"`{msgspec.json.encode(value).decode()}`"


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201 - it is a command
