"""Load from a Prometheus server: what to ask for one pool, and what its answers mean for it.

Does: ask for the preset's series and for the user's queries at once, and give readings. Does not: judge them.
Invariant: sample() raises Unreachable only when nothing that was asked got an answer; a query that fails alone is an
ABSENT reading, and a warning of the server makes the whole sample partial.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from autoscaler.domain.base import NEVER, Duration, Instant, ReplicaId
from autoscaler.domain.faults import Unreachable
from autoscaler.domain.load import Idleness, Kind, LoadSample, Reading, ReadingState, ReplicaLoad, Signal
from autoscaler.domain.replica import Endpoint
from autoscaler.ports.clock import Clock
from autoscaler.ports.diagnosis import Lack
from autoscaler.ports.telemetry import History
from providers._shared.looks import Look
from providers._shared.meter import Meter
from providers._shared.metrics_page import Page
from providers._shared.presets import PRESETS
from providers._shared.readings import KINDS, Looks, idleness_of, reading_of, replica_loads
from providers.telemetry.prometheus.history import history
from providers.telemetry.prometheus.lacking import lacks
from providers.telemetry.prometheus.own import Around, Results, own_reading
from providers.telemetry.prometheus.series import (
    NO_SAMPLE,
    UP,
    Past,
    Rules,
    by_label,
    gpu_names,
    gpu_page_of,
    look_at,
    names,
    selector,
)
from providers.telemetry.prometheus.server import Server, release
from providers.telemetry.prometheus.settings import Query, Settings

if TYPE_CHECKING:
    from autoscaler.ports.telemetry import Telemetry
    from providers.telemetry.prometheus.session import Answer, Row

SOURCE: Final = "prometheus"
#: What is asked beside the user's own queries, which go by the name of their signal.
_REPLICAS: Final = "replicas"
_GPUS: Final = "gpus"
#: How far back, and how finely, it is looked for the server's newest sample when it has none in the range.
_FAR: Final = "15m"
_FINE: Final = "1m"

Answers = Mapping[str, "Answer | str"]


class Prometheus:
    """The telemetry of one pool."""

    def __init__(self, settings: Settings, server: Server, clock: Clock) -> None:
        self._settings = settings
        self._server = server
        self._clock = clock
        self._preset = PRESETS[settings.preset] if settings.preset is not None else None
        self._span = max(settings.window, settings.missing_after)
        self._meters: dict[ReplicaId, Meter] = {}
        self._fed: dict[ReplicaId, Past] = {}
        self._closed = False

    async def sample(self, signals: frozenset[Signal], replicas: Sequence[Endpoint]) -> LoadSample:
        """Ask for everything at once; raises Unreachable when no question got an answer."""
        own = {signal: self._settings.queries[signal] for signal in sorted(signals) if signal in self._settings.queries}
        answers = await self._ask_all({**self._series(signals - own.keys(), replicas), **_queries(own)})
        faults = [answer for answer in answers.values() if isinstance(answer, str)]
        if faults and len(faults) == len(answers):
            raise Unreachable(faults[0])
        now = self._clock.now()
        looks, pasts = self._looks(answers, replicas, now)
        if looks and all(look.fault == NO_SAMPLE for look in looks):
            looks = await self._told_why(looks)
        went_back = self._remember(pasts)
        readings: dict[Signal, Reading] = {}
        loads: dict[ReplicaId, ReplicaLoad] = {}
        idleness = Idleness()
        theirs = signals - own.keys()
        if self._preset is not None:
            seen = Looks(
                preset=self._preset, at=now, looks=looks, meters=self._meters, source=SOURCE, went_back=went_back
            )
            readings = {signal: reading_of(signal, seen) for signal in sorted(theirs)}
            loads = replica_loads(seen)
            idleness = idleness_of(theirs, seen) if theirs else Idleness(counter_went_back=went_back)
        else:
            readings = {signal: _nothing_to_ask(signal, now, len(looks)) for signal in sorted(theirs)}
        named = {self._label(one): one.replica for one in replicas}
        around = Around(self._settings.replicas.label, named, {one.replica: one for one in looks}, now)
        readings |= {signal: _own(signal, query, answers, around) for signal, query in own.items()}
        return LoadSample(
            at=now,
            readings=readings,
            replicas=loads,
            idleness=idleness,
            detail=f"{sum(not look.fault for look in looks)} of {len(looks)} replicas are scraped",
            partial=_warnings(answers),
        )

    async def lacks(self, signals: frozenset[Signal]) -> list[Lack]:
        """What the server does not have that these signals need; raises Unreachable."""
        return await lacks(self._ask, self._settings, signals)

    async def history(self, start: Instant, end: Instant, width: Duration) -> History:
        """The load of the past out of the server's own store; raises Unreachable, Refused."""
        return await history(self._server.ask_range, self._settings, (start, end, width))

    async def aclose(self) -> None:
        """Release the server, which the last pool closes."""
        if not self._closed:
            self._closed = True
            release(self._server)

    # --- asking ---

    def _series(self, signals: frozenset[Signal], replicas: Sequence[Endpoint]) -> dict[str, str]:
        """PromQL for the series of replicas and of their GPU exporters; nothing where there is nobody to ask about."""
        if not replicas:
            return {}
        settings, span = self._settings, f"[{round(1000 * self._span)}ms]"
        wanted = names(self._preset, signals, own_gpus=settings.gpu is None)
        questions = {_REPLICAS: selector(wanted, settings.replicas.selector) + span}
        if settings.gpu is not None and Signal.GPU_UTILIZATION in signals:
            questions[_GPUS] = selector(gpu_names(), settings.gpu.selector) + span
        return questions

    async def _ask(self, promql: str) -> Answer:
        return await self._server.ask(promql, self)

    async def _try(self, promql: str) -> Answer | str:
        try:
            return await self._ask(promql)
        except Unreachable as fault:
            return str(fault)

    async def _ask_all(self, questions: Mapping[str, str]) -> Answers:
        answers = await asyncio.gather(*map(self._try, questions.values()))
        return dict(zip(questions, answers, strict=True))

    async def _told_why(self, looks: Sequence[Look]) -> list[Look]:
        """The server shows no replica: is it behind, or does it not know them?"""
        up = selector([UP], self._settings.replicas.selector)
        answer = await self._try(f"max(timestamp({up})) or max(max_over_time(timestamp({up})[{_FAR}:{_FINE}]))")
        if isinstance(answer, str):
            return list(looks)
        if not answer.rows or answer.rows[0].value is None:
            why = f"the server has scraped nothing for {_FAR}"
        else:
            age = self._clock.now() - float(answer.rows[0].value[1])
            if age <= self._settings.missing_after:
                return list(looks)
            why = f"the server is behind: its newest sample of any target is {age:.0f} s old"
        return [msgspec.structs.replace(look, fault=f"{look.fault}; {why}") for look in looks]

    # --- reading ---

    def _looks(
        self, answers: Answers, replicas: Sequence[Endpoint], now: Instant
    ) -> tuple[list[Look], dict[ReplicaId, tuple[Past, ...]]]:
        """A look at each replica, and the history of its counters."""
        answer = answers.get(_REPLICAS, "")
        if isinstance(answer, str):
            return [Look(replica=one.replica, at=now, fault=answer) for one in replicas], {}
        settings = self._settings
        rules = Rules(self._preset, now, settings.missing_after, settings.gpus)
        rows = by_label(answer.rows, settings.replicas.label)
        pages = self._gpu_pages(answers.get(_GPUS), replicas, rules)
        found = {
            one.replica: look_at(
                one, rows.get(self._label(one), ()), pages.get(one.replica), rules, self._since(one.replica)
            )
            for one in replicas
        }
        return [look for look, _ in found.values()], {replica: past for replica, (_, past) in found.items()}

    def _gpu_pages(
        self, answer: Answer | str | None, replicas: Sequence[Endpoint], rules: Rules
    ) -> Mapping[ReplicaId, Page]:
        match = self._settings.gpu
        if answer is None or match is None:
            return {}
        if isinstance(answer, str):
            return {one.replica: Page(fault=f"GPU exporter: {answer}") for one in replicas}
        rows = by_label(answer.rows, match.label)
        return {one.replica: gpu_page_of(rows.get(match.of(one, self._port(one)), ()), rules) for one in replicas}

    def _since(self, replica: ReplicaId) -> Instant:
        """The scrape that was read last; before it there is nothing new."""
        last = self._fed.get(replica)
        return NEVER if last is None else last.at

    def _label(self, endpoint: Endpoint) -> str:
        return self._settings.replicas.of(endpoint, self._port(endpoint))

    def _port(self, endpoint: Endpoint) -> int:
        preset = None if self._preset is None else self._preset.metrics_port
        return self._settings.metrics_port or preset or endpoint.port

    def _remember(self, pasts: Mapping[ReplicaId, tuple[Past, ...]]) -> bool:
        """Feed each replica's meter with the scrapes that it has not seen.

        Tells whether a counter went back, or a scrape that was read before now shows other numbers.
        """
        self._meters = {replica: meter for replica, meter in self._meters.items() if replica in pasts}
        self._fed = {replica: past for replica, past in self._fed.items() if replica in pasts}
        went_back = False
        for replica, past in pasts.items():
            meter = self._meters.setdefault(replica, Meter(self._settings.window))
            for one in past:
                last = self._fed.get(replica)
                if last is None or one.at > last.at:
                    went_back |= meter.advance(one.at, one.counters, one.started)
                    self._fed[replica] = one
                elif one.at == last.at:
                    went_back |= any(one.counters.get(name, kept) != kept for name, kept in last.counters.items())
        return went_back


def _queries(own: Mapping[Signal, Query]) -> dict[str, str]:
    questions: dict[str, str] = {}
    for signal, query in own.items():
        questions[signal] = query.promql
        if query.age_of:
            questions[f"{signal}.age_of"] = f"max(timestamp({query.age_of}))"
        if query.samples:
            questions[f"{signal}.samples"] = query.samples
    return questions


def _own(signal: Signal, query: Query, answers: Answers, around: Around) -> Reading:
    rows: list[Sequence[Row]] = []
    for name in (signal, f"{signal}.age_of", f"{signal}.samples"):
        answer = answers.get(name)
        if isinstance(answer, str):
            return Reading(
                signal=signal, kind=query.kind, state=ReadingState.ABSENT, at=around.now, expected=len(around.looks),
                source=SOURCE, detail=answer,
            )  # fmt: skip
        rows.append(() if answer is None else answer.rows)
    return own_reading(signal, query, Results(*rows), around)


def _nothing_to_ask(signal: Signal, now: Instant, expected: int) -> Reading:
    kind: Kind = KINDS[signal]
    detail = f"telemetry has neither a preset nor queries.{signal}"
    return Reading(
        signal=signal, kind=kind, state=ReadingState.ABSENT, at=now, expected=expected, source=SOURCE, detail=detail
    )


def _warnings(answers: Answers) -> str:
    told = [warning for answer in answers.values() if not isinstance(answer, str) for warning in answer.warnings]
    return "; ".join(dict.fromkeys(told))[:200]


if TYPE_CHECKING:
    _adapter: type[Telemetry] = Prometheus
