"""The members in a configuration file of HAProxy: server lines between two marks, so that a reload loses nobody.

    backend llama
        balance leastconn
        # autoscaler begin autoscaler.prod.llama
        server ... (ours to write)
        # autoscaler end autoscaler.prod.llama

Does: read and replace the lines between the marks, in one step. Does not: ask HAProxy, or touch any other line.
Invariant: what stands outside the marks is written back byte for byte, with the file's own owner and mode.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from autoscaler.domain.faults import Refused
from providers._shared import files
from providers.balancer.haproxy.settings import Address

_LOCK_WAIT_S: Final = 5.0


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One server line. `weight`: as HAProxy has it."""

    host: str
    port: int
    weight: int


#: Server name to line.
Lines = Mapping[str, Line]


class _Parts(NamedTuple):
    before: str
    between: str
    after: str


def marks(owner: str) -> tuple[str, str]:
    """The two comment lines between which we write."""
    return f"# autoscaler begin {owner}", f"# autoscaler end {owner}"


def at(host: str, port: int) -> str:
    """An address as HAProxy reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read(path: Path, owner: str) -> dict[str, Line]:
    """The servers between the marks. Raises Refused without the marks, Refused or Unreachable for the file system."""
    found = {}
    for text in _split(path, owner).between.splitlines():
        words = text.split()
        if len(words) < 5 or (words[0], words[3]) != ("server", "weight"):
            continue  # not written by us; the next change takes it out
        with contextlib.suppress(ValueError):
            address = Address.read(words[2])
            found[words[1]] = Line(host=address.host, port=address.port, weight=int(words[4]))
    return found


def check(path: Path, owner: str) -> None:
    """Find out whether the file could be kept. Raises Refused; writes nothing."""
    _split(path, owner)
    if not os.access(path.parent, os.W_OK):
        raise Refused(f"servers_file: no permission to write in {path.parent} (the file is replaced in one step)")


def change(path: Path, owner: str, options: str, wanted: Lines) -> None:
    """Replace the lines between the marks. Blocks: call it in a thread. Raises Refused or Unreachable."""
    with files.locked(path.with_name(f".{path.name}.autoscaler.lock"), _LOCK_WAIT_S):
        parts = _split(path, owner)
        text = "".join(
            f"    server {name} {at(line.host, line.port)} weight {line.weight} {options}".rstrip() + "\n"
            for name, line in sorted(wanted.items())
        )
        if text != parts.between:
            _replace(path, f"{parts.before}{text}{parts.after}".encode())


def _split(path: Path, owner: str) -> _Parts:
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise Refused(f"servers_file: there is no {path}; see docs/haproxy.md for what it holds") from None
    except OSError as error:
        raise files.fault_of(error, f"cannot read {path.name}") from error
    except UnicodeDecodeError:
        raise Refused(f"servers_file: {path} is no text") from None
    lines = text.splitlines(keepends=True)
    begin, end = marks(owner)
    places = [[number for number, line in enumerate(lines) if line.strip() == mark] for mark in (begin, end)]
    if [len(each) for each in places] != [1, 1] or places[0][0] > places[1][0]:
        raise Refused(
            f"servers_file: {path} needs the lines {begin!r} and {end!r} once each, in the backend, in this order"
        )
    (first,), (last,) = places
    return _Parts("".join(lines[: first + 1]), "".join(lines[first + 1 : last]), "".join(lines[last:]))


def _replace(path: Path, content: bytes) -> None:
    """As files.write, with the old file's mode and, where we may, its owner."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        old = path.stat()
        with beside.open("wb") as file:
            os.fchmod(file.fileno(), old.st_mode & 0o7777)
            with contextlib.suppress(PermissionError):
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise files.fault_of(error, f"cannot write {path.name}") from error
