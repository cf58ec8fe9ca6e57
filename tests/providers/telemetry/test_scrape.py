"""Scraping over real sockets: captured pages, a live stand-in, restarts, and servers that are broken or hostile."""

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from autoscaler.domain.base import Duration
from autoscaler.domain.load import Kind, LoadSample, Reading, ReadingState, ReplicaLoad, Signal
from providers._shared.gpus import Gpus
from providers._shared.presets import PRESETS
from providers.telemetry.scrape import Scrape, Settings, build
from tests.support.raw_http import HandClock, RawServer, a_context, an_endpoint, json_reply, raw_server, reply

DATA = Path(__file__).parents[1] / "data"
ALL = frozenset(Signal)


@contextlib.asynccontextmanager
async def scraping(clock: HandClock, preset: str = "vllm", **fields: Any) -> AsyncIterator[Scrape]:
    scrape = build(Settings(preset=preset, **fields), a_context(clock))
    try:
        yield scrape
    finally:
        await scrape.aclose()


@contextlib.asynccontextmanager
async def servers(count: int) -> AsyncIterator[list[RawServer]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(raw_server()) for _ in range(count)]


def histogram(name: str, *buckets: tuple[str, float]) -> str:
    return "".join(f'{name}_bucket{{engine="0",le="{edge}"}} {count}\n' for edge, count in buckets)


def vllm(**change: Any) -> bytes:
    """A page of vLLM's with these values."""
    value = {
        "running": 2,
        "waiting": 3,
        "kv": 0.5,
        "tokens": 1000,
        "prompts": 5000,
        "done": 100,
        "fast": 50,
        "slow": 100,
    }
    value |= change
    ttft, e2e = "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"
    fast, slow = value["fast"], value["slow"]
    start = f"process_start_time_seconds {value['start']}\n" if "start" in value else ""
    return reply(
        f'vllm:num_requests_running{{engine="0"}} {value["running"]}\n'
        f'vllm:num_requests_waiting{{engine="0"}} {value["waiting"]}\n'
        f'vllm:kv_cache_usage_perc{{engine="0"}} {value["kv"]}\n'
        f'vllm:generation_tokens_total{{engine="0"}} {value["tokens"]}\n'
        f'vllm:prompt_tokens_total{{engine="0"}} {value["prompts"]}\n'
        f'vllm:request_success_total{{finished_reason="stop"}} {value["done"]}\n'
        + histogram(ttft, ("1.0", fast), ("2.0", slow), ("+Inf", slow))
        + histogram(e2e, ("1.0", fast), ("4.0", slow), ("+Inf", slow))
        + start
    )


def show(many: Sequence[RawServer], *pages: bytes) -> None:
    for server, page in zip(many, pages, strict=True):
        server.routes["/metrics"] = page


async def sample_of(scrape: Scrape, many: Sequence[RawServer], signals: frozenset[Signal] = ALL) -> LoadSample:
    return await scrape.sample(signals, [an_endpoint(server.port) for server in many])


def value_of(sample: LoadSample, signal: Signal) -> float | None:
    reading = sample.readings[signal]
    assert (reading.value is not None) is (reading.state is ReadingState.OK)
    return reading.value


# -- Sums, means, rates and quantiles --------------------------------------------------------------------


async def test_instant_values_are_summed_or_averaged_over_the_replicas() -> None:
    clock = HandClock(500.0)
    async with servers(2) as many, scraping(clock) as scrape:
        show(many, vllm(running=2, waiting=3, kv=0.5), vllm(running=4, waiting=0, kv=0.1))
        sample = await sample_of(scrape, many)
    queue = sample.readings[Signal.QUEUE_LENGTH]
    assert queue == Reading(
        signal=Signal.QUEUE_LENGTH,
        kind=Kind.TOTAL,
        state=ReadingState.OK,
        at=clock.now(),
        value=3.0,
        covered=2,
        expected=2,
        source="scrape",
    )
    assert value_of(sample, Signal.RUNNING) == 6
    assert value_of(sample, Signal.KV_CACHE_USE) == pytest.approx(0.3)
    assert sample.readings[Signal.KV_CACHE_USE].kind is Kind.MEAN
    assert sample.replicas == {
        many[0].endpoint.replica: ReplicaLoad(running=2, waiting=3),
        many[1].endpoint.replica: ReplicaLoad(running=4, waiting=0),
    }
    assert all(request.headers["x-autoscaler-probe"] == "1" for server in many for request in server.requests)


async def test_rates_and_quantiles_come_from_growth_over_the_window() -> None:
    clock = HandClock()
    async with servers(2) as many, scraping(clock) as scrape:
        show(many, vllm(), vllm(done=7, tokens=70, fast=7, slow=7))
        first = await sample_of(scrape, many)
        clock.at += 20
        # 40 and 60 more requests; of their first tokens 30 + 50 within 1 s, the rest within 2 s.
        show(
            many,
            vllm(done=140, tokens=3000, prompts=7000, fast=80, slow=140),
            vllm(done=67, tokens=1070, fast=57, slow=67),
        )
        second = await sample_of(scrape, many)
    for signal in (
        Signal.REQUEST_RATE,
        Signal.TOKEN_RATE,
        Signal.INPUT_TOKEN_RATE,
        Signal.TTFT_S_P95,
        Signal.E2E_S_P95,
    ):
        assert first.readings[signal].state is ReadingState.ABSENT
        assert "second look" in first.readings[signal].detail
    assert value_of(second, Signal.REQUEST_RATE) == pytest.approx(100 / 20)
    assert value_of(second, Signal.TOKEN_RATE) == pytest.approx(3000 / 20)
    assert value_of(second, Signal.INPUT_TOKEN_RATE) == pytest.approx(2000 / 20)
    # Rank 95 of 100: 80 are below 1 s, so (95 - 80) / 20 of the way from 1 s to 2 s, or to 4 s.
    assert value_of(second, Signal.TTFT_S_P95) == pytest.approx(1.75)
    assert value_of(second, Signal.E2E_S_P95) == pytest.approx(1 + 0.75 * 3)
    ttft = second.readings[Signal.TTFT_S_P95]
    assert (ttft.kind, ttft.samples, ttft.window, ttft.covered) == (Kind.QUANTILE, 100, 20.0, 2)


async def test_few_samples_are_quiet_and_neither_zero_nor_absent() -> None:
    clock = HandClock()
    async with servers(1) as many, scraping(clock) as scrape:
        show(many, vllm())
        await sample_of(scrape, many)
        clock.at += 10
        show(many, vllm(fast=60, slow=119))
        quiet = await sample_of(scrape, many)
        clock.at += 10
        show(many, vllm(fast=60, slow=120))
        enough = await sample_of(scrape, many)
    reading = quiet.readings[Signal.TTFT_S_P95]
    assert (reading.state, reading.value, reading.samples, reading.covered) == (ReadingState.QUIET, None, 19, 1)
    assert value_of(quiet, Signal.REQUEST_RATE) == 0  # counted, and none came: that is a zero
    assert enough.readings[Signal.TTFT_S_P95].state is ReadingState.OK


async def test_a_replica_that_is_new_adds_no_growth_and_is_not_covered_by_it() -> None:
    clock = HandClock()
    async with servers(2) as many, scraping(clock) as scrape:
        show(many, vllm(done=100), vllm(done=5000))
        await sample_of(scrape, many[:1])
        clock.at += 10
        show(many, vllm(done=120), vllm(done=5000))
        sample = await sample_of(scrape, many)
    rate = sample.readings[Signal.REQUEST_RATE]
    assert rate.value == pytest.approx(2.0)
    assert (rate.covered, rate.expected) == (1, 2)
    assert not sample.idleness.counter_went_back
    assert sample.readings[Signal.QUEUE_LENGTH].covered == 2


async def test_a_replica_that_left_is_forgotten() -> None:
    clock = HandClock()
    async with servers(2) as many, scraping(clock) as scrape:
        show(many, vllm(done=100), vllm(done=100))
        await sample_of(scrape, many)
        clock.at += 10
        show(many, vllm(done=110), vllm(done=900))
        sample = await sample_of(scrape, many[:1])
        assert value_of(sample, Signal.REQUEST_RATE) == pytest.approx(1.0)
        assert list(scrape._meters) == [many[0].endpoint.replica]
        clock.at += 10
        sample = await sample_of(scrape, many)
    assert sample.readings[Signal.REQUEST_RATE].covered == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"done": 100, "tokens": 1000}, {"done": 30, "tokens": 500, "fast": 1, "slow": 30}),
        (
            {"done": 10, "tokens": 10, "fast": 1, "slow": 1, "start": 1000},
            {"done": 30, "tokens": 500, "fast": 1, "slow": 30, "start": 2000},
        ),
    ],
)
async def test_a_restart_counts_from_its_new_value_and_is_told_once(
    before: dict[str, float], after: dict[str, float]
) -> None:
    clock = HandClock()
    async with servers(1) as many, scraping(clock) as scrape:
        show(many, vllm(**before))
        await sample_of(scrape, many)
        clock.at += 10
        show(many, vllm(**after))
        restarted = await sample_of(scrape, many)
        clock.at += 10
        later = await sample_of(scrape, many)
    assert restarted.idleness.counter_went_back
    assert value_of(restarted, Signal.REQUEST_RATE) == pytest.approx(3.0)
    assert value_of(restarted, Signal.TOKEN_RATE) == pytest.approx(50.0)
    assert restarted.readings[Signal.TTFT_S_P95].samples == 30
    assert not later.idleness.counter_went_back


# -- Absence ---------------------------------------------------------------------------------------------


async def test_a_replica_that_does_not_answer_is_not_covered_and_adds_nothing() -> None:
    clock = HandClock()
    async with servers(3) as many, scraping(clock) as scrape:
        show(many, vllm(waiting=3), vllm(waiting=4), reply("", 500))
        sample = await sample_of(scrape, many)
    queue = sample.readings[Signal.QUEUE_LENGTH]
    assert (queue.value, queue.covered, queue.expected) == (7.0, 2, 3)
    assert queue.detail == f"not covered: {many[2].endpoint.replica}: GET /metrics: HTTP 500"
    assert many[2].endpoint.replica not in sample.replicas


async def test_when_nothing_answers_everything_is_absent_and_nothing_is_raised() -> None:
    clock = HandClock()
    async with servers(2) as many, scraping(clock) as scrape:
        show(many, reply("", 503), reply("<html>", kind="text/html"))
        sample = await sample_of(scrape, many)
    assert {reading.state for reading in sample.readings.values()} == {ReadingState.ABSENT}
    assert sample.readings.keys() == ALL
    assert all("no replica answered" in reading.detail for reading in sample.readings.values())
    assert sample.replicas == {}
    assert not sample.idleness.families_present


async def test_with_no_replica_to_ask_everything_is_absent() -> None:
    async with scraping(HandClock()) as scrape:
        sample = await scrape.sample(ALL, [])
    assert all(one.state is ReadingState.ABSENT and one.expected == 0 for one in sample.readings.values())


async def test_a_missing_family_is_absent_while_the_others_are_read() -> None:
    clock = HandClock()
    async with servers(1) as many, scraping(clock) as scrape:
        show(many, reply("vllm:num_requests_running 0\nvllm:num_requests_waiting NaN\n"))
        sample = await sample_of(scrape, many, frozenset({Signal.RUNNING, Signal.QUEUE_LENGTH}))
    assert value_of(sample, Signal.RUNNING) == 0
    assert sample.readings[Signal.QUEUE_LENGTH].state is ReadingState.ABSENT
    assert sample.readings[Signal.QUEUE_LENGTH].covered == 0
    assert not sample.idleness.families_present


async def test_only_what_was_asked_for_counts_for_the_families() -> None:
    async with servers(1) as many, scraping(HandClock()) as scrape:
        show(many, reply("vllm:num_requests_running 0\n"))
        sample = await sample_of(scrape, many, frozenset({Signal.RUNNING}))
    assert list(sample.readings) == [Signal.RUNNING]
    assert sample.idleness.families_present


async def test_where_arrivals_are_counted_they_are_told_beside_completions() -> None:
    clock = HandClock()
    page = 'tgi_request_count {}\ntgi_request_success {}\ntgi_request_failure{{err="overloaded"}} {}\n'
    async with servers(1) as many, scraping(clock, "tgi") as scrape:
        show(many, reply(page.format(10, 8, 2)))
        assert (await sample_of(scrape, many)).idleness.arrivals is None
        clock.at += 10
        show(many, reply(page.format(30, 20, 4)))
        sample = await sample_of(scrape, many)
    assert (sample.idleness.arrivals, sample.idleness.completions) == (20, 14)
    assert value_of(sample, Signal.REQUEST_RATE) == pytest.approx(2.0)  # arrivals, not completions


async def test_vllm_counts_no_arrivals() -> None:
    clock = HandClock()
    async with servers(1) as many, scraping(clock) as scrape:
        show(many, vllm())
        await sample_of(scrape, many)
        clock.at += 10
        show(many, vllm(done=105))
        sample = await sample_of(scrape, many)
    assert (sample.idleness.arrivals, sample.idleness.completions) == (None, 5)


# -- GPU exporters ---------------------------------------------------------------------------------------


async def test_the_gpus_of_a_host_are_averaged_and_its_exporter_is_asked_once() -> None:
    dcgm = "".join(
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="{gpu}"}} {use}\n' for gpu, use in enumerate((90, 30, 9.223372036854776e18))
    )
    async with servers(3) as many, scraping(HandClock(), gpu_exporter_port=many[2].port) as scrape:
        show(many, vllm(), vllm(), reply(dcgm))
        sample = await sample_of(scrape, many[:2])
        assert len(many[2].requests) == 1
        many[2].routes["/metrics"] = reply("", 500)
        blind = await sample_of(scrape, many[:2])
    gpu = sample.readings[Signal.GPU_UTILIZATION]
    assert gpu.value == pytest.approx(0.6)
    assert (gpu.kind, gpu.covered) == (Kind.MEAN, 2)
    assert blind.readings[Signal.GPU_UTILIZATION].state is ReadingState.ABSENT
    assert "GPU exporter" in blind.readings[Signal.GPU_UTILIZATION].detail
    assert blind.readings[Signal.QUEUE_LENGTH].covered == 2


async def test_mig_slices_and_whole_cards_of_an_exporter_on_the_host() -> None:
    active = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{UUID="GPU-1",GPU_I_ID="{}"}} {}\n'
    dcgm = 'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-0"} 90\n' + active.format(1, 0.5) + active.format(2, 0.1)
    async with servers(2) as many:
        show(many, vllm(), reply(dcgm))
        for how, value in ((Gpus.MEAN, 0.5), (Gpus.MAX, 0.9)):
            async with scraping(HandClock(), gpu_exporter_port=many[1].port, gpus=how) as scrape:
                sample = await sample_of(scrape, many[:1], frozenset({Signal.GPU_UTILIZATION}))
            assert value_of(sample, Signal.GPU_UTILIZATION) == pytest.approx(value)


# -- Captured pages --------------------------------------------------------------------------------------

CAPTURED = {
    "llama_cpp": (
        "llama-server.metrics.txt",
        {Signal.RUNNING: 2, Signal.QUEUE_LENGTH: 8, Signal.TOKEN_RATE: 0, Signal.INPUT_TOKEN_RATE: 0},
    ),
    "triton": ("triton.metrics.txt", {Signal.QUEUE_LENGTH: 35, Signal.REQUEST_RATE: 0}),
    "torchserve": ("torchserve.metrics.txt", {Signal.REQUEST_RATE: 0}),
}


@pytest.mark.parametrize("preset", CAPTURED)
async def test_what_a_real_server_wrote_is_read_and_what_it_lacks_is_absent(preset: str) -> None:
    name, expected = CAPTURED[preset]
    clock = HandClock()
    async with servers(1) as many, scraping(clock, preset, metrics_port=many[0].port) as scrape:
        show(many, reply((DATA / name).read_bytes()))
        await sample_of(scrape, many)
        clock.at += 10
        sample = await sample_of(scrape, many)
    read = {signal: one.value for signal, one in sample.readings.items() if one.state is ReadingState.OK}
    assert read == expected
    absent = [one for one in sample.readings.values() if one.state is ReadingState.ABSENT]
    assert len(absent) == len(ALL) - len(expected)
    assert all(f"not exported by these {preset} servers" in one.detail for one in absent)


async def test_torchserves_queue_is_read_from_its_management_port() -> None:
    async with servers(2) as many:
        ports = {"metrics_port": many[0].port, "management_port": many[1].port}
        show(many, reply((DATA / "torchserve.metrics.txt").read_bytes()), b"")
        many[1].routes["/models/dummy"] = json_reply('[{"jobQueueStatus":{"pendingRequests":6}}]')
        async with scraping(HandClock(), "torchserve", model="dummy", **ports) as scrape:
            sample = await sample_of(scrape, many[:1])
            many[1].routes["/models/dummy"] = reply("", 404)
            without = await sample_of(scrape, many[:1])
    assert value_of(sample, Signal.QUEUE_LENGTH) == 6
    assert without.readings[Signal.QUEUE_LENGTH].state is ReadingState.ABSENT


# -- Hostile servers -------------------------------------------------------------------------------------


async def never(_writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while True:
        writer.write(b"x 1\n" * 10000)
        await writer.drain()


async def cut(writer: asyncio.StreamWriter) -> None:
    writer.write(vllm()[:-200])
    await writer.drain()


async def cut_without_a_length(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nvllm:num_requests_waiting 1")
    await writer.drain()


@pytest.mark.parametrize(
    ("bad", "detail"),
    [
        (never, "no answer within 0.5 s"),
        (endless, "more than 4194304 bytes"),
        (cut, "broke off"),
        (cut_without_a_length, "cut off"),
        (reply("", 302, extra="Location: /metrics\r\n"), "HTTP 302"),
        (reply("<html>", kind="text/html"), "content type"),
        (reply("\x00\x01garbage\n"), "no line of a metrics page"),
        (reply('vllm:num_requests_waiting{x="' + "y" * 100_000 + '"} 1\n'), "longer lines"),
        (reply("vllm:num_requests_waiting 1_0\n"), "cannot be read"),
    ],
)
async def test_one_bad_replica_costs_its_own_coverage_and_no_more(bad: Any, detail: str) -> None:
    async with servers(2) as many, scraping(HandClock(), timeout=Duration(0.5)) as scrape:
        show(many, vllm(waiting=3), bad)
        began = time.monotonic()
        sample = await sample_of(scrape, many)
    assert time.monotonic() - began < 10
    queue = sample.readings[Signal.QUEUE_LENGTH]
    assert (queue.value, queue.covered, queue.expected) == (3.0, 1, 2)
    assert detail in queue.detail


async def test_a_sample_ends_in_time_when_more_replicas_hang_than_are_asked_at_a_time() -> None:
    async with servers(12) as many, scraping(HandClock(), timeout=Duration(0.5), concurrency=2) as scrape:
        show(many, *([never] * 12))  # type: ignore[arg-type]
        sample = await sample_of(scrape, many)
        # Waiting for a turn counts: in pairs, one after the other, all twelve would have been asked.
        assert sum(len(server.requests) for server in many) < 12
    assert sample.readings[Signal.RUNNING].state is ReadingState.ABSENT
    assert "no answer within 0.5 s" in sample.readings[Signal.RUNNING].detail


# -- A live server ---------------------------------------------------------------------------------------


async def test_the_stand_in_under_load_is_read_in_every_signal() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["-m", "autoscaler.demo.model_server", "--port", str(port), "--time-scale", "50"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    clock = HandClock()
    try:
        async with scraping(clock) as scrape, aiohttp.ClientSession() as client:

            async def complete() -> None:
                fields = {"prompt": "a", "max_tokens": 5}
                async with client.post(f"http://127.0.0.1:{port}/v1/completions", json=fields) as response:
                    await response.read()

            while not (sample := await scrape.sample(ALL, [an_endpoint(port)])).replicas:
                await asyncio.sleep(0.05)
            await asyncio.gather(*(complete() for _ in range(40)))
            clock.at += 10
            sample = await scrape.sample(ALL, [an_endpoint(port)])
    finally:
        process.terminate()
        await process.wait()
    assert {reading.state for reading in sample.readings.values()} == {ReadingState.OK}
    assert sample.idleness.families_present
    assert sample.idleness.completions == 40
    assert value_of(sample, Signal.REQUEST_RATE) == pytest.approx(4.0)
    assert value_of(sample, Signal.TOKEN_RATE) == pytest.approx(20.0)
    assert sample.readings[Signal.TTFT_S_P95].samples == 40


# -- Settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"preset": "vlm"}, "preset: found 'vlm', allowed is one of vllm"),
        ({"preset": "openai"}, "preset: openai has no metrics, allowed is one of vllm, sglang"),
        ({"preset": "vllm", "window": 0.0}, "window: found 0 s"),
        ({"preset": "vllm", "gpu_exporter_port": 0}, "gpu_exporter_port: found 0"),
        ({"preset": "vllm", "path": "metrics"}, "path: found 'metrics'"),
        ({"preset": "vllm", "concurrency": 0}, "concurrency: found 0"),
        ({"preset": "vllm", "url": "x"}, "unknown field `url`"),
    ],
)
def test_a_mistake_in_the_settings_is_told(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(fields, Settings)
    assert told in str(caught.value)


def test_every_preset_with_metrics_can_be_built() -> None:
    for name, preset in PRESETS.items():
        if preset.metrics_path:
            build(Settings(preset=name), a_context())
