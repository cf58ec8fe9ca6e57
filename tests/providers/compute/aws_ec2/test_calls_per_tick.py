"""What a steady tick asks of AWS, by pools and machines: the adapters themselves, over an emulator that counts."""

import asyncio
import math
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from autoscaler.domain.base import PoolName
from autoscaler.domain.pool import Bounds, Offer, Pool
from autoscaler.ports.build import Context
from providers.balancer.aws_elb import Settings as GroupSettings
from providers.balancer.aws_elb import TargetGroup
from providers.compute.aws_ec2 import Ec2Compute, Settings
from tests.support import moto
from tests.support.aws_ec2_world import MovedClock
from tests.support.aws_emulator import Emulator

ARN = "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/{}/0123456789abcdef"
QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/notices"
SETTINGS = Settings(region="us-east-1", launch_template="lt-1", notices_queue=QUEUE)


def a_pool(name: str) -> Pool:
    offer = Offer(name="o", compute="aws_ec2:us-east-1", zones=("a",), request=msgspec.json.encode(SETTINGS).decode())
    return Pool(installation="i", name=PoolName(name), bounds=Bounds(min=0, max=20_000), offers=(offer,))


def expected(pools: int, machines: int) -> Counter[str]:
    """One look of 1,000 machines a page and one at the queue for all pools; one at its targets for each pool."""
    return Counter(
        DescribeInstances=max(1, math.ceil(machines / 1000)), ReceiveMessage=1, DescribeTargetHealth=pools
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("machines", [10, 1_000, 10_000])
@pytest.mark.parametrize("pools", [1, 10, 100])
async def test_calls_grow_with_pages_and_pools_and_never_with_a_machine(
    pools: int, machines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    names = [f"p{n}" for n in range(pools)]
    emulator = Emulator("i", {name: [f"i-{m:017x}" for m in range(n, machines, pools)] for n, name in enumerate(names)})
    clock = MovedClock()
    context = Context(installation="i", state_dir=str(tmp_path), clock=clock)
    compute = Ec2Compute(SETTINGS, context, emulator.configure)
    groups = [
        TargetGroup(GroupSettings(target_group=ARN.format(name)), context, emulator.configure) for name in names
    ]  # fmt: skip

    async def tick() -> tuple[int, int]:
        at = clock.now()
        views = asyncio.gather(*(compute.observe(a_pool(name), (), at) for name in names))
        members = asyncio.gather(*(group.members() for group in groups))
        return sum(len(one.instances) for one in await views), sum(len(one.members) for one in await members)

    begun = time.process_time()
    assert await tick() == (machines, machines)
    took = time.process_time() - begun
    for group in groups:
        await group.aclose()
    await compute.aclose()
    assert emulator.calls == expected(pools, machines)
    calls = ", ".join(f"{name} {count}" for name, count in sorted(emulator.calls.items()))
    print(
        f"| {pools} | {machines} | {emulator.calls.total()} | {calls} | {emulator.bytes // 1024} KiB | {took:.2f} s |"
    )
