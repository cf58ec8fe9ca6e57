"""What a real Prometheus will not say, said by a raw server: errors, lies, trickles, and who may ask."""

import asyncio
import base64
import contextlib
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import ConfigError, Unreachable
from autoscaler.domain.load import Kind, LoadSample, ReadingState, Signal
from providers._shared.gpus import Gpus
from providers.telemetry.prometheus import Coverage, Match, Prometheus, Query, Settings, build
from providers.telemetry.prometheus import session as bounds
from tests.support.certificates import Authority
from tests.support.raw_http import HandClock, RawServer, a_context, an_endpoint, json_reply, raw_server, reply
from tests.support.real_prometheus import served

RUNNING = frozenset({Signal.RUNNING})
GPU = frozenset({Signal.GPU_UTILIZATION})
NOW = 100_000.0
SECRET = "s3cr3t-t0k3n-of-the-test"

Sample = tuple[str, dict[str, str], Sequence[tuple[float, float | str]]]


def an_answer(*samples: Sample, **more: Any) -> bytes:
    """A range as Prometheus gives it: (name, labels, [(seconds ago, value)])."""
    rows = [
        {"metric": {"__name__": name} | labels, "values": [[NOW - ago, str(value)] for ago, value in values]}
        for name, labels, values in samples
    ]
    return json_reply(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": rows}, **more}))


def replica(port: int, running: float | str = 3, ago: float = 1.0, up: int = 1, **labels: str) -> list[Sample]:
    """A replica of vLLM, scraped once."""
    where = {"instance": f"127.0.0.1:{port}", "job": "vllm", **labels}
    return [
        ("up", where, [(ago, up)]),
        ("vllm:num_requests_running", {**where, "engine": "0"}, [(ago, running)]),
    ]


@contextlib.asynccontextmanager
async def asking(url: str, clock: HandClock | None = None, **changes: Any) -> AsyncIterator[Prometheus]:
    fields: dict[str, Any] = {"preset": "vllm", "timeout": Duration(20.0), "reuse": Duration(0.0), **changes}
    telemetry = build(Settings(url=url, **fields), a_context(clock or HandClock(NOW)))
    try:
        yield telemetry
    finally:
        await telemetry.aclose()


def url_of(server: RawServer) -> str:
    return f"http://127.0.0.1:{server.port}"


async def sample_of(
    telemetry: Prometheus, ports: Sequence[int] = (1, 2), signals: frozenset[Signal] = RUNNING
) -> LoadSample:
    return await telemetry.sample(signals, [an_endpoint(port) for port in ports])


async def in_the_end(telemetry: Prometheus) -> LoadSample:
    """A sample of a server that is well again, however busy this machine is."""
    for _ in range(50):
        with contextlib.suppress(Unreachable):
            return await sample_of(telemetry)
    raise AssertionError("it stays unreachable")


async def said(answer: Any, **changes: Any) -> LoadSample:
    """One sample of a server that always says this."""
    async with raw_server() as server, asking(url_of(server), **changes) as telemetry:
        server.default = answer
        return await sample_of(telemetry)


async def refused(answer: Any, **changes: Any) -> str:
    with pytest.raises(Unreachable) as caught:
        await said(answer, **changes)
    return str(caught.value)


# -- Answers that are none --------------------------------------------------------------------------------

ERROR = '{"status":"error","errorType":"bad_data","error":"1:5: parse error"}'


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (reply("boom", 500), "HTTP 500"),
        (reply("slow down", 429), "HTTP 429"),
        (json_reply(ERROR, 400), "HTTP 400: bad_data: 1:5: parse error"),
        (json_reply(ERROR), "bad_data: 1:5: parse error"),
        (reply("<html>log in</html>", kind="text/html"), "no JSON but text/html: a login page"),
        (reply("no", 302, extra="Location: http://127.0.0.1:1/login?secret=x\r\n"), "HTTP 302 to http://127.0.0.1:1/login,"),
        (reply("no", 401), "HTTP 401: the token, password or certificate is not accepted"),
        (json_reply("[1, 2]"), "JSON that is no answer of Prometheus"),
        (json_reply('{"status":"success"}'), "error: no reason given"),
        (json_reply('{"status":"success","data":{"resultType":"string","result":[1,"x"]}}'), "of type 'string'"),
        (json_reply('{"status":"success","data":{"resultType":"vector","result":[{"value":3}]}}'), "cannot be read"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", "the answer broke off"),
        (b"", "it closed the connection without an answer"),
        (b"\x00\xff nonsense\r\n\r\n", ""),
    ],
)  # fmt: skip
async def test_an_answer_that_is_none_is_unreachable_and_says_why(answer: bytes, why: str) -> None:
    told = await refused(answer)
    assert why in told
    assert "\n" not in told
    assert len(told) < 300


async def test_nobody_there_is_refused_and_not_late() -> None:
    async with raw_server() as server:
        url = url_of(server)
    async with asking(url) as telemetry:
        with pytest.raises(Unreachable, match=r"Prometheus at 127\.0\.0\.1:\d+: connection refused"):
            await sample_of(telemetry)


async def trickle(writer: asyncio.StreamWriter) -> None:
    """A byte each 20 ms, for ever: each read is in time, the whole never is."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def trickle_header(writer: asyncio.StreamWriter) -> None:
    """The same, before there is any answer that could be looked at."""
    writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def silence(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("script", [trickle, trickle_header, silence])
async def test_a_server_that_never_ends_is_ended_with_its_thread(script: Any) -> None:
    hung_up = asyncio.Event()

    async def noticing(writer: asyncio.StreamWriter) -> None:
        talking = asyncio.create_task(script(writer))
        await asyncio.wait([talking, asyncio.create_task(writer.wait_closed())], return_when="FIRST_COMPLETED")
        hung_up.set()
        talking.cancel()

    async with raw_server() as server, asking(url_of(server), timeout=Duration(0.4)) as telemetry:
        server.default = noticing
        began = time.monotonic()
        with pytest.raises(Unreachable, match=r"no answer within 0\.4 s"):
            await sample_of(telemetry)
        assert time.monotonic() - began < 5
        if script is not silence:  # a server that writes notices that nobody reads any more
            async with asyncio.timeout(5):
                await hung_up.wait()
        server.default = an_answer(*replica(1), *replica(2))
        assert (await in_the_end(telemetry)).readings[Signal.RUNNING].value == 6


async def test_threads_are_few_come_back_and_end_with_the_last_pool() -> None:
    before = set(threading.enumerate())

    def ours() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name.startswith("prometheus") and one not in before]

    async with raw_server() as server:
        server.default = trickle
        queries = {
            signal: Query(promql=f"vector({index})", kind=Kind.TOTAL, coverage=Coverage.NONE, age_of="up")
            for index, signal in enumerate((Signal.RUNNING, Signal.QUEUE_LENGTH, Signal.REQUEST_RATE))
        }
        async with asking(url_of(server), timeout=Duration(0.3), queries=queries) as telemetry:
            for _ in range(3):
                with pytest.raises(Unreachable):
                    await sample_of(telemetry, signals=frozenset(queries))
            assert 0 < len(ours()) <= 4
            server.default = an_answer()
            assert (await in_the_end(telemetry)).readings[Signal.RUNNING].state is ReadingState.ABSENT
        for thread in ours():
            await asyncio.to_thread(thread.join, 5.0)
        assert ours() == []


async def test_a_huge_answer_is_given_up_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "ANSWER_LIMIT", 200_000)
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while True:
            writer.write(b" " * 65536)
            sent += 65536
            await writer.drain()

    assert "more than 195 KiB" in await refused(endless)
    assert sent < 20_000_000


# -- What the samples say -----------------------------------------------------------------------------------


async def test_warnings_make_the_sample_partial_and_nothing_else() -> None:
    found = await said(an_answer(*replica(1), *replica(2), warnings=["shard 2 is away"]))
    assert found.partial == "shard 2 is away"
    assert found.readings[Signal.RUNNING].value == 6


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "rubbish"])
async def test_a_value_that_is_no_number_does_not_cover_its_replica(value: str) -> None:
    reading = (await said(an_answer(*replica(1), *replica(2, value)))).readings[Signal.RUNNING]
    assert (reading.value, reading.covered, reading.expected) == (3, 1, 2)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ([], "no sample of it"),
        (replica(2, ago=46.0), "its newest sample is 46 s old"),
        (replica(2, ago=-46.0), "46 s ahead: the clocks differ"),
        (replica(2, up=0), "its scrape fails (up is 0)"),
        (replica(2)[:1], "none of vllm's series"),
        ([*replica(2), ("process_start_time_seconds", {"instance": "127.0.0.1:2"}, [(1.0, 0)])], "values are invented"),
    ],
)
async def test_a_replica_that_is_not_seen_is_missing_with_a_reason(second: list[Sample], why: str) -> None:
    reading = (await said(an_answer(*replica(1), *second))).readings[Signal.RUNNING]
    assert (reading.value, reading.covered, reading.expected) == (3, 1, 2)
    assert why in reading.detail
    assert reading.at == NOW - 1.0  # the time of the sample, not of the query


async def test_names_with_colons_and_with_underscores_are_one_series() -> None:
    stored = [(name.replace(":", "_"), labels, values) for name, labels, values in replica(2, 4)]
    found = await said(an_answer(*replica(1), *stored))
    assert found.readings[Signal.RUNNING].value == 7


async def test_a_replica_that_is_scraped_twice_counts_once() -> None:
    twice = [*replica(1, 3, job="a"), *replica(1, 3, job="b", ago=0.5), *replica(2)]
    assert (await said(an_answer(*twice))).readings[Signal.RUNNING].value == 6


async def test_replicas_that_share_one_page_each_show_it() -> None:
    """As scraping does: a mean is right; who wants totals gives each replica a page of its own."""
    found = await said(an_answer(*replica(8002, 4)), replicas=Match(value="{host}:8002"))
    assert (found.readings[Signal.RUNNING].covered, len(found.replicas)) == (2, 2)


async def test_the_history_of_counters_gives_rates_at_the_first_look_and_shows_a_restart() -> None:
    def counted(*values: float) -> bytes:
        where = {"instance": "127.0.0.1:1", "job": "vllm"}
        at = [15.0 * (len(values) - 1 - index) + 1.0 for index in range(len(values))]
        return an_answer(
            ("up", where, [(ago, 1) for ago in at]),
            ("vllm:num_requests_running", where, [(ago, 0) for ago in at]),
            ("vllm:generation_tokens_total", where, list(zip(at, values, strict=True))),
        )

    clock = HandClock(NOW)
    async with raw_server() as server, asking(url_of(server), clock) as telemetry:
        server.default = counted(100, 160, 400)
        first = await sample_of(telemetry, (1,), frozenset({Signal.TOKEN_RATE, Signal.RUNNING}))
        assert first.readings[Signal.TOKEN_RATE].value == pytest.approx(300 / 30)
        assert not first.idleness.counter_went_back
        assert not (await sample_of(telemetry, (1,))).idleness.counter_went_back
        server.default = counted(100, 160, 20)  # one and the same scrape, now with other numbers
        assert (await sample_of(telemetry, (1,))).idleness.counter_went_back


async def test_replicas_are_known_by_the_label_that_is_set() -> None:
    rows = [(name, {**labels, "pod": "i-1"}, values) for name, labels, values in replica(99, 5)]
    async with raw_server() as server:
        server.default = an_answer(*rows)
        match = Match(label="pod", value="{machine}", selector='job="vllm",')
        async with asking(url_of(server), replicas=match) as telemetry:
            assert (await sample_of(telemetry, (1,))).readings[Signal.RUNNING].value == 5
        (promql,) = parse_qs(urlsplit(server.requests[0].path).query)["query"]
    assert promql.startswith('{__name__=~"up|vllm:num_requests_running|vllm_num_requests_running|')
    assert promql.endswith('",job="vllm"}[60000ms]')


async def test_gpus_come_from_their_exporter_on_the_host_of_the_replica() -> None:
    cards = [("DCGM_FI_DEV_GPU_UTIL", {"instance": "127.0.0.1:9400", "gpu": str(n)}, [(1.0, n * 60)]) for n in (0, 1)]
    async with raw_server() as server:
        server.default = an_answer(*replica(1), *cards)
        async with asking(url_of(server), gpu=Match(value="{host}:9400"), gpus=Gpus.MAX) as telemetry:
            found = await sample_of(telemetry, (1,), GPU | RUNNING)
            assert found.readings[Signal.GPU_UTILIZATION].value == pytest.approx(0.6)
            server.default = an_answer(*replica(1))
            gone = await sample_of(telemetry, (1,), GPU | RUNNING)
        assert gone.readings[Signal.GPU_UTILIZATION].state is ReadingState.ABSENT
        assert "GPU exporter: no sample of it" in gone.readings[Signal.GPU_UTILIZATION].detail
        assert gone.readings[Signal.RUNNING].covered == 1
        async with asking(url_of(server)) as telemetry:
            server.default = an_answer(
                *replica(1), *[(name, {**labels, "instance": "127.0.0.1:1"}, v) for name, labels, v in cards]
            )
            assert (await sample_of(telemetry, (1,), GPU)).readings[Signal.GPU_UTILIZATION].value == pytest.approx(0.3)


# -- The user's own PromQL ----------------------------------------------------------------------------------


def vector(*values: float | str, **labels: str) -> bytes:
    rows = [{"metric": labels, "value": [NOW, str(value)]} for value in values]
    return json_reply(json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}}))


@pytest.mark.parametrize(
    ("answer", "state", "value", "why"),
    [
        (vector(7), ReadingState.OK, 7, ""),
        (json_reply('{"status":"success","data":{"resultType":"scalar","result":[1,"7"]}}'), ReadingState.OK, 7, ""),
        (vector(7, 8), ReadingState.ABSENT, None, "2 values without the label instance"),
        (vector(), ReadingState.ABSENT, None, "gives nothing"),
        (vector("NaN"), ReadingState.ABSENT, None, "gives NaN"),
        (vector("+Inf"), ReadingState.ABSENT, None, "gives inf"),
        (vector(-1), ReadingState.ABSENT, None, "gives -1"),
        (vector(7, instance="127.0.0.1:1"), ReadingState.OK, 7, "i-1:2: no such value"),
        (vector(7, instance="elsewhere:1"), ReadingState.ABSENT, None, "no value for a replica of this pool"),
        (json_reply(ERROR, 400), ReadingState.ABSENT, None, "parse error"),
    ],
)
async def test_what_a_result_of_own_promql_means(
    answer: bytes, state: ReadingState, value: float | None, why: str
) -> None:
    async with raw_server() as server:
        server.routes["/api/v1/query?query=mine"] = answer
        server.default = an_answer(*replica(1)[:1], *replica(2)[:1])
        query = Query(promql="mine", kind=Kind.TOTAL)
        async with asking(url_of(server), preset=None, queries={Signal.QUEUE_LENGTH: query}) as telemetry:
            reading = (await sample_of(telemetry, signals=frozenset({Signal.QUEUE_LENGTH}))).readings[
                Signal.QUEUE_LENGTH
            ]
    assert (reading.state, reading.value) == (state, value)
    assert why in reading.detail
    if state is ReadingState.OK:
        assert reading.at == NOW - 1.0
        assert reading.expected == 2


@pytest.mark.parametrize(
    ("value", "samples", "state"),
    [("1.5", "20", ReadingState.OK), ("1.5", "19.4", ReadingState.QUIET), ("NaN", "0", ReadingState.QUIET)],
)
async def test_a_quantile_of_few_samples_is_quiet(value: str, samples: str, state: ReadingState) -> None:
    query = Query(promql="p95", kind=Kind.QUANTILE, samples="n")
    async with raw_server() as server:
        server.routes = {"/api/v1/query?query=p95": vector(value), "/api/v1/query?query=n": vector(samples)}
        server.default = an_answer(*replica(1)[:1])
        async with asking(url_of(server), preset=None, queries={Signal.TTFT_S_P95: query}) as telemetry:
            found = await sample_of(telemetry, (1,), frozenset({Signal.TTFT_S_P95}))
    assert found.readings[Signal.TTFT_S_P95].state is state


async def test_a_gateways_queue_is_read_with_nothing_in_service_and_dated_by_its_own_samples() -> None:
    query = Query(promql="gate", kind=Kind.TOTAL, coverage=Coverage.NONE, age_of="gate")
    async with (
        raw_server() as server,
        asking(url_of(server), preset=None, queries={Signal.RUNNING: query}) as telemetry,
    ):
        server.routes = {
            "/api/v1/query?query=gate": vector(9),
            "/api/v1/query?query=max%28timestamp%28gate%29%29": vector(NOW - 300),
        }
        reading = (await sample_of(telemetry, ())).readings[Signal.RUNNING]
        assert (reading.value, reading.at, reading.expected) == (9, NOW - 300, 0)
        server.routes["/api/v1/query?query=max%28timestamp%28gate%29%29"] = vector()
        assert (await sample_of(telemetry, ())).readings[Signal.RUNNING].state is ReadingState.ABSENT


# -- Many pools, one server ---------------------------------------------------------------------------------


async def test_pools_of_one_server_share_its_answers_and_none_gets_one_twice() -> None:
    clock = HandClock(NOW)
    async with raw_server() as server, contextlib.AsyncExitStack() as stack:
        server.default = an_answer(*replica(1), *replica(2))
        pools = [await stack.enter_async_context(asking(url_of(server), clock, reuse=Duration(5.0))) for _ in range(20)]
        found = await asyncio.gather(*(sample_of(pool, (1 + index % 2,)) for index, pool in enumerate(pools)))
        assert [one.readings[Signal.RUNNING].value for one in found] == [3.0] * 20
        assert len(server.requests) == 1
        await sample_of(pools[0], (1,))
        await sample_of(pools[1], (1,))
        assert len(server.requests) == 2
        clock.at += 6.0
        await sample_of(pools[2], (1,))
        assert len(server.requests) == 3


async def test_other_identities_are_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T_ONE", "one")
    clock = HandClock(NOW)
    async with raw_server() as server:
        server.default = an_answer(*replica(1))
        async with asking(url_of(server), clock, tenant="a") as one, asking(url_of(server), clock, tenant="b") as other:
            await asyncio.gather(sample_of(one, (1,)), sample_of(other, (1,)))
    assert {request.headers["x-scope-orgid"] for request in server.requests} == {"a", "b"}


# -- Who asks -----------------------------------------------------------------------------------------------


async def test_the_token_is_sent_read_anew_and_never_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{SECRET}\n")
    token.chmod(0o600)
    async with raw_server() as server, asking(url_of(server), token_file=str(token)) as telemetry:
        server.default = json_reply(json.dumps({"status": "error", "error": f"who is {SECRET}?"}), 500)
        with pytest.raises(Unreachable) as caught:
            await sample_of(telemetry)
        assert "who is ***?" in str(caught.value)
        token.write_text("another")
        server.default = an_answer(*replica(1))
        await sample_of(telemetry, (1,))
        token.chmod(0o604)  # while it is in use
        with pytest.raises(Unreachable, match=r"token_file: .* everyone may read the secret in it; allowed: chmod o-r"):
            await sample_of(telemetry, (1,))
        token.unlink()
        with pytest.raises(Unreachable, match=r"token_file: .* cannot be read"):
            await sample_of(telemetry, (1,))
    assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {SECRET}", "Bearer another"]


async def test_basic_authentication_and_extra_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T_PASSWORD", SECRET)
    monkeypatch.setenv("T_KEY", "k-1")
    async with raw_server() as server:
        server.default = an_answer(*replica(1))
        who: dict[str, Any] = {"username": "me", "password_env": "T_PASSWORD", "headers": {"X-Key": "T_KEY"}}
        async with asking(url_of(server), **who) as telemetry:
            await sample_of(telemetry, (1,))
    headers = server.requests[0].headers
    assert base64.b64decode(headers["authorization"].removeprefix("Basic ")).decode() == f"me:{SECRET}"
    assert headers["x-key"] == "k-1"


async def test_a_secret_that_is_not_there_is_told_when_the_pool_is_built(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        build(
            Settings(url="http://h:1", preset="vllm", token_env="T_NOT_SET", ca_file=str(tmp_path / "ca")), a_context()
        )
    assert caught.value.mistakes == [
        "telemetry.token_env: the environment variable T_NOT_SET is not set",
        f"telemetry.ca_file: {tmp_path / 'ca'} cannot be read",
    ]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o606])
@pytest.mark.parametrize("field", ["token_file", "password_file", "key_file", "ca_file", "cert_file"])
async def test_a_file_that_others_could_read_or_write_is_told_when_the_pool_is_built(
    field: str, mode: int, tmp_path: Path
) -> None:
    for name in (field, "other"):
        (tmp_path / name).write_text(SECRET)
        (tmp_path / name).chmod(0o600)
    (tmp_path / field).chmod(mode)
    other = {"key_file": "cert_file", "cert_file": "key_file"}.get(field)
    fields: dict[str, Any] = {field: str(tmp_path / field)}
    fields |= {other: str(tmp_path / "other")} if other else {}
    fields |= {"username": "me"} if field == "password_file" else {}
    settings = Settings(url="http://h:1", preset="vllm", **fields)
    allowed = {0o600, 0o640} if field in {"token_file", "password_file", "key_file"} else {0o600, 0o640, 0o644}
    if mode in allowed:
        await build(settings, a_context()).aclose()
        return
    with pytest.raises(ConfigError) as caught:
        build(settings, a_context())
    (mistake,) = caught.value.mistakes
    assert mistake.startswith(f"telemetry.{field}: {tmp_path / field} everyone may ")
    assert "; allowed: chmod " in mistake
    assert SECRET not in mistake


async def test_tls_both_ways(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ours.certificate))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*ours.issued("server"))

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=an_answer(*replica(1)).partition(b"\r\n\r\n")[2], content_type="application/json")

    app = web.Application()
    app.router.add_get("/api/v1/query", answer)
    certificate, key = map(str, ours.issued("client"))
    async with served(app, context) as url:
        known: dict[str, Any] = {"ca_file": str(ours.certificate), "cert_file": certificate, "key_file": key}
        async with asking(url, **known) as telemetry:
            assert (await sample_of(telemetry, (1,))).readings[Signal.RUNNING].value == 3
        wrongs: tuple[dict[str, Any], ...] = (
            {**known, "ca_file": str(theirs.certificate)},
            {"ca_file": str(ours.certificate)},
            {"cert_file": certificate, "key_file": key},
        )
        for wrong in wrongs:
            async with asking(url, **wrong) as telemetry:
                with pytest.raises(Unreachable) as caught:
                    await sample_of(telemetry, (1,))
                # Who is refused by the server may see no more than that it hangs up.
                assert any(words in str(caught.value) for words in ("TLS", "closed the connection"))


# -- Settings -----------------------------------------------------------------------------------------------

QUEUE = Signal.QUEUE_LENGTH


@pytest.mark.parametrize(
    ("fields", "mistake"),
    [
        ({"preset": "vlm"}, "preset: found 'vlm'"),
        ({"preset": "openai"}, "preset: openai has no metrics"),
        ({}, "preset: found none and no queries"),
        ({"preset": "vllm", "url": "prometheus:9090"}, "url: found 'prometheus:9090'"),
        ({"preset": "vllm", "url": "http://u:p@h"}, "url: found a user or password in it"),
        ({"preset": "vllm", "url": "http://h/?a=b"}, "url: found"),
        ({"preset": "vllm", "timeout": Duration(0)}, "timeout: found 0 s"),
        ({"preset": "vllm", "reuse": Duration(61)}, "reuse: found 61 s"),
        ({"preset": "vllm", "token_env": "A", "token_file": "/b"}, "found several ways"),
        ({"preset": "vllm", "username": "me"}, "username: found without its other half"),
        ({"preset": "vllm", "cert_file": "/c"}, "cert_file: found without its other half"),
        ({"preset": "vllm", "token_file": "b"}, "token_file: found 'b', allowed is an absolute path"),
        ({"preset": "vllm", "replicas": Match(label="a-b")}, "replicas.label: found 'a-b'"),
        ({"preset": "vllm", "replicas": Match(value="{hots}")}, "replicas.value: found '{hots}'"),
        ({"preset": "vllm", "replicas": Match(value="{host.x}")}, "replicas.value: found"),
        ({"preset": "vllm", "gpu": Match(selector="job=dcgm")}, "gpu.selector: found 'job=dcgm'"),
        ({"queries": {QUEUE: Query(promql=" ", kind=Kind.TOTAL)}}, "queries.queue_length.promql: found an empty text"),
        ({"queries": {QUEUE: Query(promql="x", kind=Kind.QUANTILE)}}, "queries.queue_length.kind: found quantile"),
        ({"queries": {Signal.KV_CACHE_USE: Query(promql="x", kind=Kind.TOTAL)}}, "kind: found total"),
        ({"queries": {Signal.TTFT_S_P95: Query(promql="x", kind=Kind.MEAN)}}, "kind: found mean"),
        ({"queries": {Signal.TTFT_S_P95: Query(promql="x", kind=Kind.QUANTILE)}}, "samples: found none"),
        ({"queries": {QUEUE: Query(promql="x", kind=Kind.TOTAL, coverage=Coverage.NONE)}}, "age_of: found none"),
    ],
)
def test_settings_that_cannot_be_are_told_with_what_is_allowed(fields: dict[str, Any], mistake: str) -> None:
    with pytest.raises(ValueError) as caught:
        Settings(**{"url": "http://h:9090", **fields})
    assert mistake in str(caught.value)
    assert "allowed" in str(caught.value) or "need" in str(caught.value)
