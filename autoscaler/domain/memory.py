"""What must survive to the next tick, and nothing else.

Does: hold open launches, intents, clocks and carries of one pool; bounded in size. Does not: hold observations.
Invariant: everything in here is needed by the next decide() or by a crash recovery; the JSON form is versioned.
"""

from __future__ import annotations

from typing import Final

import msgspec

from autoscaler.domain.base import NEVER, InstanceId, Instant, ReplicaId, Token
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.pool import Placement

SCHEMA_VERSION: Final = 1


class OpenLaunch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A launch that was saved and is not yet closed; sent again with the same token, never planned again.

    `request`: the offer's frozen request. `expires_at`: then the tag sweep applies. `resend_after`: not sent again
    before; `unheard`: times in a row that it was throttled or nobody answered, which makes that wait longer.
    """

    token: Token
    placement: Placement
    count: int
    units: int
    total_after: int
    request: str
    at: Instant
    expires_at: Instant
    accepted: bool = False
    resend_after: Instant = NEVER
    unheard: int = 0
    withdrawn: bool = False


class DrainWhy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why, since when and until when a replica drains."""

    why: str  # scale_in | operator | replace | notice | lost | never_ready | surplus
    since: Instant
    deadline: Instant


class Intent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What we mean with one replica, and what we last knew of it.

    `phase`, `since`: last phase and when it began. `boot`: of the last look. `admitted_at`: last admission asked for
    in
    this boot. `out_since`: no balancer has shown it admitted since then. `idle_at`: instants of the last looks (at
    most
    two) that showed it empty after it left. `recalls`: drains recalled, at most one. `missing_since`: first complete
    look that did not show the machine. `first_seen_at`: first look that showed it to this ledger. `inside`: requests
    inside a replica that is lost or leaves, when that was last told: one that hangs tells it no more, nor does a
    balancer that it has left.
    """

    phase: Phase
    since: Instant
    launched_at: Instant
    offer: str
    zone: str
    units: float
    host: str | None = None
    boot: str = ""
    ready_at: Instant | None = None
    admitted_at: Instant | None = None
    taken_out_at: Instant | None = None
    out_since: Instant | None = None
    idle_at: tuple[Instant, ...] = ()
    drain: DrainWhy | None = None
    recalls: int = 0
    terminating_since: Instant | None = None
    replace: bool = False
    adopted: bool = False
    failing_since: Instant | None = None
    missing_since: Instant | None = None
    first_seen_at: Instant | None = None
    inside: int = 0


class Mark(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A placement (or a whole offer) that is skipped until `until`, and why."""

    until: Instant
    why: str


class Breaker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Failed loads in a row of one offer's template. Open: no launch before `retry_at`, then one at a time.

    `ever_ready`: a machine of this template became ready under this breaker. `tripped`: the breaker says so aloud.
    """

    failures: int = 0
    retry_at: Instant = NEVER
    ever_ready: bool = False
    tripped: bool = False
    last_failure: str = ""


class Wanted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One entry of the stabilisation window: the size recommended at an instant, in units."""

    at: Instant
    units: int


class Memory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that one pool remembers. `sequence` counts decisions; with `epoch` and an index it makes launch tokens.

    `history_since`: since when ticks follow each other without a gap (law 8). `blind_since`: telemetry lost since.
    `size`: what was last aimed at, less what nobody wants any more; kept while nothing may be concluded from telemetry.
    `carries`: each policy's own state as JSON text, at most 64 KiB each. `spend_usd`: this month's, `spend_month`
    "YYYY-MM".
    """

    schema: int = SCHEMA_VERSION
    epoch: str = ""
    sequence: int = 0
    config_hash: str = ""
    identity: str = ""
    last_at: Instant | None = None
    history_since: Instant | None = None
    launches: tuple[OpenLaunch, ...] = ()
    intents: dict[ReplicaId, Intent] = {}
    window: tuple[Wanted, ...] = ()
    size: int | None = None
    last_out_at: Instant | None = None
    last_in_at: Instant | None = None
    marks: dict[str, Mark] = {}
    breakers: dict[str, Breaker] = {}
    carries: dict[str, str] = {}
    blind_since: Instant | None = None
    replace_paced_at: Instant | None = None
    throttled_until: Instant = NEVER
    protected: frozenset[InstanceId] = frozenset()
    spend_usd: float = 0.0
    spend_month: str = ""
    cut_total: int = 0
