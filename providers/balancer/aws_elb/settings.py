"""What a user writes for a binding to an AWS load balancer, and what AWS cannot do with it.

Does: check without the network, naming the alternative. Does not: know what the target group really is (diagnose does).
Invariant: a combination that ELB lacks is refused here, never ignored.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from autoscaler.domain.base import Duration

_GROUP: Final = re.compile(
    r"arn:aws[a-z-]*:elasticloadbalancing:([a-z0-9-]+):\d{12}:targetgroup/[A-Za-z0-9-]{1,32}/[0-9a-f]{16,17}"
)
_LISTENER: Final = re.compile(
    r"arn:aws[a-z-]*:elasticloadbalancing:([a-z0-9-]+):\d{12}:listener/(app|net)/[A-Za-z0-9-]{1,32}/[0-9a-f]+/[0-9a-f]+"
)
_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-\d{1,2}")

#: Our word, and the value of `load_balancing.algorithm.type` of an ALB target group.
ALGORITHMS: Final = {"round_robin": "round_robin", "least_connections": "least_outstanding_requests"}
STRATEGIES: Final = {
    "application": ("least_connections", "round_robin", "source_hash", "weighted"),
    "network": ("source_hash", "flow_hash"),
    "classic": ("least_connections", "round_robin"),
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One target group of an ALB or NLB, or one Classic load balancer.

    `target_group`: its ARN. `load_balancer`: the name of a Classic one instead, with `region`. `family`: application,
    network or classic. `target_type`: instance or ip, as the group was made. `strategy`: unset leaves the group as it
    is; else its attributes are set to it at the first change. `weighted` keeps this group's weight in the forward
    action of `listener` at the capacity admitted, so that pools of unlike machines share a listener. `stickiness`:
    seconds for which source_hash keeps a client of an ALB at its replica (a cookie). `slow_start`: seconds, 30 to 900,
    ALB with round_robin only. `settle`: seconds until a change is true everywhere. `profile`: of the AWS files.
    """

    target_group: str = ""
    load_balancer: str = ""
    region: str = ""
    family: str = "application"
    target_type: str = "instance"
    strategy: str | None = None
    listener: str = ""
    stickiness: Duration = Duration(3600.0)
    slow_start: Duration | None = None
    settle: Duration = Duration(30.0)
    profile: str = ""

    def __post_init__(self) -> None:
        if self.family not in STRATEGIES:
            raise ValueError(f"family: found {self.family!r}, allowed: {', '.join(STRATEGIES)}")
        if self.family == "classic":
            self._check_classic()
        else:
            self._check_group()
        if self.strategy is not None and self.strategy not in STRATEGIES[self.family]:
            raise ValueError(f"strategy: {self._lacks(self.strategy)}; allowed: {', '.join(STRATEGIES[self.family])}")
        if (self.strategy == "weighted") != bool(self.listener):
            raise ValueError("listener: allowed exactly with strategy weighted: the ARN of the listener to weigh in")
        if self.listener and not _LISTENER.fullmatch(self.listener):
            raise ValueError(f"listener: found {self.listener!r}, allowed: the ARN of a listener")
        self._check_slow_start()

    def _check_classic(self) -> None:
        if not self.load_balancer or self.target_group:
            raise ValueError("load_balancer: a classic one is named, and has no target_group")
        if not _REGION.fullmatch(self.region):
            raise ValueError(f"region: found {self.region!r}, allowed: the region of the classic load balancer")
        if self.target_type != "instance":
            raise ValueError(f"target_type: found {self.target_type!r}, allowed with classic: instance")

    def _check_group(self) -> None:
        found = _GROUP.fullmatch(self.target_group)
        if self.load_balancer or found is None:
            wanted = "the ARN of a target group; load_balancer names a classic one (family: classic)"
            raise ValueError(f"target_group: found {self.target_group!r}, allowed: {wanted}")
        if self.region and self.region != found[1]:
            raise ValueError(f"region: found {self.region!r}, allowed: {found[1]}, where the target group is")
        if self.target_type not in {"instance", "ip"}:
            raise ValueError(f"target_type: found {self.target_type!r}, allowed: instance, ip")

    def _check_slow_start(self) -> None:
        if not self.slow_start:
            return
        if self.family != "application" or self.strategy not in {None, "round_robin", "weighted"}:
            raise ValueError("slow_start: allowed with an application load balancer and round_robin only")
        if not 30 <= self.slow_start <= 900:
            raise ValueError(f"slow_start: found {self.slow_start:g} s, allowed: 30 to 900 s, or 0")

    def _lacks(self, strategy: str) -> str:
        """Why this family has no such strategy, with the way out."""
        if self.family == "network":
            return f"found {strategy!r}; a network load balancer hashes flows, use an application one for it"
        if strategy == "least_load":
            return "found 'least_load'; ELB does not see the load of a replica, least_connections is next to it"
        return f"found {strategy!r}, which an AWS {self.family} load balancer lacks"

    @property
    def place(self) -> str:
        """The region that the calls go to."""
        found = _GROUP.fullmatch(self.target_group)
        return found[1] if found else self.region

    def attributes(self) -> dict[str, str]:
        """Attributes of the target group that the strategy asks for; empty when it asks for none."""
        wanted: dict[str, str] = {}
        if self.family == "application" and self.strategy is not None:
            wanted["load_balancing.algorithm.type"] = ALGORITHMS.get(self.strategy, "round_robin")
            wanted["stickiness.enabled"] = "true" if self.strategy == "source_hash" else "false"
            if self.strategy == "source_hash":
                wanted["stickiness.type"] = "lb_cookie"
                wanted["stickiness.lb_cookie.duration_seconds"] = f"{self.stickiness:.0f}"
        if self.family == "network" and self.strategy is not None:
            wanted["stickiness.enabled"] = "true" if self.strategy == "source_hash" else "false"
            wanted["stickiness.type"] = "source_ip"
        if self.slow_start is not None:
            wanted["slow_start.duration_seconds"] = f"{self.slow_start:.0f}"
        return wanted
