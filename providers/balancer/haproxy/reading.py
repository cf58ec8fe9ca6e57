"""What HAProxy says of itself, of a backend and of its servers, as values.

Does: ask `show info`, `show servers state` and `show stat`, and read their tables by the names of their columns.
Does not: change anything, or know which servers are ours.
Invariant: a table that ends early, or lacks a column, raises Unreachable; it is never a shorter list.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from autoscaler.domain.faults import Refused, Unreachable
from providers.balancer.haproxy.runtime import Runtime

#: Bits of `srv_admin_state` (HAProxy, management.txt, "show servers state").
_MAINT: Final = 0x01 | 0x02 | 0x20 | 0x40
_DRAIN: Final = 0x08 | 0x10
_OLDEST: Final = (2, 6)


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The process that answers. `uptime_s`: since this process began; a reload begins another one."""

    version: str
    pid: int
    uptime_s: int
    description: str = ""

    @property
    def old(self) -> bool:
        """Whether it cannot add servers with health checks at run time, which came with 2.6."""
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return found is None or (int(found[1]), int(found[2])) < _OLDEST


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server as HAProxy has it. `active`: requests inside and waiting for it. `status`: as on the stats page."""

    name: str
    host: str
    port: int
    weight: int
    admin: int
    status: str
    active: int
    trouble: str = ""

    @property
    def maint(self) -> bool:
        """Whether it is out altogether."""
        return bool(self.admin & _MAINT)

    @property
    def draining(self) -> bool:
        """Whether it was told to take nothing new."""
        return bool(self.admin & _DRAIN)

    @property
    def serves(self) -> bool:
        """Whether it gets new requests now."""
        up = self.status.startswith("UP") or self.status == "no check"
        return up and not self.maint and not self.draining and self.weight > 0


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend with its servers. `algorithm`: its `balance`, "unknown" where HAProxy does not say."""

    algorithm: str
    mode: str
    servers: tuple[Server, ...]


async def info(runtime: Runtime) -> Info:
    """Who answers. Raises as Runtime.ask, and Refused when it is no HAProxy's runtime API."""
    answer = await runtime.ask("show info")
    found = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
    try:
        return Info(
            version=found["Version"],
            pid=int(found["Pid"]),
            uptime_s=int(found["Uptime_sec"]),
            description=found.get("description", ""),
        )
    except (KeyError, ValueError):
        said = answer.partition("\n")[0][:80]
        raise Refused(
            f"what answers at {runtime.where} is not the runtime API of an HAProxy ({said!r}); the socket of its "
            "`stats socket` line is wanted, not the master's (-S)"
        ) from None


async def backend(runtime: Runtime, name: str) -> Backend:
    """The backend and its servers. Raises as Runtime.ask; Refused when there is none of that name."""
    states = {row["srv_name"]: row for row in _states(runtime, await runtime.ask(f"show servers state {name}"), name)}
    rows = list(_rows(runtime, await runtime.ask(f"show stat {name} 6 -1"), name))
    whole = [row for row in rows if row["svname"] == "BACKEND"]
    if not whole:
        raise Unreachable(f"HAProxy at {runtime.where} shows no statistics of backend {name}")
    try:
        servers = tuple(_server(states[row["svname"]], row) for row in rows if row["svname"] in states)
    except (KeyError, ValueError) as error:
        raise _odd(runtime, f"a server of backend {name}: {error}") from error
    return Backend(algorithm=whole[0].get("algo", ""), mode=whole[0].get("mode", ""), servers=servers)


async def backend_row(runtime: Runtime, name: str) -> dict[str, str]:
    """The statistics of a whole backend, as HAProxy names them. Raises as `backend`."""
    for row in _rows(runtime, await runtime.ask(f"show stat {name} 2 -1"), name):
        if row["svname"] == "BACKEND":
            return row
    raise Unreachable(f"HAProxy at {runtime.where} shows no statistics of backend {name}")


def _states(runtime: Runtime, answer: str, name: str) -> Iterator[dict[str, str]]:
    """The rows of `show servers state`: a version, a commented header, one line a server."""
    lines = answer.splitlines()
    if len(lines) < 2 or lines[0] != "1":
        raise _unlike(runtime, answer, name)
    columns = lines[1].removeprefix("# ").split()
    for line in lines[2:]:
        cells = line.split()
        if len(cells) != len(columns):
            raise _odd(runtime, f"a line of `show servers state {name}`")
        yield dict(zip(columns, cells, strict=True))


def _rows(runtime: Runtime, answer: str, name: str) -> Iterator[dict[str, str]]:
    """The rows of `show stat`."""
    if not answer.startswith("# pxname,svname,"):
        raise _unlike(runtime, answer, name)
    lines = answer.removeprefix("# ").splitlines()
    columns = lines[0].split(",")
    for cells in csv.reader(lines[1:]):
        if len(cells) != len(columns):
            raise _odd(runtime, f"a line of `show stat {name}`")
        yield dict(zip(columns, cells, strict=True))


def _server(state: dict[str, str], row: dict[str, str]) -> Server:
    status, check = row["status"], " ".join(part for part in (row["check_status"], row.get("last_chk", "")) if part)
    return Server(
        name=state["srv_name"],
        host=state["srv_addr"],
        port=int(state["srv_port"]),
        weight=int(state["srv_uweight"]),
        admin=int(state["srv_admin_state"]),
        status=status,
        active=int(row["scur"]) + int(row["qcur"] or 0),
        trouble=f"{status} ({check})" if check else status,
    )


def _unlike(runtime: Runtime, answer: str, name: str) -> Refused | Unreachable:
    said = answer.partition("\n")[0][:120]
    if "find backend" in said or "No such proxy" in said or "No such backend" in said:
        return no_backend(runtime, name)
    if "Permission denied" in said:
        return no_admin(runtime)
    return _odd(runtime, repr(said))


def no_backend(runtime: Runtime, name: str) -> Refused:
    """There is no such backend."""
    return Refused(f"the HAProxy at {runtime.where} has no backend {name!r}: set `backend` to one that it has")


def no_admin(runtime: Runtime) -> Refused:
    """The socket's level is too low."""
    return Refused(
        f"the runtime API at {runtime.where} does not have level admin: write `stats socket ... level admin`"
    )


def _odd(runtime: Runtime, what: str) -> Unreachable:
    return Unreachable(f"HAProxy at {runtime.where} answered what this adapter does not understand: {what}")
