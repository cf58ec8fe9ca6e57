"""HAProxy as a process: started when none answers, adopted when it is ours, stopped only when told.

Does: start it detached, wait until it answers, say in words why it does not come. Does not: restart one that runs.
Invariant: only a process that our record names by pid and start time, and that still runs, is ever signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from autoscaler.domain.faults import PortFault, Refused, Unreachable
from providers._shared import files, processes
from providers.balancer.haproxy import kept, reading
from providers.balancer.haproxy.configuration import configuration, fingerprint
from providers.balancer.haproxy.names import Names
from providers.balancer.haproxy.runtime import NotAnswering, Runtime
from providers.balancer.haproxy.settings import Address, Layout, Settings, short_folder

_READY_WITHIN_S: Final = 15.0
_STOP_WITHIN_S: Final = 5.0
_POLL_S: Final = 0.02
_LOCK_WAIT_S: Final = 20.0
_LOG_BYTES: Final = 4 * 2**20
#: Debian puts it where the PATH of a plain session does not look.
_ELSEWHERE: Final = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin"


class Process:
    """The HAProxy of one binding: its runtime API, and whether we may start one there."""

    def __init__(
        self, runtime: Runtime, settings: Settings, layout: Layout, names: Names, *, may_start: bool = True
    ) -> None:
        self.runtime, self.settings, self.layout, self.names = runtime, settings, layout, names
        self._may_start = may_start

    async def ensure(self) -> reading.Info:
        """Return who answers: adopted if it already runs, else started if it is ours to start.

        Raises Refused (no binary, a port in use, another HAProxy, other settings) or Unreachable.
        """
        settings, layout = self.settings, self.layout
        _check_private(layout)
        try:
            info = await reading.info(self.runtime)
        except NotAnswering:
            if not settings.embedded or not self._may_start:
                raise
            await asyncio.to_thread(_start, settings, layout, self.names)
            return await _until_ready(self.runtime, settings, layout)
        if settings.embedded:
            check_ours(settings, layout, info.description)
        return info

    async def check_start(self) -> None:
        """Find out whether one could be started here; starts nothing and writes nothing. Raises Refused."""
        _check_private(self.layout)
        try:
            info = await reading.info(self.runtime)
        except Unreachable as error:
            record = processes.read_record(self.layout.record)
            if record is not None and processes.is_alive(record.mark):
                return  # ours, and it is starting or slow
            if not isinstance(error, NotAnswering):
                raise Refused(str(error)) from error
            binary(self.settings)
            await asyncio.to_thread(_check_free, self.settings)
        else:
            check_ours(self.settings, self.layout, info.description)


def check_ours(settings: Settings, layout: Layout, running: str) -> None:
    """Raise Refused unless the HAProxy of this description is the one that we would start."""
    wanted = fingerprint(settings, layout)
    had, want = (set(text.split("; ")) for text in (running, wanted))
    if f"autoscaler {layout.folder}" not in had:
        raise Refused(f"socket {layout.socket}: an HAProxy answers that was not started from {layout.folder}")
    if had != want:
        raise Refused(
            f"the HAProxy in {layout.folder} runs with {', '.join(sorted(had - want))}, the settings say "
            f"{', '.join(sorted(want - had))}: a restart would cut requests, so stop it yourself or put them back"
        )


def _check_private(layout: Layout) -> None:
    """The folder for sockets that all users can reach must be ours alone, or another user could speak as HAProxy."""
    folder = short_folder()
    if Path(layout.socket).parent != folder:
        return
    with contextlib.suppress(FileNotFoundError):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise Refused(f"{folder} is not a folder of this user alone: set `socket` to a short path elsewhere")


async def _until_ready(runtime: Runtime, settings: Settings, layout: Layout) -> reading.Info:
    end = time.monotonic() + _READY_WITHIN_S
    while True:
        with contextlib.suppress(Unreachable):
            info = await reading.info(runtime)
            check_ours(settings, layout, info.description)
            return info
        record = processes.read_record(layout.record)
        if record is not None and not processes.is_alive(record.mark):
            raise Refused(f"HAProxy ended at once: {_last_words(layout)}")
        if time.monotonic() >= end:
            raise Unreachable(f"HAProxy at {layout.socket} was not ready within {_READY_WITHIN_S:.0f} s")
        await asyncio.sleep(_POLL_S)


def _last_words(layout: Layout) -> str:
    with contextlib.suppress(OSError):
        lines = layout.log.read_text(errors="replace").strip().splitlines()
        telling = [line for line in lines if "[ALERT]" in line and "Fatal" not in line]
        return (telling or lines or [f"see {layout.log}"])[-1]
    return f"see {layout.log}"


def _start(settings: Settings, layout: Layout, names: Names) -> None:
    path = binary(settings)
    files.make_folder(layout.folder)
    if Path(layout.socket).parent == short_folder():
        short_folder().mkdir(mode=0o700, exist_ok=True)
        _check_private(layout)
    with files.locked(layout.folder / "start.lock", _LOCK_WAIT_S) as lock:
        record = processes.read_record(layout.record)
        if record is not None and processes.is_alive(record.mark):
            return  # another call started it meanwhile; it is waited for
        _check_free(settings)
        _write(settings, layout, names)
        _turn_log(layout)
        command = processes.Command(
            path=path,
            argv=["haproxy", "-db", "-f", str(layout.config)],
            env={key: value for key, value in os.environ.items() if not key.startswith("AUTOSCALER_")},
            log=str(layout.log),
            record=str(layout.record),
        )
        (answer,) = processes.start([command], [lock])
    if isinstance(answer, PortFault):
        raise answer


def _write(settings: Settings, layout: Layout, names: Names) -> None:
    """The configuration of these settings, with the members that the last one had."""
    before: Mapping[str, kept.Line] = {}
    with contextlib.suppress(PortFault):
        before = kept.read(layout.config, names.owner)
    files.write(layout.config, configuration(settings, layout, names.owner).encode())
    kept.change(layout.config, names.owner, settings.server_options, before)


def binary(settings: Settings) -> str:
    """The program. Raises Refused when there is none."""
    if settings.binary:
        if not os.access(settings.binary, os.X_OK):
            raise Refused(f"binary: {settings.binary} is not there or may not be executed")
        return settings.binary
    found = shutil.which("haproxy") or shutil.which("haproxy", path=_ELSEWHERE)
    if found is None:
        raise Refused("HAProxy is not installed: install the package `haproxy` of your system, or set `binary`")
    return found


def _check_free(settings: Settings) -> None:
    address = Address.read(settings.listen)
    with socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
        except OSError as error:
            told = f"listen {settings.listen}: {error.strerror}; choose another port or end what uses it"
            raise Refused(told) from error


def _turn_log(layout: Layout) -> None:
    with contextlib.suppress(OSError):
        if layout.log.stat().st_size > _LOG_BYTES:
            layout.log.replace(layout.log.with_name("haproxy.log.1"))


async def stop(settings: Settings, state_dir: str = "", name: str = "haproxy") -> bool:
    """End the HAProxy that we started, cutting what runs through it; False when there is none.

    For the end of a demo or a test: a daemon that stops leaves HAProxy running. Raises Unreachable when it stays.
    """
    layout = Layout.of(settings, state_dir, name)
    record = processes.read_record(layout.record)
    if record is None or not processes.is_alive(record.mark):
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, number)
        end = time.monotonic() + _STOP_WITHIN_S
        while time.monotonic() < end:
            if not processes.is_alive(record.mark):
                await asyncio.to_thread(Path(layout.socket).unlink, missing_ok=True)
                return True
            await asyncio.sleep(_POLL_S)
    raise Unreachable(f"HAProxy (process {record.pid}) does not end")
