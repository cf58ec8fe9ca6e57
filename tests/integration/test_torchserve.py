"""The real TorchServe, our real probe and telemetry: a server that calls itself healthy whatever its workers do."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from autoscaler.domain.load import Signal
from tests.support.model_servers import MODELS, probing, scraping, torchserve, watch
from tests.support.raw_http import an_endpoint

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


async def test_healthy_is_not_loaded_and_then_the_queue_is_read(tmp_path: Path) -> None:
    """One server for both: it takes its time to start."""
    wanted = frozenset({Signal.QUEUE_LENGTH, Signal.REQUEST_RATE})
    with torchserve(tmp_path, MODELS / "torchserve_handler.py") as ports:
        where = {"metrics_port": ports.metrics, "management_port": ports.management}
        async with probing("torchserve", model="dummy", **where) as probe:
            looks = await watch(probe, ports.inference, "/ping", within_s=90.0)
        print(f"TorchServe: {looks}")
        async with (
            scraping("torchserve", model="dummy", **where) as telemetry,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):
            await telemetry.sample(wanted, [an_endpoint(ports.inference)])
            url = f"http://127.0.0.1:{ports.inference}/predictions/dummy"
            asked = [asyncio.create_task(session.post(url, json={"data": "a"})) for _ in range(24)]
            while not any(task.done() for task in asked):
                await asyncio.sleep(0.02)
            busy = await telemetry.sample(wanted, [an_endpoint(ports.inference)])
            statuses = {answer.status for answer in await asyncio.gather(*asked)}
            after = await telemetry.sample(wanted, [an_endpoint(ports.inference)])
    waiting, rate = busy.readings[Signal.QUEUE_LENGTH].value, after.readings[Signal.REQUEST_RATE].value
    print(f"TorchServe, 24 requests at once: {waiting} waiting, {rate} requests/s, arrivals {after.idleness.arrivals}")
    assert len(looks.loading_while_live) >= 5
    assert looks.all[-1].verdict.detail == ""
    assert statuses == {200}
    assert (waiting or 0.0) >= 10.0
    assert after.readings[Signal.QUEUE_LENGTH].value == 0.0
    assert (after.idleness.arrivals or 0.0) == 24.0


async def test_workers_that_crash_leave_it_healthy_and_never_admitted(tmp_path: Path) -> None:
    with torchserve(tmp_path, MODELS / "torchserve_crashes.py") as ports:
        where = {"metrics_port": ports.metrics, "management_port": ports.management}
        async with probing("torchserve", model="dummy", **where) as probe:
            looks = await watch(probe, ports.inference, "/ping", within_s=20.0, until_loaded=False)
    print(f"TorchServe, workers that crash at import: {looks}")
    assert looks.loading == looks.all
    assert looks.all[-1].live == 200
    assert len(looks.loading_while_live) >= 5
