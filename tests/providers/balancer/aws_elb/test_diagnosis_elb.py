"""What `check --online` finds of ELB: each lack in one line, and nothing where all is well."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoscaler.domain.base import Duration, PoolName
from autoscaler.domain.pool import Bounds, DrainRule, Offer, Pool
from autoscaler.ports.build import Context
from autoscaler.ports.diagnosis import Lack
from providers.balancer import aws_elb
from tests.support import moto
from tests.support.aws_site import PORT, Site, allow, forbid, idle, set_attributes, site
from tests.support.streaming import WallClock

Look = Callable[..., Any]


@pytest.fixture
def one(aws_environment: str) -> Site:
    return site(aws_environment)


@pytest.fixture
async def look(one: Site, tmp_path: Path) -> AsyncGenerator[Look]:
    """Ask what a pool lacks of its balancer."""
    made: list[Any] = []

    async def ask(
        *, zones: tuple[str, ...] = ("a", "b"), deadline: float = 900.0, preset: str = "vllm", **changes: Any
    ) -> list[Lack]:
        written = one.offer()
        written.pop("compute"), written.pop("zones")
        offer = Offer(
            name="o",
            compute="aws_ec2:us-east-1",
            zones=zones,
            ports=(PORT,),
            request=msgspec.json.encode(written).decode(),
        )
        binding = one.binding(**changes)
        binding.pop("kind")
        settings = aws_elb.Settings(**{key: value for key, value in binding.items() if value is not None})
        context = Context(installation="test", state_dir=str(tmp_path), clock=WallClock(), name="b")
        made.append(aws_elb.build(settings, context))
        pool = Pool(
            installation="test", name=PoolName("llm"), bounds=Bounds(min=1, max=3), offers=(offer,),
            drain=DrainRule(deadline=Duration(deadline)), balancers=(made[-1].traits(),),
        )  # fmt: skip
        found: list[Lack] = await made[-1].lacks(pool, preset)
        return found

    yield ask
    for each in made:
        await each.aclose()


async def test_where_all_is_well_nothing_lacks(look: Look) -> None:
    assert await look() == []


@pytest.mark.parametrize(
    ("asked", "says", "stops"),
    [
        ({"zones": ("a", "c")}, "is not enabled in zone us-east-1c, so targets there are Target.NotInUse", True),
        (
            {"preset": "torchserve"},
            "health check asks for /health, a torchserve server answers at /ping",
            False,
        ),
        ({"target_type": "ip"}, "takes targets of type instance, the config registers type ip", True),
        (
            {"family": "network", "strategy": None},
            "so it is of a load balancer of family application",
            True,
        ),
        (
            {"strategy": "round_robin"},
            "load_balancing.algorithm.type is least_outstanding_requests, the config asks for round_robin",
            False,
        ),
    ],
)
async def test_what_does_not_fit_the_config_is_one_line(
    look: Look, asked: dict[str, Any], says: str, stops: bool
) -> None:
    (lack,) = await look(**asked)
    assert says in lack.what
    assert (bool(lack.mend), lack.stops) == (True, stops)


async def test_a_drain_that_may_take_longer_than_elb_waits_is_told(look: Look) -> None:
    lacks = await look(deadline=1800.0)
    assert [one.what.partition(";")[0].partition(":")[0] for one in lacks] == [
        "deregistration_delay is 900 s and drain.deadline 1800 s",
        next(one.what for one in lacks if "silent" in one.what).partition(";")[0],
    ]
    assert [one.stops for one in lacks] == [False, False]


async def test_an_idle_timeout_that_cuts_a_silent_stream_is_told(look: Look, one: Site) -> None:
    idle(one.account.url, one.load_balancer, 60)
    (lack,) = await look()
    assert "cuts a stream that is silent for 60 s; drain.deadline lets requests take 900 s" in lack.what
    assert lack.mend == "set its idle timeout to 900 s"


async def test_connections_that_elb_ends_are_told(look: Look, one: Site) -> None:
    set_attributes(one.account.url, one.group, {"deregistration_delay.connection_termination.enabled": "true"})
    (lack,) = await look()
    assert lack.what == "the load balancer cuts what is still running 900 s after a drain began"


async def test_a_group_without_a_listener_is_told(look: Look, one: Site) -> None:
    alone = moto.client(one.account.url, "elbv2").create_target_group(
        Name=f"alone-{one.group[-12:]}", Protocol="HTTP", Port=PORT, VpcId=one.account.vpc, HealthCheckPath="/health"
    )["TargetGroups"][0]["TargetGroupArn"]
    found = await look(target_group=alone, strategy=None, deadline=300.0)
    assert [lack.what for lack in found] == [
        "no listener forwards to the target group, so its targets are Target.NotInUse"
    ]


async def test_a_group_that_does_not_exist_is_told(look: Look, one: Site) -> None:
    (lack,) = await look(target_group=one.group[:-4] + "0000")
    assert lack.what == "the target group does not exist in us-east-1"


async def test_ways_that_a_security_group_blocks_are_told(look: Look, one: Site) -> None:
    url = one.account.url
    forbid(url, one.machines, one.daemon)
    (lack,) = await look()
    assert lack.what == "only the load balancer may reach port 8000 of the machines: the daemon's probe is blocked"
    forbid(url, one.machines, one.balancer)
    allow(url, one.machines, one.daemon)
    (lack,) = await look()
    assert lack.what == "the machines' security group does not let the load balancer reach port 8000"
    allow(url, one.machines, "127.0.0.0/8")
    assert await look() == []
    everything = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    moto.client(url, "ec2").revoke_security_group_egress(GroupId=one.balancer, IpPermissions=everything)
    (lack,) = await look()
    assert lack.what == "the load balancer's security group lets nothing out to port 8000 of the machines"


async def test_a_listener_that_does_not_weigh_the_group_is_told(look: Look, one: Site) -> None:
    other = site(one.account.url)
    found = await look(strategy="weighted", listener=other.listener)
    assert [lack.what for lack in found if "listener" in lack.what] == [
        f"listener {other.listener} does not forward to the target group by default"
    ]


async def test_a_classic_load_balancer_is_looked_at_too(look: Look, one: Site) -> None:
    elb, name = moto.client(one.account.url, "elb"), f"c{one.group[-12:]}"
    binding = {
        "target_group": None,
        "strategy": None,
        "family": "classic",
        "load_balancer": name,
        "region": moto.REGION,
    }
    (lack,) = await look(**binding)
    assert lack.what == f"classic load balancer {name} does not exist in us-east-1"
    listener = {"Protocol": "HTTP", "LoadBalancerPort": 80, "InstancePort": PORT}
    elb.create_load_balancer(LoadBalancerName=name, Listeners=[listener], Subnets=[one.account.subnets["a"]])
    says = " / ".join(lack.what for lack in await look(**binding))
    assert f"load balancer {name} is not enabled in zone us-east-1b" in says
    assert f"load balancer {name} cuts a stream that is silent for 60 s" in says
    assert "connection draining ends after 0 s and drain.deadline is 900 s" in says
