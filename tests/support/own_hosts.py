"""Hosts that exist already, on this machine: each a real process that a real script starts and stops.

Does: settings that name the script, its record of calls, ways to make a call fail or hang, and an end for all of it.
Does not: judge. Invariant: `end_hosts` leaves no process of a folder behind.
"""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from providers.compute.static_hosts import Host, Settings

TOOL = str(Path(__file__).with_name("host_tool.sh"))


def own_hosts(count: int, *, zone: str = "local") -> tuple[Host, ...]:
    """Return `count` hosts h1, h2, ... on loopback addresses of their own."""
    return tuple(Host(name=f"h{number}", address=f"127.0.0.{10 + number}", zone=zone) for number in range(1, count + 1))


def tool(folder: Path, verb: str, *more: str) -> tuple[str, ...]:
    """Return the command for a verb of the script."""
    return ("/bin/sh", TOOL, str(folder), verb, "{name}", *more)


def host_settings(folder: Path, **changes: Any) -> Settings:
    """Return settings over four hosts, with JSON status and tags."""
    given: dict[str, Any] = {
        "hosts": own_hosts(4),
        "start": tool(folder, "start", "{tag}"),
        "stop": tool(folder, "stop"),
        "status": tool(folder, "status"),
        **changes,
    }
    return Settings(**given)


def calls(folder: Path, verb: str) -> list[str]:
    """Names of the hosts for which the script was called with `verb`, in order."""
    log = folder / "calls"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [line.split()[1] for line in lines if line.split()[0] == verb]


def running(folder: Path) -> set[str]:
    """Names of the hosts whose process runs."""
    return {path.stem for path in folder.glob("*.pid") if _runs(int(path.read_text(encoding="ascii")))}


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def end_hosts(folder: Path) -> None:
    """End every process that the script has started."""
    for path in folder.glob("*.pid"):
        with contextlib.suppress(OSError, ValueError):
            os.killpg(int(path.read_text(encoding="ascii")), signal.SIGKILL)
