"""What a user writes for an Envoy binding, and where its files are.

Does: check addresses and name files. Does not: touch the disk or the network.
Invariant: the admin port of an Envoy that we start listens on loopback only: it can end the process.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import Refused

Strategy = Literal["round_robin", "least_connections", "weighted", "source_hash"]
STRATEGIES: Final[tuple[Strategy, ...]] = ("round_robin", "least_connections", "weighted", "source_hash")


class Address(NamedTuple):
    """An IP address and a port."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str) -> Address:
        """Read `host:port` or `[v6]:port`. Raises ValueError."""
        host, _, port = text.rpartition(":")
        try:
            address = str(ipaddress.ip_address(host.strip("[]")))
        except ValueError:
            raise ValueError(f"found {text!r}, allowed: IP address and port, like 127.0.0.1:8080") from None
        if not port.isdigit() or not 1 <= int(port) <= 65535:
            raise ValueError(f"found {text!r}, allowed: a port from 1 to 65535")
        return cls(address, int(port))


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One Envoy for one pool.

    `listen`: where clients send requests. `admin`: Envoy's admin port, read for active counts. `directory`: where
    boot.json, eds.json and envoy.log live; by default in the state folder. `cluster`: the name in Envoy's metrics.
    `hash_header`: for source_hash, the request header that is hashed instead of the client's address. Seconds:
    `stream_idle`: a stream without a byte for so long is given up. A request that waits behind others in a saturated
    replica, or for a long prompt, sends nothing for minutes and is healthy, so the default is an hour.
    `keepalive`: an idle connection to a replica is closed after this; it must be less than the replica's own time
    (uvicorn, so vLLM: 5 s), or a request sent just as the replica closes is lost, for nothing here is retried.
    `connect`: how long a replica may take to accept a connection.
    """

    listen: str = "127.0.0.1:8080"
    admin: str = "127.0.0.1:9901"
    directory: str = ""
    strategy: Strategy = "least_connections"
    embedded: bool = True
    cluster: str = "replicas"
    hash_header: str = ""
    concurrency: int = 2
    stream_idle: Duration = Duration(3600.0)
    keepalive: Duration = Duration(2.0)
    connect: Duration = Duration(2.0)

    def __post_init__(self) -> None:
        for name, text in (("listen", self.listen), ("admin", self.admin)):
            try:
                address = Address.read(text)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            if name == "admin" and self.embedded and not ipaddress.ip_address(address.host).is_loopback:
                raise ValueError(f"admin: found {text!r}, allowed: a loopback address (this port can stop Envoy)")
        if self.listen == self.admin:
            raise ValueError(f"admin: found {self.admin!r}, which is also listen; allowed: another port")
        if self.hash_header and self.strategy != "source_hash":
            raise ValueError(f"hash_header: has no effect with strategy {self.strategy}, only with source_hash")
        if min(self.stream_idle, self.keepalive, self.connect) <= 0 or self.concurrency < 1:
            raise ValueError("stream_idle, keepalive, connect: allowed: more than 0 s; concurrency: 1 or more")
        if not self.cluster:
            raise ValueError("cluster: found nothing, allowed: a name")


class Layout(NamedTuple):
    """Where the files of one Envoy are."""

    folder: Path

    @classmethod
    def of(cls, settings: Settings, state_dir: str, name: str) -> Layout:
        """In the folder that the settings name, else in the state folder. Raises Refused when neither is given."""
        if settings.directory:
            return cls(Path(settings.directory).resolve())
        if not state_dir:
            raise Refused("Envoy has no folder: set `directory`")
        return cls(Path(state_dir).resolve() / "envoy" / quote(name, safe=""))

    @property
    def boot(self) -> Path:
        """What Envoy is started with."""
        return self.folder / "boot.json"

    @property
    def endpoints(self) -> Path:
        """Who gets requests: the state."""
        return self.folder / "eds.json"

    @property
    def lock(self) -> Path:
        """Held while the endpoint file is changed, or Envoy started."""
        return self.folder / "writer.lock"

    @property
    def log(self) -> Path:
        """What Envoy says."""
        return self.folder / "envoy.log"

    @property
    def record(self) -> Path:
        """Which process Envoy is."""
        return self.folder / "envoy.process.json"
