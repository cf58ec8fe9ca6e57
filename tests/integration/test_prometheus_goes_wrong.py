"""Prometheus goes wrong in every way, and the pool does nothing that it would regret: one table.

Real: the server, the replicas that it scrapes, the adapter, the observer and the engine. In memory: compute, balancer
and ledger. Each row says what is wrong, what truly is the load, and what must come of it: the verdict, the size, and
what an operator reads. The rows in which nothing is wrong show that the pool would otherwise shrink or grow.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
from aiohttp import web

from autoscaler.domain.base import Duration, InstanceId, Instant, PoolName, Token, replica_id
from autoscaler.domain.decision import Calendar, Decision, Observation
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.load import Signal, Trust
from autoscaler.domain.memory import Intent, Memory
from autoscaler.domain.pool import Bounds, Offer, Pace, Pool
from autoscaler.domain.replica import Endpoint, Instance, InstanceState, ProbeRecord, ProbeVerdict
from autoscaler.engine.decide import decide
from autoscaler.ports.telemetry import Telemetry
from autoscaler.runtime.clock import SystemClock
from autoscaler.runtime.observer import Ask, Observer
from autoscaler.runtime.parts import PoolParts
from providers.telemetry.prometheus import Prometheus, Settings, build
from tests.support.builders import replace, tracking
from tests.support.memory_balancer import MemoryBalancer
from tests.support.memory_compute import MemoryCompute
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_probe import MemoryProbe
from tests.support.raw_http import a_context
from tests.support.real_prometheus import (
    Document,
    Twist,
    a_prometheus,
    busy,
    later,
    only,
    served,
    stand_ins,
    used,
    with_warning,
    zeros,
)

CLOCK = SystemClock()
NAME = PoolName("p")
SIGNALS = frozenset({Signal.RUNNING})
BLIND_S = 700.0


class Row(NamedTuple):
    """One way to go wrong. `words`: what the sentence of the decision must hold."""

    wrong: str
    load: str
    trust: Trust
    size: int
    words: Sequence[str]


IDLE, BUSY = "idle", "busy"  # four replicas; nothing inside, or two requests in each, where 1.6 a replica are wanted
TABLE = (
    Row("nothing", IDLE, Trust.TRUST, 3, ["wants 0", "does: drain 1"]),
    Row("nothing", BUSY, Trust.TRUST, 5, ["wants 5", "does: launch"]),
    Row("killed", BUSY, Trust.HOLD, 4, ["holding: telemetry failed", "connection refused"]),
    Row("killed for long", BUSY, Trust.FALLBACK, 6, ["blind", "at least the fallback of 6", "connection refused"]),
    Row("hung", IDLE, Trust.HOLD, 4, ["holding: telemetry failed", "no answer within 2 s"]),
    Row("hung", BUSY, Trust.HOLD, 4, ["holding: telemetry failed", "no answer within 2 s"]),
    Row("empty", IDLE, Trust.HOLD, 4, ["no replica answered", "the server has scraped nothing"]),
    Row("500", IDLE, Trust.HOLD, 4, ["holding: telemetry failed", "HTTP 500"]),
    Row("500", BUSY, Trust.HOLD, 4, ["holding: telemetry failed", "HTTP 500"]),
    Row("zeros", IDLE, Trust.HOLD, 4, ["no replica answered", "its scrape fails (up is 0)"]),
    Row("zeros", BUSY, Trust.HOLD, 4, ["no replica answered", "its scrape fails (up is 0)"]),
    Row("zeros but up", IDLE, Trust.HOLD, 4, ["its process start is 0: its values are invented"]),
    Row("zeros but up", BUSY, Trust.HOLD, 4, ["its process start is 0: its values are invented"]),
    Row("zeros in what counts", IDLE, Trust.HOLD, 4, ["every value is 0 and a counter went back", "not an idle pool"]),
    Row("zeros in what counts", BUSY, Trust.HOLD, 4, ["every value is 0 and a counter went back", "not an idle pool"]),
    Row("half of the series", IDLE, Trust.UP_ONLY, 4, ["trust up_only", "running covers 2 of 4 replicas"]),
    Row("half of the series", BUSY, Trust.UP_ONLY, 4, ["trust up_only", "running covers 2 of 4 replicas"]),
    Row("a warning", IDLE, Trust.UP_ONLY, 4, ["allows no scale-in", "may be partial: store gateway 3 did not answer"]),
    Row("a warning", BUSY, Trust.UP_ONLY, 5, ["does: launch", "may be partial: store gateway 3 did not answer"]),
    Row("10 minutes behind", BUSY, Trust.HOLD, 4, ["the server is behind: its newest sample", "s old"]),
    Row("its clock 10 minutes behind", IDLE, Trust.HOLD, 4, ["its newest sample is 60", "s old"]),
    Row("its clock 10 minutes behind", BUSY, Trust.HOLD, 4, ["its newest sample is 60", "s old"]),
    Row("its clock 10 minutes ahead", IDLE, Trust.HOLD, 4, ["s ahead: the clocks differ"]),
)  # fmt: skip


def nothing_in_it(document: Document) -> Document:
    return {**document, "data": {"resultType": "matrix", "result": []}}


class Relay:
    """Stands between the adapter and the real server; `twist` changes what it says, `status` replaces it."""

    def __init__(self, straight: str, client: aiohttp.ClientSession) -> None:
        self.straight = straight
        self.client = client
        self.twist: Twist | None = None
        self.status = 200

    async def answer(self, request: web.Request) -> web.Response:
        if self.status != 200:
            return web.Response(status=self.status, text="the server is on fire")
        async with self.client.get(f"{self.straight}{request.path_qs}") as answer:
            document = await answer.json()
        return web.json_response(self.twist(document) if self.twist else document)


@contextlib.asynccontextmanager
async def asking(url: str) -> AsyncIterator[Prometheus]:
    telemetry = build(Settings(url=url, preset="vllm", timeout=Duration(2.0)), replace(a_context(), clock=CLOCK))
    try:
        yield telemetry
    finally:
        await telemetry.aclose()


class Scene:
    """A pool of four replicas that has served for two hours, seen through some telemetry."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.compute, self.balancer = MemoryCompute(CLOCK, name="c"), MemoryBalancer(CLOCK, name="b")
        self.now = CLOCK.now()
        self.policies = (tracking(1.6, Signal.RUNNING),)
        self.pool = Pool(
            installation="t", name=NAME, bounds=Bounds(min=1, max=8, fallback=6), pace=Pace(),
            offers=(Offer(name="o", compute="c", ports=(80,)),), balancers=(self.balancer.traits(),),
        )  # fmt: skip
        self.endpoints = [
            Endpoint(replica=replica_id(machine, port), instance=machine, host="127.0.0.1", port=port)
            for machine, port in ((InstanceId(f"m{port}"), port) for port in ports)
        ]

    async def ready(self) -> None:
        await self.balancer.admit(self.endpoints)
        for one in self.endpoints:
            self.compute.add(
                NAME,
                Instance(
                    id=one.instance, token=Token(f"e1-0-{one.instance}"), offer="o", zone="local", boot="b1",
                    state=InstanceState.RUNNING, launched_at=Instant(self.now - 7200.0), address=one.host,
                    ports=(one.port,),
                ),
            )  # fmt: skip

    async def decide(self, telemetry: Telemetry, *, blind_s: float | None) -> Decision:
        """What the real observer sees now, and what the real engine makes of it."""
        parts = PoolParts(
            pool=self.pool, policies=self.policies, computes={"c": self.compute}, balancers={"b": self.balancer},
            telemetry=telemetry, probe=MemoryProbe(CLOCK), signals=SIGNALS, config_hash="c1",
        )  # fmt: skip
        at = CLOCK.now()
        seen = await Observer(MemoryLedger()).look(parts, Ask(at, False, (), self.endpoints))
        now = CLOCK.now()
        long_ago = Instant(now - 7200.0)
        served_long = Intent(
            phase=Phase.IN_SERVICE, since=long_ago, launched_at=long_ago, ready_at=long_ago, admitted_at=long_ago,
            offer="o", zone="local", units=1.0, host="127.0.0.1", boot="b1|",
        )  # fmt: skip
        memory = Memory(
            epoch="e1", sequence=7, last_at=Instant(now - 15.0), history_since=long_ago,
            intents={one.replica: served_long for one in self.endpoints},
            blind_since=None if blind_s is None else Instant(now - blind_s),
        )  # fmt: skip
        fine = ProbeVerdict(alive=True, loaded=True, running=0, waiting=0)
        probes = {
            one.replica: ProbeRecord(replica=one.replica, boot="b1|", passes=5, last_at=now, last=fine)
            for one in self.endpoints
        }
        observation = Observation(
            now=now, computes=seen.computes, balancers=seen.balancers, probes=probes, load=seen.load, faults=seen.faults
        )
        return decide(self.pool, self.policies, memory, observation, Calendar())


def the_past(ports: Sequence[int], age_s: float) -> list[str]:
    """What the replicas showed then, busy as they were, as OpenMetrics."""
    labels = [f'instance="127.0.0.1:{port}",job="vllm"' for port in ports]
    lines: list[str] = []
    for name, value in (("up", 1), ("vllm:num_requests_running", 9), ("vllm:num_requests_waiting", 3)):
        lines.append(f"# TYPE {name} gauge")
        lines += [
            f"{name}{{{label}}} {value} {time.time() - age_s - back:.3f}" for label in labels for back in (30, 15, 0)
        ]
    return lines


@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_what_comes_of_each_way_to_go_wrong(tmp_path: Path) -> None:
    twists: dict[str, Twist] = {
        "empty": nothing_in_it, "zeros": zeros(), "zeros but up": zeros("up"),
        "zeros in what counts": zeros("up", "process_start_time_seconds"), "a warning": with_warning,
        "its clock 10 minutes behind": later(-600.0), "its clock 10 minutes ahead": later(600.0),
    }  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        ports = await stack.enter_async_context(stand_ins(4, "--max-num-seqs", "2"))
        server = stack.enter_context(a_prometheus(tmp_path / "good"))
        behind = stack.enter_context(a_prometheus(tmp_path / "behind"))
        empty = stack.enter_context(a_prometheus(tmp_path / "empty"))
        server.show([f"127.0.0.1:{port}" for port in ports])
        behind.backfill(the_past(ports, 600.0))
        for one in (server, behind, empty):
            one.start()
        twists["half of the series"] = only(ports[:2])
        relay = Relay(server.url, await stack.enter_async_context(aiohttp.ClientSession()))
        app = web.Application()
        app.router.add_get("/api/v1/query", relay.answer)
        relayed = await stack.enter_async_context(asking(await stack.enter_async_context(served(app))))
        direct = await stack.enter_async_context(asking(server.url))
        others = {
            "10 minutes behind": await stack.enter_async_context(asking(behind.url)),
            "empty": await stack.enter_async_context(asking(empty.url)),
        }
        scene = Scene(ports)
        await scene.ready()
        await used(ports)

        async def decided(wrong: str) -> Decision:
            if wrong in others:
                return await scene.decide(others[wrong], blind_s=None)
            if wrong in twists or wrong == "500":
                await relayed.sample(SIGNALS, scene.endpoints)  # it was fine until now
                relay.twist, relay.status = twists.get(wrong), 500 if wrong == "500" else 200
                try:
                    return await scene.decide(relayed, blind_s=None)
                finally:
                    relay.twist, relay.status = None, 200
            if wrong == "hung":
                server.hang()
                try:
                    return await scene.decide(direct, blind_s=None)
                finally:
                    server.go_on()
            if wrong.startswith("killed"):
                server.kill()
            return await scene.decide(direct, blind_s=BLIND_S if wrong == "killed for long" else None)

        await server.until('{__name__=~"vllm[:_]request_success_total",finished_reason="length"} > 0', 4)
        found: dict[int, Decision] = {}
        order = sorted(range(len(TABLE)), key=lambda index: TABLE[index].wrong.startswith("killed"))
        for index in order:
            if TABLE[index].load == IDLE:
                found[index] = await decided(TABLE[index].wrong)
        async with busy(ports, each=2):
            await server.until('{__name__=~"vllm[:_]num_requests_running"} == 2', 4)
            for index in order:
                if TABLE[index].load == BUSY:
                    found[index] = await decided(TABLE[index].wrong)
    wrong = []
    for index, row in enumerate(TABLE):
        decision = found[index]
        print(f"{row.wrong}, {row.load}: {decision.trust.level}, {decision.target}: {decision.sentence}")
        missing = [words for words in row.words if words not in decision.sentence]
        if (decision.trust.level, decision.target) != (row.trust, row.size) or missing:
            wrong.append(f"{row.wrong}, {row.load}: {decision.trust.level}, {decision.target}, without {missing}")
    assert not wrong, "\n".join(wrong)
