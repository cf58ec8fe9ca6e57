"""The whole configuration: the file, the environment over it, every mistake at once, or a Config.

Does: read, merge, check pool by pool and pools against each other. Does not: build adapters or open sockets.
Invariant: for any file and environment the answer is a Config or a ConfigError with one line for each mistake.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoscaler.config import modules
from autoscaler.config.environment import Environment, read_environment
from autoscaler.config.mistakes import at, literal_secrets, shown
from autoscaler.config.modules import Group
from autoscaler.config.pools import read_pool
from autoscaler.config.read import read_mapping, read_text
from autoscaler.config.schema import Admin, AdminSection, Choice, Config, FileSection, PoolConfig, Secret
from autoscaler.config.sections import target_of
from autoscaler.config.validate import validate
from autoscaler.domain.faults import ConfigError

_TOKEN = re.compile(r"[!-~]{16,512}")
_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.\-]*):(\d{1,5})")


def load(path: Path) -> Config:
    """The configuration in `path`, with the environment of this process over it; raises ConfigError."""
    mapping = read_mapping(path)
    return from_mapping(mapping, path, read_environment())


def load_address(path: Path) -> tuple[str, Admin]:
    """The installation and where its daemon listens, whatever is wrong elsewhere in the file; raises ConfigError.

    A daemon goes on with its last good config, and can be asked what it does while the file is being mended.
    """
    environment = read_environment()
    merged = environment.over(_without_secrets(read_mapping(path)))
    installation = merged.get("installation")
    section, mistakes = validate(AdminSection, merged.get("admin", {}), "admin")
    if not isinstance(installation, str):
        mistakes = [f"installation: found {shown(installation)}; allowed: a name", *mistakes]
    if section is not None:
        admin, wrong = _admin(section, environment.token, path.absolute().parent)
        mistakes += wrong
        if admin is not None and isinstance(installation, str):
            return installation, admin
    raise ConfigError(mistakes)


def from_mapping(mapping: dict[str, Any], path: Path, environment: Environment) -> Config:
    """As `load`, from a mapping already read; `path` is where it came from, and what its paths are relative to."""
    mistakes = list(literal_secrets(mapping))
    merged = environment.over(_without_secrets(mapping))
    section, wrong = validate(FileSection, merged, "")
    mistakes += [mistake.removeprefix(".") for mistake in wrong]
    installation = merged.get("installation")
    pools, wrong = _pools(merged, installation if isinstance(installation, str) else "")
    mistakes += wrong
    base = path.absolute().parent
    ledger, wrong = _ledger(merged, base)
    mistakes += wrong
    # Read by itself too, so that a mistake elsewhere does not hide one in here; what is wrong in it is told above.
    listening, _ = validate(AdminSection, merged.get("admin", {}), "admin")
    admin, wrong = _admin(listening, environment.token, base) if listening else (None, [])
    mistakes += wrong
    mistakes += _across(pools, admin)
    if mistakes or section is None or ledger is None or admin is None:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    return Config(
        source=str(path),
        installation=section.installation,
        state_dir=str(base / section.state_dir),
        ledger=ledger,
        admin=admin,
        log=section.log,
        pools=tuple(pools),
    )


def _without_secrets(mapping: dict[str, Any]) -> dict[str, Any]:
    """Less admin.token, which has its own line already and would be an unknown setting as well."""
    admin = mapping.get("admin")
    if isinstance(admin, dict) and "token" in admin:
        return {**mapping, "admin": {key: value for key, value in admin.items() if key != "token"}}
    return mapping


def _pools(merged: dict[str, Any], installation: str) -> tuple[list[PoolConfig], list[str]]:
    listed = merged.get("pools")
    if not isinstance(listed, list):
        return [], []
    made, mistakes, seen = [], [], dict[str, str]()
    for index, mapping in enumerate(listed):
        path = at("pools", index)
        if not isinstance(mapping, Mapping):
            continue  # reported by the section of the whole file
        pool, wrong = read_pool(mapping, path, installation)
        mistakes += wrong
        name = mapping.get("name")
        if isinstance(name, str):
            if name in seen:
                mistakes.append(f"{path}.name: found {shown(name)}, as {seen[name]} has; allowed: a name of its own")
            seen.setdefault(name, path)
        if pool is not None:
            made.append(pool)
    return made, mistakes


def _ledger(merged: dict[str, Any], base: Path) -> tuple[Choice | None, list[str]]:
    """The ledger's kind is its address's scheme; a relative SQLite path starts at the file's own folder."""
    state_dir = merged.get("state_dir", "state")
    given = merged.get("ledger")
    settings: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {}
    path = "ledger.url" if isinstance(given, Mapping) and "url" in given else "ledger"
    url = settings.get("url", f"sqlite:///{state_dir}/autoscaler.db") if not isinstance(given, str) else given
    scheme, mark, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not mark:
        words = ", ".join(f"{kind}://..." for kind in modules.kinds(Group.LEDGER))
        found = "a text with an @ in it" if "@" in str(url) else shown(url, path)  # a password stands before an @
        return None, [f"{path}: found {found}; allowed: {words}"]
    kind = scheme.partition("+")[0]
    if kind == "sqlite" and rest.startswith("/") and not rest.startswith("//"):
        url = f"{scheme}:///{base / rest[1:]}"
    try:
        module = modules.load(Group.LEDGER, kind, path)
        checked, wrong = validate(modules.settings_type(module, kind, path), {**settings, "url": url}, "ledger")
    except ConfigError as error:
        return None, error.mistakes
    return (None, wrong) if checked is None else (Choice(kind=kind, settings=checked, path="ledger"), [])


def _admin(section: AdminSection, token: str | None, base: Path) -> tuple[Admin | None, list[str]]:
    mistakes = []
    if section.token_file is not None and token is not None:
        mistakes.append("admin.token_file: has no effect, AUTOSCALER_ADMIN_TOKEN is set; allowed: one of the two")
    elif section.token_file is not None:
        try:
            token = read_text(base / section.token_file, "a file with the token", 4096, secret=True).strip()
        except ConfigError as error:
            mistakes += [f"admin.token_file: {mistake}" for mistake in error.mistakes]
    if token is not None and not _TOKEN.fullmatch(token):
        mistakes.append(
            f"admin token: found a text of length {len(token)}; allowed: at least 16 "
            "printable ASCII characters without spaces"
        )
    found = _HOST_PORT.fullmatch(section.listen)
    port = int(found[2]) if found else 0
    if not found or port > 65535:
        mistakes.append(f"admin.listen: found {shown(section.listen)}; allowed: HOST:PORT such as 127.0.0.1:9095")
        return None, mistakes
    host = found[1].strip("[]")
    if token is None and not mistakes and not is_loopback(host):
        mistakes.append(
            f"admin.listen: found {shown(section.listen)}, which others can reach, without a token; allowed: "
            "a loopback address, or a token in AUTOSCALER_ADMIN_TOKEN or admin.token_file"
        )
    admin = Admin(host=host, port=port, token=Secret(token) if token else None)
    return (None, mistakes) if mistakes else (admin, [])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _across(pools: list[PoolConfig], admin: Admin | None) -> list[str]:
    """Two bindings that would fight over one target, or two listeners over one address."""
    targets: dict[tuple[str, str], str] = {}
    addresses = {f"{admin.host}:{admin.port}": "admin.listen"} if admin else {}
    mistakes = []
    for pool in pools:
        for choice in pool.balancers:
            key = (choice.kind, target_of(choice, Group.BALANCER))
            if key in targets:
                mistakes.append(f"{choice.path}: acts on the same target as {targets[key]}; allowed: one of its own")
            targets.setdefault(key, choice.path)
            for name, address in _listeners(choice):
                here = at(choice.path, name)
                if address in addresses:
                    clash = f"the address of {addresses[address]}"
                    mistakes.append(f"{here}: found {shown(address)}, {clash}; allowed: an address of its own")
                addresses.setdefault(address, here)
    return mistakes


def _listeners(choice: Choice) -> list[tuple[str, str]]:
    """Addresses on which the balancer that we run ourselves would listen; none for one that others run."""
    if not getattr(choice.settings, "embedded", False):
        return []
    named = [(name, getattr(choice.settings, name, None)) for name in ("listen", "admin")]
    return [(name, value) for name, value in named if isinstance(value, str) and _HOST_PORT.fullmatch(value)]
