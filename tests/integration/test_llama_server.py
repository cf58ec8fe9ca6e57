"""The real llama.cpp server, our real probe and telemetry: what is said while it loads, works and is overrun."""

import asyncio
import statistics
import time
from pathlib import Path

import pytest

from autoscaler.domain.base import Duration
from autoscaler.domain.load import Kind, ReadingState, Signal
from tests.support.model_servers import asking, gguf, llama_command, probing, scraping, serving, status_of, watch
from tests.support.raw_http import an_endpoint
from tests.support.streaming import free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """350 MB: slow enough to be watched while it loads, and to build a queue."""
    return gguf(tmp_path_factory.mktemp("large") / "large.gguf", width=1024, layers=10)


async def test_it_is_loaded_when_it_has_generated_and_not_before(large: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    began = time.monotonic()
    with serving(tmp_path, llama_command(large, port)):
        async with probing("llama_cpp") as probe:
            looks = await watch(probe, port, "/health", within_s=60.0)
            after = await probe.check(an_endpoint(port), generate=False)
    print(f"llama.cpp: ready after {looks.all[-1].at - began:.1f} s; {looks}")
    details = {look.verdict.detail for look in looks.loading}
    assert {"GET /health: HTTP 503"} <= details  # its port is open, and it says that it loads
    assert looks.loading_while_live == []
    assert looks.all[-1].verdict.detail == ""
    # Its own counters witness the generation: nobody else has asked it for any.
    assert after.tokens_total is not None
    assert after.tokens_total >= 1
    assert (after.running, after.waiting) == (0, 0)


async def test_a_server_without_a_usable_model_is_never_loaded(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    model = tmp_path / "cut.gguf"
    whole = gguf(tmp_path / "whole.gguf").read_bytes()
    model.write_bytes(whole[: len(whole) // 2])
    with serving(tmp_path, llama_command(model, port)) as server:
        async with probing("llama_cpp") as probe:
            looks = await watch(probe, port, "/health", within_s=3.0, until_loaded=False)
        print(f"llama.cpp, half a model: exit code {server.exit_code}; {looks}")
    assert looks.loading == looks.all


async def test_our_scrape_reads_its_queue_under_load(large: Path, tmp_path: Path) -> None:
    """12 clients on two slots: 2 run, the rest waits, and the busy server is still a loaded one."""
    (port,) = free_ports(1)
    wanted = frozenset(
        {Signal.RUNNING, Signal.QUEUE_LENGTH, Signal.TOKEN_RATE, Signal.INPUT_TOKEN_RATE, Signal.E2E_S_P95}
    )
    body = {"prompt": "a", "max_tokens": 24}
    # The whole machine may be busy with the model: an answer may take its time, and is an answer.
    patient = {"timeout": Duration(10.0)}
    with serving(tmp_path, llama_command(large, port)):
        async with probing("llama_cpp", **patient) as probe, scraping("llama_cpp", **patient) as telemetry:
            await watch(probe, port, "/health", within_s=60.0)
            idle = await telemetry.sample(wanted, [an_endpoint(port)])
            async with asking(port, "/v1/completions", body, 12) as statuses:
                while len(statuses) < 4:
                    await asyncio.sleep(0.05)
                busy = []
                for _ in range(9):
                    busy.append(await telemetry.sample(wanted, [an_endpoint(port)]))
                    await asyncio.sleep(0.1)
                shallow = await probe.check(an_endpoint(port), generate=False)
                live = await asyncio.to_thread(status_of, port, "/health")
    readings = busy[-1].readings
    queues = [sample.readings[Signal.QUEUE_LENGTH].value for sample in busy]
    tokens = readings[Signal.TOKEN_RATE].value
    running = [sample.readings[Signal.RUNNING].value for sample in busy]
    print(f"llama.cpp, 12 clients on 2 slots: running {running}, waiting {queues}, {tokens} tokens/s")
    assert [idle.readings[signal].value for signal in (Signal.RUNNING, Signal.QUEUE_LENGTH)] == [0.0, 0.0]
    # Two end at once and two come again: a look in that moment finds fewer, or all twelve waiting.
    assert statistics.median(value or 0.0 for value in running) == 2.0
    assert 8.0 <= statistics.median(value or 0.0 for value in queues) <= 10.0
    assert readings[Signal.QUEUE_LENGTH].kind is Kind.TOTAL
    assert (tokens or 0.0) > 0.0
    assert (readings[Signal.INPUT_TOKEN_RATE].value or 0.0) > 0.0
    assert readings[Signal.E2E_S_P95].state is ReadingState.ABSENT  # it has no histograms
    assert busy[-1].idleness.families_present is False
    assert (live, shallow.loaded) == (200, True)
    assert set(statuses) == {200}
