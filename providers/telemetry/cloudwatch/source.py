"""CloudWatch of one account and region, shared by every pool that reads from it: one GetMetricData for all.

Does: gather what pools ask in the same moment into calls of up to 500 metrics, and keep each answer for `reuse`.
Does not: know what a metric means. Invariant: a metric that failed has its reason as its answer, never no points.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from autoscaler.domain.base import NEVER, Duration, Instant, elapsed
from autoscaler.domain.faults import PortFault
from autoscaler.ports.clock import Clock
from providers._shared.aws import Account
from providers.telemetry.cloudwatch.settings import Settings

#: As GetMetricData's own description says.
BATCH: Final = 500
#: How long a call waits for others to ask, seconds: pools of one daemon tick together.
_GATHER_S: Final = 0.05
#: How far back is asked, seconds.
_BACK: Final = Duration(1200.0)
#: What nobody has asked for so long is not asked along, seconds.
_ASKED_FOR: Final = Duration(60.0)
#: A failure serves those who ask at the same time, seconds.
_FAILED_FOR: Final = Duration(2.0)


class Query(NamedTuple):
    """One metric with one statistic. `period` in seconds."""

    namespace: str
    name: str
    dimensions: tuple[tuple[str, str], ...]
    stat: str
    period: int


class Points(NamedTuple):
    """The sums of complete periods, newest first, each with the end of its period. `flaw`: it may not be all."""

    points: tuple[tuple[Instant, float], ...] = ()
    flaw: str = ""


Answer = Points | PortFault


class Source:
    """See the module."""

    def __init__(self, account: Account, clock: Clock) -> None:
        self.users = 0
        self._account, self._clock = account, clock
        self._asked: dict[Query, Instant] = {}
        self._answers: dict[Query, tuple[Instant, Answer]] = {}
        self._gathering: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._calling = asyncio.Lock()

    async def ask(self, queries: Iterable[Query], reuse: Duration) -> dict[Query, Answer]:
        """The answer to each query; a fault is an answer too."""
        wanted, now = list(queries), self._clock.now()
        self._asked |= dict.fromkeys(wanted, now)
        if any(self._is_old(one, now, reuse) for one in wanted):
            if self._gathering is None:
                self._gathering = asyncio.create_task(self._gather(reuse))
                self._running.add(self._gathering)
                self._gathering.add_done_callback(self._running.discard)
            await asyncio.shield(self._gathering)
        return {one: self._answers[one][1] for one in wanted}

    def _is_old(self, query: Query, now: Instant, reuse: Duration) -> bool:
        at, answer = self._answers.get(query, (NEVER, Points()))
        return elapsed(at, now) > (min(reuse, _FAILED_FOR) if isinstance(answer, PortFault) else reuse)

    async def _gather(self, reuse: Duration) -> None:
        await asyncio.sleep(_GATHER_S)
        async with self._calling:  # what a call under way will answer is not asked again
            self._gathering = None  # who asks from now on is in the next call
            await self._ask_all(reuse)

    async def _ask_all(self, reuse: Duration) -> None:
        now = self._clock.now()
        self._asked = {one: at for one, at in self._asked.items() if elapsed(at, now) <= _ASKED_FOR}
        self._answers = {one: kept for one, kept in self._answers.items() if one in self._asked}
        due = [one for one in self._asked if self._is_old(one, now, reuse)]
        batches = [due[first : first + BATCH] for first in range(0, len(due), BATCH)]
        await asyncio.gather(*(self._fetch(batch, now) for batch in batches))

    async def _fetch(self, batch: Sequence[Query], now: Instant) -> None:
        end = now - now % 60  # a period under way is not complete
        try:
            pages = await self._account.pages(
                "cloudwatch",
                "get_metric_data",
                MetricDataQueries=[_asking(f"m{n}", one) for n, one in enumerate(batch)],
                StartTime=datetime.fromtimestamp(end - _BACK, UTC),
                EndTime=datetime.fromtimestamp(end, UTC),
                ScanBy="TimestampDescending",
            )
        except PortFault as fault:
            self._answers |= dict.fromkeys(batch, (now, fault))
            return
        self._answers |= {one: (now, points_of(f"m{n}", one, pages)) for n, one in enumerate(batch)}

    async def aclose(self) -> None:
        """End what is under way, release sockets."""
        for task in list(self._running):
            task.cancel()
        await self._account.aclose()


def _asking(name: str, query: Query) -> dict[str, Any]:
    metric = {
        "Namespace": query.namespace,
        "MetricName": query.name,
        "Dimensions": [{"Name": key, "Value": value} for key, value in query.dimensions],
    }
    return {"Id": name, "MetricStat": {"Metric": metric, "Period": query.period, "Stat": query.stat}}


def points_of(name: str, query: Query, pages: Sequence[dict[str, Any]]) -> Points:
    """One metric out of all pages of an answer: they may cut it in two."""
    found: dict[Instant, float] = {}
    status, said = "", list[str]()
    for page in pages:
        said += [f"{one.get('Code')}: {one.get('Value')}" for one in page.get("Messages", ())]
        for result in page["MetricDataResults"]:
            if result["Id"] == name:
                status = str(result.get("StatusCode", "Complete"))
                said += [f"{one.get('Code')}: {one.get('Value')}" for one in result.get("Messages", ())]
                for at, value in zip(result["Timestamps"], result["Values"], strict=True):
                    found[Instant(at.timestamp() + query.period)] = float(value)
    if status != "Complete":
        said.insert(0, status or "the answer does not have it")
    return Points(tuple(sorted(found.items(), reverse=True)), "; ".join(said)[:200])


_SOURCES: Final[dict[tuple[str, str, int], Source]] = {}


def shared_source(settings: Settings, clock: Clock) -> Source:
    """The source of these settings, made at the first use; one clock is one daemon."""
    key = (settings.region, settings.profile, id(clock))
    if key not in _SOURCES:
        _SOURCES[key] = Source(Account(settings.region, settings.profile), clock)
    source = _SOURCES[key]
    source.users += 1
    return source


async def release(source: Source) -> None:
    """One use less; the last one closes it."""
    source.users -= 1
    if source.users == 0:
        for key in [key for key, one in _SOURCES.items() if one is source]:
            del _SOURCES[key]
        await source.aclose()
