"""How a mistake reads: `pools[0].capacity.min: found 5, ...; allowed: 0 to 3`, on one line, with no secret in it.

Does: paths, what was found in short, close matches, and what looks like a secret. Does not: find mistakes.
Invariant: a value under a key that names a secret, or that has the form of one, is never shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Final, NewType

Path = NewType("Path", str)
ROOT: Final = Path("")

_SHOWN_LONGEST: Final = 60
_SECRET_KEY: Final = re.compile(
    r"(?:^|[_\-.])(?:token|password|passwd|passphrase|secret|api_?key|access_?key|private_?key|bearer|credentials?|authorization|cookie)$",
    re.IGNORECASE,
)
_SECRET_VALUE: Final = re.compile(
    r"-----BEGIN|\bAKIA[0-9A-Z]{12,}|\bgh[pousr]_\w{16,}|\bhf_\w{16,}|\bsk-[\w-]{16,}|\bBearer\s+\S{8,}"
    r"|\bey[\w-]{10,}\.ey[\w-]{10,}\.|://[^/\s:@]*:[^/\s@]+@"
)


def at(path: str, key: str | int) -> Path:
    """The path of a member: `pools[0].name`. A key with odd characters is quoted."""
    if isinstance(key, int):
        return Path(f"{path}[{key}]")
    plain = key if re.fullmatch(r"[\w\-]{1,60}", key) else repr(key[:_SHOWN_LONGEST])
    return Path(f"{path}.{plain}" if path else plain)


def is_secret_key(key: str) -> bool:
    """Whether a key names a secret itself, not the place of one (`token`, not `token_file`)."""
    return _SECRET_KEY.search(key) is not None


def is_secret_value(value: object) -> bool:
    """Whether a text has the form of a well-known secret, or is an address with a password in it."""
    return isinstance(value, str) and _SECRET_VALUE.search(value) is not None


def shown(value: object, path: str = "") -> str:
    """A value in a few words, for `found ...`; hidden when it may be a secret."""
    if path and is_secret_key(path):
        return "a value that is not shown"
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return "a value that is not shown" if is_secret_value(value) else _quoted(value)
        case int() | float():
            return _number(value)
        case dict():
            return "an empty mapping" if not value else f"a mapping with {len(value)} keys"
        case list() | tuple():
            return "an empty list" if not value else f"a list of {len(value)}"
        case _:
            return f"a {type(value).__name__}"


def _number(value: float) -> str:
    try:
        text = str(value)
    except ValueError:  # Python prints no int of more than 4,300 digits
        return "a very large number"
    return text if len(text) <= _SHOWN_LONGEST else "a very large number"


def _quoted(text: str) -> str:
    short = text if len(text) <= _SHOWN_LONGEST else text[:_SHOWN_LONGEST] + "..."
    return repr(short)


def close_match(word: str, words: Iterable[str]) -> str:
    """` (did you mean 'capacity'?)`, or an empty text."""
    found = difflib.get_close_matches(word[:_SHOWN_LONGEST], list(words), n=1, cutoff=0.6)
    return f" (did you mean '{found[0]}'?)" if found else ""


def unknown(path: str, key: str, known: Iterable[str]) -> str:
    """The mistake of a key that nothing reads."""
    words = sorted(known)
    return f"{at(path, key)}: unknown setting{close_match(key, words)}; allowed: {', '.join(words) or 'none'}"


def one_of(words: Iterable[str]) -> str:
    """`one of a, b, c`, or the only one."""
    listed = list(words)
    return listed[0] if len(listed) == 1 else f"one of {', '.join(listed)}"


def literal_secrets(value: object, path: str = "") -> Iterator[str]:
    """Every secret written out in the file, as a mistake that names the alternative; never the secret."""
    if isinstance(value, dict):
        for key, inner in value.items():
            here = at(path, key if isinstance(key, str) else str(key))
            if isinstance(key, str) and isinstance(inner, str | int | float) and is_secret_key(key):
                yield _refused(here, key)
            else:
                yield from literal_secrets(inner, here)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from literal_secrets(inner, at(path, index))
    elif is_secret_value(value):
        yield _refused(path, "")


def _refused(path: str, key: str) -> str:
    if path == "admin.token":
        mend = "admin.token_file, or the environment variable AUTOSCALER_ADMIN_TOKEN"
    elif path == "ledger":
        mend = "an address with no password here, and the whole address in the environment variable AUTOSCALER_LEDGER"
    elif key:
        mend = f"{key}_file (a mounted file) or {key}_env (the name of an environment variable), where the kind has it"
    else:
        mend = "the provider's own file or environment variable"
    return f"{path}: found a secret written out in the file; allowed: {mend}"
