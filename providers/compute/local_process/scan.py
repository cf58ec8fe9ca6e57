"""One look at this machine's processes: which of them carry owner tags.

Does: read tags from environments, and from records where an environment is not readable (yet, or any more).
Does not: start or signal anything; reading changes nothing.
Invariant: a process counts only if the tag LEADER names its own pid and start, or its record does: children inherit
the tags, a later process may get the same number, and neither is taken for the replica.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import psutil

from autoscaler.domain.base import InstanceId, Instant, Token
from autoscaler.domain.faults import Unreachable
from autoscaler.domain.replica import Instance, InstanceState
from providers._shared.detached import LEADER
from providers._shared.processes import Mark, is_alive, read_record, start_of

_PREFIX: Final = "AUTOSCALER_TAG_"


class Tags(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns a process and what it was started for. `launched_at`: seconds since 1970."""

    installation: str
    pool: str
    token: str
    index: int
    instance: str
    offer: str
    zone: str
    address: str
    port: int
    launched_at: float

    def to_env(self) -> dict[str, str]:
        """As environment variables."""
        return {f"{_PREFIX}{name.upper()}": str(value) for name, value in msgspec.structs.asdict(self).items()}

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Tags | None:
        """From environment variables; None when they are not (all) there or not ours."""
        found = {name: env[key] for name in cls.__struct_fields__ if (key := f"{_PREFIX}{name.upper()}") in env}
        try:
            return msgspec.convert(found, cls, strict=False)
        except msgspec.ValidationError:
            return None


class Machine(NamedTuple):
    """A live process that leads its session and carries tags."""

    mark: Mark
    tags: Tags

    def as_instance(self, *, stopping: bool, detail: str = "") -> Instance:
        """As the compute port shows it: a process runs as soon as it is there."""
        tags = self.tags
        return Instance(
            id=InstanceId(tags.instance),
            token=Token(tags.token),
            offer=tags.offer,
            zone=tags.zone,
            state=InstanceState.STOPPING if stopping else InstanceState.RUNNING,
            launched_at=Instant(tags.launched_at),
            address=tags.address,
            ports=(tags.port,),
            boot=f"{self.mark.pid}:{self.mark.started}",
            epoch=tags.token.partition("-")[0],
            detail=detail,
        )


def scan(records: Path) -> tuple[Machine, ...]:
    """All machines of this user, of every installation, in the order of their ids. Blocks; raises Unreachable."""
    try:
        pids = psutil.pids()
    except (OSError, psutil.Error) as error:
        raise Unreachable(f"cannot list this machine's processes: {error}") from error
    found = {machine.mark.pid: machine for pid in pids if (machine := _leader(pid)) is not None}
    for machine in _recorded(records):
        # Between fork and exec, or when a program wrote over its environment: the record names the same process.
        found.setdefault(machine.mark.pid, machine)
    return tuple(sorted(found.values(), key=lambda one: (one.tags.instance, one.mark.pid)))


def stragglers(machines: tuple[Machine, ...]) -> dict[Mark, Tags]:
    """What replicas left behind that ended by themselves: leaders that are gone, with the tags of their children."""
    alive = {machine.mark for machine in machines}
    left: dict[Mark, Tags] = {}
    for pid in psutil.pids():
        env = _environment(pid)
        leader, tags = _leader_in(env), Tags.from_env(env)
        if leader is not None and tags is not None and leader not in alive and not is_alive(leader):
            left[leader] = tags
    return left


def _leader(pid: int) -> Machine | None:
    try:
        if os.getsid(pid) != pid:
            return None
    except OSError:
        return None
    env = _environment(pid)
    tags, leader = Tags.from_env(env), _leader_in(env)
    if tags is None or leader is None or leader.pid != pid:
        return None
    started = start_of(pid)
    if not started or leader.started not in {"", started}:  # "": a system without /proc cannot tell itself
        return None
    return Machine(Mark(pid, started), tags)


def _environment(pid: int) -> Mapping[str, str]:
    """The environment of a process of the same user; empty when it is another's, gone, or not to be read."""
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        if process.uids().effective == os.geteuid():
            return process.environ()
    return {}


def _leader_in(env: Mapping[str, str]) -> Mark | None:
    pid, _, started = env.get(LEADER, "").partition(":")
    return Mark(int(pid), started) if pid.isdigit() else None


def _recorded(records: Path) -> Iterator[Machine]:
    for path in records.glob("*.json"):
        record = read_record(path)
        if record is None or not is_alive(record.mark):
            continue
        with contextlib.suppress(msgspec.ValidationError):
            yield Machine(record.mark, msgspec.convert(record.tags, Tags, strict=False))
