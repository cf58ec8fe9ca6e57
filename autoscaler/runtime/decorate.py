"""Decorators of ports: metrics and a rate limit; each takes a port and returns the same port.

Does: put an `Around` about every call that goes out, and dress all ports of a pool (`Dresser`, used by the supervisor).
Does not: retry (the next tick does), set deadlines (observer, prober and executor do), or change an answer.
Invariant: a decorated port keeps its contract: whatever an Around adds comes out as a PortFault.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from autoscaler.domain.base import Duration, InstanceId, Instant, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import PortFault, Throttled
from autoscaler.domain.load import LoadSample, Signal
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import BalancerTraits, Offer, Pool
from autoscaler.domain.replica import BalancerView, ComputeView, Endpoint, LaunchState
from autoscaler.ports.balancer import Balancer
from autoscaler.ports.clock import Clock
from autoscaler.ports.compute import Compute
from autoscaler.ports.telemetry import Telemetry
from autoscaler.runtime.metrics import Metrics
from autoscaler.runtime.parts import PoolParts

T = TypeVar("T")

#: Calls of a compute that change something.
WRITES: Final = frozenset({"launch", "withdraw", "start", "stop", "terminate"})
#: Changes a second that one account gets from us in the long run, and at once. Clouds' own limits on these calls are
#: of this size; the executor drops what waits too long and the next tick plans it again (law 10).
WRITES_PER_S: Final = 5.0
WRITES_BURST: Final = 100


class Around(Protocol):
    """Something that happens about a call."""

    async def __call__(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make the call named `name` and return its answer; raises PortFault."""
        ...


def timed(metrics: Metrics, source: str, clock: Clock) -> Around:
    """Count the calls of `source` by name and result, and how long they took."""

    async def around(name: str, call: Callable[[], Awaitable[T]]) -> T:
        started, result = clock.now(), "error"
        try:
            answer = await call()
            result = "ok"
            return answer
        except PortFault as fault:
            result = fault.kind.value
            raise
        finally:
            metrics.called(source, name, result, clock.now() - started)

    return around


class TokenBucket:
    """At most `per_s` calls a second in the long run and `burst` at once, shared by whoever holds the bucket.

    A call waits for its turn at most `patience` seconds, else it is Throttled with the time until there is room.
    """

    def __init__(self, clock: Clock, *, per_s: float, burst: int, patience: float = 1.0) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = float(burst)
        self._patience = patience
        self._left = float(burst)
        self._at: Instant | None = None

    async def take(self) -> None:
        """Take one; raises Throttled."""
        now = self._clock.now()
        if self._at is not None:
            self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        wait = (1.0 - self._left) / self._per_s
        if wait > self._patience:
            raise Throttled("our own rate limit is reached", retry_after_s=wait)
        self._left -= 1.0
        if wait > 0:
            await self._clock.sleep(Duration(wait))


def limited(bucket: TokenBucket) -> Around:
    """Every call that changes something takes from `bucket` first; looking is shared and paced by the tick."""

    async def around(name: str, call: Callable[[], Awaitable[T]]) -> T:
        if name in WRITES:
            await bucket.take()
        return await call()

    return around


def around_compute(compute: Compute, around: Around) -> Compute:
    """`compute` with `around` about each of its calls."""
    return _Compute(compute, around)


def around_balancer(balancer: Balancer, around: Around) -> Balancer:
    """`balancer` with `around` about each of its calls."""
    return _Balancer(balancer, around)


def around_telemetry(telemetry: Telemetry, around: Around) -> Telemetry:
    """`telemetry` with `around` about each of its calls."""
    return _Telemetry(telemetry, around)


class Dresser:
    """Dresses the ports of pools: all are timed, computes are limited; a compute that pools share shares one bucket."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._computes: dict[int, tuple[Compute, Compute]] = {}  # by id; the bare one is kept alive

    def dress(self, parts: PoolParts) -> PoolParts:
        """`parts` with every compute, balancer and telemetry dressed; closing them closes what is inside."""
        return parts._replace(
            computes={name: self._compute(name, compute) for name, compute in parts.computes.items()},
            balancers={
                name: around_balancer(balancer, timed(self._metrics, f"balancer:{name}", self._clock))
                for name, balancer in parts.balancers.items()
            },
            telemetry=around_telemetry(parts.telemetry, timed(self._metrics, "telemetry", self._clock)),
        )

    def _compute(self, name: str, compute: Compute) -> Compute:
        if id(compute) not in self._computes:
            bucket = TokenBucket(self._clock, per_s=WRITES_PER_S, burst=WRITES_BURST)
            slow = around_compute(compute, limited(bucket))
            dressed = around_compute(slow, timed(self._metrics, f"compute:{name}", self._clock))
            self._computes[id(compute)] = (compute, dressed)
        return self._computes[id(compute)][1]


class _Compute:
    def __init__(self, inner: Compute, around: Around) -> None:
        self._inner = inner
        self._around = around

    async def observe(self, pool: Pool, launches: Sequence[OpenLaunch], not_older_than: Instant) -> ComputeView:
        return await self._around("observe", partial(self._inner.observe, pool, launches, not_older_than))

    async def launch(self, pool: Pool, order: Launch) -> LaunchState:
        return await self._around("launch", partial(self._inner.launch, pool, order))

    async def withdraw(self, pool: Pool, token: Token) -> None:
        await self._around("withdraw", partial(self._inner.withdraw, pool, token))

    async def start(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self._around("start", partial(self._inner.start, pool, ids))

    async def stop(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self._around("stop", partial(self._inner.stop, pool, ids))

    async def terminate(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self._around("terminate", partial(self._inner.terminate, pool, ids))

    async def precheck(self, pool: Pool, ids: Sequence[InstanceId]) -> dict[InstanceId, str]:
        return await self._around("precheck", partial(self._inner.precheck, pool, ids))

    def check_offer(self, offer: Offer) -> list[str]:
        return self._inner.check_offer(offer)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Balancer:
    def __init__(self, inner: Balancer, around: Around) -> None:
        self._inner = inner
        self._around = around

    def traits(self) -> BalancerTraits:
        return self._inner.traits()

    async def members(self) -> BalancerView:
        return await self._around("members", self._inner.members)

    async def admit(self, endpoints: Sequence[Endpoint]) -> None:
        await self._around("admit", partial(self._inner.admit, endpoints))

    async def reweigh(self, endpoints: Sequence[Endpoint]) -> None:
        await self._around("reweigh", partial(self._inner.reweigh, endpoints))

    async def drain(self, endpoints: Sequence[Endpoint]) -> None:
        await self._around("drain", partial(self._inner.drain, endpoints))

    async def evict(self, endpoints: Sequence[Endpoint]) -> None:
        await self._around("evict", partial(self._inner.evict, endpoints))

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Telemetry:
    def __init__(self, inner: Telemetry, around: Around) -> None:
        self._inner = inner
        self._around = around

    async def sample(self, signals: frozenset[Signal], replicas: Sequence[Endpoint]) -> LoadSample:
        return await self._around("sample", partial(self._inner.sample, signals, replicas))

    async def aclose(self) -> None:
        await self._inner.aclose()
