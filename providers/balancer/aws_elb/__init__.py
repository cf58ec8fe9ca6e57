"""AWS load balancers: members are targets of a target group (ALB, NLB), or machines of a Classic load balancer.

Does: expose Settings, build and target (see ports/build.py). Does not: make load balancers (terraform/ does).
Invariant: only targets that the engine names are registered or deregistered.
"""

from __future__ import annotations

from autoscaler.ports.balancer import Balancer
from autoscaler.ports.build import Context
from providers.balancer.aws_elb.classic import ClassicBalancer
from providers.balancer.aws_elb.group import TargetGroup
from providers.balancer.aws_elb.settings import Settings

__all__ = ["ClassicBalancer", "Settings", "TargetGroup", "build", "target"]


def build(settings: Settings, context: Context) -> Balancer:
    """Make the adapter of one pool's binding; no call goes out before the first look."""
    kind = ClassicBalancer if settings.family == "classic" else TargetGroup
    return kind(settings, context)


def target(settings: Settings) -> str:
    """What two bindings may not share."""
    return settings.target_group or f"{settings.region} {settings.load_balancer}"
