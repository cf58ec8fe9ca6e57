"""The daemon's own metrics, in a registry of its own.

Does: count what happens in a tick, and read gauges from the pools' latest state when somebody scrapes.
Does not: decide anything from them.
Invariant: a gauge is read at scrape time from the last decision, so it can neither lag nor cost anything in a tick.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from autoscaler.domain.base import Instant, PoolName
from autoscaler.domain.decision import Decision
from autoscaler.domain.faults import FaultKind
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.load import Trust
from autoscaler.domain.memory import Memory

TICK_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60)
READY_BUCKETS = (1, 5, 15, 30, 60, 120, 240, 480, 720, 1200, 1800, 3600)


class Seen(NamedTuple):
    """One pool's latest state for the gauges. `foreign_usd_per_h`: price of machines with tags of nobody known."""

    pool: PoolName
    decision: Decision | None
    tick_at: Instant | None
    foreign: int
    foreign_usd_per_h: float


class Metrics:
    """Counters and histograms of all pools; gauges come from the function given to `watch`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        on = self.registry
        self._ticks = Histogram(
            "autoscaler_tick_seconds", "Duration of a tick.", ["pool"], buckets=TICK_BUCKETS, registry=on
        )
        self._ready = Histogram(
            "autoscaler_time_to_ready_seconds",
            "From launch to model loaded.",
            ["pool"],
            buckets=READY_BUCKETS,
            registry=on,
        )
        self._calls = Histogram(
            "autoscaler_port_call_seconds",
            "Calls to ports.",
            ["source", "call", "result"],
            buckets=TICK_BUCKETS,
            registry=on,
        )
        self._faults = Counter(
            "autoscaler_faults", "Faults by source and kind.", ["pool", "source", "kind"], registry=on
        )
        self._decisions = Counter("autoscaler_decisions", "Decisions by reason.", ["pool", "reason"], registry=on)
        self._overruns = Counter(
            "autoscaler_tick_overruns", "Ticks longer than the interval.", ["pool", "part"], registry=on
        )
        self._missed = Counter("autoscaler_ticks_missed", "Ticks left out because one overran.", ["pool"], registry=on)
        self._crashes = Counter("autoscaler_pool_crashes", "Crashes of a pool's task.", ["pool"], registry=on)
        self._unsaved = Counter(
            "autoscaler_ticks_unsaved", "Ticks whose decision could not be saved.", ["pool"], registry=on
        )

    def called(self, source: str, name: str, result: str, seconds: float) -> None:
        """A call to a port ended; `result`: "ok", "error" or the kind of its fault."""
        self._calls.labels(source, name, result).observe(seconds)

    def watch(self, states: Callable[[], Iterable[Seen]], now: Callable[[], Instant]) -> None:
        """Read the gauges from `states` at every scrape."""
        self.registry.register(_Gauges(states, now))

    def ticked(self, pool: PoolName, seconds: float) -> None:
        """A tick ended after `seconds`."""
        self._ticks.labels(pool).observe(seconds)

    def decided(self, before: Memory, decision: Decision) -> None:
        """Count a saved decision, and the replicas that became ready in it."""
        self._decisions.labels(decision.pool, decision.reason.code).inc()
        for name, intent in decision.memory.intents.items():
            known = before.intents.get(name)
            if intent.ready_at is not None and (known is None or known.ready_at is None):
                self._ready.labels(decision.pool).observe(max(0.0, intent.ready_at - intent.launched_at))

    def fault(self, pool: PoolName, source: str, kind: FaultKind) -> None:
        """A port or an action failed."""
        self._faults.labels(pool, source, kind.value).inc()

    def overran(self, pool: PoolName, part: str, missed: int) -> None:
        """A tick took longer than the interval, most of it in `part`; `missed` ticks are left out."""
        self._overruns.labels(pool, part).inc()
        self._missed.labels(pool).inc(missed)

    def crashed(self, pool: PoolName) -> None:
        """A pool's task ended with an error of ours."""
        self._crashes.labels(pool).inc()

    def unsaved(self, pool: PoolName) -> None:
        """A decision was made and could not be saved, so it was not carried out."""
        self._unsaved.labels(pool).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, states: Callable[[], Iterable[Seen]], now: Callable[[], Instant]) -> None:
        self._states = states
        self._now = now

    @override
    def collect(self) -> Iterator[Metric]:
        states = list(self._states())
        decided = [(seen.pool, seen.decision) for seen in states if seen.decision is not None]
        now = self._now()
        ages = [((seen.pool,), now - seen.tick_at) for seen in states if seen.tick_at is not None]
        yield _gauge("tick_age_seconds", "Age of the last finished tick.", ["pool"], ages)
        yield _gauge("desired_units", "Target capacity.", ["pool"], [((p,), d.target) for p, d in decided])
        wanted = [((pool,), decision.wanted) for pool, decision in decided if decision.wanted is not None]
        yield _gauge("wanted_units", "Capacity the policies want.", ["pool"], wanted)
        held = [((pool,), decision.capacity.held) for pool, decision in decided]
        yield _gauge("held_units", "Capacity in service or on its way.", ["pool"], held)
        yield _gauge("replicas", "Replicas by phase.", ["pool", "phase"], list(_phases(decided)))
        trust = [((p, level.value), float(d.trust.level is level)) for p, d in decided for level in Trust]
        yield _gauge("trust", "1 for the verdict on telemetry.", ["pool", "level"], trust)
        foreign = [((seen.pool,), seen.foreign) for seen in states]
        yield _gauge("foreign_machines", "Machines with tags that no pool here knows.", ["pool"], foreign)
        cost = [((seen.pool,), seen.foreign_usd_per_h) for seen in states]
        yield _gauge("foreign_usd_per_hour", "Price of the foreign machines.", ["pool"], cost)
        cut = CounterMetricFamily("autoscaler_requests_cut", "Requests cut by a drain deadline.", labels=["pool"])
        for pool, decision in decided:
            cut.add_metric([pool], decision.memory.cut_total)
        yield cut


def _phases(decided: Sequence[tuple[PoolName, Decision]]) -> Iterator[tuple[tuple[str, ...], float]]:
    for pool, decision in decided:
        tally = Tally(replica.phase for replica in decision.replicas)
        for phase in Phase:
            yield (pool, phase.value), tally[phase]


def _gauge(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"autoscaler_{name}", text, labels=labels)
    for key, value in values:
        family.add_metric(list(key), value)
    return family
