"""The configuration of an HAProxy that we start.

Does: write it as text. Does not: touch the disk.
Invariant: nothing is retried and no idle connection to a replica is used again, so what a client sees is what happened.
"""

from __future__ import annotations

import msgspec

from providers.balancer.haproxy.demands import balance_lines
from providers.balancer.haproxy.kept import marks
from providers.balancer.haproxy.settings import Layout, Settings


def fingerprint(settings: Settings, layout: Layout) -> str:
    """What an HAProxy that already runs must have been started with, to be ours without a restart."""
    skip = {"directory", "embedded", "binary", "servers_file", "reload_grace", "timeout", "server_options", "socket"}
    chosen = sorted((key, value) for key, value in msgspec.structs.asdict(settings).items() if key not in skip)
    return "; ".join([f"autoscaler {layout.folder}", *(f"{key} {value}" for key, value in chosen)])


def configuration(settings: Settings, layout: Layout, owner: str) -> str:
    """The whole configuration, without members."""
    idle, connect = round(settings.stream_idle * 1000), max(1, round(settings.connect * 1000))
    begin, end = marks(owner)
    lines = [
        "# Written by autoscaler, which keeps the lines between its two marks; all else is from its settings.",
        "global",
        f"    description {_quoted(fingerprint(settings, layout))}",
        f"    stats socket {_quoted(layout.socket)} mode 600 level admin expose-fd listeners",
        f"    nbthread {settings.threads}",
        "defaults",
        "    mode http",
        f"    timeout connect {connect}ms",
        f"    timeout client {idle}ms",
        f"    timeout server {idle}ms",
        f"    timeout queue {idle}ms",
        "    retries 0",
        "    option http-server-close",
        "    option idle-close-on-response",
        "frontend clients",
        f"    bind {settings.listen}",
        f"    default_backend {settings.backend}",
        f"backend {settings.backend}",
        *(f"    {line}" for line in balance_lines(settings)),
        f"    {begin}",
        f"    {end}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """In single quotes, in which HAProxy takes everything as it stands but another one."""
    return "'" + text.replace("'", "'\"'\"'") + "'"
