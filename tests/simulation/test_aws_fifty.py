"""Fifty machines out and back to five, by the real loop, prober and executor, over our AWS adapters and boto3.

Time is virtual, the account in memory, behind a hook in the SDK (tests/support/aws_wire.py). One zone of three is
empty, each family of calls has a bucket that runs dry, and of the calls that get through one in twenty fails: before
it took effect, after it, or without an answer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
import pytest
from typing_extensions import override

from autoscaler.domain.base import Duration, InstanceId, PoolName, instance_of, replica_id
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Bounds, Offer, Pace, Pool, ReadyRule, ScaleIn, ScaleOut
from autoscaler.ports.build import Context
from autoscaler.runtime.loop import PoolLoop
from autoscaler.runtime.parts import PoolParts
from providers._shared.aws import Account
from providers.balancer import aws_elb
from providers.compute import aws_ec2
from tests.support import moto
from tests.support.aws_double import FOREVER, REGION, AwsDouble
from tests.support.aws_law_world import COMPUTE, GROUP, WEATHER
from tests.support.aws_quirks import Failure
from tests.support.aws_wire import Wire
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_probe import MemoryProbe
from tests.support.memory_telemetry import MemoryTelemetry
from tests.support.pool_world import Asks, services
from tests.support.virtual_time import VirtualClock, run_virtual

T = TypeVar("T")
PORT = 8000
#: Calls that a family may make at once, and how many a second come back.
BUCKETS = {"run_instances": (2, 0.1), "describe": (5, 0.5), "change": (4, 0.5)}


class Inline(Account):
    """An account whose calls are made where they are asked for: in virtual time a thread would never be waited for."""

    @override
    async def _run(self, service: str, operation: str, work: Callable[[], T]) -> T:
        return self._told(operation, work)


class Bucket:
    """So many calls at once, so many a second."""

    def __init__(self, size: float, per_s: float) -> None:
        self._size = self._left = size
        self._per_s, self._at = per_s, 0.0

    def take(self, now: float) -> bool:
        self._left = min(self._size, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Fifty:
    """The pool, its account, and the requests that are inside its machines."""

    def __init__(self, seed: int, lost: float) -> None:
        self.clock = VirtualClock()
        self._chance, self._lost = Random(seed), lost
        self._buckets = {name: Bucket(*one) for name, one in BUCKETS.items()}
        if lost:  # what is throttled has no answer to lose
            self._buckets["run_instances"] = Bucket(10.0, 1.0)
        self.probe = MemoryProbe(self.clock, load_s=90.0)
        self.aws = AwsDouble(self.clock.now, self._fails, lambda *_: True)
        self.aws.boot_s, self.aws.unlisted_s, self.aws.ending_s = 60.0, 45.0, 30.0
        self.aws.initial_s, self.aws.draining_s = 20.0, 300.0
        self.aws.room = {f"{REGION}a": 0}
        self.wire = Wire()
        self.wire.double = self.aws
        self.wants = Asks(50.0, Signal.QUEUE_LENGTH)
        self.cut, self.most, self.told = 0, 0, Counter[str]()
        self._gone: set[str] = set()
        self.loop = PoolLoop(self._parts(), services(self.clock, MemoryLedger()))

    def _parts(self) -> PoolParts:
        settings = aws_ec2.Settings(region=REGION, launch_template="lt-0abc", version="7")
        binding = aws_elb.Settings(target_group=GROUP, strategy="least_connections")
        context = Context(installation="t", state_dir="", clock=self.clock, pool=PoolName("p"), name="front")
        with pytest.MonkeyPatch.context() as patch:
            for module in ("providers.compute.aws_ec2.adapter", "providers.balancer.aws_elb.group"):
                patch.setattr(f"{module}.Account", lambda *_: Inline(REGION, "", self.wire.configure))
            compute = aws_ec2.Ec2Compute(settings, msgspec.structs.replace(context, name=COMPUTE))
            balancer = aws_elb.TargetGroup(binding, context)
        offer = Offer(
            name="gpu", compute=COMPUTE, zones=("a", "b", "c"), ports=(PORT,), usd_per_h=10.5,
            request=msgspec.json.encode(settings).decode(),
        )  # fmt: skip
        pace = Pace(
            scale_out=ScaleOut(max_step=10), scale_in=ScaleIn(cooldown=Duration(60.0), max_step=5),
        )  # fmt: skip
        pool = Pool(
            installation="t", name=PoolName("p"), bounds=Bounds(min=5, max=60), offers=(offer,), pace=pace,
            ready=ReadyRule(passes=2), balancers=(balancer.traits(),),
        )  # fmt: skip
        telemetry = MemoryTelemetry(self.clock, {Signal.QUEUE_LENGTH: 1.0})
        return PoolParts(
            pool=pool, policies=(self.wants,), computes={COMPUTE: compute}, balancers={"front": balancer},
            telemetry=telemetry, probe=self.probe, signals=frozenset({Signal.QUEUE_LENGTH}), config_hash="c",
        )  # fmt: skip

    def _fails(self, operation: str) -> Failure | None:
        family = operation if operation in BUCKETS else "describe" if operation.startswith("describe") else "change"
        if not self._buckets[family].take(self.clock.now()):
            return Failure("RequestLimitExceeded", 503)
        if operation == "run_instances" and self._chance.random() < self._lost:
            return Failure("timeout", 0, took_effect=True)
        return self._chance.choice(WEATHER[1:]) if self._chance.random() < 0.05 else None

    async def traffic(self) -> None:
        """Two requests in each member, always; those of one that drains end within a minute or two."""
        while True:
            await asyncio.sleep(1.0)
            now = self.clock.now()
            for (name, port), target in self.aws.targets.items():
                rid = replica_id(InstanceId(name), port)
                ends = target.draining_since + 60.0 + 10.0 * (int(name[-1], base=16) % 6)
                self.probe.inside[rid] = 2 if now < ends else 0
            alive = {name for name, one in self.aws.machines.items() if one.ends_at == FOREVER}
            self.most = max(self.most, len(alive))
            for rid in [rid for rid in self.probe.inside if instance_of(rid) not in alive]:
                self.cut += self.probe.inside.pop(rid)

    def is_so(self, count: int) -> bool:
        """So many machines, all of them members that take traffic, none of them leaving or on the way."""
        decision = self.loop.status.decision
        alive = [one.id for one in self.aws.machines.values() if one.ends_at == FOREVER]
        healthy = {
            name
            for (name, port), target in self.aws.targets.items()
            if self.aws._health(name, port, target)["State"] == "healthy"
        }
        phases = Counter(one.phase for one in decision.replicas) if decision is not None else Counter()
        return set(alive) == healthy and len(alive) == count and phases[Phase.IN_SERVICE] == count

    async def until(self, count: int, within_s: float) -> float:
        """Wait for it, and for it to stay so for ten ticks; how long it took, seconds."""
        start = self.clock.now()
        while not self.is_so(count):
            await asyncio.sleep(5.0)
            assert self.clock.now() - start < within_s, self.loop.status.decision and self.loop.status.decision.sentence
        took = self.clock.now() - start
        for _ in range(10):
            await asyncio.sleep(15.0)
            assert self.is_so(count), "it did not stay so"
        return took


async def out_and_in(seed: int, *, lost: float = 0.0, back: bool = True) -> dict[str, Any]:
    """50 out, and with `back` 5 in; the figures. `lost`: of launches whose answer is lost."""
    one = Fifty(seed, lost)
    tasks = [asyncio.create_task(each) for each in (one.loop.run(), one.loop.prober.run(), one.traffic())]
    try:
        out_s = await one.until(50, within_s=3600.0)
        launched, out_calls, out_faults = len(one.aws.machines), Counter(one.aws.calls), Counter(one.aws.happened)
        in_s = 0.0
        if back:
            one.wants.units = 5.0
            in_s = await one.until(5, within_s=7200.0)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
    return {
        "out_s": out_s, "in_s": in_s, "launched": launched, "most": one.most, "cut": one.cut,
        "machines": len(one.aws.machines), "zones": Counter(m.zone for m in one.aws.machines.values()),
        "out_calls": out_calls, "out_faults": out_faults, "calls": one.aws.calls, "faults": one.aws.happened,
        "requests": one.wire.sent,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.timeout(300)
def test_fifty_come_and_forty_five_go_and_nothing_is_lost_or_cut(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in moto.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    figures = run_virtual(lambda: out_and_in(seed))
    print(figures)
    assert (figures["launched"], figures["most"], figures["machines"], figures["cut"]) == (50, 50, 50, 0), figures
    assert f"{REGION}a" not in figures["zones"]
    faults, asked = figures["faults"], sum(figures["calls"].values())
    assert faults["no_capacity"] > 0
    assert faults["RequestLimitExceeded"] > 10
    random_ones = sum(faults[name] for name in ("InternalError", "ExpiredToken", "timeout", "lost_answer"))
    assert random_ones > asked * 0.02


@pytest.mark.timeout(300)
@pytest.mark.parametrize("token", ["ours", "fresh"])
def test_launches_whose_answer_is_lost_make_no_machine_twice(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three launches the answer of one is lost. With a mutant that gives each call a token of its own, it shows."""
    for name, value in moto.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    counter = Counter[str]()

    def fresh(*_: Any) -> str:
        counter["asked"] += 1
        return f"t-{counter['asked']}"

    if token == "fresh":
        monkeypatch.setattr("providers.compute.aws_ec2.orders.client_token", fresh)
    figures = run_virtual(lambda: out_and_in(0, lost=0.33, back=False))
    if token == "fresh":  # the pool ends what is too much, so it shows in what was ever launched
        assert figures["launched"] > 50, figures
    else:
        assert (figures["launched"], figures["most"]) == (50, 50), figures
        assert figures["out_faults"]["token_again"] > 0, figures
