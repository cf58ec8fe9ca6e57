"""Compute of one machine: a replica is a real process, in a session of its own, that outlives the daemon.

A process is recognised by the owner tags in its environment together with its own pid and start time, never by its
name or by a pid file. Logs are bounded: state_dir/logs keeps the newest 100 files, and a log that passes 16 MiB keeps
its last MiB in NAME.log.1 and starts again.

Does: expose Settings, scope and build (see ports/build.py). Does not: hold machines for standby.
Invariant: only processes of the same user with this installation's and pool's tags are ever signalled.
"""

from __future__ import annotations

from autoscaler.ports.build import Context
from providers.compute.local_process.adapter import LocalProcessCompute
from providers.compute.local_process.settings import Settings

__all__ = ["LocalProcessCompute", "Settings", "build", "scope"]


def scope(_settings: Settings) -> str:
    """All offers share one adapter: there is one machine."""
    return ""


def build(_settings: Settings, context: Context) -> LocalProcessCompute:
    """Make the adapter; starts nothing. An offer's settings travel in its request, so none are kept."""
    return LocalProcessCompute(context)
