"""The stand-in over real sockets: its three ways to load, its answers, its counts and its faults."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.demo.openai_api import words_in
from autoscaler.demo.replica_stats import ReplicaStats, read_stats

Serve = Callable[..., Awaitable[str]]
Ask = Callable[..., Coroutine[Any, Any, tuple[int, bytes]]]
FAST = ("--time-scale", "1000")
PROBE = {"X-Autoscaler-Probe": "1"}


async def fetch(client: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    async with client.get(url) as response:
        return response.status, await response.read()


async def stats_of(client: aiohttp.ClientSession, address: str) -> ReplicaStats:
    _, body = await fetch(client, f"{address}/standin/stats")
    return msgspec.json.decode(body, type=ReplicaStats)


async def metrics_of(client: aiohttp.ClientSession, address: str) -> dict[str, float]:
    _, body = await fetch(client, f"{address}/metrics")
    families = text_string_to_metric_families(body.decode())
    return {s.name + s.labels.get("finished_reason", ""): s.value for f in families for s in f.samples}


async def tell(client: aiohttp.ClientSession, address: str, fault: str | None) -> int:
    async with client.post(f"{address}/control", json={"fail": fault}) as response:
        return response.status


# -- Loading ---------------------------------------------------------------------------------------------


async def test_while_it_loads_the_port_refuses_as_vllms_does(
    serve: Serve, client: aiohttp.ClientSession, ask: Ask
) -> None:
    address = await serve("--load-s", "0.4", wait=False)
    refused = status = 0
    while not status:
        try:
            status, _ = await fetch(client, f"{address}/health")
        except aiohttp.ClientConnectorError:
            refused += 1
            await asyncio.sleep(0.02)
    assert refused > 2
    assert status == 200
    assert (await ask(address, max_tokens=1))[0] == 200
    assert (await stats_of(client, address)).received_before_ready == 0


async def test_while_it_loads_every_route_may_answer_503(serve: Serve, client: aiohttp.ClientSession, ask: Ask) -> None:
    address = await serve("--fail", "never-load", "--while-loading", "503")
    for path in ("/health", "/v1/models", "/metrics"):
        assert (await fetch(client, address + path))[0] == 503
    status, body = await ask(address, max_tokens=1)
    assert status == 503
    assert b"Loading model" in body
    counted = await stats_of(client, address)
    assert (counted.received, counted.received_before_ready, counted.refused) == (1, 1, 1)
    assert counted.load_done_at is None


async def test_while_it_loads_it_may_lie_and_only_an_inference_finds_out(
    serve: Serve, client: aiohttp.ClientSession, ask: Ask
) -> None:
    address = await serve("--load-s", "0.5", "--while-loading", "lie")
    for path in ("/health", "/v1/models", "/metrics"):
        assert (await fetch(client, address + path))[0] == 200
    assert (await ask(address, PROBE, max_tokens=1))[0] == 503
    while (await ask(address, PROBE, max_tokens=1))[0] != 200:
        await asyncio.sleep(0.02)
    counted = await stats_of(client, address)
    assert counted.load_done_at is not None
    assert (counted.received, counted.received_before_ready) == (0, 0)
    assert counted.probes >= 2


async def test_jitter_moves_the_load_and_the_seed_repeats_it(serve: Serve, client: aiohttp.ClientSession) -> None:
    address = await serve("--load-s", "0.2", "--load-jitter", "0.5", "--seed", "7")
    counted = await stats_of(client, address)
    assert counted.load_done_at is not None
    assert 0.09 <= counted.load_done_at - counted.started_at < 5


# -- Answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_a_stream_carries_every_token_and_ends_with_done(
    serve: Serve, client: aiohttp.ClientSession, path: str
) -> None:
    address = await serve(*FAST)
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 40, "stream": True}
    async with client.post(f"{address}/v1/{path}", json=body) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        text = await response.read()
    assert words_in(text) == 40
    assert text.endswith(b"data: [DONE]\n\n")
    assert text.count(b'"finish_reason":"length"') == 1


async def test_without_stream_the_answer_is_one_document(serve: Serve, ask: Ask) -> None:
    address = await serve(*FAST)
    status, body = await ask(address, {"X-Input-Tokens": "700"}, max_tokens=12)
    assert status == 200
    assert words_in(body) == 12
    assert msgspec.json.decode(body)["usage"] == {
        "prompt_tokens": 700,
        "completion_tokens": 12,
        "total_tokens": 712,
    }


async def test_the_served_model_is_listed_and_another_is_not_found(
    serve: Serve, client: aiohttp.ClientSession, ask: Ask
) -> None:
    address = await serve(*FAST, "--model", "mine")
    _, listed = await fetch(client, f"{address}/v1/models")
    assert msgspec.json.decode(listed)["data"][0]["id"] == "mine"
    assert (await ask(address, model="mine", max_tokens=1))[0] == 200
    assert (await ask(address, model="other", max_tokens=1))[0] == 404
    assert (await ask(address, max_tokens=10_000_000))[0] == 400


async def test_metrics_and_counts_agree_with_what_was_served(
    serve: Serve, client: aiohttp.ClientSession, ask: Ask
) -> None:
    address = await serve(*FAST)
    await asyncio.gather(*(ask(address, input_tokens=100, max_tokens=5, stream=True) for _ in range(30)))
    assert (await ask(address, PROBE, max_tokens=1))[0] == 200
    seen = await metrics_of(client, address)
    assert seen["vllm:generation_tokens_total"] == 30 * 5 + 1
    assert seen["vllm:prompt_tokens_total"] == 30 * 100 + 1
    assert seen["vllm:request_success_totallength"] == 31
    assert seen["vllm:time_to_first_token_seconds_count"] == 31
    assert seen["vllm:e2e_request_latency_seconds_count"] == 31
    assert seen["vllm:num_requests_running"] == seen["vllm:num_requests_waiting"] == 0
    assert 0 < seen["process_start_time_seconds"] <= time.time()
    counted = await stats_of(client, address)
    assert (counted.received, counted.completed, counted.probes) == (30, 30, 1)


async def test_more_requests_than_slots_queue_and_all_are_served(
    serve: Serve, client: aiohttp.ClientSession, ask: Ask
) -> None:
    address = await serve("--time-scale", "10", "--max-num-seqs", "2")
    asked = [asyncio.create_task(ask(address, max_tokens=100, stream=True)) for _ in range(6)]
    seen: dict[str, float] = {}
    while seen.get("vllm:num_requests_waiting", 0) + seen.get("vllm:num_requests_running", 0) < 6:
        seen = await metrics_of(client, address)
    assert seen["vllm:num_requests_running"] == 2
    assert seen["vllm:num_requests_waiting"] == 4
    assert all(words_in(body) == 100 for _, body in await asyncio.gather(*asked))


async def test_a_client_that_goes_away_frees_its_slot_and_is_counted(
    serve: Serve, client: aiohttp.ClientSession, ask: Ask
) -> None:
    address = await serve("--max-num-seqs", "1")
    long = asyncio.create_task(ask(address, max_tokens=100_000, stream=True))
    while (await metrics_of(client, address))["vllm:num_requests_running"] < 1:
        await asyncio.sleep(0.01)
    long.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await long
    while (counted := await stats_of(client, address)).cut_by_client < 1:
        await asyncio.sleep(0.01)
    seen = await metrics_of(client, address)
    assert seen["vllm:num_requests_running"] == 0
    assert seen["vllm:request_success_totalabort"] == 1
    assert counted.completed == 0


# -- Faults ----------------------------------------------------------------------------------------------


async def test_control_is_off_unless_asked_for(serve: Serve, client: aiohttp.ClientSession) -> None:
    address = await serve()
    assert await tell(client, address, "hang") == 404
    address = await serve("--control")
    assert await tell(client, address, "sulk") == 400
    assert await tell(client, address, "error-500") == 200
    assert await tell(client, address, None) == 200


async def test_hanging_it_accepts_and_never_answers(serve: Serve, client: aiohttp.ClientSession, ask: Ask) -> None:
    address = await serve(*FAST, "--control")
    assert await tell(client, address, "hang") == 200
    for asked in (ask(address, max_tokens=1), fetch(client, f"{address}/health")):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asked, 0.15)
    assert await tell(client, address, None) == 200
    assert (await ask(address, max_tokens=1))[0] == 200


async def test_mute_it_generates_and_answers_no_look(serve: Serve, client: aiohttp.ClientSession, ask: Ask) -> None:
    address = await serve(*FAST, "--control")
    assert await tell(client, address, "mute") == 200
    for path in ("health", "v1/models", "metrics"):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fetch(client, f"{address}/{path}"), 0.15)
    assert (await ask(address, max_tokens=1))[0] == 200
    assert await tell(client, address, None) == 200
    assert (await fetch(client, f"{address}/health"))[0] == 200


async def test_stalled_it_looks_healthy_while_no_token_comes(
    serve: Serve, client: aiohttp.ClientSession, ask: Ask
) -> None:
    address = await serve("--time-scale", "10", "--control")
    streaming = asyncio.create_task(ask(address, max_tokens=200, stream=True))
    while (await metrics_of(client, address))["vllm:generation_tokens_total"] < 1:
        await asyncio.sleep(0.005)
    await tell(client, address, "stall")
    assert (await fetch(client, f"{address}/health"))[0] == 200
    before = await metrics_of(client, address)
    await asyncio.sleep(0.1)
    after = await metrics_of(client, address)
    assert after["vllm:num_requests_running"] == 1
    assert after["vllm:generation_tokens_total"] == before["vllm:generation_tokens_total"] < 200
    await tell(client, address, None)
    assert words_in((await streaming)[1]) == 200


async def test_cut_streams_break_off_without_an_end(serve: Serve, client: aiohttp.ClientSession, ask: Ask) -> None:
    address = await serve("--time-scale", "10", "--fail", "cut")
    with pytest.raises(aiohttp.ClientPayloadError):
        await ask(address, max_tokens=100, stream=True)
    while (counted := await stats_of(client, address)).broken_off < 1:
        await asyncio.sleep(0.01)
    assert (counted.completed, counted.cut_by_client) == (0, 0)


async def test_error_500_and_wrong_content(serve: Serve, client: aiohttp.ClientSession, ask: Ask) -> None:
    address = await serve(*FAST, "--control", "--fail", "error-500")
    assert (await ask(address, max_tokens=1))[0] == 500
    assert (await fetch(client, f"{address}/health"))[0] == 200
    assert (await stats_of(client, address)).refused == 1
    await tell(client, address, "wrong-content")
    status, body = await ask(address, max_tokens=5)
    assert status == 200
    assert msgspec.json.decode(body)["choices"] == []
    status, body = await ask(address, max_tokens=5, stream=True)
    assert status == 200
    assert words_in(body) == 0


# -- As a process ----------------------------------------------------------------------------------------


def start(port: int, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "autoscaler.demo.model_server", "--port", str(port), *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


async def until_loaded(client: aiohttp.ClientSession, address: str) -> None:
    while True:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            if (await fetch(client, f"{address}/health"))[0] == 200:
                return
        await asyncio.sleep(0.02)


async def test_sigterm_aborts_what_is_in_flight_and_the_counts_outlive_the_process(
    free_port: int, tmp_path: Path, client: aiohttp.ClientSession, ask: Ask
) -> None:
    process = start(free_port, "--stats-dir", str(tmp_path))
    try:
        address = f"http://127.0.0.1:{free_port}"
        await until_loaded(client, address)
        cut = asyncio.create_task(ask(address, max_tokens=10_000, stream=True))
        while (await metrics_of(client, address))["vllm:generation_tokens_total"] < 1:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(aiohttp.ClientError):
            await cut
        assert await asyncio.to_thread(process.wait, 10) == 0
    finally:
        process.kill()
        _, said = process.communicate()
    assert said == ""
    (counted,) = read_stats(tmp_path)
    assert (counted.received, counted.completed, counted.aborted_on_exit) == (1, 0, 1)
    assert counted.exited_at is not None
    assert counted.pid == process.pid


async def test_killed_or_crashed_its_stamps_are_there_already(
    free_port: int, tmp_path: Path, client: aiohttp.ClientSession, ask: Ask
) -> None:
    process = start(free_port, "--stats-file", str(tmp_path / "r.json"), "--control")
    try:
        address = f"http://127.0.0.1:{free_port}"
        await until_loaded(client, address)
        assert (await ask(address, max_tokens=1))[0] == 200
        with contextlib.suppress(aiohttp.ClientError):
            await tell(client, address, "exit")
        assert await asyncio.to_thread(process.wait, 10) == 70
    finally:
        process.kill()
        process.communicate()
    (counted,) = read_stats(tmp_path)
    assert counted.load_done_at is not None
    assert counted.first_client_request_at is not None
    assert counted.exited_at is None


async def test_a_port_in_use_is_one_line_and_exit_code_3(serve: Serve) -> None:
    port = int((await serve()).rsplit(":", 1)[1])
    process = start(port)
    _, said = await asyncio.to_thread(process.communicate, None, 20)
    assert process.returncode == 3
    assert said.strip() == f"model server: 127.0.0.1:{port}: Address already in use"


async def test_two_that_load_on_one_port_do_not_both_serve(free_port: int) -> None:
    """Both may bind while neither listens; the later one to load must say so and end."""
    first, second = start(free_port, "--load-s", "0.8"), start(free_port, "--load-s", "0.8")
    try:
        while first.poll() is None and second.poll() is None:
            await asyncio.sleep(0.02)
        assert sorted([first.poll() or 0, second.poll() or 0]) == [0, 3]
    finally:
        for process in (first, second):
            process.terminate()
            process.communicate()


async def test_stats_that_cannot_be_written_are_one_line_and_exit_code_3(free_port: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    process = start(free_port, "--stats-dir", str(tmp_path / "file"))
    _, said = await asyncio.to_thread(process.communicate, None, 20)
    assert process.returncode == 3
    assert said.count("\n") == 1
    assert str(tmp_path / "file") in said


def test_it_loads_nothing_that_a_model_server_does_not_need() -> None:
    """The load delay is counted from the start of the process, so importing must fit into it."""
    asked = "import autoscaler.demo.model_server, sys; print(*sys.modules)"
    command = [sys.executable, "-W", "error", "-c", asked]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert {"matplotlib", "sqlalchemy", "fastapi", "pydantic", "typer", "rich"}.isdisjoint(loaded)
