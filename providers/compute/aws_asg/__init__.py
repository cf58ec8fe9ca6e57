"""Compute of EC2 Auto Scaling groups: one group is one offer, whose desired capacity is ours alone to set.

Does: expose Settings, scope and build (see ports/build.py). Does not: make or configure groups (terraform/ does).
Invariant: a group without our installation's and pool's tags is never changed, nor one that something else scales.
"""

from __future__ import annotations

from autoscaler.ports.build import Context
from providers.compute.aws_asg.adapter import AsgCompute
from providers.compute.aws_asg.settings import Settings

__all__ = ["AsgCompute", "Settings", "build", "scope"]


def scope(settings: Settings) -> str:
    """One adapter an account and region: its look serves all pools."""
    return f"{settings.profile}@{settings.region}" if settings.profile else settings.region


def build(settings: Settings, context: Context) -> AsgCompute:
    """Make the adapter; no call goes out before the first look."""
    return AsgCompute(settings, context)
