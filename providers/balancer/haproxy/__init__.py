"""HAProxy as a balancer: members are servers that come and go over its runtime API, without a reload.

With `embedded: false` (the default) somebody else runs HAProxy, and one of its backends is ours to fill. With
`embedded: true` an installed HAProxy is started when none answers, in a session of its own; it is found again when
it already runs from our folder and is never stopped because a daemon stops. What is said to it is the same.

Does: expose Settings and build (see ports/build.py), and what the demo needs: stop, stats.
Does not: probe replicas, retry, or time requests out.
Invariant: only servers that bear this installation's and pool's name are ever changed.
"""

from __future__ import annotations

from autoscaler.ports.build import Context
from providers.balancer.haproxy.adapter import HaproxyBalancer
from providers.balancer.haproxy.names import Names
from providers.balancer.haproxy.process import Process, binary, stop
from providers.balancer.haproxy.runtime import Runtime
from providers.balancer.haproxy.settings import Layout, Settings
from providers.balancer.haproxy.stats import HaproxyStats, stats

__all__ = ["HaproxyBalancer", "HaproxyStats", "Settings", "binary", "build", "stats", "stop", "target"]


def build(settings: Settings, context: Context) -> HaproxyBalancer:
    """Make the adapter of one pool's binding; starts nothing and opens no socket."""
    name = context.name or "haproxy"
    layout = Layout.of(settings, context.state_dir, name)
    names = Names.of(context.installation, context.pool)
    here = Process(Runtime(layout.socket, settings.timeout), settings, layout, names, may_start=not context.looking)
    return HaproxyBalancer(here, name, context.clock)


def target(settings: Settings) -> str:
    """What two bindings may not share: a backend of one HAProxy, or the address of one that we start."""
    return f"listen {settings.listen}" if settings.embedded else f"{settings.address} backend {settings.backend}"
