"""A section that a provider or policy completes: common settings here, its own Settings beside them.

Does: split one mapping between the two, check both, and give a Choice. Does not: check one section against another.
Invariant: a key is read by the common part, by the kind's Settings, or by both; else it is a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from autoscaler.config import modules
from autoscaler.config.hints import settings_of
from autoscaler.config.mistakes import at, shown
from autoscaler.config.modules import Group
from autoscaler.config.schema import Choice, PolicySection
from autoscaler.config.validate import validate
from autoscaler.domain.faults import ConfigError, InvariantBroken
from autoscaler.ports.policy import Policy


class Form(NamedTuple):
    """How a section of one group is written: its common Struct, and the key that holds the kind."""

    group: Group
    common: type[msgspec.Struct]
    key: str = "kind"


class Section(NamedTuple):
    """A checked section: `common` and `choice` are there exactly when its part has no mistake."""

    common: Any
    choice: Choice | None
    mistakes: list[str]


def read_section(form: Form, mapping: object, path: str) -> Section:
    """Check one section; raises nothing for bad input."""
    if not isinstance(mapping, Mapping):
        return Section(None, None, [f"{path}: found {shown(mapping, path)}; allowed: a mapping with {form.key}"])
    mine = {setting.key for setting in settings_of(form.common)}
    common, mistakes = validate(form.common, {key: mapping[key] for key in mapping if key in mine}, path)
    kind = mapping.get(form.key, _default_kind(form))
    if not isinstance(kind, str):
        return Section(common, None, mistakes)
    try:
        module = modules.load(form.group, kind, at(path, form.key))
        settings = modules.settings_type(module, kind, at(path, form.key))
    except ConfigError as error:
        return Section(common, None, [*mistakes, *error.mistakes])
    theirs = {setting.key for setting in settings_of(settings)}
    rest = {key: mapping[key] for key in mapping if key != form.key and (key not in mine or key in theirs)}
    checked, wrong = validate(settings, rest, path, also=mine)
    # A key of both parts must not be reported twice.
    mistakes += [mistake for mistake in wrong if mistake not in mistakes]
    choice = None if checked is None else Choice(kind=kind, settings=checked, path=path)
    return Section(common, choice, mistakes)


def _default_kind(form: Form) -> object:
    return next((setting.default for setting in settings_of(form.common) if setting.key == form.key), None)


POLICY = Form(Group.POLICY, PolicySection)


def read_policy(mapping: object, path: str) -> Section:
    """Check a policy and, below a composing one, its children under `of`."""
    section = read_section(POLICY, mapping, path)
    inside = mapping.get("of") if isinstance(mapping, Mapping) else None
    composes = section.choice is not None and any(
        setting.key == "of" for setting in settings_of(type(section.choice.settings))
    )
    if not composes or not isinstance(inside, list):
        return section
    mistakes = list(section.mistakes)
    if not inside:
        mistakes.append(f"{at(path, 'of')}: found an empty list; allowed: at least one policy")
    children = [read_policy(child, at(at(path, "of"), index)) for index, child in enumerate(inside)]
    mistakes += [mistake for child in children for mistake in child.mistakes]
    if mistakes or section.choice is None:
        return Section(section.common, None, mistakes)
    chosen = tuple(child.choice for child in children if child.choice is not None)
    return Section(section.common, msgspec.structs.replace(section.choice, children=chosen), [])


def build_policy(choice: Choice) -> Policy:
    """The policy of a choice, its children first; raises ConfigError at its path."""
    build: Any = modules.load(Group.POLICY, choice.kind, choice.path).build
    children = [build_policy(child) for child in choice.children]
    try:
        policy: Policy = build(choice.settings, children) if children else build(choice.settings)
    except (ValueError, TypeError, InvariantBroken) as error:
        raise ConfigError([f"{choice.path}: {str(error).partition(chr(10))[0]}; allowed: see its settings"]) from None
    return policy


def scope_of(choice: Choice, group: Group) -> str:
    """The account and region of a compute choice, as its module says; raises ConfigError."""
    return _asked(choice, group, "scope", "")


def target_of(choice: Choice, group: Group) -> str:
    """What a balancer choice acts on: `target(settings)` of its module, else the telling settings, else all of them."""
    telling = {
        key: value
        for key, value in msgspec.to_builtins(choice.settings).items()
        if key in _TARGET_KEYS and value not in (None, "")
    }
    whole = telling or msgspec.to_builtins(choice.settings)
    return _asked(choice, group, "target", msgspec.json.encode(whole, order="deterministic").decode())


#: Settings that name what a balancer acts on, where its module does not say so itself.
_TARGET_KEYS = frozenset(
    {"target", "target_group", "listen", "port", "cluster", "backend", "backend_service", "upstream", "url", "region"}
)


def _asked(choice: Choice, group: Group, function: str, default: str) -> str:
    module = modules.load(group, choice.kind, choice.path)
    answer = getattr(module, function, None)
    if not callable(answer):
        return default
    try:
        return str(answer(choice.settings))
    except (ValueError, InvariantBroken) as error:
        raise ConfigError([f"{choice.path}: {str(error).partition(chr(10))[0]}; allowed: see its settings"]) from None
