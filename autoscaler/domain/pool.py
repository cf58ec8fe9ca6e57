"""What the user wants: a pool, its offers and its pace, as frozen values.

Does: hold the desired service in the engine's words, checked at construction. Does not: hold provider settings
(an Offer's `request` is opaque to all but its compute), read files, or know defaults of the file format.
Invariant: a Pool that exists is consistent: 0 <= min <= max, at least one offer, every rate and duration positive.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from autoscaler.domain.base import Duration, PoolName
from autoscaler.domain.faults import InvariantBroken


def require(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence at its call sites
    """Raise InvariantBroken with `message` unless `condition` holds."""
    if not condition:
        raise InvariantBroken(message)


class Mode(StrEnum):
    """`act` carries plans out; `advise` decides and journals only."""

    ACT = "act"
    ADVISE = "advise"


class Bounds(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Capacity bounds in units. `fallback`: size to rise to when telemetry stays blind for `Pace.fallback_after`."""

    min: int
    max: int
    fallback: int | None = None

    def __post_init__(self) -> None:
        require(0 <= self.min <= self.max, f"capacity bounds need 0 <= min <= max, not {self.min}, {self.max}")


class Placement(msgspec.Struct, frozen=True, kw_only=True, gc=False, order=True):
    """One offer in one zone: what a launch is aimed at and what a lack of capacity marks."""

    offer: str
    zone: str

    @property
    def key(self) -> str:
        """`offer/zone`, the key of marks in Memory."""
        return f"{self.offer}/{self.zone}"


class Offer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A way to get machines. Order in the pool is order of preference.

    Units: `usd_per_h` US dollars an hour a machine; `capacity` units a machine (all its ports together).
    `compute` names the adapter; `request` is that adapter's own frozen JSON and stays opaque here.
    """

    name: str
    compute: str
    zones: tuple[str, ...] = ("local",)
    usd_per_h: float = 0.0
    capacity: int = 1
    ports: tuple[int, ...] = ()
    market: str = "on_demand"
    request: str = "{}"

    def __post_init__(self) -> None:
        require(self.capacity >= 1 and self.usd_per_h >= 0, f"offer {self.name}: capacity >= 1 and price >= 0")
        require(len(self.zones) >= 1, f"offer {self.name}: at least one zone")

    @property
    def placements(self) -> tuple[Placement, ...]:
        """This offer in each of its zones."""
        return tuple(Placement(offer=self.name, zone=zone) for zone in self.zones)


class ScaleOut(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Pace outwards. A step adds at most max(max_step, max_growth x held) units; next step `cooldown` later."""

    cooldown: Duration = Duration(30.0)
    max_step: int = 2
    max_growth: float = 1.0


class ScaleIn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Pace inwards: on the highest recommendation of the last `stabilization`, `max_step` units, each `cooldown`."""

    cooldown: Duration = Duration(300.0)
    stabilization: Duration = Duration(600.0)
    max_step: int = 1


class Pace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How fast the pool may move and how long it waits for things. All durations in seconds.

    `stale_after`: telemetry older than this is blind. `fallback_after`: blind for this long raises to the fallback.
    `launch_deadline`: a launch with no machine by then has expired. `no_capacity_memory`: how long a mark stands.
    `unhealthy_after`: a member is out at the latest this long after the first failed check (law 1).
    `replace_after`: a LOST replica is replaced when it did not recover for this long.
    `orphan_grace`: an adopted machine that never became ready may be terminated after this.
    """

    tick: Duration = Duration(15.0)
    scale_out: ScaleOut = ScaleOut()
    scale_in: ScaleIn = ScaleIn()
    stale_after: Duration = Duration(45.0)
    fallback_after: Duration = Duration(600.0)
    launch_deadline: Duration = Duration(300.0)
    no_capacity_memory: Duration = Duration(180.0)
    unhealthy_after: Duration = Duration(15.0)
    replace_after: Duration = Duration(30.0)
    orphan_grace: Duration = Duration(1800.0)
    backoff_first: Duration = Duration(30.0)
    backoff_max: Duration = Duration(1800.0)
    breaker_after: int = 3
    min_age: Duration = Duration(300.0)

    def __post_init__(self) -> None:
        require(self.tick > 0 and self.stale_after > 0, "tick and stale_after must be positive")
        require(self.scale_out.max_step >= 1 and self.scale_in.max_step >= 1, "steps must be at least 1")


class ReadyRule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When a replica is ready: after `passes` checks in a row in one boot; `give_up_after` s without it: failed."""

    passes: int = 2
    give_up_after: Duration = Duration(1200.0)


class DrainRule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How long a drain may take: `deadline` for a healthy replica, `lost_deadline` for one that failed its check."""

    deadline: Duration = Duration(900.0)
    lost_deadline: Duration = Duration(30.0)


class BalancerTraits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a balancer can do, as its adapter states it.

    `settle`: seconds until a change is true everywhere. `drain_stops`: "requests" or only new "connections".
    `counts_active`: whether members() reports running requests a member.
    """

    name: str
    strategies: tuple[str, ...] = ("round_robin",)
    weights: bool = False
    settle: Duration = Duration(1.0)
    drain_stops: str = "requests"
    recall: bool = True
    counts_active: bool = False


class Pool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A desired service. `balancers` are traits by binding name: IN_SERVICE means admitted in all of them."""

    installation: str
    name: PoolName
    bounds: Bounds
    offers: tuple[Offer, ...]
    mode: Mode = Mode.ACT
    budget_usd_per_h: float | None = None
    ready: ReadyRule = ReadyRule()
    balancers: tuple[BalancerTraits, ...] = ()
    pace: Pace = Pace()
    drain: DrainRule = DrainRule()
    identity: str = ""

    def __post_init__(self) -> None:
        require(len(self.offers) >= 1, f"pool {self.name}: at least one offer")
        names = [offer.name for offer in self.offers]
        require(len(set(names)) == len(names), f"pool {self.name}: two offers have the same name")

    def offer(self, name: str) -> Offer | None:
        """The offer of that name, or None when the config no longer has it."""
        return next((offer for offer in self.offers if offer.name == name), None)

    @property
    def settle(self) -> Duration:
        """The slowest balancer's settle time, in seconds."""
        return Duration(max((balancer.settle for balancer in self.balancers), default=0.0))
