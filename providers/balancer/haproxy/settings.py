"""What a user writes for an HAProxy binding, and where its files are.

Does: check names, addresses and server options, and name files. Does not: touch the disk or the network.
Invariant: no setting can smuggle a second command or line into HAProxy: what is put there is checked word by word.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import Refused

Strategy = Literal["round_robin", "least_connections", "weighted", "source_hash"]
STRATEGIES: Final[tuple[Strategy, ...]] = ("round_robin", "least_connections", "weighted", "source_hash")

#: Where Debian's configuration puts the runtime API.
DEBIAN_SOCKET: Final = "/run/haproxy/admin.sock"
#: HAProxy binds a UNIX socket under a longer temporary name first; the kernel takes 107 bytes.
_SOCKET_BYTES: Final = 90
_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]+")
_WORD: Final = re.compile(r"[A-Za-z0-9_.:/@,=()%+-]+")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!$%&*+.^_|~-]+")
#: Words of a server line that are decided here, or that servers added at run time cannot have.
_OURS: Final = frozenset({"weight", "disabled", "enabled", "backup", "cookie", "track", "init-addr", "id"})


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
    """One backend of one HAProxy for one pool. Needs HAProxy 2.6 or later.

    `socket`: the runtime API with level admin: a UNIX socket's path, or IP address and port. It has no password:
    over TCP whoever reaches the port is admin. By default /run/haproxy/admin.sock, or one of this user when
    `embedded`. `backend`: the backend to fill; its `balance` must be what `strategy` asks for.
    `server_options`: words of each server line besides name, address and weight: HAProxy takes none from
    `default-server` for servers added at run time. `pool-max-conn 0` keeps no idle connection, so that no request
    meets one that the replica is closing, and a server can be deleted as soon as it is empty. `observe layer4
    error-limit 1 on-error mark-down` leaves out, until a check passes, a server to which one connection failed: a
    dead one has the least connections, and would draw all requests until a check or the daemon finds it.
    `unit_weight`: HAProxy's weight of one unit of capacity; its largest is 256, so 16 lets a replica have 16 units.
    `servers_file`: a configuration file of HAProxy in which the lines between our two marks are kept up to date, so
    that a reload by someone else loses nothing. `reload_grace`: for so long after a start of HAProxy a count of 0
    proves nothing, since the process before it may still hold streams. `timeout`: of one call to the runtime API.

    For an HAProxy that we start (`embedded`): `listen`: where clients send requests. `directory`: where haproxy.cfg,
    the log and the socket live; by default in the state folder. `binary`: the program; by default looked for.
    `hash_header`: for source_hash, the header that is hashed instead of the client's address. `stream_idle`: a stream
    without a byte for so long is given up; a request that waits for its turn in a saturated replica sends nothing for
    minutes. `connect`: how long a replica may take to accept a connection.
    """

    socket: str = ""
    backend: str = "replicas"
    strategy: Strategy = "least_connections"
    server_options: str = "check inter 1s fall 2 rise 1 observe layer4 error-limit 1 on-error mark-down pool-max-conn 0"
    unit_weight: int = 16
    servers_file: str = ""
    reload_grace: Duration = Duration(900.0)
    timeout: Duration = Duration(3.0)
    embedded: bool = False
    listen: str = "127.0.0.1:8080"
    directory: str = ""
    binary: str = ""
    hash_header: str = ""
    threads: int = 2
    stream_idle: Duration = Duration(3600.0)
    connect: Duration = Duration(2.0)

    def __post_init__(self) -> None:
        self._check_addresses()
        self._check_words()
        if not 1 <= self.unit_weight <= 256:
            raise ValueError(f"unit_weight: found {self.unit_weight}, allowed: 1 to 256")
        if min(self.timeout, self.stream_idle, self.connect) <= 0 or self.reload_grace < 0:
            raise ValueError("timeout, stream_idle, connect: allowed: more than 0 s; reload_grace: 0 s or more")
        if self.threads < 1:
            raise ValueError(f"threads: found {self.threads}, allowed: 1 or more")
        if self.servers_file and not self.servers_file.startswith("/"):
            raise ValueError(f"servers_file: found {self.servers_file!r}, allowed: an absolute path")
        if self.embedded and self.servers_file:
            raise ValueError("servers_file: has no effect with embedded: true, which keeps its own file")

    def _check_words(self) -> None:
        if not _NAME.fullmatch(self.backend):
            raise ValueError(f"backend: found {self.backend!r}, allowed: letters, digits and any of - _ . :")
        for word in self.server_options.split():
            if word in _OURS or not _WORD.fullmatch(word):
                raise ValueError(
                    f"server_options: found {word!r}, allowed: options of a server line, without {_told()}"
                )
        if self.hash_header and self.strategy != "source_hash":
            raise ValueError(f"hash_header: has no effect with strategy {self.strategy}, only with source_hash")
        if self.hash_header and not _TOKEN.fullmatch(self.hash_header):
            raise ValueError(f"hash_header: found {self.hash_header!r}, allowed: the name of a header")

    def _check_addresses(self) -> None:
        try:
            Address.read(self.listen)
        except ValueError as error:
            raise ValueError(f"listen: {error}") from None
        if not self.socket or self.socket.startswith("/"):
            return
        try:
            Address.read(self.socket)
        except ValueError:
            raise ValueError(
                f"socket: found {self.socket!r}, allowed: an absolute path like {DEBIAN_SOCKET}, or IP address and port"
            ) from None
        if self.embedded:
            raise ValueError(f"socket: found {self.socket!r}, allowed with embedded: true: a path (it has no password)")

    @property
    def address(self) -> str:
        """Where the runtime API of an HAProxy that others run is."""
        return self.socket or DEBIAN_SOCKET

    @property
    def checks(self) -> bool:
        """Whether HAProxy checks the servers itself."""
        return "check" in self.server_options.split()


def _told() -> str:
    return ", ".join(sorted(_OURS))


def short_folder() -> Path:
    """Where sockets are whose own folder has too long a path; of this user alone, which whoever uses it checks."""
    return Path("/tmp") / f"autoscaler-{os.getuid()}"  # noqa: S108 - made private, and checked


class Layout(NamedTuple):
    """Where the files of one binding are. `folder` is used only for an HAProxy that we start."""

    folder: Path
    socket: str
    servers: Path | None

    @classmethod
    def of(cls, settings: Settings, state_dir: str, name: str) -> Layout:
        """In the folder that the settings name, else in the state folder. Raises Refused when that cannot work."""
        if not settings.embedded:
            kept = Path(settings.servers_file).resolve() if settings.servers_file else None
            return cls(Path(state_dir), settings.address, kept)
        if not settings.directory and not state_dir:
            raise Refused("HAProxy has no folder: set `directory`")
        folder = Path(settings.directory or Path(state_dir) / "haproxy" / quote(name, safe="")).resolve()
        socket = settings.socket or str(folder / "admin.sock")
        if len(socket.encode()) > _SOCKET_BYTES:
            if settings.socket:
                raise Refused(f"socket: {socket} is too long for a UNIX socket ({_SOCKET_BYTES} bytes)")
            socket = str(short_folder() / f"{hashlib.sha256(bytes(folder)).hexdigest()[:16]}.sock")
        return cls(folder, socket, folder / "haproxy.cfg")

    @property
    def config(self) -> Path:
        """What an HAProxy of ours is started with."""
        return self.folder / "haproxy.cfg"

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "haproxy.log"

    @property
    def record(self) -> Path:
        """Which process it is."""
        return self.folder / "haproxy.process.json"
