"""Each bad idea has its line, and a plain config has none."""

from collections.abc import Callable
from typing import Any

import pytest

from autoscaler.config.lint import Finding, Severity, lint
from autoscaler.config.schema import Config
from tests.support.configs import a_config, a_pool

Load = Callable[[Any], Config]

pytestmark = pytest.mark.usefixtures("acme")

STEPS = [{"at_least": 8, "add": 1}]
STEP = {"kind": "step", "signal": "queue_length", "steps": STEPS, "scale_in": {"below": 4, "remove": 1}}
TRACKING = {"kind": "target_tracking", "target": 0.7}
SLO = {"kind": "latency_slo", "signal": "ttft_s_p95", "objective": "2s"}
OFFER = {"compute": "acme", "region": "n"}

CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"capacity": {"min": 3, "max": 3}}, "note", "pools[0].capacity"),
    ({"capacity": {"min": 0, "max": 3}}, "warning", "pools[0].capacity.min"),
    ({"offers": [{**OFFER, "capacity": 8}]}, "error", "pools[0].capacity.max"),
    ({"offers": [{**OFFER, "ports": [1, 1]}]}, "error", "pools[0].offers"),
    ({"offers": [{**OFFER, "usd_per_hour": 5}], "budget": {"usd_per_hour": 9}}, "note", "pools[0].budget"),
    ({"offers": [{**OFFER, "usd_per_hour": 5}, {**OFFER, "name": "b"}], "budget": {"usd_per_hour": 99}}, "warning",
     "pools[0].budget"),
    ({"balancers": None}, "warning", "pools[0].balancers"),
    ({"policies": [{**TRACKING, "signal": "gpu_utilization"}]}, "warning", "pools[0].policies"),
    ({"policies": [STEP]}, "warning", "pools[0].policies[0].scale_in.below"),
    ({"policies": [{"kind": "compose", "as": "highest", "of": [STEP]}]}, "warning",
     "pools[0].policies[0].of[0].scale_in.below"),
    ({"policies": [SLO]}, "warning", "pools[0].policies"),
    ({"policies": [{"kind": "step", "signal": "e2e_s_p95", "steps": STEPS}]}, "warning", "pools[0].policies"),
    ({"pace": {"stale_after": "20s"}}, "warning", "pools[0].pace.stale_after"),
    ({"pace": {"fallback_after": "30s"}, "capacity": {"min": 1, "max": 3, "fallback": 2}}, "warning",
     "pools[0].pace.fallback_after"),
    ({"pace": {"scale_in": {"stabilization": "1m"}}}, "warning", "pools[0].pace.scale_in.stabilization"),
    ({"pace": {"scale_in": {"cooldown": "20s"}}}, "warning", "pools[0].pace.scale_in.cooldown"),
    ({"pace": {"tick": "10m", "stale_after": "30m"}}, "warning", "pools[0].pace.scale_in.cooldown"),
    ({"pace": {"orphan_grace": "1m"}}, "warning", "pools[0].pace.orphan_grace"),
    ({"drain": {"deadline": 0, "lost_deadline": 0}}, "warning", "pools[0].drain.deadline"),
    ({"telemetry": {"kind": "scrape", "preset": "vllm", "timeout": "10s"}}, "warning", "pools[0].telemetry.timeout"),
    ({"ready_when": {"kind": "http", "preset": "vllm", "timeout": "16s"}}, "warning", "pools[0].ready_when.timeout"),
    ({"drain": {"deadline": "10s"}}, "warning", "pools[0].drain.lost_deadline"),
    ({"telemetry": {"kind": "cloudwatch", "region": "eu-west-1", "metrics": {"queue_length": {"namespace": "n",
     "name": "waiting"}}}}, "error", "pools[0].pace.stale_after"),
]  # fmt: skip


def of_pools(config: Config) -> list[Finding]:
    return [finding for finding in lint(config) if finding.path.startswith("pools")]


def test_a_plain_pool_has_no_finding(load_text: Load) -> None:
    assert of_pools(load_text(a_config(a_pool(policies=[*a_pool()["policies"], SLO])))) == []


@pytest.mark.parametrize(
    ("changes", "severity", "path"), CASES, ids=[f"{path} {severity}" for _, severity, path in CASES]
)
def test_a_bad_idea_is_found(load_text: Load, changes: dict[str, Any], severity: str, path: str) -> None:
    (finding,) = of_pools(load_text(a_config(a_pool(**changes))))
    assert (finding.severity, finding.path) == (severity, path)
    assert "\n" not in finding.line()
    assert finding.what
    assert finding.mend


def test_the_admin_api(load_text: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    (note,) = lint(load_text(a_config()))
    assert (note.severity, note.path) == (Severity.NOTE, "admin")
    monkeypatch.setenv("AUTOSCALER_ADMIN_TOKEN", "x" * 20)
    assert lint(load_text(a_config())) == []
    (warning,) = lint(load_text(a_config(admin={"listen": "0.0.0.0:9095"})))
    assert (warning.severity, warning.path) == (Severity.WARNING, "admin.listen")
