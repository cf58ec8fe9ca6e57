"""An account with EC2 machines for one test: moto with the quirks, a clock that the test moves, pools and orders."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from autoscaler.domain.base import Duration, InstanceId, Instant, PoolName, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import Bounds, Mode, Offer, Placement, Pool
from autoscaler.domain.replica import ComputeView, Instance
from autoscaler.ports.build import Context
from providers.compute import aws_ec2
from tests.support import moto
from tests.support.aws_quirks import Quirks, hook


class MovedClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.at = time.time()

    def now(self) -> Instant:
        return Instant(self.at)

    async def sleep(self, wait: Duration) -> None:
        self.at += wait


class World(NamedTuple):
    """What a test of aws_ec2 works on."""

    account: moto.Account
    quirks: Quirks
    clock: MovedClock
    installation: str
    folder: Path
    ec2: Any
    made: list[aws_ec2.Ec2Compute]

    def build(self, *, looking: bool = False) -> aws_ec2.Ec2Compute:
        """An adapter on this account; a second one is a daemon that was started again."""
        context = Context(installation=self.installation, state_dir=str(self.folder), clock=self.clock, looking=looking)
        self.made.append(aws_ec2.Ec2Compute(self.settings(), context, hook(self.quirks)))
        return self.made[-1]

    def settings(self, **changed: Any) -> aws_ec2.Settings:
        return aws_ec2.Settings(**{"region": moto.REGION, "launch_template": self.account.template, **changed})

    def pool(self, name: str = "p", *, market: str = "on_demand", mode: Mode = Mode.ACT, **changed: Any) -> Pool:
        """A pool with one offer `o` in the zones a and b."""
        request = msgspec.json.encode(self.settings(**changed)).decode()
        offer = Offer(name="o", compute="aws_ec2:us-east-1", zones=("a", "b"), market=market, request=request)
        bounds = Bounds(min=0, max=10)
        return Pool(installation=self.installation, name=PoolName(name), bounds=bounds, offers=(offer,), mode=mode)

    async def look(self, compute: aws_ec2.Ec2Compute, pool: Pool, *launches: OpenLaunch) -> ComputeView:
        return await compute.observe(pool, launches, self.clock.now())

    async def one(self, compute: aws_ec2.Ec2Compute, pool: Pool) -> Instance:
        (found,) = (await self.look(compute, pool)).instances
        return found

    def parameters(self, instance: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
        return found

    def states(self) -> dict[str, str]:
        """All machines of this installation, as the account has them."""
        mine = [{"Name": "tag:autoscaler:installation", "Values": [self.installation]}]
        answer = self.ec2.describe_instances(Filters=mine)
        return {
            item["InstanceId"]: item["State"]["Name"] for one in answer["Reservations"] for item in one["Instances"]
        }


@asynccontextmanager
async def ec2_world(url: str, folder: Path) -> AsyncGenerator[World]:
    clock, made = MovedClock(), list[aws_ec2.Ec2Compute]()
    there = moto.account(url)
    yield World(there, Quirks(clock.now), clock, uuid.uuid4().hex, folder, moto.client(url, "ec2"), made)
    for one in made:
        await one.aclose()


def order(pool: Pool, token: str = "e7-p-3-0", count: int = 1, zone: str = "a") -> Launch:
    placement = Placement(offer="o", zone=zone)
    request = pool.offers[0].request
    return Launch(token=Token(token), placement=placement, count=count, total_after=count, request=request)


def opened(one: Launch, at: Instant, *, withdrawn: bool = False) -> OpenLaunch:
    return OpenLaunch(
        token=one.token, placement=one.placement, count=one.count, units=one.count, total_after=one.total_after,
        request=one.request, at=at, expires_at=Instant(at + 300), withdrawn=withdrawn,
    )  # fmt: skip


def ids(view: ComputeView) -> list[InstanceId]:
    return sorted(one.id for one in view.instances)
