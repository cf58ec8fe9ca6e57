"""The type hints of a Struct, for two readers: pydantic, which checks, and a person, who is told what is allowed.

Does: translate NewTypes, durations, enums, literals, optionals, containers and msgspec.Meta constraints.
Does not: validate anything itself. Invariant: what `allowed` says is what `to_pydantic` accepts.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from pydantic import BeforeValidator, Field, PlainValidator, Strict, TypeAdapter, ValidationError

from autoscaler.config import durations
from autoscaler.config.mistakes import one_of
from autoscaler.domain.base import Duration
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Pace, ScaleIn, ScaleOut

#: Other names for a signal, as the trade uses them.
SIGNAL_ALIASES = {"latency_p95": "e2e_s_p95"}

Build = Callable[[type[msgspec.Struct], object], msgspec.Struct]


class Hint(NamedTuple):
    """A type as annotated, or Any where nothing is known."""

    type: Any


class Setting(NamedTuple):
    """One field of a Struct: `key` in the file, `attribute` in Python, its type, and its default."""

    key: str
    attribute: str
    type: Any
    required: bool
    default: Any


#: Bounds that the domain leaves to its constructors, stated here so that each mistake is told with its own path.
LIMITS: dict[tuple[type[msgspec.Struct], str], msgspec.Meta] = {
    (Pace, "tick"): msgspec.Meta(gt=0),
    (Pace, "stale_after"): msgspec.Meta(gt=0),
    (Pace, "launch_deadline"): msgspec.Meta(gt=0),
    (Pace, "breaker_after"): msgspec.Meta(ge=1),
    (ScaleOut, "max_step"): msgspec.Meta(ge=1),
    (ScaleOut, "max_growth"): msgspec.Meta(ge=0, le=100),
    (ScaleIn, "max_step"): msgspec.Meta(ge=1),
}


def settings_of(struct_type: type[msgspec.Struct]) -> Iterator[Setting]:
    """The fields of a Struct in their order."""
    for field in msgspec.structs.fields(struct_type):
        factory = field.default_factory
        default = field.default if factory is msgspec.NODEFAULT else factory()
        limit = LIMITS.get((struct_type, field.name))
        hint = field.type if limit is None else Annotated[field.type, limit]
        yield Setting(field.encode_name, field.name, hint, field.required, default)


def _plain(hint: Any) -> tuple[Any, list[msgspec.Meta]]:
    """The hint without NewType and Annotated, and the constraints that stood there."""
    metas: list[msgspec.Meta] = []
    while hint is not Duration:
        if get_origin(hint) is Annotated:
            hint, *extra = get_args(hint)
            metas.extend(each for each in extra if isinstance(each, msgspec.Meta))
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        else:
            break
    return hint, metas


def _branches(hint: Any) -> list[Any]:
    return list(get_args(hint)) if get_origin(hint) in {Union, types.UnionType} else [hint]


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


_SEQUENCES = (list, Sequence, Collection)
_SETS = (set, frozenset, AbstractSet)


def to_pydantic(hint: Any, build: Build) -> Any:
    """The same type for pydantic. `build` makes a nested Struct from a mapping or raises ValueError."""
    plain, metas = _plain(hint)
    made = _converted(plain, build)
    return Annotated[made, Field(**limits)] if (limits := _limits(metas)) else made


def _unaliased(value: object) -> object:
    return SIGNAL_ALIASES.get(value, value) if isinstance(value, str) else value


def _limits(metas: Sequence[msgspec.Meta]) -> dict[str, Any]:
    names = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")
    return {name: value for meta in metas for name in names if (value := getattr(meta, name)) is not None}


def _converted(hint: Any, build: Build) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Duration:
        return Annotated[float, BeforeValidator(durations.parse_duration)]
    if hint is Signal:
        return Annotated[Signal, BeforeValidator(_unaliased)]
    if _is_struct(hint):
        return Annotated[Any, PlainValidator(lambda value: build(hint, value))]
    if hint in {int, str, bool, float}:
        return Annotated[hint, Strict(), Field(allow_inf_nan=False)] if hint is float else Annotated[hint, Strict()]
    if origin in {Union, types.UnionType}:
        return _union(hint, build)
    if origin is tuple:
        return _tuple(inner, build)
    if origin in _SEQUENCES:
        return list[to_pydantic(inner[0], build)]  # type: ignore[misc]
    if origin in _SETS:
        return frozenset[to_pydantic(inner[0], build)]  # type: ignore[misc]
    if origin in {dict, Mapping}:
        return dict[to_pydantic(inner[0], build), to_pydantic(inner[1], build)]  # type: ignore[misc]
    return hint


def _tuple(inner: tuple[Any, ...], build: Build) -> Any:
    if len(inner) == 2 and inner[1] is Ellipsis:
        return tuple[to_pydantic(inner[0], build), ...]  # type: ignore[misc]
    return tuple[tuple(to_pydantic(each, build) for each in inner)]  # type: ignore[misc]


def _union(hint: Any, build: Build) -> Any:
    """An optional type stays one (its mistakes keep their path); other unions try one branch after the other."""
    branches = [each for each in _branches(hint) if each is not type(None)]
    if len(branches) == 1:
        return to_pydantic(branches[0], build) | None
    adapters = [TypeAdapter[Any](to_pydantic(each, build)) for each in branches]
    optional = len(branches) < len(_branches(hint))

    def first_that_fits(value: object) -> Any:
        if value is None and optional:
            return None
        for adapter in adapters:
            try:
                return adapter.validate_python(value)
            except ValidationError:
                continue
        raise ValueError(f"allowed: {allowed(Hint(hint))}")

    return Annotated[Any, PlainValidator(first_that_fits)]


def hint_at(hint: Hint, part: str | int) -> Hint:
    """The type of a member: a Struct's field, an element, a value; Any when nothing is known."""
    plain, _ = _plain(hint.type)
    for branch in _branches(plain):
        here, _ = _plain(branch)
        if _is_struct(here):
            found = [setting.type for setting in settings_of(here) if setting.key == part]
            if found:
                return Hint(found[0])
        elif (inner := get_args(here)) and get_origin(here) is not Literal:
            return Hint(inner[-1] if get_origin(here) in {dict, Mapping} else inner[0])
    return Hint(Any)


_WORDS: dict[Any, str] = {
    Duration: durations.ALLOWED,
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "nothing",
    Any: "any value",
}


def allowed(hint: Hint) -> str:
    """What may stand there, in words: `one of act, advise`, `a whole number, at least 0`."""
    plain, metas = _plain(hint.type)
    described = next((meta.description for meta in metas if meta.description), None)
    if described is not None:
        return described
    words = _allowed(plain)
    for name, value in _limits(metas).items():
        words += ", not empty" if (name, value) == ("min_length", 1) else f", {_LIMIT_WORDS[name]} {_number(value)}"
    return words


def _number(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


_LIMIT_WORDS = {
    "gt": "more than",
    "ge": "at least",
    "lt": "less than",
    "le": "at most",
    "multiple_of": "a multiple of",
    "pattern": "of the form",
    "min_length": "of at least length",
    "max_length": "of at most length",
}


def _allowed(plain: Any) -> str:
    if isinstance(plain, type) and issubclass(plain, enum.Enum):
        return one_of(str(each.value) for each in plain)
    origin, inner = get_origin(plain), get_args(plain)
    if origin is Literal:
        return one_of(str(each) for each in inner)
    if origin in {Union, types.UnionType}:
        return " or ".join(allowed(Hint(each)) for each in _branches(plain))
    if origin in {dict, Mapping} or plain in {dict, Mapping} or _is_struct(plain):
        return "a mapping"
    if origin is tuple or origin in _SEQUENCES or origin in _SETS:
        return f"a list of: {allowed(Hint(inner[0]))}" if inner else "a list"
    return _WORDS.get(plain, getattr(plain, "__name__", "a value"))
