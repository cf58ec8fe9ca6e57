"""Load from Amazon CloudWatch: requests and response times of a target group, and metrics that the user names.

Does: build. Does not: import the SDK before the first question.
Invariant: build() asks nobody anything; pools of one account and region share a source, and so a call.
"""

from __future__ import annotations

from autoscaler.ports.build import Context
from providers.telemetry.cloudwatch.adapter import CloudWatch
from providers.telemetry.cloudwatch.settings import Metric, Settings
from providers.telemetry.cloudwatch.source import shared_source

__all__ = ["CloudWatch", "Metric", "Settings", "build"]


def build(settings: Settings, context: Context) -> CloudWatch:
    """Make the telemetry of one pool."""
    return CloudWatch(settings, shared_source(settings, context.clock), context.clock)
