"""The real Triton, our real probe and telemetry: ready with nothing loaded, or with what cannot infer."""

import asyncio
import time
import urllib.request
from pathlib import Path

import pytest

from autoscaler.domain.load import Signal
from tests.support.model_servers import TritonPorts, asking, probing, scraping, status_of, triton, triton_model, watch
from tests.support.raw_http import an_endpoint

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

LIVE = "/v2/health/live"
READY = "/v2/health/ready"


async def until_up(ports: TritonPorts) -> None:
    """Its port of metrics opens a moment after the one of inferences."""
    async with asyncio.timeout(60.0):
        for port, path in ((ports.http, READY), (ports.metrics, "/metrics")):
            while await asyncio.to_thread(status_of, port, path) != 200:
                await asyncio.sleep(0.05)


def load(port: int, name: str) -> int:
    url = f"http://127.0.0.1:{port}/v2/repository/models/{name}/load"
    with urllib.request.urlopen(urllib.request.Request(url, data=b"{}"), timeout=60.0) as answer:
        return int(answer.status)


async def test_it_is_ready_with_nothing_loaded_and_we_say_so(tmp_path: Path) -> None:
    """Explicit mode: live and ready are 200 all the time; only the model's own state and an inference tell."""
    repository = tmp_path / "models"
    triton_model(repository, "dummy", load_s="2")
    with triton(tmp_path, repository, "--model-control-mode=explicit") as ports:
        await until_up(ports)
        async with probing("triton", model="dummy", metrics_port=ports.metrics) as probe:
            before = await watch(probe, ports.http, READY, within_s=1.0, until_loaded=False)
            asked_at = time.monotonic()
            loading = asyncio.create_task(asyncio.to_thread(load, ports.http, "dummy"))
            looks = await watch(probe, ports.http, LIVE, within_s=60.0)
            assert await loading == 200
    print(f"Triton, explicit mode: before the load {before}; while it loads {looks}")
    assert len(before.loading_while_live) == len(before.all) >= 2
    assert {look.verdict.detail for look in before.all} == {"GET /v2/models/dummy/ready: HTTP 400"}
    assert all(look.verdict.alive and look.verdict.certain for look in before.all)
    # The model takes 2 s. It says no meanwhile, or holds its answer back until it is loaded.
    assert looks.all[-1].at - asked_at >= 2.0
    assert looks.all[-1].verdict.detail == ""


async def test_a_model_that_cannot_infer_is_ready_and_never_admitted(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    triton_model(repository, "dummy", fails="true")
    with triton(tmp_path, repository) as ports:
        await until_up(ports)
        async with probing("triton", model="dummy", metrics_port=ports.metrics) as probe:
            looks = await watch(probe, ports.http, READY, within_s=3.0, until_loaded=False)
            shallow = await probe.check(an_endpoint(ports.http), generate=False)
        assert status_of(ports.http, "/v2/models/dummy/ready") == 200
    print(f"Triton, a model that raises: {looks}")
    assert len(looks.loading_while_live) == len(looks.all) >= 2
    assert {look.verdict.detail for look in looks.all} == {"POST /v2/models/dummy/infer: HTTP 500"}
    assert shallow.loaded  # nothing but an inference shows it


async def test_without_explicit_mode_it_refuses_connections_until_all_is_loaded(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    triton_model(repository, "dummy", load_s="2")
    with triton(tmp_path, repository) as ports:
        async with probing("triton", model="dummy", metrics_port=ports.metrics) as probe:
            looks = await watch(probe, ports.http, READY, within_s=60.0)
    print(f"Triton: {looks}")
    assert looks.all[-1].at - looks.all[0].at >= 2.0
    assert {look.live for look in looks.loading} <= {0, 200}
    assert not any(look.verdict.alive for look in looks.loading if look.live == 0)


async def test_our_scrape_reads_what_waits(tmp_path: Path) -> None:
    """12 clients on one instance that takes half a second for one."""
    repository = tmp_path / "models"
    triton_model(repository, "dummy", infer_s="0.5")
    wanted = frozenset({Signal.QUEUE_LENGTH, Signal.REQUEST_RATE, Signal.RUNNING})
    body = {"inputs": [{"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
    with triton(tmp_path, repository) as ports:
        await until_up(ports)
        async with scraping("triton", metrics_port=ports.metrics) as telemetry:
            await telemetry.sample(wanted, [an_endpoint(ports.http)])
            async with asking(ports.http, "/v2/models/dummy/infer", body, 12) as statuses:
                while len(statuses) < 3:
                    await asyncio.sleep(0.05)
                busy = await telemetry.sample(wanted, [an_endpoint(ports.http)])
    values = {str(signal): reading.value for signal, reading in busy.readings.items()}
    print(f"Triton, 12 clients on 1 instance: {values}")
    assert set(statuses) == {200}
    assert 9.0 <= (values[Signal.QUEUE_LENGTH] or 0.0) <= 12.0
    assert (values[Signal.REQUEST_RATE] or 0.0) > 0.0
    assert values[Signal.RUNNING] is None  # it does not say
    assert (busy.idleness.completions or 0.0) >= 3.0
