"""Which kinds of provider and policy there are, and the module behind one: found by entry point, imported when named.

Does: list kinds from installed metadata, import one, and say in one line why it cannot be used.
Does not: build anything. Invariant: only a kind that the user named is imported.
"""

from __future__ import annotations

import functools
import importlib
from enum import StrEnum
from importlib import metadata
from types import ModuleType
from typing import Any, Final

import msgspec

from autoscaler.config.mistakes import close_match
from autoscaler.domain.faults import ConfigError

#: The distribution whose policies run inline; others run in a worker process.
OURS: Final = "llm-pool-autoscaler"


#: What importing somebody's module may raise.
_IMPORT_FAULTS: Final = (
    ImportError,
    SyntaxError,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    OSError,
    RuntimeError,
)


class Group(StrEnum):
    """The groups of entry points, each a port."""

    COMPUTE = "autoscaler.compute"
    BALANCER = "autoscaler.balancer"
    TELEMETRY = "autoscaler.telemetry"
    PROBE = "autoscaler.probe"
    LEDGER = "autoscaler.ledger"
    POLICY = "autoscaler.policy"


@functools.cache
def _entries() -> dict[Group, dict[str, list[metadata.EntryPoint]]]:
    found: dict[Group, dict[str, list[metadata.EntryPoint]]] = {group: {} for group in Group}
    for group in Group:
        for entry in metadata.entry_points(group=group):
            same = found[group].setdefault(entry.name, [])
            if entry.value not in {other.value for other in same}:  # one path may be scanned twice
                same.append(entry)
    return found


def kinds(group: Group) -> list[str]:
    """The kinds that are installed, sorted."""
    return sorted(_entries()[group])


def is_ours(group: Group, kind: str) -> bool:
    """Whether the kind comes from this distribution."""
    (entry, *_) = _entries()[group][kind]
    return entry.dist is None or entry.dist.name == OURS


def load(group: Group, kind: str, path: str) -> ModuleType:
    """The module of a kind; raises ConfigError at `path` when it is unknown or cannot be imported."""
    entries = _entries()[group].get(kind, [])
    if not entries:
        words = kinds(group)
        choice = f"{close_match(kind, words)}; allowed: {', '.join(words) or 'none is installed'}"
        raise ConfigError([f"{path}: found {kind[:60]!r}{choice}"])
    if len(entries) > 1:
        owners = ", ".join(sorted(entry.dist.name if entry.dist else "?" for entry in entries))
        raise ConfigError([f"{path}: several packages offer {kind!r} ({owners}); allowed: one of them installed"])
    value = entries[0].value.partition(":")[0]
    try:
        return importlib.import_module(value)
    except ModuleNotFoundError as error:
        raise ConfigError([_not_there(kind, value, error, path)]) from None
    except (
        ImportError,
        SyntaxError,
        AttributeError,
        TypeError,
        ValueError,
        LookupError,
        OSError,
        RuntimeError,
    ) as error:
        why = f"cannot be imported: {type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
        raise ConfigError([f"{path}: {kind!r} ({value}) {why}; allowed: a working module"]) from None


def settings_type(module: ModuleType, kind: str, path: str) -> type[msgspec.Struct]:
    """The module's `Settings`; raises ConfigError when it is no msgspec Struct."""
    found: Any = getattr(module, "Settings", None)
    if isinstance(found, type) and issubclass(found, msgspec.Struct) and callable(getattr(module, "build", None)):
        return found
    raise ConfigError([f"{path}: {kind!r} ({module.__name__}) has no Settings Struct and build(); see ports/build.py"])


def _not_there(kind: str, value: str, error: ModuleNotFoundError, path: str) -> str:
    missing = error.name or "a module"
    if value == missing or value.startswith(f"{missing}."):
        return f"{path}: {kind!r} names the module {value}, which is not installed; allowed: a complete installation"
    return f"{path}: {kind!r} needs the package {missing}, which is not installed; allowed: install its extra"
