"""Opinions, actions, outcomes, decisions: what goes in and out of decide().

Does: spell the closed union of actions and everything a decision record holds. Does not: carry anything out.
Invariant: actions are values with a stable `key`; the same key means the same effect, so doing one twice is harmless.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from autoscaler.domain.base import InstanceId, Instant, PoolName, ReplicaId, Token
from autoscaler.domain.directives import Directives
from autoscaler.domain.faults import Fault
from autoscaler.domain.load import LoadSample, TrustVerdict
from autoscaler.domain.memory import Memory
from autoscaler.domain.pool import Placement
from autoscaler.domain.replica import BalancerView, ComputeView, Endpoint, ProbeRecord, Replica

Fact = str | float | int


class Reason(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why, as a code and its numbers; engine.explain turns it into a sentence."""

    code: str
    facts: dict[str, Fact] = {}


class Recommendation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One policy's opinion in units of capacity.

    `target`: the size it wants; None: no opinion. `ceiling`: the most it allows; None: no limit. `veto_in`: it
    forbids
    scale-in. `carry`: its own state for the next tick as JSON text, at most 64 KiB.
    """

    target: float | None
    reason: Reason
    ceiling: float | None = None
    veto_in: bool = False
    carry: str = ""


class Capacity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Units by what they are good for.

    `in_service`: admitted everywhere; `taking`: of these, the balancer says yes; `on_the_way`: requested to ready;
    `leaving`: of both, marked by an operator to be replaced; `held` = in_service + on_the_way - leaving;
    `draining`; `lost`; `existing`: all that lives or launches and is paid, leaving ones included.
    """

    in_service: float = 0.0
    taking: float = 0.0
    on_the_way: float = 0.0
    draining: float = 0.0
    lost: float = 0.0
    existing: float = 0.0
    leaving: float = 0.0

    @property
    def held(self) -> float:
        """Capacity that serves or will serve without another decision, units."""
        return self.in_service + self.on_the_way - self.leaving


class Situation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a policy sees: the observation after reconciling and judging it."""

    now: Instant
    capacity: Capacity
    load: LoadSample | None
    trust: TrustVerdict
    replicas: tuple[Replica, ...]


class Calendar(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The wall calendar of this tick, for policies that follow it: ISO 8601 text in UTC."""

    utc: str = ""


# --- the closed union of actions; `tag` keeps it closed in JSON too ---


class Launch(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="launch"):
    """Ask the compute for `count` machines at one placement; `token` makes it idempotent."""

    token: Token
    placement: Placement
    count: int
    total_after: int
    request: str

    @property
    def key(self) -> str:
        """Stable name of this effect."""
        return f"launch:{self.token}"


class Withdraw(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="withdraw"):
    """Take back a launch that has produced no machine."""

    token: Token
    placement: Placement

    @property
    def key(self) -> str:
        """Stable name of this effect."""
        return f"withdraw:{self.token}"


class Start(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="start"):
    """Start a stopped machine of the standby."""

    instance: InstanceId
    offer: str

    @property
    def key(self) -> str:
        """Stable name of this effect."""
        return f"start:{self.instance}"


class Stop(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="stop"):
    """Stop a drained machine and keep it as standby."""

    instance: InstanceId
    offer: str

    @property
    def key(self) -> str:
        """Stable name of this effect."""
        return f"stop:{self.instance}"


class Admit(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="admit"):
    """Put a ready replica into a balancer. Its check passed in boot `boot`."""

    endpoint: Endpoint
    balancer: str
    boot: str

    @property
    def key(self) -> str:
        """Stable name of this effect."""
        return f"admit:{self.balancer}:{self.endpoint.replica}"


class Reweigh(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="reweigh"):
    """Set a member's share of traffic."""

    endpoint: Endpoint
    balancer: str

    @property
    def key(self) -> str:
        """Stable name of this effect."""
        return f"reweigh:{self.balancer}:{self.endpoint.replica}"


class Drain(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="drain"):
    """No new requests to a member; running ones finish."""

    endpoint: Endpoint
    balancer: str
    why: str

    @property
    def key(self) -> str:
        """Stable name of this effect."""
        return f"drain:{self.balancer}:{self.endpoint.replica}"


class Recall(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="recall"):
    """Take back a drain for scale-in: the member gets requests again."""

    endpoint: Endpoint
    balancer: str
    boot: str

    @property
    def key(self) -> str:
        """Stable name of this effect."""
        return f"recall:{self.balancer}:{self.endpoint.replica}"


class Evict(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="evict"):
    """Remove a member from a balancer."""

    endpoint: Endpoint
    balancer: str
    why: str

    @property
    def key(self) -> str:
        """Stable name of this effect."""
        return f"evict:{self.balancer}:{self.endpoint.replica}"


class Terminate(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="terminate"):
    """End a machine. `cut`: requests still inside when its drain deadline passed."""

    instance: InstanceId
    offer: str
    why: str
    cut: int = 0

    @property
    def key(self) -> str:
        """Stable name of this effect."""
        return f"terminate:{self.instance}"


Action = Launch | Withdraw | Start | Stop | Admit | Reweigh | Drain | Recall | Evict | Terminate


class OutcomeStatus(StrEnum):
    """What an action came to."""

    DONE = "done"
    ACCEPTED = "accepted"  # will be true later; seen by a later observation
    FAULT = "fault"
    DROPPED = "dropped"  # not started within the tick's budget; will be planned again


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one action came to; losing it in a crash is safe (law 6)."""

    action: Action
    status: OutcomeStatus
    at: Instant
    fault: Fault | None = None
    ids: tuple[InstanceId, ...] = ()
    detail: str = ""


class SourceFault(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A port that could not be read this tick. `source`: `compute:NAME`, `balancer:NAME` or `telemetry`."""

    source: str
    fault: Fault


class Observation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that is known at one instant. A source that failed is in `faults` and absent elsewhere, never empty.

    `in_flight`: keys of actions whose calls have not returned.
    """

    now: Instant
    computes: dict[str, ComputeView] = {}
    balancers: dict[str, BalancerView] = {}
    load: LoadSample | None = None
    probes: dict[ReplicaId, ProbeRecord] = {}
    outcomes: tuple[Outcome, ...] = ()
    directives: Directives = Directives()
    in_flight: frozenset[str] = frozenset()
    faults: tuple[SourceFault, ...] = ()


class Opinion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A recommendation under the name of the policy that gave it; `broken`: why it could not be used."""

    policy: str
    recommendation: Recommendation
    broken: str = ""


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What decide() returns: the sizes at each stage, why, the plan, and the next Memory.

    `wanted`: after composing the policies (None: no opinion); `target`: after trust, directives, stabilisation and
    guards; units. `blocks`: what held the pool back. `alarms`: what a person should look at.
    """

    pool: PoolName
    at: Instant
    sequence: int
    trust: TrustVerdict
    opinions: tuple[Opinion, ...]
    capacity: Capacity
    wanted: int | None
    target: int
    reason: Reason
    blocks: tuple[Reason, ...]
    alarms: tuple[Reason, ...]
    plan: tuple[Action, ...]
    replicas: tuple[Replica, ...]
    sentence: str
    memory: Memory


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One tick as the ledger keeps it: enough to run the same decide() again (replay) and to explain it later."""

    pool: PoolName
    at: Instant
    sequence: int
    observation: Observation
    memory_before: Memory
    calendar: Calendar
    decision: Decision
