"""The client counts truthfully, above all when the other side misbehaves."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from aiohttp import web

from autoscaler.demo.load import LoadClient, LoadOptions, main
from autoscaler.demo.records import Progress, RequestRecord, read_progress, read_records
from autoscaler.demo.workload import Arrival

Serve = Callable[..., Awaitable[str]]
FAST = ("--time-scale", "100")


def some_arrivals(count: int, every_s: float = 0.2, tokens: int = 5) -> list[Arrival]:
    return [Arrival(i * every_s, 100, tokens) for i in range(count)]


async def replay(
    url: str, out: Path, arrivals: Sequence[Arrival], *, time_scale: float = 100, timeout_s: float = 600
) -> tuple[Progress, list[RequestRecord]]:
    options = LoadOptions(url=url, out=out, arrivals=arrivals, time_scale=time_scale, timeout_s=timeout_s)
    progress = await LoadClient(options).run()
    return progress, read_records(out)


def outcomes(records: list[RequestRecord]) -> Counter[str]:
    return Counter(record.outcome for record in records)


async def test_a_healthy_server_answers_every_request_once(serve: Serve, tmp_path: Path) -> None:
    address = await serve(*FAST)
    progress, records = await replay(address, tmp_path / "r.jsonl", some_arrivals(50))
    assert outcomes(records) == {"ok": 50}
    assert sorted(record.index for record in records) == list(range(50))
    assert all(record.tokens_received == 5 and record.status == 200 for record in records)
    assert (progress.sent, progress.ok, progress.in_flight, progress.done) == (50, 50, 0, True)
    assert progress.ttft_s_p95 is not None
    assert progress.ttft_wall_s_p95 == pytest.approx(progress.ttft_s_p95 / 100)
    assert read_progress(tmp_path / "r.jsonl") == progress


async def test_it_does_not_wait_for_earlier_answers(serve: Serve, tmp_path: Path) -> None:
    address = await serve("--time-scale", "100", "--control", "--fail", "stall")
    progress, records = await replay(address, tmp_path / "r.jsonl", some_arrivals(300, every_s=0.1), timeout_s=150)
    assert progress.in_flight_peak == 300
    sent = sorted(record.sent_at for record in records)
    assert 0.29 <= sent[-1] - sent[0] < 1.4  # 30 s at 100 times the speed, and no request waits for an answer
    assert outcomes(records) == {"failed": 300}
    assert {record.why for record in records} == {"timeout"}
    assert progress.send_lag_wall_s_p95 is not None


@pytest.mark.parametrize(
    ("fault", "outcome", "why"),
    [
        ("error-500", "failed", "status 500: "),
        ("cut", "cut", "ClientPayloadError"),
        ("wrong-content", "failed", "content: 0 of 50 tokens"),
        ("hang", "failed", "timeout"),
    ],
)
async def test_each_fault_is_called_by_its_name(
    serve: Serve, tmp_path: Path, fault: str, outcome: str, why: str
) -> None:
    address = await serve(*FAST, "--fail", fault)
    await asyncio.sleep(0.02)
    _, records = await replay(address, tmp_path / "r.jsonl", some_arrivals(10, tokens=50), timeout_s=30)
    assert outcomes(records) == {outcome: 10}
    assert all(record.why.startswith(why) for record in records), records[0].why


async def test_a_stream_that_stops_is_cut_and_one_without_an_end_is_too(tmp_path: Path) -> None:
    async def no_end(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(body=b'data: {"choices":[{"text":" tok"}]}\n\n', content_type="text/event-stream")

    async def stops(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'data: {"choices":[{"text":" tok"}]}\n\n')
        await asyncio.Event().wait()
        return response

    for handler, why in ((no_end, "no end of stream"), (stops, "timeout")):
        async with serving(handler) as address:
            out = tmp_path / f"{handler.__name__}.jsonl"
            _, records = await replay(address, out, some_arrivals(3, tokens=1), timeout_s=20)
        assert outcomes(records) == {"cut": 3}
        assert {record.why for record in records} == {why}
        assert all(record.tokens_received == 1 for record in records)


async def test_a_lost_reused_connection_is_a_failure_and_not_asked_again(tmp_path: Path) -> None:
    """The one case in which the client library repeats a request by itself, were it not a POST."""
    seen = []

    async def drops_the_second(request: web.Request) -> web.StreamResponse:
        seen.append(await request.read())
        if len(seen) == 2 and request.transport is not None:
            request.transport.abort()
        return web.Response(body=b"data: x tok\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    async with serving(drops_the_second) as address:
        _, records = await replay(address, tmp_path / "r.jsonl", some_arrivals(4, every_s=10, tokens=1))
    assert len(seen) == 4
    assert [record.outcome for record in sorted(records, key=lambda r: r.index)] == [
        "ok",
        "failed",
        "ok",
        "ok",
    ]


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async def away(_request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async with serving(away) as address:
        _, records = await replay(address, tmp_path / "r.jsonl", some_arrivals(1))
    assert records[0].status == 307
    assert records[0].outcome == "failed"


async def test_nobody_listening_is_failed_with_the_reason(free_port: int, tmp_path: Path) -> None:
    _, records = await replay(f"http://127.0.0.1:{free_port}", tmp_path / "r.jsonl", some_arrivals(3))
    assert outcomes(records) == {"failed": 3}
    assert all("Connect" in record.why and record.status is None for record in records)


async def test_told_to_stop_it_says_what_it_gave_up(serve: Serve, tmp_path: Path) -> None:
    address = await serve("--fail", "hang")
    await asyncio.sleep(0.02)
    options = LoadOptions(url=address, out=tmp_path / "r.jsonl", arrivals=some_arrivals(100, every_s=0.05))
    load = LoadClient(options)
    running = asyncio.create_task(load.run())
    await asyncio.sleep(0.5)
    load.stop()
    progress = await running
    records = read_records(tmp_path / "r.jsonl")
    assert 0 < len(records) < 100
    assert outcomes(records) == {"stopped": len(records)}
    assert progress.sent == progress.stopped == len(records)


async def test_as_a_process_it_replays_a_trace_and_ends_on_sigterm(serve: Serve, tmp_path: Path) -> None:
    address = await serve(*FAST)
    trace, out = tmp_path / "t.csv", tmp_path / "r.jsonl"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,10,3\n1,10,3\n900,10,3\n")
    command = [sys.executable, "-m", "autoscaler.demo.load", "--url", address, "--out", str(out)]
    process = subprocess.Popen([*command, "--trace", str(trace), "--time-scale", "10"])
    try:
        while not out.exists() or len(read_records(out)) < 2:
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 10) == 0
    finally:
        process.kill()
        process.wait()
    progress = read_progress(out)
    assert progress is not None
    assert (progress.scheduled, progress.sent, progress.ok, progress.done) == (3, 2, 2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--out", "x"], 2, "--url"),
        (["--url", "127.0.0.1:80", "--out", "x"], 2, "found '127.0.0.1:80', allowed is http://HOST:PORT"),
        (["--url", "http://h", "--out", "x", "--time-scale", "0"], 2, "--time-scale: found 0, allowed"),
        (["--url", "http://h", "--out", "x", "--trace", "missing.csv"], 2, "missing.csv: cannot be read"),
        (["--url", "http://h", "--out", "x", "--start-s", "9999"], 2, "no request from 9999 s"),
        (["--url", "http://h", "--out", "missing/x"], 3, "missing/x: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended: object = main(arguments)
    except SystemExit as usage:
        ended = usage.code
    assert ended == code
    assert said in capsys.readouterr().err


class serving:  # noqa: N801
    """A server with one handler, for as long as the block lasts."""

    def __init__(self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", handler)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)

    async def __aenter__(self) -> str:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
