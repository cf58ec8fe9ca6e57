"""Load from a Prometheus server, or from what answers like one (Thanos, Mimir, VictoriaMetrics).

Does: build. Does not: import the client before a pool is built.
Invariant: build() asks nobody anything; pools with one server and one identity share it.
"""

from __future__ import annotations

from autoscaler.ports.build import Context
from providers.telemetry.prometheus.adapter import Prometheus
from providers.telemetry.prometheus.server import shared_server
from providers.telemetry.prometheus.settings import Coverage, Match, Query, Settings

__all__ = ["Coverage", "Match", "Prometheus", "Query", "Settings", "build"]


def build(settings: Settings, context: Context) -> Prometheus:
    """Make the telemetry of one pool; raises ConfigError for a secret or file that is not there."""
    return Prometheus(settings, shared_server(settings, context.clock), context.clock)
