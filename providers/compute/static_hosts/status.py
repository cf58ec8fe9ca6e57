"""What a status command says of a host, in one of five words.

Does: read a word, `systemctl show` lines or JSON. Does not: run the command.
Invariant: whatever is printed gives a Status and no error; what is not understood is UNKNOWN, never stopped.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from providers.compute.static_hosts.commands import Answer, why


class Power(StrEnum):
    """Whether a host runs, as far as that can be known."""

    RUNNING = "running"
    STARTING = "starting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


class Status(NamedTuple):
    """`boot`: names this start of the host, empty when not told. `tag`: the `{tag}` that its start was given."""

    power: Power
    boot: str = ""
    tag: str = ""
    detail: str = ""


#: The last word of what is printed: systemd, libvirt, ipmitool ("Chassis Power is on") and the clouds.
_WORDS: Final = {
    Power.RUNNING: ("running", "active", "on", "up", "started", "reloading"),
    Power.STARTING: ("starting", "activating", "pending", "provisioning", "staging", "booting"),
    Power.STOPPING: ("stopping", "deactivating", "shutting-down", "deallocating", "suspending"),
    Power.STOPPED: ("stopped", "inactive", "failed", "off", "terminated", "deallocated", "suspended", "exited"),
}
_POWER: Final = {word: power for power, words in _WORDS.items() for word in words}
_KEYS: Final = {"activestate": "state", "invocationid": "boot", "state": "state", "boot": "boot", "tag": "tag"}
_VALUE_MAX: Final = 200


def judge(answer: Answer, deadline_s: float) -> Status:
    """A status from how the command ended; a known word counts whatever the exit code (`is-active` says 3)."""
    found = {} if answer.late else _read(answer.out.strip())
    power = _POWER.get(found.get("state", "").lower(), Power.UNKNOWN)
    if power is not Power.UNKNOWN:
        return Status(power, found.get("boot", ""), found.get("tag", ""))
    if not answer.fine:
        return Status(power, detail=why("status", answer, deadline_s))
    return Status(power, detail=f"status printed {found.get('state', '')[:40]!r}, which is no known state")


def _read(text: str) -> dict[str, str]:
    if text.startswith("{"):
        return _from_json(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and all("=" in line for line in lines):
        pairs = {key.lower(): value for key, _, value in (line.partition("=") for line in lines)}
        return {_KEYS[key]: value.strip()[:_VALUE_MAX] for key, value in pairs.items() if key in _KEYS}
    return {"state": lines[-1].split()[-1]} if lines else {}


def _from_json(text: str) -> dict[str, str]:
    try:
        document: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {"state": text}
    return {key: str(document[key])[:_VALUE_MAX] for key in ("state", "boot", "tag") if document.get(key) is not None}
