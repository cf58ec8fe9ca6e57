"""The probe over real sockets: against the stand-in in its three ways to load, each preset's rules, and bad servers."""

import asyncio
import contextlib
import json
import math
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.demo.model_server import ModelServer
from autoscaler.demo.replica_stats import ReplicaStats
from autoscaler.demo.server_options import read_options
from autoscaler.domain.base import Duration
from autoscaler.domain.faults import ConfigError
from autoscaler.domain.replica import ProbeVerdict
from providers._shared.presets import PRESETS, Generation
from providers.probe.http import HttpProbe, Settings, build
from providers.probe.http.inference import served_models, triton_request, what_is_wrong
from tests.support.raw_http import RawServer, a_context, an_endpoint, json_reply, raw_server, reply

DATA = Path(__file__).parents[1] / "data"
MODELS = json_reply('{"object":"list","data":[{"id":"m"}]}')
TEXT = json_reply('{"choices":[{"text":" tok"}]}')
METRICS = (
    "vllm:num_requests_running 2.0\nvllm:num_requests_waiting 1.0\n"
    "vllm:generation_tokens_total 17.0\nprocess_start_time_seconds 1.75e9\n"
)


@contextlib.asynccontextmanager
async def a_probe(preset: str = "vllm", **fields: Any) -> AsyncIterator[HttpProbe]:
    probe = build(Settings(preset=preset, **fields), a_context())
    try:
        yield probe
    finally:
        await probe.aclose()


async def look(server: RawServer, preset: str = "vllm", generate: bool = True, **fields: Any) -> ProbeVerdict:
    async with a_probe(preset, **fields) as probe:
        return await probe.check(server.endpoint, generate=generate)


def good_vllm(**more: Any) -> Any:
    routes = {"/health": reply(""), "/v1/models": MODELS, "/v1/completions": TEXT, "/metrics": reply(METRICS)}
    return raw_server(**(routes | more))


# -- The stand-in ----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def stand_in(folder: Path, *arguments: str) -> AsyncIterator[tuple[int, Path]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stats = folder / "stats.json"
    command = ["-m", "autoscaler.demo.model_server", "--port", str(port), "--stats-file", str(stats), *arguments]
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        yield port, stats
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def loading_stand_in(stats: Path, mode: str, load_s: float) -> AsyncIterator[int]:
    """The same server inside this loop: its load is counted from here, not from the start of a slow interpreter."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--port", str(port), "--load-s", str(load_s), "--while-loading", mode, "--stats-file", str(stats)]
    server = ModelServer(read_options(arguments), time.time())
    running = asyncio.create_task(server.run())
    try:
        yield port
    finally:
        server.stop()
        await running


@pytest.mark.parametrize(
    ("mode", "while_loading"),
    [
        ("refuse", "GET /health: connection refused"),
        ("503", "GET /health: HTTP 503"),
        ("lie", "POST /v1/completions: HTTP 503"),
    ],
)
async def test_the_stand_in_is_never_called_loaded_before_it_is(tmp_path: Path, mode: str, while_loading: str) -> None:
    seen: list[ProbeVerdict] = []
    stats = tmp_path / "stats.json"
    async with loading_stand_in(stats, mode, 1.0) as port, a_probe(timeout=Duration(20.0)) as probe:
        while not seen or not seen[-1].loaded:
            seen.append(await probe.check(an_endpoint(port), generate=True))
            await asyncio.sleep(0.02)
        ended = time.time()
        shallow = await probe.check(an_endpoint(port), generate=False)
    loaded_at = msgspec.json.decode(stats.read_bytes(), type=ReplicaStats).load_done_at
    assert loaded_at is not None
    assert ended >= loaded_at
    assert while_loading in {verdict.detail for verdict in seen}  # it was looked at while loading, and not believed
    assert all(verdict.certain for verdict in seen)
    assert shallow.loaded
    assert float(shallow.boot) <= loaded_at
    assert shallow.tokens_total is not None
    assert shallow.tokens_total >= 1


async def test_a_look_without_a_generation_believes_a_liar(tmp_path: Path) -> None:
    """Why a generation is asked for before admission; and the proof that the test above can fail."""
    async with loading_stand_in(tmp_path / "stats.json", "lie", 60.0) as port, a_probe() as probe:
        while not (verdict := await probe.check(an_endpoint(port), generate=False)).alive:
            await asyncio.sleep(0.02)
        assert verdict.loaded
        assert not (await probe.check(an_endpoint(port), generate=True)).loaded


async def test_probes_are_not_counted_as_clients(tmp_path: Path) -> None:
    async with stand_in(tmp_path, "--time-scale", "100") as (port, stats), a_probe() as probe:
        while not (await probe.check(an_endpoint(port), generate=True)).loaded:
            await asyncio.sleep(0.05)
    counts = msgspec.json.decode(stats.read_bytes(), type=ReplicaStats)
    assert counts.probes >= 1
    assert counts.received == 0


@pytest.mark.parametrize(
    ("fault", "certain", "detail"),
    [("wrong-content", True, "no content"), ("error-500", True, "HTTP 500"), ("hang", False, "no answer within")],
)
async def test_a_stand_in_that_serves_nonsense_is_not_loaded(
    tmp_path: Path, fault: str, certain: bool, detail: str
) -> None:
    times: dict[str, Any] = {"timeout": Duration(1.0), "generate_timeout": Duration(1.0)}
    async with stand_in(tmp_path, "--time-scale", "100", "--fail", fault) as (port, _), a_probe(**times) as probe:
        verdict = await probe.check(an_endpoint(port), generate=True)
        while "refused" in verdict.detail or (verdict.loaded and fault == "hang"):
            verdict = await probe.check(an_endpoint(port), generate=True)
    assert not verdict.loaded
    assert verdict.certain is certain
    assert detail in verdict.detail


# -- What a verdict carries ------------------------------------------------------------------------------


async def test_a_verdict_carries_what_is_inside() -> None:
    async with good_vllm() as server:
        verdict = await look(server)
    assert verdict == ProbeVerdict(
        alive=True, loaded=True, running=2, waiting=1, tokens_total=17.0, boot="1750000000.00"
    )
    assert all(request.headers["x-autoscaler-probe"] == "1" for request in server.requests)
    assert json.loads(server.asked("/v1/completions")[0].body) == {"model": "m", "prompt": "a", "max_tokens": 1}


async def test_a_shallow_look_generates_nothing() -> None:
    async with good_vllm() as server:
        assert (await look(server, generate=False)).loaded
        assert not server.asked("/v1/completions")
        assert (await look(server, generate=True)).loaded
    assert len(server.asked("/v1/completions")) == 1


async def test_generation_can_be_switched_off() -> None:
    async with good_vllm() as server, a_probe(generate=False) as probe:
        assert (await probe.check(server.endpoint, generate=True)).loaded
    assert not server.asked("/v1/completions")


@pytest.mark.parametrize("page", [reply("not here", 404), reply("<html>", kind="text/html"), reply("x 1")])
async def test_bad_metrics_do_not_make_a_loaded_model_unloaded(page: bytes) -> None:
    async with good_vllm(**{"/metrics": page}) as server:
        verdict = await look(server)
    assert verdict.loaded
    assert (verdict.running, verdict.waiting, verdict.tokens_total, verdict.boot) == (None, None, None, "")
    assert "metrics" in verdict.detail


async def test_figures_are_told_of_a_server_that_is_not_healthy() -> None:
    """One that drains says 503 and must still show that it is empty."""
    async with good_vllm(**{"/health": reply("", 503)}) as server:
        verdict = await look(server)
    assert not verdict.loaded
    assert (verdict.running, verdict.waiting) == (2, 1)


async def test_a_model_of_another_name_is_not_the_model() -> None:
    async with good_vllm() as server:
        verdict = await look(server, model="n")
        assert (await look(server, model="m")).loaded
    assert not verdict.loaded
    assert verdict.detail == "GET /v1/models: found m, not n"


async def test_the_port_that_answers_checks_may_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_TOKEN", "s3cret")
    async with good_vllm() as server, a_probe(port=server.port, token_env="THE_TOKEN") as probe:
        assert (await probe.check(an_endpoint(1), generate=True)).loaded
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer s3cret"}


# -- The presets -----------------------------------------------------------------------------------------


async def test_llama_cpp_is_loaded_when_its_health_says_ok() -> None:
    loading = json_reply('{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', 503)
    page = reply((DATA / "llama-server.metrics.txt").read_bytes())
    routes = {"/health": loading, "/v1/completions": TEXT, "/metrics": page}
    async with raw_server(**routes) as server:
        assert not (await look(server, "llama_cpp")).loaded
        assert not server.asked("/v1/completions")
        server.routes["/health"] = json_reply('{"status":"ok"}')
        verdict = await look(server, "llama_cpp")
    assert verdict == ProbeVerdict(alive=True, loaded=True, running=2, waiting=8, tokens_total=131.0)


async def test_tgi_generates_on_its_own_api() -> None:
    page = reply("tgi_batch_current_size 3\ntgi_queue_size 4\ntgi_request_generated_tokens_sum 9\n")
    good = json_reply('{"generated_text":"","details":{"generated_tokens":1}}')
    async with raw_server(**{"/health": reply(""), "/generate": good, "/metrics": page}) as server:
        verdict = await look(server, "tgi")
        server.routes["/generate"] = json_reply('{"generated_text":""}')
        assert not (await look(server, "tgi")).loaded
    assert verdict.loaded
    assert (verdict.running, verdict.waiting) == (3, 4)
    assert verdict.tokens_total is None  # it counts tokens when a request ends: no sign of progress


TRITON = {
    "/v2/health/live": reply(""),
    "/v2/health/ready": reply(""),
    "/v2/models/echo/ready": reply("", 400),
    "/v2/models/echo": json_reply('{"inputs":[{"name":"IN","datatype":"FP32","shape":[-1,2]}]}'),
    "/v2/models/echo/infer": json_reply('{"outputs":[{"name":"OUT","data":[1.0,1.0]}]}'),
}


async def test_triton_is_loaded_when_the_model_is_ready_and_not_when_the_server_is() -> None:
    metrics = reply((DATA / "triton.metrics.txt").read_bytes())
    async with raw_server(**TRITON) as server, raw_server(**{"/metrics": metrics}) as other:
        verdict = await look(server, "triton", model="echo", metrics_port=other.port)
        assert verdict.detail == "GET /v2/models/echo/ready: HTTP 400"
        assert (verdict.alive, verdict.loaded, verdict.certain) == (True, False, True)
        server.routes["/v2/models/echo/ready"] = reply("")
        verdict = await look(server, "triton", model="echo", metrics_port=other.port)
        assert verdict == ProbeVerdict(alive=True, loaded=True, waiting=35)
        asked = json.loads(server.asked("/v2/models/echo/infer")[0].body)
        assert asked == {"inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 1]}]}
        server.routes["/v2/models/echo/infer"] = json_reply('{"error":"output tensor shape does not match"}', 500)
        assert not (await look(server, "triton", model="echo", metrics_port=other.port)).loaded


def workers(*states: str, least: int = 1, pending: int = 4) -> bytes:
    told = {
        "minWorkers": least,
        "workers": [{"id": str(place), "status": state} for place, state in enumerate(states)],
        "jobQueueStatus": {"remainingCapacity": 16, "pendingRequests": pending},
    }
    return json_reply(json.dumps([told]))


async def test_torchserve_is_loaded_when_its_workers_are_ready_whatever_ping_says() -> None:
    routes = {"/ping": json_reply('{"status":"Healthy"}'), "/predictions/dummy": reply("42")}
    async with raw_server(**routes) as server, raw_server() as management:
        ports: dict[str, Any] = {"management_port": management.port, "metrics_port": management.port, "model": "dummy"}
        for shown, detail in (
            (reply("", 404), "HTTP 404"),
            (workers("UNLOADING"), "0 of 1 workers READY"),
            (workers("READY", "UNLOADING", least=2), "1 of 2 workers READY"),
            (json_reply("[]"), "shows no model"),
        ):
            management.routes["/models/dummy"] = shown
            verdict = await look(server, "torchserve", **ports)
            assert detail in verdict.detail
            assert (verdict.alive, verdict.loaded) == (True, False)
        assert not server.asked("/predictions/dummy")
        management.routes["/models/dummy"] = workers("READY")
        verdict = await look(server, "torchserve", **ports)
        assert verdict.loaded
        assert verdict.waiting == 4
        server.routes["/predictions/dummy"] = reply("")
        assert not (await look(server, "torchserve", **ports)).loaded


async def test_a_generic_server_is_asked_for_no_metrics() -> None:
    async with good_vllm() as server:
        verdict = await look(server, "openai")
    assert verdict == ProbeVerdict(alive=True, loaded=True)
    assert not server.asked("/metrics")


async def test_a_request_of_ones_own_may_have_any_answer_but_none_and_an_error() -> None:
    own: dict[str, Any] = {"generate_path": "/v1/embeddings", "generate_body": '{"model":"m","input":"a"}'}
    async with good_vllm(**{"/v1/embeddings": json_reply('{"data":[{"embedding":[1]}]}')}) as server:
        assert (await look(server, **own)).loaded
        assert server.asked("/v1/embeddings")[0].body == own["generate_body"].encode()
        for bad in (json_reply('{"error":"no"}'), reply(" ")):
            server.routes["/v1/embeddings"] = bad
            assert not (await look(server, **own)).loaded


# -- Bad servers -----------------------------------------------------------------------------------------


async def never(_writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-Filler: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


async def cut(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of i")
    await writer.drain()


async def nothing(_writer: asyncio.StreamWriter) -> None:
    return


@pytest.mark.parametrize(
    ("answer", "certain"),
    [
        (never, False),
        (drip, False),
        (endless, True),
        (endless_head, True),
        (cut, True),
        (nothing, True),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", True),
        (b"\x00\xff\x00\xff\r\n\r\n", True),
        (reply("", 302, extra="Location: /v1/models\r\n"), True),
        (reply("", 404), True),
        (reply("", 429), True),
        (reply("", 500), True),
        (reply("", 204), True),
    ],
)
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/completions"])
async def test_a_server_that_is_wrong_at_any_step_is_not_loaded(path: str, answer: Any, certain: bool) -> None:
    async with good_vllm(**{path: answer}) as server:
        began = time.monotonic()
        verdict = await look(server, timeout=Duration(0.5), generate_timeout=Duration(1.0))
    assert time.monotonic() - began < 10
    assert not verdict.loaded
    assert verdict.certain is certain
    assert verdict.alive
    assert path in verdict.detail


async def test_redirects_are_not_followed() -> None:
    async with good_vllm(**{"/health": reply("", 302, extra="Location: /elsewhere\r\n")}) as server:
        await look(server)
    assert not server.asked("/elsewhere")


async def test_a_compressed_bomb_stays_compressed() -> None:
    bomb = reply(b"\x1f\x8b" + b"\x00" * 1000, extra="Content-Encoding: gzip\r\n")
    async with good_vllm(**{"/v1/models": bomb}) as server:
        assert (await look(server)).detail == "GET /v1/models: lists no model"


async def test_refused_is_certain_and_not_alive() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: as vLLM while it loads
        async with a_probe() as probe:
            verdict = await probe.check(an_endpoint(taken.getsockname()[1]), generate=True)
    assert verdict == ProbeVerdict(alive=False, loaded=False, certain=True, detail="GET /health: connection refused")


async def test_a_host_without_a_name_is_not_certain() -> None:
    """The trouble may be our own resolver's."""
    async with a_probe() as probe:
        nowhere = msgspec.structs.replace(an_endpoint(80), host="nowhere.invalid")
        verdict = await probe.check(nowhere, generate=True)
    assert (verdict.alive, verdict.loaded, verdict.certain) == (False, False, False)


async def test_a_host_that_cannot_be_one_is_a_verdict_too() -> None:
    async with a_probe() as probe:
        verdict = await probe.check(msgspec.structs.replace(an_endpoint(80), host="a b/c@d"), generate=True)
    assert not verdict.loaded


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_server() as proxy, good_vllm() as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        assert (await look(server)).loaded
    assert not proxy.requests


async def test_a_server_that_closes_idle_connections_fails_no_look() -> None:
    """Each request has its own connection: there is no kept one to be closed under us."""
    async with good_vllm() as server, a_probe() as probe:
        for _ in range(20):
            assert (await probe.check(server.endpoint, generate=False)).loaded


async def test_many_looks_at_a_time_do_not_disturb_one_another() -> None:
    async with good_vllm() as good, good_vllm(**{"/health": never}) as bad, a_probe(timeout=Duration(1.0)) as probe:
        verdicts = await asyncio.gather(*(probe.check(server.endpoint, generate=False) for server in [good, bad] * 20))
    assert [verdict.loaded for verdict in verdicts] == [True, False] * 20


async def test_a_caller_with_less_patience_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    async with good_vllm(**{"/health": never, "/metrics": never}) as server, a_probe() as probe:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await probe.check(server.endpoint, generate=True)
        assert len(asyncio.all_tasks() - before) <= 2  # the server's own, at most
    assert asyncio.all_tasks() == before


# -- Documents -------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "text", "message", "content", "usage", "data", "inputs", "shape", "name", "outputs"]
            ),
            inner,
            max_size=3,
        )
    ),
)


@given(document=JSON, generation=st.sampled_from(Generation))
def test_any_document_is_judged(document: Any, generation: Generation) -> None:
    body = json.dumps(document).encode()
    assert isinstance(what_is_wrong(body, document, generation, own=False), str)
    assert all(served_models(document))
    _, request, wrong = triton_request(document, "m")
    assert bool(request) != bool(wrong)


@pytest.mark.parametrize(
    ("document", "good"),
    [
        ({"choices": [{"text": " a"}]}, True),
        ({"choices": [{"message": {"content": "a"}}]}, True),
        ({"choices": [{"text": ""}], "usage": {"completion_tokens": 1}}, True),
        ({"choices": [{"text": ""}]}, False),
        ({"choices": []}, False),
        ({"choices": [{}]}, False),
        ({"object": "error", "error": {"message": "out of memory"}}, False),
        ("fine", False),
        (None, False),
    ],
)
def test_only_content_is_content(document: Any, good: bool) -> None:
    wrong = what_is_wrong(json.dumps(document).encode(), document, Generation.COMPLETIONS, own=False)
    assert (wrong == "") is good


def test_a_language_model_on_triton_is_asked_for_text() -> None:
    document = {"inputs": [{"name": "text_input"}, {"name": "max_tokens"}]}
    path, body, wrong = triton_request(document, "a/b")
    assert (path, wrong) == ("/v2/models/a%2Fb/generate", "")
    assert json.loads(body) == {"text_input": "a", "max_tokens": 1}


def test_an_input_too_large_to_make_up_is_told() -> None:
    document = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 3, 4096, 4096]}]}
    assert "generate_body" in triton_request(document, "m")[2]


# -- Settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"preset": "vlm"}, "preset: found 'vlm', allowed is one of vllm, sglang"),
        ({"preset": "triton"}, "model: found nothing"),
        ({"preset": "sglang", "timeout": 1.0}, "timeout: found 1 s, allowed is more than 1 s"),
        ({"preset": "vllm", "timeout": 0.0}, "timeout: found 0 s"),
        ({"preset": "vllm", "generate_timeout": math.inf}, "generate_timeout: found inf"),
        ({"preset": "vllm", "metrics_port": 70000}, "metrics_port: found 70000"),
        ({"preset": "vllm", "generate_path": "//evil/x"}, "generate_path: found '//evil/x'"),
        ({"preset": "vllm", "generate_body": "{"}, "generate_body: found no JSON"),
        ({"preset": "vllm", "prot": 1}, "unknown field `prot`"),
    ],
)
def test_a_mistake_in_the_settings_is_told(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(fields, Settings)
    assert told in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"preset: .*timeout: .*port: "):
        Settings(preset="no", timeout=Duration(-1.0), port=0)


def test_a_secret_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("BROKEN", "a\nb")
    settings = Settings(preset="vllm", headers={"X-Key": "BROKEN", "X Y": "BROKEN"}, token_env="NOT_SET")
    with pytest.raises(ConfigError) as caught:
        build(settings, a_context())
    assert len(caught.value.mistakes) == 3
    assert "a\nb" not in str(caught.value)


def test_every_preset_can_be_built() -> None:
    for preset in PRESETS:
        build(Settings(preset=preset, model="m"), a_context())
