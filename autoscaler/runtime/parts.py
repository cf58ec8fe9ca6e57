"""What one pool is made of, and what all pools share, as the wiring hands it to the runtime.

Does: name the pieces. Does not: build or close them.
Invariant: every offer's compute and every balancer trait of `pool` has its adapter here (the wiring checks it).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from autoscaler.domain.decision import Calendar, Decision, Observation
from autoscaler.domain.load import Signal
from autoscaler.domain.memory import Memory
from autoscaler.domain.pool import Pool
from autoscaler.ports.balancer import Balancer
from autoscaler.ports.clock import Clock
from autoscaler.ports.compute import Compute
from autoscaler.ports.ledger import Ledger
from autoscaler.ports.policy import Policy
from autoscaler.ports.probe import Probe
from autoscaler.ports.telemetry import Telemetry
from autoscaler.runtime.gate import Gate
from autoscaler.runtime.journal import Journal
from autoscaler.runtime.metrics import Metrics

Decide = Callable[[Pool, tuple[Policy, ...], Memory, Observation, Calendar], Decision]
Checkpoint = Callable[[str], None]


class PoolParts(NamedTuple):
    """One pool with its adapters. `computes` by Offer.compute, `balancers` by BalancerTraits.name."""

    pool: Pool
    policies: tuple[Policy, ...]
    computes: Mapping[str, Compute]
    balancers: Mapping[str, Balancer]
    telemetry: Telemetry
    probe: Probe
    signals: frozenset[Signal]
    config_hash: str

    def adapters(self) -> Iterator[Compute | Balancer | Telemetry | Probe]:
        """Everything in here that has an `aclose`; pools of one account share a compute."""
        yield from self.computes.values()
        yield from self.balancers.values()
        yield self.telemetry
        yield self.probe


class Services(NamedTuple):
    """What all pools of a process share. `checkpoint` is called at named points: tests kill the daemon there."""

    ledger: Ledger
    clock: Clock
    gate: Gate
    decide: Decide
    journal: Journal
    metrics: Metrics
    checkpoint: Checkpoint
