"""Compute of machines that the daemon does not make: a list of hosts, each started and stopped by the user's commands.

Which pool has which host is kept in state_dir/static_hosts/state.json; back it up with the ledger. A host that
somebody else started is reported, not used and never stopped; `autoscaler adopt` gives it to a pool.

Does: expose what ports/build.py asks for. Does not: make machines, or hold some for standby.
Invariant: a command of the user gets no variable of the daemon but the few that Settings names.
"""

from __future__ import annotations

from pathlib import Path

from autoscaler.ports.build import Context
from providers.compute.static_hosts.adapter import StaticHosts
from providers.compute.static_hosts.settings import Host, Settings
from providers.compute.static_hosts.state import file_of

__all__ = ["Host", "Settings", "StaticHosts", "beside_ledger", "build", "scope"]


def scope(_settings: Settings) -> str:
    """All offers share one adapter: a host is known by its name, in whatever list it stands."""
    return ""


def beside_ledger(state_dir: str) -> Path:
    """Who has which host: belongs with the ledger, and is in no backup of it."""
    return file_of(state_dir)


def build(_settings: Settings, context: Context) -> StaticHosts:
    """Make the adapter; runs nothing. An offer's settings travel in its request, so none are kept."""
    return StaticHosts(context)
