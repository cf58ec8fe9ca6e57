"""The daemon, Envoy, replicas and a Prometheus that finds them: 1 to 2 to 1 by what it says, no step while it is gone.

Telemetry comes from Prometheus alone; who writes its list of targets here is the test, from Envoy's members.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from tests.support.real_prometheus import RealPrometheus, a_prometheus
from tests.support.real_world import RealWorld, Shape, ended, steady

pytestmark = pytest.mark.e2e

POLICY = {"kind": "target_tracking", "signal": "running", "target": 6}
HOLDS_S = 8.0  # more than stabilisation and cooldown together


class Watched(RealWorld):
    """A world whose telemetry is a Prometheus server."""

    def __init__(self, root: Path, shape: Shape, prometheus: RealPrometheus) -> None:
        self.prometheus = prometheus
        super().__init__(root, shape)

    @override
    def config(self) -> dict[str, Any]:
        config = super().config()
        config["pools"][0]["telemetry"] = {
            "kind": "prometheus",
            "url": self.prometheus.url,
            "preset": "vllm",
            "timeout": "1s",
            "missing_after": "4s",
            "window": "8s",
        }
        return config


@contextmanager
def finding(world: Watched) -> Iterator[None]:
    """Service discovery: Envoy's members become Prometheus' targets."""
    over = threading.Event()

    def find() -> None:
        while not over.wait(0.3):
            world.prometheus.show([f"127.0.0.1:{port}" for port in sorted(world.hosts())])

    finder = threading.Thread(target=find)
    finder.start()
    try:
        yield
    finally:
        over.set()
        finder.join()


def sentence(world: RealWorld) -> str:
    return str((world.pool() or {}).get("sentence"))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_one_two_one_and_no_step_while_prometheus_is_gone(tmp_path: Path) -> None:
    with a_prometheus(tmp_path / "prometheus") as prometheus:
        prometheus.start()
        with ended(Watched(tmp_path, Shape(high=2, policies=[POLICY]), prometheus)) as world, finding(world):
            world.daemon()
            world.until_serving(1, 40.0)
            load = world.load(steady(8.0, 35.0))
            world.until_serving(2, 40.0)
            prometheus.kill()
            world.until(lambda: "connection refused" in sentence(world), 20.0, "the daemon says that it is blind")
            world.until(lambda: load.exit_code is not None, 60.0, "the load ends")
            began = time.monotonic()
            while time.monotonic() - began < HOLDS_S:
                assert world.phases() == {"in_service": 2}, sentence(world)
                time.sleep(0.5)
            assert "holding: telemetry failed" in sentence(world)
            prometheus.start()
            world.until_serving(1, 60.0)
            records = world.records()
            assert len(records) == 8 * 35
            assert [one for one in records if one.outcome != "ok"] == []
            assert all(one.aborted_on_exit == one.received_before_ready == 0 for one in world.stats())
