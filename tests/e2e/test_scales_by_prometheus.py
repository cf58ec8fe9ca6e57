"""The daemon, HAProxy, replicas and a Prometheus that finds them: 1 to 3 to 1, and no step while it is gone.

Telemetry comes from Prometheus alone; who writes its list of targets here is the test's world, from HAProxy's members.
"""

import statistics
import time
from pathlib import Path

import pytest

from autoscaler.demo.summary import ready_to_first_request
from tests.support.real_world import AROUND, RealWorld, Shape, real_world, steady

pytestmark = pytest.mark.e2e

#: About 12 requests are inside while the load lasts, and a replica is to have 5.
SHAPE = Shape(
    high=3, policies=[{"kind": "target_tracking", "signal": "running", "target": 5}], **AROUND["haproxy+prometheus"]
)
RATE, LENGTH_S = 8.0, 45
HOLDS_S = 8.0  # more than stabilisation and cooldown together


def sentence(world: RealWorld) -> str:
    return str((world.pool() or {}).get("sentence"))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_one_three_one_and_no_step_while_prometheus_is_gone(tmp_path: Path) -> None:
    with real_world(tmp_path, SHAPE) as world:
        daemon = world.daemon()
        world.until_serving(1)
        load = world.load(steady(RATE, LENGTH_S))
        out_s = world.until_serving(3)
        world.prometheus.kill()
        world.until(lambda: "connection refused" in sentence(world), 20.0, "the daemon says that it is blind")
        world.until(lambda: load.exit_code is not None, LENGTH_S + 30.0, "the load ends")
        began = time.monotonic()
        while time.monotonic() - began < HOLDS_S:
            assert world.phases() == {"in_service": 3}, sentence(world)
            time.sleep(0.5)
        assert "holding: telemetry failed" in sentence(world)
        world.prometheus.start()
        in_s = world.until_serving(1)
        assert daemon.stop(20.0) == 0
        records, counts = world.records(), world.stats()
        waits, _, never = ready_to_first_request(records, counts)
        print(
            f"1 to 3 after {out_s:.1f} s, to 1 after {in_s:.1f} s; {len(records)} requests; "
            f"ready to first request {waits} s, median {statistics.median(waits):.2f} s"
        )
        assert len(records) == RATE * LENGTH_S
        assert [one for one in records if one.outcome != "ok"] == []
        assert world.proxied() == (0, 0, 0)
        assert all(one.aborted_on_exit == one.received_before_ready == 0 for one in counts)
        assert (len(counts), len(waits), never) == (3, 2, 0)
