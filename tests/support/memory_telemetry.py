"""Telemetry in memory: values that a test sets, over whatever replicas are asked about."""

from collections.abc import Sequence

from autoscaler.domain.load import Idleness, Kind, LoadSample, Reading, ReadingState, ReplicaLoad, Signal
from autoscaler.domain.replica import Endpoint
from autoscaler.ports.clock import Clock
from tests.support.faults import Faults

KINDS = {
    Signal.QUEUE_LENGTH: Kind.TOTAL,
    Signal.RUNNING: Kind.TOTAL,
    Signal.GPU_UTILIZATION: Kind.MEAN,
    Signal.KV_CACHE_USE: Kind.MEAN,
    Signal.TTFT_S_P95: Kind.QUANTILE,
    Signal.E2E_S_P95: Kind.QUANTILE,
    Signal.REQUEST_RATE: Kind.TOTAL,
    Signal.TOKEN_RATE: Kind.TOTAL,
    Signal.INPUT_TOKEN_RATE: Kind.TOTAL,
}


class MemoryTelemetry:
    """`values[signal]`: the reading; a signal without a value is ABSENT. `missing`: replicas that do not answer."""

    def __init__(self, clock: Clock, values: dict[Signal, float] | None = None) -> None:
        self.clock = clock
        self.values = dict(values or {})
        self.faults = Faults()
        self.missing = 0
        self.arrivals = 1.0
        self.completions = 1.0
        self.asked: list[tuple[Endpoint, ...]] = []
        self.closed = False

    async def sample(self, signals: frozenset[Signal], replicas: Sequence[Endpoint]) -> LoadSample:
        await self.faults.enter("sample")
        self.asked.append(tuple(replicas))
        covered = max(0, len(replicas) - self.missing)
        now = self.clock.now()
        readings = {
            signal: Reading(
                signal=signal,
                kind=KINDS[signal],
                state=ReadingState.OK if signal in self.values else ReadingState.ABSENT,
                at=now,
                value=self.values.get(signal),
                covered=covered,
                expected=len(replicas),
                samples=100,
                source="memory",
            )
            for signal in signals
        }
        return LoadSample(
            at=now,
            readings=readings,
            replicas={one.replica: ReplicaLoad(running=0.0, waiting=0.0) for one in replicas[:covered]},
            idleness=Idleness(arrivals=self.arrivals, completions=self.completions),
        )

    async def aclose(self) -> None:
        self.closed = True
