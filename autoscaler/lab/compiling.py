"""How the lab's inner loops become machine code, once, and kept for the next run.

numba keeps code by the time of the one file that a function stands in, and would not see that a function it calls in
another file has changed. So what is kept is kept under a name made of the text of all files that hold such functions.

Does: compile and keep. Does not: hold any function of the simulation.
Invariant: code is never taken from a different text of any of these files.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_HERE: Final = Path(__file__).parent
_SOURCES: Final = ("compiling.py", "dispatch.py", "kernel.py", "metering.py")


def _folder() -> str:
    texts = b"".join((_HERE / name).read_bytes() for name in _SOURCES)
    return str(_HERE / "__pycache__" / f"lab-{zlib.crc32(texts):08x}")


_FOLDER: Final = _folder()
# No function of ours makes an array, so none has to be counted: `_nrt` off leaves out a count up and down for every
# array of the state at every call, four fifths of a run.
_njit: Final[Any] = numba.njit
_OPTIONS: Final[dict[str, Any]] = {"error_model": "numpy", "_nrt": False}


def entry(function: F) -> F:
    """A function that Python calls: compiled at its first call, with all inner ones that it needs.

    Kept beside the file, or in the user's cache where that is read-only.
    """
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = _FOLDER
    try:
        return cast("F", _njit(cache=True, **_OPTIONS)(function))
    finally:
        config.CACHE_DIR = before


def inner(function: F) -> F:
    """A function that compiled ones alone call: without the way in from Python, which takes longest to compile."""
    return cast("F", _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function))
