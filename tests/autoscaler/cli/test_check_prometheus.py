"""`check --online` against a real Prometheus: what it lacks, each in one line with the mend."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.real_prometheus import a_prometheus


@pytest.mark.slow
def test_check_says_what_the_server_lacks_and_when_it_is_not_there(shop: Any, tmp_path: Path) -> None:
    with a_prometheus(tmp_path / "p") as server:
        server.start()
        telemetry = {
            "kind": "prometheus",
            "url": server.url,
            "preset": "vllm",
            "replicas": {"selector": 'job="vllm"'},
            "queries": {"running": {"promql": "sum(nothing)", "kind": "total"}},
        }
        policies = [
            {"kind": "target_tracking", "signal": signal, "target": target}
            for signal, target in (("queue_length", 4), ("running", 8), ("gpu_utilization", 0.7))
        ]
        shop.write(shop.pool(telemetry=telemetry, policies=policies))
        done = shop("check", "--online")
        assert done.code == 0, done.out + done.err
        assert "ok: llama telemetry: answers; 4 things lack" in done.out
        lines = [line for line in done.out.splitlines() if line.startswith("warning: pools[0].telemetry: ")]
        told = [line.removeprefix("warning: pools[0].telemetry: ").partition(";")[0] for line in lines]
        assert told == [
            'no `up` under {job="vllm"}: a replica that dies is noticed by the age of its samples only',
            'no series DCGM_FI_DEV_GPU_UTIL under {job="vllm"}, which gpu_utilization needs',
            'no series vllm:num_requests_waiting under {job="vllm"}, which queue_length needs',
            "queries.running gives nothing",
        ]
        assert all(line.partition(";")[2] for line in lines)
        assert shop("check", "--online", "--strict").code == 1
    done = shop("check", "--online")
    assert done.code == 3
    assert f"failed: llama telemetry: Prometheus at 127.0.0.1:{server.port}: connection refused" in done.out
