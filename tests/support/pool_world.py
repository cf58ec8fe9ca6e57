"""A pool with in-memory providers, ready to be run by the real loop: what most runtime tests start from."""

import io
from collections.abc import Iterable

import msgspec

from autoscaler.domain.base import Duration, PoolName
from autoscaler.domain.decision import Calendar, Reason, Recommendation, Situation
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Bounds, Mode, Offer, Pace, Pool, ReadyRule, ScaleIn, ScaleOut
from autoscaler.engine.decide import decide
from autoscaler.ports.clock import Clock
from autoscaler.ports.policy import Policy
from autoscaler.runtime.gate import Gate
from autoscaler.runtime.journal import open_journal
from autoscaler.runtime.metrics import Metrics
from autoscaler.runtime.parts import Checkpoint, Decide, PoolParts, Services
from tests.support.memory_balancer import MemoryBalancer
from tests.support.memory_compute import MemoryCompute
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_probe import MemoryProbe
from tests.support.memory_telemetry import MemoryTelemetry


class Asks:
    """A policy that wants what a test says, whatever the load; no opinion when `units` is None."""

    name = "asks"

    def __init__(self, units: float | None, *signals: Signal) -> None:
        self.units = units
        self._signals = frozenset(signals)

    def signals(self) -> frozenset[Signal]:
        return self._signals

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        return Recommendation(target=self.units, reason=Reason(code="asked"))


def a_pool(name: str = "p", **changes: object) -> Pool:
    """A pool of one offer, tick 15 s, at most 10, whose pace allows quick tests."""
    base = Pool(
        installation="test",
        name=PoolName(name),
        bounds=Bounds(min=1, max=10),
        offers=(Offer(name="gpu", compute="memory", ports=(8000,), usd_per_h=2.0),),
        ready=ReadyRule(passes=2, give_up_after=Duration(300.0)),
        pace=Pace(
            scale_out=ScaleOut(max_step=4, max_growth=4.0),
            scale_in=ScaleIn(cooldown=Duration(30.0), stabilization=Duration(60.0)),
            min_age=Duration(0.0),
        ),
    )
    return msgspec.structs.replace(base, **changes)


class PoolWorld:
    """The in-memory providers of one pool. `asks.units` is what its only policy wants."""

    def __init__(self, clock: Clock, pool: Pool | None = None, *, compute: MemoryCompute | None = None) -> None:
        self.clock = clock
        self.compute = compute or MemoryCompute(clock)
        self.balancer = MemoryBalancer(clock)
        self.telemetry = MemoryTelemetry(clock, {Signal.QUEUE_LENGTH: 1.0})
        self.probe = MemoryProbe(clock)
        self.asks = Asks(2)
        self.pool = msgspec.structs.replace(pool or a_pool(), balancers=(self.balancer.traits(),))

    @property
    def name(self) -> PoolName:
        return self.pool.name

    def parts(self, policies: Iterable[Policy] | None = None, **changes: object) -> PoolParts:
        pool = msgspec.structs.replace(self.pool, **changes)
        chosen = tuple(policies) if policies is not None else (self.asks,)
        return PoolParts(
            pool=pool,
            policies=chosen,
            computes={"memory": self.compute},
            balancers={"front": self.balancer},
            telemetry=self.telemetry,
            probe=self.probe,
            signals=frozenset({Signal.QUEUE_LENGTH}),
            config_hash="c1",
        )

    def advise(self) -> PoolParts:
        return self.parts(mode=Mode.ADVISE)


def no_checkpoint(name: str) -> None:
    """Nobody is killed."""


def services(
    clock: Clock,
    ledger: MemoryLedger,
    *,
    decide_with: Decide = decide,
    checkpoint: Checkpoint = no_checkpoint,
    log: io.StringIO | None = None,
) -> Services:
    """What pools share, with a journal that goes to `log` (or nowhere)."""
    return Services(
        ledger=ledger,
        clock=clock,
        gate=Gate(clock),
        decide=decide_with,
        journal=open_journal(stream=log or io.StringIO()),
        metrics=Metrics(),
        checkpoint=checkpoint,
    )
