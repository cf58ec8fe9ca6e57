"""Reading the world for one tick: all ports of a pool at once, each under a deadline.

Does: turn a port that fails or is late into a SourceFault; keep the last views so that an early tick reads only what it
needs. Does not: judge what it read.
Invariant: a source that failed is in `faults` and absent elsewhere, never empty.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from autoscaler.domain.base import Duration, Instant
from autoscaler.domain.decision import SourceFault
from autoscaler.domain.directives import Directives
from autoscaler.domain.faults import Fault, FaultKind, PortFault
from autoscaler.domain.load import LoadSample
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.replica import BalancerView, ComputeView, Endpoint
from autoscaler.ports.ledger import Ledger
from autoscaler.runtime.parts import PoolParts

T = TypeVar("T")


async def guarded(source: str, call: Callable[[], Awaitable[T]], deadline: Duration) -> T | SourceFault:
    """The answer of a port, or its fault as a value; `deadline` in seconds. `call` is made when this is awaited."""
    try:
        async with asyncio.timeout(deadline):
            return await call()
    except PortFault as fault:
        return SourceFault(source=source, fault=fault.fault)
    except TimeoutError:
        late = Fault(kind=FaultKind.UNREACHABLE, detail=f"no answer within {deadline:g} s")
        return SourceFault(source=source, fault=late)


class Ask(NamedTuple):
    """What this tick needs to read. `early`: views and load that are younger than a tick may serve again."""

    at: Instant
    early: bool
    launches: tuple[OpenLaunch, ...]
    serving: Sequence[Endpoint]


class World(NamedTuple):
    """What was read. `directives` is None when the ledger did not give them."""

    computes: dict[str, ComputeView]
    balancers: dict[str, BalancerView]
    load: LoadSample | None
    directives: Directives | None
    faults: tuple[SourceFault, ...]


class Observer:
    """Reads for one pool, and remembers the last compute views and load with the instant they were asked for."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._computes: dict[str, tuple[Instant, ComputeView]] = {}
        self._load: tuple[Instant, LoadSample] | None = None

    def forget(self) -> None:
        """Read everything anew next time (the adapters were exchanged)."""
        self._computes.clear()
        self._load = None

    async def look(self, parts: PoolParts, ask: Ask) -> World:
        """Ask every port that is needed, concurrently; returns when all answered or their deadlines passed."""
        pool, deadline = parts.pool, observe_deadline(parts.pool.pace.tick)
        oldest = ask.at - pool.pace.tick
        views = {name: view for name, (at, view) in self._computes.items() if ask.early and at > oldest}
        load = self._load[1] if ask.early and self._load is not None and self._load[0] > oldest else None
        fresh = Instant(ask.at - pool.pace.tick / 4.0)
        calls: list[Coroutine[Any, Any, object]] = [
            guarded(f"compute:{name}", partial(compute.observe, pool, ask.launches, fresh), deadline)
            for name, compute in parts.computes.items()
            if name not in views
        ]
        calls += [guarded(f"balancer:{name}", balancer.members, deadline) for name, balancer in parts.balancers.items()]
        calls.append(guarded("ledger", partial(self._ledger.directives, pool.name), deadline))
        if load is None:
            calls.append(guarded("telemetry", partial(parts.telemetry.sample, parts.signals, ask.serving), deadline))
        names = [name for name in parts.computes if name not in views]
        answers = await asyncio.gather(*calls)
        # A compute is known by the binding it was asked under, whatever its view calls itself.
        for name, answer in zip(names, answers, strict=False):
            if isinstance(answer, ComputeView):
                views[name] = answer
                self._computes[name] = (ask.at, answer)
        asked = answers[len(names) : len(names) + len(parts.balancers)]
        members = {
            name: answer
            for name, answer in zip(parts.balancers, asked, strict=True)
            if isinstance(answer, BalancerView)
        }
        for answer in answers:
            if isinstance(answer, LoadSample):
                load = answer
                self._load = (ask.at, answer)
        directives = next((answer for answer in answers if isinstance(answer, Directives)), None)
        faults = tuple(answer for answer in answers if isinstance(answer, SourceFault))
        return World(views, members, load, directives, faults)


def observe_deadline(tick: Duration) -> Duration:
    """How long a port may take to be read, in seconds: two thirds of a tick, so that a late one cannot fill it.

    Never less than two seconds: a busy host must not blind a pool whose ticks are very short.
    """
    return Duration(max(2.0, tick * 2.0 / 3.0))
