"""The endpoint file: who gets requests, in Envoy's EDS format.

Does: read it, change it as a value, write it in one step. Does not: ask Envoy anything.
Invariant: a member is named by its replica; a call about a replica never touches another one at the same address,
except that admitting a replica takes its address over from whoever had it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from autoscaler.domain.base import InstanceId, ReplicaId
from autoscaler.domain.faults import Refused, Unreachable
from autoscaler.domain.replica import Endpoint
from providers._shared import files

_TYPE: Final = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
_LOCK_WAIT_S: Final = 5.0


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One member as the file holds it. `replica` is empty for one that somebody else wrote."""

    replica: ReplicaId
    instance: InstanceId
    host: str
    port: int
    weight: int
    draining: bool = False

    @property
    def address(self) -> tuple[str, int]:
        """What Envoy knows it by."""
        return self.host, self.port


Entries = tuple[Entry, ...]


class _Socket(msgspec.Struct):
    address: str
    port_value: int


class _Address(msgspec.Struct):
    socket_address: _Socket


class _Host(msgspec.Struct):
    address: _Address


class _Owner(msgspec.Struct):
    replica: str = ""
    instance: str = ""


class _Filters(msgspec.Struct):
    autoscaler: _Owner = msgspec.field(default_factory=_Owner)


class _Metadata(msgspec.Struct):
    filter_metadata: _Filters = msgspec.field(default_factory=_Filters)


class _Member(msgspec.Struct):
    endpoint: _Host
    health_status: str = "HEALTHY"
    load_balancing_weight: int = 1
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Locality(msgspec.Struct):
    lb_endpoints: list[_Member] = []


class _Assignment(msgspec.Struct):
    cluster_name: str
    type_: str = msgspec.field(default=_TYPE, name="@type")
    endpoints: list[_Locality] = []


class _File(msgspec.Struct):
    version_info: str
    resources: list[_Assignment]


def read(path: Path) -> Entries:
    """The members, by replica; none when there is no file. Raises Unreachable when the file makes no sense."""
    return _read(path)[1]


def _read(path: Path) -> tuple[int, Entries]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return 0, ()
    except OSError as error:
        raise files.fault_of(error, "cannot read the endpoint file") from error
    try:
        file = msgspec.json.decode(content, type=_File)
        version = int(file.version_info)
    except (msgspec.DecodeError, ValueError) as error:
        raise Unreachable(
            f"{path} is no endpoint file of ours ({error}); it is kept as it is, and so are Envoy's present members: "
            "mend it, or move it away to begin with none"
        ) from error
    members = [member for one in file.resources for place in one.endpoints for member in place.lb_endpoints]
    return version, tuple(_entry(member) for member in members)


def _entry(member: _Member) -> Entry:
    socket, owner = member.endpoint.address.socket_address, member.metadata.filter_metadata.autoscaler
    return Entry(
        replica=ReplicaId(owner.replica),
        instance=InstanceId(owner.instance),
        host=socket.address,
        port=socket.port_value,
        weight=member.load_balancing_weight,
        draining=member.health_status != "HEALTHY",
    )


def change(folder: Path, path: Path, lock: Path, cluster: str, move: Callable[[Entries], Entries]) -> None:
    """Apply `move` to the members under the lock; writes nothing when nothing changes. Blocks: call it in a thread."""
    files.make_folder(folder)
    with files.locked(lock, _LOCK_WAIT_S):
        version, before = _read(path)
        now = move(before)
        if now != before or not path.exists():
            files.write(path, encode(now, cluster, version + 1))


def encode(entries: Entries, cluster: str, version: int) -> bytes:
    """The members as Envoy reads them."""
    members = [
        _Member(
            endpoint=_Host(_Address(_Socket(entry.host, entry.port))),
            health_status="DRAINING" if entry.draining else "HEALTHY",
            load_balancing_weight=entry.weight,
            metadata=_Metadata(_Filters(_Owner(entry.replica, entry.instance))),
        )
        for entry in entries
    ]
    assignment = _Assignment(cluster_name=cluster, endpoints=[_Locality(members)] if members else [])
    return msgspec.json.encode(_File(version_info=str(version), resources=[assignment]))


def admitted(entries: Entries, endpoints: Sequence[Endpoint]) -> Entries:
    """With these in, and no longer draining. Raises Refused for an address that Envoy would not take."""
    new = tuple(_admit(endpoint) for endpoint in endpoints)
    replicas, addresses = {entry.replica for entry in new}, {entry.address for entry in new}
    kept = [one for one in entries if one.replica not in replicas and one.address not in addresses]
    return tuple(sorted((*kept, *new), key=lambda one: (one.replica, one.address)))


def _admit(endpoint: Endpoint) -> Entry:
    try:
        host = str(ipaddress.ip_address(endpoint.host))
    except ValueError:
        raise Refused(f"{endpoint.replica}: Envoy's endpoint file takes IP addresses, not {endpoint.host!r}") from None
    return Entry(
        replica=endpoint.replica,
        instance=endpoint.instance,
        host=host,
        port=endpoint.port,
        weight=_weight(endpoint),
    )


def _weight(endpoint: Endpoint) -> int:
    return max(1, endpoint.weight)  # Envoy refuses a whole file with a weight of 0 in it


def reweighed(entries: Entries, endpoints: Sequence[Endpoint]) -> Entries:
    """With new weights; who is not there is left out."""
    weights = {endpoint.replica: _weight(endpoint) for endpoint in endpoints}
    return tuple(msgspec.structs.replace(one, weight=weights.get(one.replica, one.weight)) for one in entries)


def drained(entries: Entries, endpoints: Sequence[Endpoint]) -> Entries:
    """With these draining."""
    gone = {endpoint.replica for endpoint in endpoints}
    return tuple(msgspec.structs.replace(one, draining=one.draining or one.replica in gone) for one in entries)


def evicted(entries: Entries, endpoints: Sequence[Endpoint]) -> Entries:
    """Without these."""
    gone = {endpoint.replica for endpoint in endpoints}
    return tuple(one for one in entries if one.replica not in gone)
