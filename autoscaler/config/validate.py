"""A mapping checked against any frozen msgspec Struct: the Struct, or every mistake at once.

Does: build a pydantic model from a Struct's own fields (nested Structs, durations, enums, literals, lists, mappings,
constraints in msgspec.Meta), run it, and put each mistake in the words of the file. Does not: know any setting.
Invariant: the Struct's own __post_init__ has the last word, and its refusal is a mistake at its path, not a traceback.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from autoscaler.config.hints import Hint, allowed, hint_at, settings_of, to_pydantic
from autoscaler.config.mistakes import at, is_secret_key, shown, unknown
from autoscaler.domain.faults import ConfigError, InvariantBroken

S = TypeVar("S", bound=msgspec.Struct)


class Refusal(ValueError):
    """Raised by a Struct's __post_init__ to name the field: `Refusal("min", "more than max 3", "0 to 3")`."""

    def __init__(self, field: str, what: str, allowed: str) -> None:
        super().__init__(f"{field}: {what}; allowed: {allowed}")
        self.field, self.what, self.allowed = field, what, allowed


def validate(
    struct_type: type[S], mapping: object, path: str, also: Collection[str] = ()
) -> tuple[S | None, list[str]]:
    """Check `mapping` against `struct_type`; raises nothing for bad input.

    `path`: where it stands in the file. `also`: further settings of the same section, for the message on unknown ones.
    """
    if not isinstance(mapping, Mapping):
        return None, [f"{path}: found {shown(mapping, path)}; allowed: a mapping"]
    try:
        model = _model(struct_type).model_validate(dict(mapping))
        return _built(struct_type, model), []
    except ValidationError as error:
        return None, _told(struct_type, error, path, also)
    except Refusal as error:
        return None, [_refusal(error, mapping, path)]
    except ConfigError as error:
        return None, [mistake if mistake.startswith(path) else f"{path}: {mistake}" for mistake in error.mistakes]
    except (ValueError, TypeError, InvariantBroken) as error:
        return None, [_said_by_struct(struct_type, error, path)]


@functools.cache
def _model(struct_type: type[msgspec.Struct]) -> type[BaseModel]:
    """The pydantic model of a Struct. Own field names are prefixed: a setting may be called `json` or `copy`."""
    fields: dict[str, Any] = {}
    for hint in settings_of(struct_type):
        default = ... if hint.required else None
        fields[f"x_{hint.attribute}"] = (to_pydantic(hint.type, _nested), Field(default, alias=hint.key))
    config = ConfigDict(extra="forbid", validate_default=False, hide_input_in_errors=True, arbitrary_types_allowed=True)
    model: type[BaseModel] = create_model(struct_type.__name__, __config__=config, **fields)
    return model


def _nested(struct_type: type[msgspec.Struct], value: object) -> msgspec.Struct:
    """A nested Struct, or ValidationError of its own, which pydantic files under the right place."""
    if isinstance(value, struct_type):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("allowed: a mapping")  # noqa: TRY004 - pydantic takes a ValueError for a mistake
    made, mistakes = validate(struct_type, value, "")
    if made is None:
        raise NestedMistakes(mistakes)
    return made


class NestedMistakes(ValueError):
    """The mistakes inside a nested Struct, with paths from that Struct on."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


def _built(struct_type: type[S], model: BaseModel) -> S:
    given = {name.removeprefix("x_"): getattr(model, name) for name in model.model_fields_set}
    return struct_type(**given)


def _told(struct_type: type[msgspec.Struct], error: ValidationError, path: str, also: Collection[str]) -> list[str]:
    mistakes: list[str] = []
    found = error.errors(include_url=False, include_context=True, include_input=True)
    for each in found:
        if each["type"] == "too_short" and any(other["loc"][:-1] == each["loc"] for other in found):
            continue  # too short only because an element is wrong, which is told
        location = tuple(part for part in each["loc"] if part != "[key]")
        here, hint = _walk(struct_type, location, path)
        cause = each.get("ctx", {}).get("error")
        if isinstance(cause, NestedMistakes):
            mistakes.extend(_joined(here, mistake) for mistake in cause.mistakes)
        elif each["type"] == "extra_forbidden":
            known = {*also, *(field.key for field in settings_of(struct_type))}
            mistakes.append(unknown(path, str(location[-1]), known))
        elif each["type"] == "missing":
            mistakes.append(f"{here}: missing; allowed: {allowed(hint)}")
        else:
            mistakes.append(_wrong(here, each["input"], hint, cause))
    return mistakes


def _wrong(path: str, found: object, hint: Hint, cause: object) -> str:
    said = _first_line(cause) if isinstance(cause, Exception) else ""
    words = said.removeprefix("allowed: ") if said.startswith("allowed: ") else allowed(hint)
    why = "" if not said or said.startswith("allowed: ") or is_secret_key(path) else f" ({said})"
    return f"{path}: found {shown(found, path)}{why}; allowed: {words}"


def _walk(struct_type: type[msgspec.Struct], location: tuple[str | int, ...], path: str) -> tuple[str, Hint]:
    """The path in the file's words and the type that is expected there."""
    here, hint = path, Hint(struct_type)
    for part in location:
        hint = hint_at(hint, part)
        here = at(here, part)
    return here, hint


def _joined(path: str, mistake: str) -> str:
    if not mistake or mistake.startswith((":", "[")):
        return f"{path}{mistake}"
    return f"{path}.{mistake}"


def _refusal(error: Refusal, mapping: Mapping[str, Any], path: str) -> str:
    here = at(path, error.field)
    found = f"found {shown(mapping[error.field], here)}, " if error.field in mapping else ""
    return f"{here}: {found}{error.what}; allowed: {error.allowed}"


def _said_by_struct(struct_type: type[msgspec.Struct], error: Exception, path: str) -> str:
    """A refusal that begins with `field:` (or `field.inner:`) is filed under that field."""
    text = _first_line(error)
    head = text.partition(":")[0].partition(".")[0]
    known = {setting.key for setting in settings_of(struct_type)}
    return _joined(path, text) if head in known and path else f"{path}: {text}"


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
