"""What a user writes for an offer of hosts that exist already, and what can be wrong with it.

Does: check hosts, templates and times; fill in templates. Does not: run a command or read a list of hosts.
Invariant: whatever is filled into a command is a plain word that begins with no dash, so that a host's name, address or
variable can be neither an option of ssh nor a second command of a remote shell.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from typing import Final

import msgspec
from typing_extensions import override

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import Refused

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_ADDRESS: Final = re.compile(r"[A-Za-z0-9:](?:[A-Za-z0-9.:_-]{0,252}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"(?:[A-Za-z0-9_./:@%+=,][A-Za-z0-9_./:@%+=,-]{0,999})?")
_VARIABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_PLACEHOLDER: Final = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_ENVIRONMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What we fill in ourselves.
OWN: Final = frozenset({"name", "address", "port", "zone", "instance", "tag"})
#: All that a command finds in its environment, besides what `pass_env` names.
_PLAIN: Final = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")
#: A call of the port takes at most 60 s: a look, a command, a look at what became of it, and once more elsewhere.
DEADLINE_MAX_S: Final = 25.0
STATUS_DEADLINE_MAX_S: Final = 10.0


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine that exists. `address`: its name when left out. `ports`: those of the offer when left out.

    `vars`: further words for the commands: `vars: {ipmi: 10.1.0.11}` is filled in where a command says `{ipmi}`.
    """

    name: str
    address: str = ""
    zone: str = "local"
    ports: tuple[int, ...] = ()
    vars: dict[str, str] = {}

    def __post_init__(self) -> None:
        told = f"name: found {self.name[:60]!r}, allowed: up to 100 of A-Z, a-z, 0-9, dot, dash and underscore"
        _require(_NAME.fullmatch(self.name), f"{told}, a letter or digit first and last")
        _require(not self.address or _ADDRESS.fullmatch(self.address), _not_allowed(self, "address", "a host or IP"))
        _require(_NAME.fullmatch(self.zone), _not_allowed(self, "zone", "a name"))
        for port in self.ports:
            _require(1 <= port <= 65535, f"ports: {self.name}: found {port}, allowed: 1 to 65535")
        for name, value in self.vars.items():
            word = _VARIABLE.fullmatch(name) and name not in OWN
            _require(word, f"vars: {self.name}: found {name[:60]!r}, allowed: a lower-case word, none of {_own()}")
            _require(
                _VALUE.fullmatch(value),
                f"vars: {self.name}: {name} holds what may not stand in a command; allowed: up to 1000 letters, "
                "digits and _ . / : @ % + = , and -, no dash first",
            )

    @override
    def __hash__(self) -> int:
        return hash((self.name, self.address, self.zone, self.ports))  # `vars` has none, and equality looks at it

    @property
    def reached_at(self) -> str:
        """Where its replicas listen."""
        return self.address or self.name


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines that exist already, scaled by starting and stopping them. docs/own-hosts.md is the guide.

    `hosts`, or `hosts_file` (an absolute path), or `hosts_command` (which prints it): the list, as JSON, YAML, or one
    line a host (`gpu-1 address=10.0.0.11 zone=rack-a ports=8000`; other words become its `vars`).
    `start`, `stop`, `status`: a program and its arguments, no shell. `{name}`, `{address}`, `{port}` (the first),
    `{zone}`, `{instance}`, `{tag}` and the host's `vars` are filled in. All three must be harmless when repeated and
    return when the work is accepted, within `deadline` (`status_deadline` for `status`).
    `status` prints a word (running, stopped, ...), `systemctl show` lines, or JSON with state, boot and tag; without it
    a host is what it was last told to be, and nobody notices that somebody else uses it.
    `pass_env`: variables of the daemon that commands may see, besides PATH, HOME, USER, LOGNAME, LANG, LC_ALL, TZ and
    TMPDIR. `boot_within`: how long a started host may still be shown as stopped. `stop_again`: how long after a stop
    that was accepted it is asked for again.
    """

    start: tuple[str, ...]
    stop: tuple[str, ...]
    status: tuple[str, ...] = ()
    hosts: tuple[Host, ...] = ()
    hosts_file: str = ""
    hosts_command: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    deadline: Duration = Duration(20.0)
    status_deadline: Duration = Duration(5.0)
    boot_within: Duration = Duration(300.0)
    stop_again: Duration = Duration(60.0)

    def __post_init__(self) -> None:
        sources = [bool(self.hosts), bool(self.hosts_file), bool(self.hosts_command)]
        _require(
            sum(sources) == 1, f"hosts: found {sum(sources)} lists, allowed: one of hosts, hosts_file, hosts_command"
        )
        for name, command in (("start", self.start), ("stop", self.stop)):
            _require(command and command[0], f"{name}: found nothing, allowed: a program and its arguments")
        _require(
            not self.hosts_file or self.hosts_file.startswith("/"),
            f"hosts_file: found {self.hosts_file!r}, allowed: an absolute path",
        )
        for name in self.pass_env:
            ours = name.upper().startswith("AUTOSCALER_")
            _require(
                _ENVIRONMENT.fullmatch(name) and not ours,
                f"pass_env: found {name!r}, allowed: names of variables, none of AUTOSCALER_*",
            )
        _within("deadline", self.deadline, DEADLINE_MAX_S)
        _within("status_deadline", self.status_deadline, STATUS_DEADLINE_MAX_S)
        _require(self.boot_within >= 0 and self.stop_again >= 0, "boot_within: allowed: 0 s or more, as stop_again")
        if why := repeated(self.hosts):
            raise ValueError(why)


def _require(fine: object, otherwise: str) -> None:
    if not fine:
        raise ValueError(otherwise)


def _within(name: str, value: float, most: float) -> None:
    _require(0 < value <= most, f"{name}: found {value:g} s, allowed: more than 0 s, at most {most:g} s")


def _not_allowed(host: Host, field: str, what: str) -> str:
    return f"{field}: {host.name}: found {str(getattr(host, field))[:60]!r}, allowed: {what}"


def _own() -> str:
    return ", ".join(sorted(OWN))


def repeated(hosts: tuple[Host, ...]) -> str:
    """What is wrong with two hosts of one name; empty when all differ."""
    names = [host.name for host in hosts]
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    return f"hosts: {twice} is there twice, allowed: each name once" if twice is not None else ""


def read(request: str) -> Settings:
    """Read an offer's frozen request. Raises Refused with what is wrong."""
    try:
        return msgspec.json.decode(request, type=Settings)
    except msgspec.DecodeError as error:  # also what __post_init__ says
        raise Refused(f"the offer's request is not one of static_hosts: {error}") from error


def fill(command: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, ...]:
    """Fill in what is known; every other brace stays as it was written."""
    return tuple(_PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), word) for word in command)


def environment(settings: Settings) -> dict[str, str]:
    """All that a command of the user finds in its environment."""
    return {name: os.environ[name] for name in (*_PLAIN, *settings.pass_env) if name in os.environ}


def missing_program(settings: Settings) -> str:
    """Which command names a program that is not there; empty when all are."""
    path = environment(settings).get("PATH", os.defpath)
    commands = {"start": settings.start, "stop": settings.stop, "status": settings.status}
    for name, command in {**commands, "hosts_command": settings.hosts_command}.items():
        if command and "{" not in command[0] and shutil.which(command[0], path=path) is None:
            return f"{name}: program {command[0]!r} is not there or may not be executed"
    return ""
