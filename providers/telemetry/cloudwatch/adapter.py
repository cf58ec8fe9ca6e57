"""Load from CloudWatch: what to ask for one pool, and what its points mean for it.

Does: read the newest complete period of each metric. Does not: judge, or fill what is missing.
Invariant: a reading is as old as the end of its period; a metric without points is absent, but for the requests of a
target group whose health was reported for that period and the next: then there were none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from autoscaler.domain.base import Instant, ReplicaId
from autoscaler.domain.faults import PortFault
from autoscaler.domain.load import QUANTILE_SAMPLES_MIN, Idleness, Kind, LoadSample, Reading, ReadingState, Signal
from autoscaler.domain.replica import Endpoint
from autoscaler.ports.clock import Clock
from autoscaler.ports.diagnosis import Lack
from providers.telemetry.cloudwatch.settings import RATES, Metric, Settings
from providers.telemetry.cloudwatch.source import Answer, Points, Query, Source, release

if TYPE_CHECKING:
    from autoscaler.ports.telemetry import Telemetry

SOURCE: Final = "cloudwatch"
_ELB: Final = "AWS/ApplicationELB"
_OF_A_GROUP: Final = frozenset({Signal.REQUEST_RATE, Signal.E2E_S_P95})

Asked = dict[Signal, dict[ReplicaId | None, Query]]


class CloudWatch:
    """The telemetry of one pool."""

    def __init__(self, settings: Settings, source: Source, clock: Clock) -> None:
        self._settings, self._source, self._clock = settings, source, clock
        self._metrics = {**_of_group(settings), **settings.metrics}
        self._closed = False

    async def sample(self, signals: frozenset[Signal], replicas: Sequence[Endpoint]) -> LoadSample:
        """Ask for everything at once; raises PortFault when no metric got an answer."""
        asked = self._asked(signals, replicas)
        beside = self._beside(asked)
        every = [*(query for queries in asked.values() for query in queries.values()), *beside.values()]
        answers = await self._source.ask(every, self._settings.reuse) if every else {}
        faults = [one for one in answers.values() if isinstance(one, PortFault)]
        if faults and len(faults) == len(answers):
            raise faults[0]
        now = self._clock.now()
        readings = {signal: self._reading(signal, asked, beside, answers, len(replicas)) for signal in sorted(signals)}
        present = all(one.state is not ReadingState.ABSENT for one in readings.values())
        flaws = {one.flaw for one in answers.values() if isinstance(one, Points) and one.flaw}
        return LoadSample(
            at=now,
            readings=readings,
            idleness=Idleness(families_present=present),
            detail=f"{sum(bool(_points(one)) for one in answers.values())} of {len(answers)} metrics have points",
            partial="; ".join(sorted(flaws))[:200],
        )

    async def lacks(self, signals: frozenset[Signal]) -> list[Lack]:
        """What these signals need and CloudWatch does not have, of metrics about no replica; raises PortFault."""
        asked = self._asked(signals, ())
        answers = await self._source.ask(
            [one for each in asked.values() for one in each.values()], self._settings.reuse
        )
        found = [Lack(f"nothing gives {signal}", f"add metrics.{signal}") for signal in sorted(signals - asked.keys())]
        for signal, queries in sorted(asked.items()):
            for query in queries.values():
                answer = answers[query]
                if isinstance(answer, PortFault):
                    raise answer
                if not answer.points:
                    where = ", ".join(f"{key}={value}" for key, value in query.dimensions) or "no dimensions"
                    why = f" ({answer.flaw})" if answer.flaw else ""
                    what = f"{signal}: {query.namespace} {query.name} with {where} has no points of 20 min{why}"
                    found.append(
                        Lack(what, "compare its dimensions with CloudWatch's own page; they must all be named")
                    )
        return found

    async def aclose(self) -> None:
        """Release the source, which the last pool closes."""
        if not self._closed:
            self._closed = True
            await release(self._source)

    # --- asking ---

    def _asked(self, signals: frozenset[Signal], replicas: Sequence[Endpoint]) -> Asked:
        found: Asked = {}
        for signal in sorted(signals & self._metrics.keys()):
            metric = self._metrics[signal]
            if metric.by_replica:
                found[signal] = {one.replica: self._query(metric, metric.of(one), metric.stat) for one in replicas}
            else:
                found[signal] = {None: self._query(metric, metric.dimensions, metric.stat)}
        return found

    def _beside(self, asked: Asked) -> dict[str, Query]:
        """What is needed to understand the rest: how many a quantile is made of, whether the group is reported."""
        found: dict[str, Query] = {}
        for signal in asked:
            metric = self._metrics[signal]
            if metric.kind is Kind.QUANTILE:
                found[signal] = self._query(metric, metric.dimensions, "SampleCount")
            if signal in _OF_A_GROUP and signal not in self._settings.metrics:
                dimensions = self._settings.group_dimensions(alone=False)
                healthy = Metric(namespace=_ELB, name="HealthyHostCount", stat="Maximum")
                found["health"] = self._query(healthy, dimensions, healthy.stat)
        return found

    def _query(self, metric: Metric, dimensions: Mapping[str, str], stat: str) -> Query:
        return Query(metric.namespace, metric.name, tuple(sorted(dimensions.items())), stat, int(self._settings.period))

    # --- reading ---

    def _reading(
        self,
        signal: Signal,
        asked: Asked,
        beside: Mapping[str, Query],
        answers: Mapping[Query, Answer],
        expected: int,
    ) -> Reading:
        metric = self._metrics.get(signal)
        if metric is None:
            return self._absent(signal, Kind.MEAN, expected, f"telemetry has no metrics.{signal}")
        series = {name: self._settled(answers[query]) for name, query in asked[signal].items()}
        if signal in _OF_A_GROUP and signal not in self._settings.metrics:
            series = {None: _with_none(series[None], self._settled(answers[beside["health"]]))}
        if metric.kind is Kind.QUANTILE:
            return self._quantile(signal, series[None], self._settled(answers[beside[signal]]))
        newest = max((points[0][0] for points in series.values() if points), default=None)
        if newest is None:
            why = [str(one) for one in map(answers.get, asked[signal].values()) if isinstance(one, PortFault)]
            flaws = [
                one.flaw for one in map(answers.get, asked[signal].values()) if isinstance(one, Points) and one.flaw
            ]
            text = next(iter([*why, *flaws]), f"{metric.namespace} {metric.name} has no points")
            return self._absent(signal, metric.kind, expected if metric.by_replica else 0, text)
        # One that is a period behind the others has stopped telling.
        values = [
            points[0][1] for points in series.values() if points and points[0][0] > newest - self._settings.period
        ]
        value = {Kind.TOTAL: math.fsum(values), Kind.MAX: max(values)}.get(metric.kind, math.fsum(values) / len(values))
        rate = signal in RATES and metric.stat == "Sum"
        return Reading(
            signal=signal,
            kind=metric.kind,
            state=ReadingState.OK,
            at=newest,
            value=value * metric.scale / (self._settings.period if rate else 1.0),
            covered=len(values) if metric.by_replica else 0,
            expected=expected if metric.by_replica else 0,
            window=self._settings.period,
            source=SOURCE,
        )

    def _quantile(
        self, signal: Signal, points: Sequence[tuple[Instant, float]], counts: Sequence[tuple[Instant, float]]
    ) -> Reading:
        metric = self._metrics[signal]
        if not points:
            return self._absent(signal, Kind.QUANTILE, 0, f"{metric.namespace} {metric.name} has no points")
        at, value = points[0]
        samples = int(dict(counts).get(at, 0.0))
        quiet = samples < QUANTILE_SAMPLES_MIN
        return Reading(
            signal=signal,
            kind=Kind.QUANTILE,
            state=ReadingState.QUIET if quiet else ReadingState.OK,
            at=at,
            value=None if quiet else value * metric.scale,
            samples=samples,
            window=self._settings.period,
            source=SOURCE,
            detail=f"{samples} samples, {QUANTILE_SAMPLES_MIN} are needed" if quiet else "",
        )

    def _settled(self, answer: Answer) -> tuple[tuple[Instant, float], ...]:
        """Points whose period ended long enough ago."""
        latest = self._clock.now() - self._settings.settle
        return tuple(one for one in _points(answer) if one[0] <= latest)

    def _absent(self, signal: Signal, kind: Kind, expected: int, detail: str) -> Reading:
        return Reading(
            signal=signal, kind=kind, state=ReadingState.ABSENT, at=self._clock.now(), expected=expected,
            source=SOURCE, detail=detail,
        )  # fmt: skip


def _of_group(settings: Settings) -> dict[Signal, Metric]:
    """The metrics of a target group: names and dimensions as Elastic Load Balancing documents them."""
    if not settings.target_group:
        return {}
    requests = Metric(
        namespace=_ELB,
        name="RequestCountPerTarget" if settings.per_target else "RequestCount",
        dimensions=dict(settings.group_dimensions(alone=settings.per_target)),
        stat="Sum",
        kind=Kind.MEAN if settings.per_target else Kind.TOTAL,
    )
    dimensions = dict(settings.group_dimensions(alone=False))
    times = Metric(
        namespace=_ELB, name="TargetResponseTime", dimensions=dimensions, stat="p95", kind=Kind.QUANTILE
    )  # fmt: skip
    return {Signal.REQUEST_RATE: requests, Signal.E2E_S_P95: times}


def _points(answer: Answer) -> tuple[tuple[Instant, float], ...]:
    return answer.points if isinstance(answer, Points) else ()


def _with_none(
    points: tuple[tuple[Instant, float], ...], health: Sequence[tuple[Instant, float]]
) -> tuple[tuple[Instant, float], ...]:
    """No requests, in the last period whose health is reported and has a later one: a count that is late is no zero."""
    if len(health) < 2 or (points and points[0][0] >= health[1][0]):
        return points
    return ((health[1][0], 0.0), *points)


if TYPE_CHECKING:
    _adapter: type[Telemetry] = CloudWatch
