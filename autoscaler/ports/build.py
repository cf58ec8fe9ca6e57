"""How a provider module is built: the contract behind every entry point.

A compute, balancer, telemetry, probe, ledger or policy module exposes `Settings`, a frozen msgspec.Struct that the
config layer fills and checks, and `build`:

    compute     build(settings: Settings, context: Context) -> Compute; and scope(settings) -> str: offers of one
                pool or of several with an equal (kind, scope) share one adapter (one account and region). The offer's
                Settings are frozen as JSON into Offer.request; launch() reads them there, never from the adapter.
                If it keeps what must not be lost: beside_ledger(state_dir: str) -> Path, so that backups can tell.
    balancer    build(settings, context) -> Balancer    one per pool and binding, `context.name` is the binding's name
    telemetry   build(settings, context) -> Telemetry   one per pool
    probe       build(settings, context) -> Probe       one per pool; Settings are `ready_when` without passes and
                give_up_after, which the engine reads
    ledger      build(settings, context) -> Ledger      one per installation
    policy      build(settings) -> Policy               one per pool and policy; `compose`: build(settings, children)

Does: name what a provider is given. Does not: find or load modules (autoscaler.wiring does).
Invariant: build() does no network I/O and imports its vendor's SDK lazily.
"""

from __future__ import annotations

import msgspec

from autoscaler.domain.base import PoolName
from autoscaler.ports.clock import Clock


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What every provider may know: who we are, for which pool, where state may be kept, and the clock.

    `looking`: nothing may be changed or started (law 14): a balancer does not start a process of its own.
    """

    installation: str
    state_dir: str
    clock: Clock
    pool: PoolName = PoolName("")
    name: str = ""
    looking: bool = False
