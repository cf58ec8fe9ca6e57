"""Decorators of ports: a deadline, metrics, a rate limit; each takes a port and returns the same port.

Does: put an `Around` about every call that goes out. Does not: retry (the next tick does), or change an answer.
Invariant: a decorated port keeps its contract: whatever an Around adds comes out as a PortFault.

An Around is a function of the call's name and the call; `deadline`, `timed` and `limited` make one, and they nest:
`around_compute(around_compute(compute, deadline(10)), limited(bucket))`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from autoscaler.domain.base import Duration, InstanceId, Instant, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import PortFault, Throttled, Unreachable
from autoscaler.domain.load import LoadSample, Signal
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import BalancerTraits, Offer, Pool
from autoscaler.domain.replica import BalancerView, ComputeView, Endpoint, LaunchState
from autoscaler.ports.balancer import Balancer
from autoscaler.ports.clock import Clock
from autoscaler.ports.compute import Compute
from autoscaler.ports.telemetry import Telemetry
from autoscaler.runtime.metrics import Metrics

T = TypeVar("T")


class Around(Protocol):
    """Something that happens about a call."""

    async def __call__(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make the call named `name` and return its answer; raises PortFault."""
        ...


def deadline(seconds: Duration) -> Around:
    """A call that has not returned within `seconds` is Unreachable."""

    async def around(name: str, call: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await call()
        except TimeoutError as late:
            raise Unreachable(f"{name}: no answer within {seconds:g} s") from late

    return around


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
    """Every call takes from `bucket` first."""

    async def around(name: str, call: Callable[[], Awaitable[T]]) -> T:
        del name
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
