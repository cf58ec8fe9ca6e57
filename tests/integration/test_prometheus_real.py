"""A real Prometheus scrapes real replicas, and is then asked by the adapter: values, ages, coverage, restarts."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import Unreachable
from autoscaler.domain.load import Kind, LoadSample, ReadingState, Signal
from autoscaler.runtime.clock import SystemClock
from providers.telemetry import scrape
from providers.telemetry.prometheus import Coverage, Match, Prometheus, Query, Settings, build
from tests.support.raw_http import a_context, an_endpoint, raw_server, reply
from tests.support.real_prometheus import RealPrometheus, a_prometheus, busy, crooked, stand_ins, with_warning

DATA = Path(__file__).parents[1] / "providers" / "data"
GAUGES = frozenset({Signal.QUEUE_LENGTH, Signal.RUNNING, Signal.KV_CACHE_USE, Signal.GPU_UTILIZATION})
RATES = frozenset({Signal.TOKEN_RATE, Signal.REQUEST_RATE, Signal.E2E_S_P95})


@contextlib.asynccontextmanager
async def reading(url: str, **changes: Any) -> AsyncIterator[Prometheus]:
    fields: dict[str, Any] = {"preset": "vllm", "missing_after": Duration(8.0), "window": Duration(20.0), **changes}
    telemetry = build(Settings(url=url, **fields), msgspec.structs.replace(a_context(), clock=SystemClock()))
    try:
        yield telemetry
    finally:
        await telemetry.aclose()


async def sample_of(telemetry: Prometheus, ports: list[int], signals: frozenset[Signal] = GAUGES) -> LoadSample:
    return await telemetry.sample(signals, [an_endpoint(port, f"i-{port}") for port in ports])


def value(sample: LoadSample, signal: Signal) -> float | None:
    return sample.readings[signal].value


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_what_it_says_is_what_the_replicas_do_until_it_or_they_stop(tmp_path: Path) -> None:
    """One server for all of it: a start costs five seconds until the first scrape."""
    with a_prometheus(tmp_path / "p", zone="a") as prometheus:
        async with stand_ins(4, "--max-num-seqs", "2", "--time-scale", "20") as ports:
            prometheus.show([f"127.0.0.1:{port}" for port in ports])
            prometheus.start()
            await prometheus.until("up == 1", 4)
            async with reading(prometheus.url) as telemetry:
                await _idle_then_busy(telemetry, prometheus, ports)
                await _own_queries(prometheus, ports)
                await _partial(prometheus, ports)
                await _half_of_the_replicas(telemetry, prometheus, ports)
                await _hung(prometheus, ports)
                prometheus.kill()
                with pytest.raises(Unreachable, match="connection refused"):
                    await sample_of(telemetry, ports)


async def _idle_then_busy(telemetry: Prometheus, prometheus: RealPrometheus, ports: list[int]) -> None:
    idle = await sample_of(telemetry, ports)
    assert {signal: value(idle, signal) for signal in GAUGES} == dict.fromkeys(GAUGES, 0.0)
    assert idle.idleness.families_present
    assert not idle.partial
    async with busy(ports, each=3):  # two slots each: two run and one waits
        await prometheus.until('{__name__=~"vllm[:_]num_requests_waiting"} == 1', 4)
        await prometheus.until('{__name__=~"vllm[:_]generation_tokens_total"} > 0', 4)
        await prometheus.until("DCGM_FI_DEV_GPU_UTIL > 50", 4)
        full = await sample_of(telemetry, ports, GAUGES | RATES)
        assert (value(full, Signal.RUNNING), value(full, Signal.QUEUE_LENGTH)) == (8, 4)
        assert (value(full, Signal.GPU_UTILIZATION) or 0) > 0.5
        assert (value(full, Signal.TOKEN_RATE) or 0) > 0  # no second look is needed: the server has the history
        assert full.readings[Signal.E2E_S_P95].state is ReadingState.QUIET
        for reading in full.readings.values():
            assert (reading.covered, reading.expected) == (4, 4)
            assert 0 <= time.time() - reading.at < 10
        assert all(load.running == 2 and load.waiting == 1 for load in full.replicas.values())


async def _own_queries(prometheus: RealPrometheus, ports: list[int]) -> None:
    waiting = '{__name__=~"vllm[:_]num_requests_waiting"}'
    queries = {
        Signal.QUEUE_LENGTH: Query(promql=f"sum({waiting})", kind=Kind.TOTAL),
        Signal.RUNNING: Query(promql='sum by (instance) ({__name__=~"vllm[:_]num_requests_running"})', kind=Kind.MAX),
        Signal.KV_CACHE_USE: Query(promql="vector(0.25)", kind=Kind.MEAN, coverage=Coverage.NONE, age_of="up"),
        Signal.GPU_UTILIZATION: Query(promql="avg(DCGM_FI_DEV_GPU_UTIL) + 50", kind=Kind.MEAN),
        Signal.REQUEST_RATE: Query(promql="sum(nothing_of_this_name)", kind=Kind.TOTAL),
        Signal.TOKEN_RATE: Query(promql="sum(", kind=Kind.TOTAL),
    }
    async with reading(prometheus.url, preset=None, queries=queries) as telemetry:
        found = (await sample_of(telemetry, ports, frozenset(queries))).readings
    assert found[Signal.QUEUE_LENGTH].state is ReadingState.OK
    assert (found[Signal.QUEUE_LENGTH].covered, found[Signal.QUEUE_LENGTH].expected) == (4, 4)
    assert (found[Signal.RUNNING].kind, found[Signal.RUNNING].covered) == (Kind.MAX, 4)
    assert (found[Signal.KV_CACHE_USE].value, found[Signal.KV_CACHE_USE].expected) == (0.25, 0)
    assert time.time() - found[Signal.KV_CACHE_USE].at < 10
    for signal, why in (
        (Signal.GPU_UTILIZATION, "divide by 100"),
        (Signal.REQUEST_RATE, "gives nothing"),
        (Signal.TOKEN_RATE, "bad_data"),
    ):
        assert (found[signal].state, found[signal].value) == (ReadingState.ABSENT, None)
        assert why in found[signal].detail


async def _partial(prometheus: RealPrometheus, ports: list[int]) -> None:
    async with crooked(prometheus.url, with_warning) as url, reading(url) as telemetry:
        assert (await sample_of(telemetry, ports)).partial == "store gateway 3 did not answer"


async def _half_of_the_replicas(telemetry: Prometheus, prometheus: RealPrometheus, ports: list[int]) -> None:
    prometheus.show([f"127.0.0.1:{port}" for port in ports[:2]])
    await prometheus.until("up", 2)
    await asyncio.sleep(8.0)  # missing_after: what was scraped until then was true
    half = (await sample_of(telemetry, ports)).readings[Signal.QUEUE_LENGTH]
    assert (half.state, half.covered, half.expected) == (ReadingState.OK, 2, 4)
    assert "s old" in half.detail or "no sample" in half.detail
    stranger = await sample_of(telemetry, [1])
    assert stranger.readings[Signal.QUEUE_LENGTH].state is ReadingState.ABSENT
    assert "no sample of it" in stranger.readings[Signal.QUEUE_LENGTH].detail


async def _hung(prometheus: RealPrometheus, ports: list[int]) -> None:
    async with reading(prometheus.url, timeout=Duration(0.5)) as telemetry:
        prometheus.hang()
        try:
            with pytest.raises(Unreachable, match="no answer"):
                await sample_of(telemetry, ports)
        finally:
            prometheus.go_on()
    await prometheus.until("up", 2)
    async with reading(prometheus.url) as telemetry:
        assert (await sample_of(telemetry, ports[:2])).readings[Signal.RUNNING].state is ReadingState.OK


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_replica_that_dies_is_missing_at_the_next_scrape_and_check_says_what_lacks(tmp_path: Path) -> None:
    with a_prometheus(tmp_path / "p") as prometheus:
        async with contextlib.AsyncExitStack() as living, stand_ins(1) as stays:
            dies = await living.enter_async_context(stand_ins(1))
            ports = [*stays, *dies]
            prometheus.show([f"127.0.0.1:{port}" for port in ports])
            prometheus.start()
            await prometheus.until("up == 1", 2)
            await living.aclose()
            await prometheus.until("up == 0", 1)
            async with reading(prometheus.url) as telemetry:
                left = (await sample_of(telemetry, ports)).readings[Signal.RUNNING]
                assert (left.covered, left.expected) == (1, 2)
                assert f"i-{dies[0]}:{dies[0]}: its scrape fails (up is 0)" in left.detail
                assert await telemetry.lacks(GAUGES) == []
            async with reading(prometheus.url, preset="sglang") as telemetry:
                lacks = await telemetry.lacks(frozenset({Signal.QUEUE_LENGTH}))
                assert [one.what for one in lacks] == [
                    "no series sglang:num_queue_reqs on the server, which queue_length needs"
                ]
            async with reading(prometheus.url, replicas=Match(label="pod", selector='job="llm"')) as telemetry:
                first = (await telemetry.lacks(GAUGES))[0]
                assert first.what.startswith('no `up` under {job="llm"}')
                assert "target labels" in first.mend
            async with reading(prometheus.url, replicas=Match(label="pod")) as telemetry:
                assert (await telemetry.lacks(GAUGES))[0].what == "no `up` on the server has the label pod"


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_captured_pages_mean_the_same_through_prometheus_as_scraped(tmp_path: Path) -> None:
    """What llama.cpp, Triton and TorchServe truly wrote, as a real Prometheus stores it."""
    async with contextlib.AsyncExitStack() as stack:
        servers = {}
        for preset, page in (("llama_cpp", "llama-server"), ("triton", "triton"), ("torchserve", "torchserve")):
            servers[preset] = await stack.enter_async_context(raw_server())
            servers[preset].routes["/metrics"] = reply((DATA / f"{page}.metrics.txt").read_bytes())
        prometheus = stack.enter_context(a_prometheus(tmp_path / "p"))
        prometheus.show([f"127.0.0.1:{server.port}" for server in servers.values()])
        prometheus.start()
        await prometheus.until("up == 1", 3)
        known = 0
        for preset, server in servers.items():
            context = msgspec.structs.replace(a_context(), clock=SystemClock())
            scraping = scrape.build(scrape.Settings(preset=preset, metrics_port=server.port), context)
            stack.push_async_callback(scraping.aclose)
            straight = await scraping.sample(GAUGES, [server.endpoint])
            async with reading(prometheus.url, preset=preset, metrics_port=server.port) as telemetry:
                stored = await telemetry.sample(GAUGES, [server.endpoint])
            for signal in GAUGES:
                one, other = straight.readings[signal], stored.readings[signal]
                assert (one.state, one.value, one.covered) == (other.state, other.value, other.covered), (
                    preset,
                    signal,
                )
            known += sum(reading.value is not None for reading in stored.readings.values())
            assert stored.idleness.families_present == straight.idleness.families_present
        assert (
            known == 3
        )  # llama.cpp's running and waiting, Triton's waiting; no GPU, and TorchServe's queue is no metric
