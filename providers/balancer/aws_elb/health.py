"""ELB's words for a target, and ours.

Does: translate states and reason codes (names as in the service's own model). Does not: call.
Invariant: a state that is not known is UNKNOWN with its own words, never an exception, never "healthy".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from autoscaler.domain.base import InstanceId, replica_id
from autoscaler.domain.replica import Member, MemberState, Traffic

#: Nothing is wrong with the replica: the load balancer cannot send to it as it is configured.
_NOT_IN_USE: Final = (
    "Target.NotInUse: no listener forwards to the target group, or the machine's zone is not enabled on the load "
    "balancer: enable it (a machine that is replaced would be no better off)"
)
_TRAFFIC: Final = {
    "healthy": Traffic.YES,
    "initial": Traffic.NO,
    "unhealthy": Traffic.NO,
    "unhealthy.draining": Traffic.NO,
    "unused": Traffic.NO,
    "draining": Traffic.NO,
    "unavailable": Traffic.UNKNOWN,
}


def member_of(described: Mapping[str, Any]) -> Member | None:
    """A target as DescribeTargetHealth shows it; None for one that is not registered (any more)."""
    target, health = described["Target"], described.get("TargetHealth", {})
    state, reason = str(health.get("State", "")), str(health.get("Reason", ""))
    if reason == "Target.NotRegistered":
        return None
    name, port = str(target["Id"]), int(target.get("Port", 0))
    return Member(
        endpoint=f"{name}:{port}",
        state=MemberState.DRAINING if state == "draining" else MemberState.ADMITTED,
        replica=replica_id(InstanceId(name), port) if name.startswith("i-") else None,
        traffic=_TRAFFIC.get(state, Traffic.UNKNOWN),
        reason=_words(state, reason, str(health.get("Description", ""))),
    )


def _words(state: str, reason: str, description: str) -> str:
    if state == "healthy":
        return ""
    if reason == "Target.NotInUse":
        return _NOT_IN_USE
    if state not in _TRAFFIC:
        return f"the load balancer calls it {state!r}, which is not known here"
    return ": ".join(part for part in (state, reason, description) if part)


def classic_member_of(described: Mapping[str, Any], port: int) -> Member:
    """A machine as DescribeInstanceHealth of a Classic load balancer shows it."""
    name, state = str(described["InstanceId"]), str(described.get("State", ""))
    traffic = {"InService": Traffic.YES, "OutOfService": Traffic.NO}.get(state, Traffic.UNKNOWN)
    words = f"{state}: {described.get('ReasonCode', '')}: {described.get('Description', '')}"
    return Member(
        endpoint=f"{name}:{port}",
        state=MemberState.ADMITTED,
        replica=replica_id(InstanceId(name), port),
        traffic=traffic,
        reason="" if traffic is Traffic.YES else words,
    )
