"""The files of local processes: records, stamps of endings, withdrawn tokens, logs, and the next port.

Does: say where things are, and keep all of it bounded. Does not: decide about processes.
Invariant: only launch and terminate tidy up; observing changes no file but logs that grew too long.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from autoscaler.domain.faults import NoCapacity
from providers._shared import files
from providers._shared.processes import is_alive, read_record

_KEEP_ENDED: Final = 1000  # enough that no token still open is forgotten: launches expire within minutes
_KEEP_LOGS: Final = 100
_LOG_BYTES: Final = 16 * 2**20
_LOG_TAIL: Final = 2**20


class Stamp(msgspec.Struct, frozen=True):
    """When a machine was asked to end, and how long it has. Seconds."""

    at: float
    grace_s: float


class Store:
    """The files under `state_dir`. All methods raise Refused or Unreachable when the disk will not."""

    def __init__(self, state_dir: str) -> None:
        self.state_dir = Path(state_dir).resolve()
        base = self.state_dir / "local_process"
        self.records, self.ended = base / "records", base / "ended"
        self._endings, self._withdrawn = base / "endings", base / "withdrawn"
        self.lock, self._next_port = base / "launch.lock", base / "next_port"
        self.logs = self.state_dir / "logs"

    def prepare(self) -> None:
        """Make the folders."""
        for folder in (self.records, self.ended, self._endings, self._withdrawn, self.logs):
            files.make_folder(folder)

    def record(self, instance: str) -> Path:
        """Where a live process is recorded."""
        return self.records / f"{_name(instance)}.json"

    def was_started(self, instance: str) -> bool:
        """Whether a process of that id was ever started, alive or not."""
        return self.record(instance).exists() or (self.ended / f"{_name(instance)}.json").exists()

    def log(self, instance: str) -> Path:
        """Where a process writes."""
        return self.logs / f"{_name(instance)}.log"

    def ending(self, instance: str) -> Path:
        """Where the end of a process is stamped."""
        return self._endings / f"{_name(instance)}.json"

    def stamp_of(self, instance: str) -> Stamp | None:
        """When it was asked to end; None when it was not."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self.ending(instance).read_bytes(), type=Stamp)
        return None

    def stamp(self, instance: str, stamp: Stamp) -> None:
        """Note that a machine was asked to end."""
        files.write(self.ending(instance), msgspec.json.encode(stamp))

    def withdraw(self, key: str) -> None:
        """Note that a token must start nothing any more."""
        files.write(self._withdrawn / _name(key), b"")

    def is_withdrawn(self, key: str) -> bool:
        """Whether a token was taken back."""
        return (self._withdrawn / _name(key)).exists()

    def free_ports(self, count: int, allowed: range | None, taken: set[int], address: str) -> list[int]:
        """Choose ports that nobody has, going round so that a port just given up is not used again soon.

        Raises NoCapacity when there are not enough.
        """
        if allowed is None:
            return _any_ports(count, taken, address)
        start = self._cursor(allowed)
        order = [*range(start, allowed.stop), *range(allowed.start, start)]
        chosen: list[int] = []
        for port in order:
            if len(chosen) == count:
                break
            if port not in taken and _is_free(port, address):
                chosen.append(port)
        if len(chosen) < count:
            raise NoCapacity(f"ports {allowed.start}-{allowed.stop - 1}: {len(chosen)} free, {count} needed")
        if chosen:
            files.write(self._next_port, str(chosen[-1] + 1).encode())
        return chosen

    def _cursor(self, allowed: range) -> int:
        with contextlib.suppress(OSError, ValueError):
            if (port := int(self._next_port.read_text())) in allowed:
                return port
        return allowed.start

    def tidy(self, alive: Iterable[str]) -> None:
        """Move records of ended processes away, forget the oldest of them, and delete the oldest logs."""
        living = {_name(instance) for instance in alive}
        with contextlib.suppress(OSError):  # tidying is never worth a failed launch
            for path in self.records.glob("*.json"):
                record = read_record(path)
                if path.stem not in living and (record is None or not is_alive(record.mark)):
                    path.replace(self.ended / path.name)
            _keep_newest(self.ended, _KEEP_ENDED, set())
            _keep_newest(self._withdrawn, _KEEP_ENDED, set())
            _keep_newest(self._endings, _KEEP_ENDED, {f"{name}.json" for name in living})
            _keep_newest(self.logs, _KEEP_LOGS, {f"{name}.log" for name in living})

    def bound_logs(self, alive: Iterable[str]) -> None:
        """Cut logs of live processes that grew too long; what was written last is kept beside."""
        for path in map(self.log, alive):
            with contextlib.suppress(OSError):
                if path.stat().st_size > _LOG_BYTES:
                    with path.open("r+b") as log:
                        log.seek(-_LOG_TAIL, 2)
                        path.with_name(f"{path.name}.1").write_bytes(log.read())
                        log.truncate(0)  # the process appends, so it goes on from here


def _name(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


def _keep_newest(folder: Path, count: int, spare: set[str]) -> None:
    found = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[count:]:
        if path.name not in spare:
            path.unlink(missing_ok=True)


def _is_free(port: int, address: str) -> bool:
    """Whether a server that sets SO_REUSEADDR, as servers do, could listen there and on every address."""
    for host in (address, "0.0.0.0"):  # noqa: S104 - nothing is served: the port is only tried
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, port))
            except OSError:
                return False
    return True


def _any_ports(count: int, taken: set[int], address: str) -> list[int]:
    chosen: list[int] = []
    with contextlib.ExitStack() as held:
        while len(chosen) < count:
            trial = held.enter_context(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
            try:
                trial.bind((address, 0))
            except OSError as error:
                raise NoCapacity(f"no free port on {address}: {error.strerror}") from error
            port = int(trial.getsockname()[1])
            if port not in taken:
                chosen.append(port)
    return chosen
