"""An HAProxy that somebody else runs: the configuration is theirs, and they reload or restart it when they like.

Does: start it with a master process as Debian does, reload (SIGUSR2), restart hard, and count its workers.
Does not: use the adapter. Invariant: nothing of it runs after `someone_elses` has ended.
"""

import contextlib
import csv
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from providers.balancer.haproxy import Settings
from providers.balancer.haproxy.process import binary
from tests.support.streaming import free_ports

OWNER = "autoscaler.t.p"
MARKS = f"    # autoscaler begin {OWNER}\n    # autoscaler end {OWNER}\n"


def config(socket_path: Path, listen: int, level: str = "admin") -> str:
    """Theirs, without the backend."""
    return (
        f"global\n    stats socket {socket_path} mode 600 level {level} expose-fd listeners\n"
        "defaults\n    mode http\n    retries 0\n    option http-server-close\n    option idle-close-on-response\n"
        "    timeout connect 2s\n    timeout client 1h\n    timeout server 1h\n"
        f"frontend clients\n    bind 127.0.0.1:{listen}\n    default_backend replicas\n"
    )


def a_backend(*lines: str, balance: str = "balance roundrobin") -> str:
    """The backend with our marks, and whatever else stands in it."""
    return "backend replicas\n" + "".join(f"    {line}\n" for line in (balance, *lines)) + MARKS


def ask_socket(path: Path, command: str) -> str:
    """Say something on a runtime API, by hand. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(str(path))
        one.sendall(f"{command}\n".encode())
        parts = []
        while part := one.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


def stat_rows(path: Path) -> list[dict[str, str]]:
    """The servers of our backend and the backend itself, as HAProxy counts them. Raises OSError."""
    return list(csv.DictReader(ask_socket(path, "show stat replicas 6 -1").removeprefix("# ").splitlines()))


class Someones:
    """One HAProxy of somebody else. `files`: the configuration, read anew at each reload."""

    def __init__(self, folder: Path, listen: int) -> None:
        self.folder, self.listen = folder, listen
        self.socket = folder / "admin.sock"
        self.main, self.servers, self.log = folder / "haproxy.cfg", folder / "pools" / "p.cfg", folder / "haproxy.log"
        self.servers.parent.mkdir()
        self.url = f"http://127.0.0.1:{listen}"
        self._process: subprocess.Popen[bytes] | None = None

    def settings(self, **options: object) -> dict[str, object]:
        """What our config says of it."""
        return {
            "socket": str(self.socket),
            "backend": "replicas",
            "strategy": "round_robin",
            "servers_file": str(self.servers),
            **options,
        }

    def start(self) -> None:
        """Start it and wait until its socket answers."""
        command = [binary(Settings()), "-W", "-db", "-f", str(self.main), "-f", str(self.servers.parent)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.pid()

    def pid(self, other_than: int = 0) -> int:
        """The worker that answers, once it is another one than that."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with contextlib.suppress(OSError, ValueError, StopIteration):
                pid = int(next(line for line in self.ask("show info").splitlines() if line.startswith("Pid: "))[5:])
                if pid != other_than:
                    return pid
            time.sleep(0.02)
        raise AssertionError(f"no HAProxy answers: {self.log.read_text()[-500:]}")

    def reload(self) -> None:
        """As `systemctl reload`: a new worker takes over, the old one ends with its last stream."""
        assert self._process is not None
        before = self.pid()
        os.kill(self._process.pid, signal.SIGUSR2)
        self.pid(other_than=before)

    def restart(self) -> None:
        """As a crash and a new start: whatever is inside is cut."""
        self.end()
        self.start()

    def workers(self) -> list[int]:
        """The worker processes, the new one and those that still have streams."""
        assert self._process is not None
        return [one.pid for one in psutil.Process(self._process.pid).children()]

    def ask(self, command: str) -> str:
        """Say something on the socket, by hand."""
        return ask_socket(self.socket, command)

    def server_names(self) -> list[str]:
        """Who is in the backend."""
        return [line.split()[3] for line in self.ask("show servers state replicas").splitlines()[2:] if line]

    def sent_to(self, server: str) -> int:
        """How many requests this worker ever gave to a server."""
        return next(int(row["stot"]) for row in stat_rows(self.socket) if row["svname"] == server)

    def end(self) -> None:
        """End all of it, cutting what is inside."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def someone_elses(
    *lines: str, balance: Sequence[str] = ("balance roundrobin",), level: str = "admin"
) -> Iterator[Someones]:
    """An HAProxy that runs, with our marks in its only backend."""
    (listen,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="hap-") as short:  # a UNIX socket's path is short
        one = Someones(Path(short), listen)
        one.main.write_text(config(one.socket, listen, level=level))
        one.servers.write_text(a_backend(*balance[1:], *lines, balance=balance[0]))
        try:
            one.start()
            yield one
        finally:
            one.end()
