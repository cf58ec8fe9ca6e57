"""One YAML file, read with suspicion: a mapping of bounded size, or one clear line.

Does: refuse what is no regular file, too large, binary, not to be trusted, or ambiguous YAML.
Does not: know any setting. Invariant: whatever the bytes, the answer is a mapping or a ConfigError, in bounded time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from autoscaler.domain.faults import ConfigError
from autoscaler.ports.trusted import mistake_in

#: A thousand pools fit in a fraction of this, bytes.
SIZE_MAX: Final = 2 * 1024 * 1024
#: Values in the file, counted with aliases unfolded.
NODES_MAX: Final = 200_000
DEPTH_MAX: Final = 40
_NUMBER_LONGEST: Final = 100

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """The safe loader, less silence about a key that is written twice."""


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        name = f"{key.tag} {key.value}" if isinstance(key, yaml.ScalarNode) else ""
        if name in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key '{key.value}' is written twice", key.start_mark
            )
        if name and key.tag != "tag:yaml.org,2002:merge":
            seen.add(name)
    loader.flatten_mapping(node)
    if len(node.value) > NODES_MAX:  # a merge key of merge keys multiplies in some versions of PyYAML
        raise yaml.constructor.ConstructorError(None, None, "merge keys that unfold to too much", node.start_mark)
    return dict(loader.construct_pairs(node, deep=True))


def _short(construct: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Numbers and dates of a sane length: one in base 60, `1:1:1...`, takes time with the square of its length."""

    def constructed(loader: Any, node: Any) -> Any:
        if isinstance(node, yaml.ScalarNode) and len(node.value) > _NUMBER_LONGEST:
            raise yaml.constructor.ConstructorError(None, None, "a number or date that is too long", node.start_mark)
        return construct(loader, node)

    return constructed


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
for _tag in ("int", "float", "timestamp"):
    _uri = f"tag:yaml.org,2002:{_tag}"
    _Loader.add_constructor(_uri, _short(yaml.SafeLoader.yaml_constructors[_uri]))


def read_text(path: Path, what: str, size_max: int = SIZE_MAX, *, secret: bool = False) -> str:
    """The text of a small regular file that nobody else could have written, or read if `secret`; raises ConfigError."""
    try:
        content = _content(path, what, size_max + 1, secret=secret)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError([f"{path}: cannot be read: {reason}; allowed: the path of {what}"]) from None
    if len(content) > size_max:
        raise ConfigError([f"{path}: larger than {size_max} bytes; allowed: {what} of a bounded size"])
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: byte {error.start} is not UTF-8 text; allowed: {what}"]) from None
    if "\0" in text:
        raise ConfigError([f"{path}: is binary (it holds a NUL byte); allowed: {what}"])
    return text


def _content(path: Path, what: str, most: int, *, secret: bool) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block us
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            raise ConfigError([f"{path}: is no regular file; allowed: the path of {what}"])
        if mistake := mistake_in(path, seen, secret=secret):
            raise ConfigError([f"{path}: {mistake}"])
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def read_mapping(path: Path) -> dict[str, Any]:
    """The file as a mapping with text keys at its top; raises ConfigError with one line."""
    return parse_mapping(read_text(path, "a YAML file"), str(path))


def parse_mapping(text: str, name: str) -> dict[str, Any]:
    """YAML text as a mapping; `name` stands for the file in messages, which never quote its lines."""
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        raise ConfigError([f"{name}{_where(error)}: {_said(error, text)}; allowed: valid YAML"]) from None
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0] if str(error) else "unreadable"
        raise ConfigError([f"{name}: {first[:120]}; allowed: valid YAML"]) from None
    except RecursionError:
        raise ConfigError([f"{name}: nested too deeply; allowed: {DEPTH_MAX} levels"]) from None
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError) as error:
        # A date of month 13, an unhashable key, a number with 5,000 digits: PyYAML lets Python's own errors through.
        raise ConfigError([f"{name}: a value cannot be read ({type(error).__name__}); allowed: valid YAML"]) from None
    if not isinstance(value, dict):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise ConfigError([f"{name}: found {found}; allowed: a mapping with installation, pools and so on"])
    _bounded(value, name)
    wrong = [key for key in value if not isinstance(key, str)]
    if wrong:
        raise ConfigError(
            [f"{name}: the key {str(key)[:60]!r} is no text; allowed: names of settings" for key in wrong]
        )
    return value


def _where(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f":{mark.line + 1}:{mark.column + 1}" if mark else ""


def _said(error: yaml.MarkedYAMLError, text: str) -> str:
    mark = error.problem_mark
    lines = text.splitlines()
    if mark and mark.line < len(lines) and "\t" in lines[mark.line][: mark.column + 1]:
        return "a tab; YAML takes only spaces for indentation"
    return (error.problem or error.context or "unreadable")[:160]


def _bounded(value: object, name: str) -> None:
    """Refuse what unfolds to very much through aliases, or contains itself."""
    count = 0
    stack: list[tuple[object, int]] = [(value, 0)]
    while stack:
        here, depth = stack.pop()
        count += 1
        if count > NODES_MAX:
            raise ConfigError([f"{name}: more than {NODES_MAX} values once aliases are followed; allowed: fewer"])
        if depth > DEPTH_MAX:
            raise ConfigError(
                [f"{name}: nested more than {DEPTH_MAX} levels, or an alias inside itself; allowed: fewer"]
            )
        inner = here.values() if isinstance(here, dict) else here if isinstance(here, list | set | tuple) else ()
        stack.extend((each, depth + 1) for each in inner)
