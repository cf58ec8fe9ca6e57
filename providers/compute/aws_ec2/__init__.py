"""Compute of Amazon EC2: machines from a launch template, on demand, spot, or out of a capacity reservation.

Does: expose Settings, scope and build (see ports/build.py). Does not: manage Auto Scaling groups (aws_asg does).
Invariant: no machine without our installation's and pool's tags is ever changed.
"""

from __future__ import annotations

from autoscaler.ports.build import Context
from providers.compute.aws_ec2.adapter import Ec2Compute
from providers.compute.aws_ec2.settings import Settings

__all__ = ["Ec2Compute", "Settings", "build", "scope"]


def scope(settings: Settings) -> str:
    """One adapter an account and region: its look serves all pools."""
    return f"{settings.profile}@{settings.region}" if settings.profile else settings.region


def build(settings: Settings, context: Context) -> Ec2Compute:
    """Make the adapter; no call goes out before the first look."""
    return Ec2Compute(settings, context)
