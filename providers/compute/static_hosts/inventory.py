"""The list of hosts: written in the config, kept in a file, or printed by a command.

Does: read JSON, YAML or lines into checked hosts. Does not: remember a list, or ask a host anything.
Invariant: a list is taken whole or not at all: one bad entry, a late command or a file that others can write is a
fault, and never a shorter list.
"""

from __future__ import annotations

import os
import stat
from typing import Any, Final

import msgspec
import yaml

from autoscaler.domain.faults import Refused, Unreachable
from providers._shared import files
from providers.compute.static_hosts.commands import OUTPUT_MAX, run, why
from providers.compute.static_hosts.settings import Host, Settings, environment, repeated

_FIELDS: Final = frozenset({"address", "zone"})
_HOSTS_MAX: Final = 10_000


def hosts_of(settings: Settings, deadline_s: float) -> tuple[Host, ...]:
    """The list as it is now. Blocks, at most `deadline_s`. Raises Unreachable or Refused: where, and what is wrong."""
    if settings.hosts:
        return settings.hosts
    if settings.hosts_file:
        return parse(_content(settings.hosts_file), f"hosts_file {settings.hosts_file}")
    answer = run(settings.hosts_command, environment(settings), deadline_s)
    if not answer.fine:
        raise Unreachable(f"the list of hosts: {why('hosts_command', answer, deadline_s)}")
    if len(answer.out.encode()) >= OUTPUT_MAX:
        raise Unreachable(f"the list of hosts: hosts_command printed more than {OUTPUT_MAX} bytes")
    return parse(answer.out, "what hosts_command printed")


def _content(path: str) -> str:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not be waited for
        try:
            found = os.fstat(file)
            others = found.st_mode & (stat.S_IWOTH | stat.S_IWGRP) or found.st_uid not in {0, os.geteuid()}
            if not stat.S_ISREG(found.st_mode) or others:
                told = "allowed: a file of root or of the daemon's user that nobody else can write (chmod go-w)"
                raise Refused(f"hosts_file {path}: found no such file; {told}")
            with os.fdopen(os.dup(file), "rb") as stream:
                content = stream.read(OUTPUT_MAX + 1)
        finally:
            os.close(file)
    except OSError as error:
        raise files.fault_of(error, "cannot read hosts_file") from error
    if len(content) > OUTPUT_MAX:
        raise Refused(f"hosts_file {path}: larger than {OUTPUT_MAX} bytes; allowed: a list of hosts")
    return content.decode(errors="replace")


def parse(text: str, where: str) -> tuple[Host, ...]:
    """Hosts from JSON, YAML (a list of mappings or names) or lines. Raises Unreachable for anything else."""
    begun = text.lstrip()
    try:
        hosts = _hosts(yaml.safe_load(text) if begun.startswith(("[", "- ")) else _lines(text))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        line = str(error).partition("\n")[0][:200] or type(error).__name__
        raise Unreachable(f"{where}: {line}; allowed: JSON, YAML or a line a host") from error
    if mistake := repeated(hosts):
        raise Unreachable(f"{where}: {mistake}")
    return hosts


def _hosts(entries: Any) -> tuple[Host, ...]:
    if not isinstance(entries, list) or len(entries) > _HOSTS_MAX:
        raise ValueError(f"found no list of at most {_HOSTS_MAX} hosts")
    return tuple(_host(entry, number) for number, entry in enumerate(entries, 1))


def _lines(text: str) -> list[dict[str, Any]]:
    return [_line(words) for line in text.splitlines() if (words := line.partition("#")[0].split())]


def _line(words: list[str]) -> dict[str, Any]:
    host: dict[str, Any] = {"name": words[0], "vars": {}}
    for word in words[1:]:
        key, found, value = word.partition("=")
        if not found:
            raise ValueError(f"host {words[0][:60]!r}: found {word[:60]!r}, allowed: key=value after the name")
        if key == "ports":
            host["ports"] = [int(port) for port in value.split(",")]
        elif key in _FIELDS:
            host[key] = value
        else:
            host["vars"][key] = value
    return host


def _host(entry: Any, number: int) -> Host:
    try:
        return msgspec.convert({"name": entry} if isinstance(entry, str) else entry, Host)
    except msgspec.ValidationError as error:
        raise ValueError(f"host {number}: {error}") from error
