"""A policy from another package: late, broken or gone, it costs one opinion and nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from autoscaler.domain.base import Duration
from autoscaler.domain.decision import Calendar, Capacity, Recommendation, Situation
from autoscaler.domain.load import Signal, Trust, TrustVerdict
from autoscaler.runtime.foreign import CARRY_MAX, PolicyBroken, WorkerPolicy
from tests.support.pool_world import a_pool
from tests.support.virtual_time import START

MODULE = """
import json
import os
import time
import msgspec
from autoscaler.domain.decision import Reason, Recommendation
from autoscaler.domain.load import Signal

class Settings(msgspec.Struct, frozen=True):
    does: str = "fine"

class Foreign:
    name = "foreign"
    def __init__(self, does):
        self.does = does
        self.asked = 0
    def signals(self):
        return frozenset({Signal.RUNNING, Signal.QUEUE_LENGTH})
    def recommend(self, pool, situation, carry, calendar):
        self.asked += 1
        does = carry or self.does
        if does == "sleeps":
            time.sleep(600)
        if does == "raises":
            raise RuntimeError("no idea")
        if does == "text":
            return "three"
        if does == "carry":
            return Recommendation(target=1.0, reason=Reason(code="x"), carry="x" * 70000)
        if does == "exits":
            raise SystemExit(3)
        if does == "tells":
            seen = {"environment": dict(os.environ), "requests": [offer.request for offer in pool.offers]}
            return Recommendation(target=1.0, reason=Reason(code="x"), carry=json.dumps(seen))
        target = {"nan": float("nan"), "inf": float("inf"), "negative": -1.0, "string": "3"}.get(does, 3.0)
        facts = {"asked": self.asked, "utc": calendar.utc}
        return Recommendation(target=target, reason=Reason(code="foreign", facts=facts))

def build(settings):
    if settings.does == "unbuildable":
        raise ValueError("settings make no sense")
    return Foreign(settings.does)
"""

SITUATION = Situation(
    now=START, capacity=Capacity(), load=None, trust=TrustVerdict(level=Trust.TRUST, why=""), replicas=()
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("foreign")
    (folder / "some_foreign_policy.py").write_text(MODULE)
    sys.path.insert(0, str(folder))  # a spawned worker gets this path too
    yield "some_foreign_policy"
    sys.path.remove(str(folder))


@pytest.fixture
def policy(package: str) -> Iterator[WorkerPolicy]:
    made = WorkerPolicy(package, '{"does": "fine"}', within=Duration(5.0))
    yield made
    made.close()


def worker_of(policy: WorkerPolicy) -> subprocess.Popen[bytes]:
    assert policy._worker is not None
    return policy._worker


def asked(policy: WorkerPolicy, does: str = "") -> Recommendation:
    return policy.recommend(a_pool(), SITUATION, does, Calendar(utc="2026-01-01T00:00:00+00:00"))


def test_its_opinion_comes_through_and_its_worker_stays(policy: WorkerPolicy) -> None:
    assert policy.signals() == {Signal.RUNNING, Signal.QUEUE_LENGTH}
    first, second = asked(policy), asked(policy)
    assert (first.target, first.reason.facts["asked"], second.reason.facts["asked"]) == (3.0, 1, 2)
    assert first.reason.facts["utc"] == "2026-01-01T00:00:00+00:00"


@pytest.mark.scenario("A broken custom policy leaves the pool as it is and tells the operator")
def test_an_answer_that_is_no_recommendation_is_broken_and_the_worker_stays(policy: WorkerPolicy) -> None:
    for does, says in (
        ("nan", "target is nan"),
        ("inf", "target is inf"),
        ("negative", "target is -1"),
        ("string", "numbers, not str"),
        ("text", "answered str"),
        ("carry", f"more than {CARRY_MAX} bytes"),
    ):
        with pytest.raises(PolicyBroken, match=says):
            asked(policy, does)
    assert asked(policy).reason.facts["asked"] == 7


def test_one_that_is_late_is_ended_and_started_again_when_next_asked(package: str) -> None:
    policy = WorkerPolicy(package, "{}", within=Duration(0.5))
    try:
        policy.signals()
        pid = worker_of(policy).pid
        with pytest.raises(PolicyBroken, match=r"no answer within 0\.5 s"):
            asked(policy, "sleeps")
        assert asked(policy).reason.facts["asked"] == 1
        assert worker_of(policy).pid != pid
    finally:
        policy.close()


@pytest.mark.parametrize(("does", "says"), [("raises", "RuntimeError: no idea"), ("exits", "SystemExit: 3")])
def test_one_that_raises_is_told_with_its_reason_and_starts_again(policy: WorkerPolicy, does: str, says: str) -> None:
    with pytest.raises(PolicyBroken, match=says):
        asked(policy, does)
    assert asked(policy).target == 3.0


def test_one_whose_worker_was_killed_is_broken_once(policy: WorkerPolicy) -> None:
    asked(policy)
    worker = worker_of(policy)
    worker.kill()
    worker.wait()
    with pytest.raises(PolicyBroken, match="its worker ended"):
        asked(policy)
    assert asked(policy).target == 3.0


@pytest.mark.parametrize(
    ("module", "settings", "says"),
    [
        ("no_such_module_anywhere", "{}", "ModuleNotFoundError"),
        (None, '{"does": "unbuildable"}', "ValueError: settings make no sense"),
        (None, '{"does": 3}', "ValidationError"),
    ],
)
def test_one_that_cannot_be_built_says_why(package: str, module: str | None, settings: str, says: str) -> None:
    policy = WorkerPolicy(module or package, settings)
    with pytest.raises(PolicyBroken, match=says):
        policy.signals()
    assert policy._worker is None


def test_closing_twice_is_harmless_and_leaves_no_process(package: str) -> None:
    policy = WorkerPolicy(package, "{}")
    policy.signals()
    worker = worker_of(policy)
    policy.close()
    policy.close()
    assert worker.returncode is not None


def test_its_worker_sees_no_secret_of_the_daemon(policy: WorkerPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"AUTOSCALER_ADMIN_TOKEN", "AUTOSCALER_LEDGER", "AWS_SECRET_ACCESS_KEY", "PROMETHEUS_TOKEN"}
    for name in secrets:
        monkeypatch.setenv(name, "planted-1234567890")
    offer = msgspec.structs.replace(a_pool().offers[0], request='{"env":{"X":"planted-1234567890"}}')
    pool = msgspec.structs.replace(a_pool(), offers=(offer,))
    told = policy.recommend(pool, SITUATION, "tells", Calendar()).carry
    assert "planted" not in told
    seen = json.loads(told)
    assert "PATH" in seen["environment"]
    assert seen["requests"] == [""]
    worker = worker_of(policy)
    if Path("/proc/self/environ").exists():
        for what in ("environ", "cmdline"):
            text = Path(f"/proc/{worker.pid}/{what}").read_bytes()
            assert text
            assert b"planted" not in text
            assert b"does" not in text, "its settings come through the pipe"
