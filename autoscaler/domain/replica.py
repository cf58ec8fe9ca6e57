"""Three views of one thing: the compute's Instance, a balancer's Member, our joined Replica; and the prober's record.

Does: name what each side can say. Does not: join them (engine.reconcile does).
Invariant: absence is None or a named state, never 0 or an empty text standing for "not known".
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from autoscaler.domain.base import InstanceId, Instant, ReplicaId, Token
from autoscaler.domain.faults import Fault
from autoscaler.domain.lifecycle import Phase


class InstanceState(StrEnum):
    """The compute's own state of a machine."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"  # on its way to stopped or terminated
    STOPPED = "stopped"
    TERMINATED = "terminated"


class Instance(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A machine as the compute shows it.

    `boot`: names this boot (start time or the like); a change means a restart. `epoch`: the ledger epoch in its tags.
    `protected`: the provider or a tag forbids removal. `address` is None until it has one.
    """

    id: InstanceId
    token: Token
    offer: str
    zone: str
    state: InstanceState
    launched_at: Instant
    address: str | None = None
    ports: tuple[int, ...] = ()
    boot: str = ""
    epoch: str = ""
    protected: bool = False
    detail: str = ""


class LaunchStatus(StrEnum):
    """What a compute knows about one launch token."""

    PENDING = "pending"
    FAILED = "failed"
    DONE = "done"


class LaunchState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """State of one launch: `ids` of machines that carry its token, `fault` when it failed."""

    status: LaunchStatus
    ids: tuple[InstanceId, ...] = ()
    fault: Fault | None = None


class Notice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The provider will take a machine away: spot interruption, maintenance. `at`: when, if it said."""

    instance: InstanceId
    kind: str
    at: Instant | None = None


class ComputeView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One snapshot of one compute for one pool. It may lag (`as_of`), it never invents.

    `foreign`: machines with an owner tag of another pool that no config knows, or of another installation: never
    touched, only reported.
    """

    compute: str
    instances: tuple[Instance, ...]
    as_of: Instant
    launches: dict[Token, LaunchState] = {}
    notices: tuple[Notice, ...] = ()
    unreachable_zones: tuple[str, ...] = ()
    foreign: tuple[Instance, ...] = ()


class Traffic(StrEnum):
    """Whether a member takes traffic, as the balancer says."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class MemberState(StrEnum):
    """What a balancer was told about a member."""

    ADMITTED = "admitted"
    DRAINING = "draining"


class Member(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A target as one balancer shows it. `active`: requests inside it, None where the balancer does not count.

    `replica` is set when the balancer stores our id; `endpoint` is `host:port` and joins the others.
    """

    endpoint: str
    state: MemberState
    replica: ReplicaId | None = None
    traffic: Traffic = Traffic.UNKNOWN
    weight: int | None = None
    active: int | None = None
    reason: str = ""


class BalancerView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All members of one balancer binding at one instant.

    `foreign`: targets in the same place that somebody else put there: never touched, only reported.
    """

    balancer: str
    members: tuple[Member, ...]
    as_of: Instant
    foreign: tuple[Member, ...] = ()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a replica listens. `weight`: share of traffic, 100 = one unit of capacity."""

    replica: ReplicaId
    instance: InstanceId
    host: str
    port: int
    weight: int = 100

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"


class ProbeVerdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One look at one replica.

    `alive`: something answered. `loaded`: the model-loaded check passed (with a real generation when asked for).
    `certain`: the failure is definite (refused, an answer that says no), not a mere timeout.
    `running`, `waiting`: requests inside, None when not exported. `tokens_total`: generated since process start.
    `boot`: process start if exported, else "".
    """

    alive: bool
    loaded: bool
    certain: bool = True
    running: int | None = None
    waiting: int | None = None
    tokens_total: float | None = None
    boot: str = ""
    detail: str = ""


class ProbeRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the prober remembers of one replica in one boot.

    `passes`: model-loaded checks passed in a row in this boot. `failing_since`: first failed check of the present row
    of failures, None while it passes. `hung`: running > 0 and the token counter still for too long. `loaded_at`: when
    `passes` became sufficient.
    """

    replica: ReplicaId
    boot: str
    passes: int
    last: ProbeVerdict
    last_at: Instant
    failing_since: Instant | None = None
    loaded_at: Instant | None = None
    hung: bool = False


class Replica(msgspec.Struct, frozen=True, gc=False):
    """Our joined view of (instance, port) with its Phase.

    The one value that may be made by position: made anew for each replica in each tick, by keyword it takes five times
    as long (msgspec 0.23: a dict of them first), which was a third of a tick.

    `units`: this replica's share of its machine's capacity. `taking_traffic` stands beside the phase: "no" still
    counts
    as capacity for launching and does not count for the floor. `in_balancers`: bindings that show it in any state.
    """

    id: ReplicaId
    instance: InstanceId
    phase: Phase
    since: Instant
    offer: str
    zone: str
    units: float
    host: str | None
    port: int
    launched_at: Instant
    taking_traffic: Traffic = Traffic.UNKNOWN
    admitted_in: tuple[str, ...] = ()
    draining_in: tuple[str, ...] = ()
    missing_in: tuple[str, ...] = ()
    running: int | None = None
    waiting: int | None = None
    protected: bool = False
    usd_per_h: float = 0.0
    detail: str = ""

    @property
    def out_of_balancers(self) -> bool:
        """Whether no balancer shows it as admitted."""
        return not self.admitted_in

    @property
    def load(self) -> float:
        """Requests inside, 0 when unknown: only for choosing among victims."""
        return float((self.running or 0) + (self.waiting or 0))
