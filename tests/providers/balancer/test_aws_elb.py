"""AWS load balancers over moto, with targets that take their time, states that last, and answers that fail."""

import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from autoscaler.domain.base import InstanceId, PoolName, replica_id
from autoscaler.domain.faults import PortFault, Refused, Throttled, Unreachable
from autoscaler.domain.replica import Endpoint, MemberState, Traffic
from autoscaler.ports.balancer import Balancer
from autoscaler.ports.build import Context
from providers.balancer import aws_elb
from providers.balancer.aws_elb.health import member_of
from tests.support import moto
from tests.support.aws_quirks import Failure, Quirks, hook
from tests.support.streaming import WallClock

GROUP = "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/g/0123456789abcdef"
LISTENER = "arn:aws:elasticloadbalancing:us-east-1:123456789012:listener/app/l/0123456789abcdef/0123456789abcdef"


class World(NamedTuple):
    """An account with machines and one target group, and time that a test moves."""

    account: moto.Account
    group: str
    quirks: Quirks
    now: list[float]
    instances: list[str]
    folder: Path
    elbv2: Any
    made: list[Balancer]

    def build(self, **settings: Any) -> Balancer:
        wanted = aws_elb.Settings(**{"target_group": self.group, **settings})
        context = Context(installation="i", state_dir=str(self.folder), clock=WallClock(), pool=PoolName("p"), name="b")
        kind = aws_elb.ClassicBalancer if wanted.family == "classic" else aws_elb.TargetGroup
        self.made.append(kind(wanted, context, hook(self.quirks)))
        return self.made[-1]

    def endpoints(self, count: int | None = None) -> list[Endpoint]:
        return [
            Endpoint(
                replica=replica_id(InstanceId(one), 8000), instance=InstanceId(one), host=f"127.0.1.{n}", port=8000
            )
            for n, one in enumerate(self.instances[:count], start=4)
        ]

    def attributes(self) -> dict[str, str]:
        answer = self.elbv2.describe_target_group_attributes(TargetGroupArn=self.group)
        return {one["Key"]: one["Value"] for one in answer["Attributes"]}


def target_group(elbv2: Any, vpc: str, kind: str = "instance", protocol: str = "HTTP") -> str:
    made = elbv2.create_target_group(
        Name=f"g{uuid.uuid4().hex[:20]}", Protocol=protocol, Port=8000, VpcId=vpc, TargetType=kind
    )
    return str(made["TargetGroups"][0]["TargetGroupArn"])


@pytest.fixture
async def world(aws_environment: str, tmp_path: Path) -> AsyncGenerator[World]:
    there = moto.account(aws_environment)
    elbv2, ec2 = moto.client(aws_environment, "elbv2"), moto.client(aws_environment, "ec2")
    answer = ec2.run_instances(ImageId="ami-12c6146b", MinCount=3, MaxCount=3, SubnetId=there.subnets["a"])
    ids = sorted(one["InstanceId"] for one in answer["Instances"])
    now, made = [1000.0], list[Balancer]()
    group = target_group(elbv2, there.vpc)
    quirks = Quirks(lambda: now[0])
    yield World(there, group, quirks, now, ids, tmp_path, elbv2, made)
    for one in made:
        await one.aclose()


async def shown(balancer: Balancer) -> list[tuple[str, MemberState, Traffic]]:
    return [(one.endpoint, one.state, one.traffic) for one in (await balancer.members()).members]


async def test_a_target_takes_its_time_to_come_and_to_go(world: World) -> None:
    world.quirks.initial_s, world.quirks.draining_s = 20.0, 300.0
    balancer = world.build()
    (endpoint,) = world.endpoints(1)
    assert await shown(balancer) == []
    await balancer.admit([endpoint])
    await balancer.admit([endpoint])
    assert await shown(balancer) == [(endpoint.replica, MemberState.ADMITTED, Traffic.NO)]
    world.now[0] += 21
    (member,) = (await balancer.members()).members
    assert (member.traffic, member.replica, member.reason) == (Traffic.YES, endpoint.replica, "")
    await balancer.drain([endpoint])
    await balancer.drain([endpoint])
    assert await shown(balancer) == [(endpoint.replica, MemberState.DRAINING, Traffic.NO)]
    await balancer.admit([endpoint])  # a drain that is recalled
    assert [state for _, state, _ in await shown(balancer)] == [MemberState.ADMITTED]
    await balancer.evict([endpoint])
    world.now[0] += 301
    assert await shown(balancer) == []
    await balancer.evict([endpoint])


@pytest.mark.parametrize(
    ("state", "reason", "traffic", "says"),
    [
        ("initial", "Elb.InitialHealthChecking", Traffic.NO, "initial"),
        ("unhealthy", "Target.Timeout", Traffic.NO, "Target.Timeout"),
        ("unhealthy.draining", "Target.FailedHealthChecks", Traffic.NO, "unhealthy.draining"),
        ("unused", "Target.NotInUse", Traffic.NO, "zone is not enabled"),
        ("unused", "Target.InvalidState", Traffic.NO, "Target.InvalidState"),
        ("unused", "Target.IpUnusable", Traffic.NO, "Target.IpUnusable"),
        ("unavailable", "Elb.InternalError", Traffic.UNKNOWN, "Elb.InternalError"),
        ("unavailable", "Target.HealthCheckDisabled", Traffic.UNKNOWN, "Target.HealthCheckDisabled"),
        ("resting", "Elb.Siesta", Traffic.UNKNOWN, "'resting', which is not known"),
    ],
)
async def test_every_state_of_a_target_has_a_meaning(
    world: World, state: str, reason: str, traffic: Traffic, says: str
) -> None:
    balancer = world.build()
    (endpoint,) = world.endpoints(1)
    await balancer.admit([endpoint])
    world.quirks.held[endpoint.instance] = (state, reason)
    (member,) = (await balancer.members()).members
    assert (member.state, member.traffic) == (MemberState.ADMITTED, traffic)
    assert says in member.reason


def test_a_target_that_is_not_registered_is_no_member() -> None:
    health = {"State": "unused", "Reason": "Target.NotRegistered"}
    assert member_of({"Target": {"Id": "i-1", "Port": 80}, "TargetHealth": health}) is None


async def test_targets_of_type_ip_go_by_their_address(world: World) -> None:
    group = target_group(world.elbv2, world.account.vpc, kind="ip")
    balancer = world.build(target_group=group, target_type="ip")
    (endpoint,) = world.endpoints(1)
    await balancer.admit([endpoint])
    (member,) = (await balancer.members()).members
    assert (member.endpoint, member.replica) == ("127.0.1.4:8000", None)
    assert not balancer.traits().recall


async def test_250_targets_take_three_calls(world: World) -> None:
    group = target_group(world.elbv2, world.account.vpc, kind="ip")
    balancer = world.build(target_group=group, target_type="ip")
    many = [
        Endpoint(replica=replica_id(InstanceId(f"i-{n}"), 8000), instance=InstanceId(f"i-{n}"), host=host, port=8000)
        for n, host in enumerate(f"127.0.{1 + n // 200}.{4 + n % 200}" for n in range(250))
    ]
    await balancer.admit(many)
    assert world.quirks.calls.count("RegisterTargets") == 3
    assert len((await balancer.members()).members) == 250
    assert world.quirks.calls.count("DescribeTargetHealth") == 1


@pytest.mark.parametrize(
    ("strategy", "algorithm", "sticky"),
    [
        ("round_robin", "round_robin", "false"),
        ("least_connections", "least_outstanding_requests", "false"),
        ("source_hash", "round_robin", "true"),
    ],
)
async def test_a_strategy_becomes_attributes_at_the_first_change_and_once(
    world: World, strategy: str, algorithm: str, sticky: str
) -> None:
    balancer = world.build(strategy=strategy)
    before = world.attributes()
    await balancer.members()
    assert world.attributes() == before  # looking changes nothing
    await balancer.admit(world.endpoints(1))
    await balancer.admit(world.endpoints(2))
    is_now = world.attributes()
    assert is_now["load_balancing.algorithm.type"] == algorithm
    assert is_now["stickiness.enabled"] == sticky
    assert world.quirks.calls.count("ModifyTargetGroupAttributes") <= 1


async def test_weighted_keeps_the_groups_weight_at_its_members(world: World) -> None:
    other = target_group(world.elbv2, world.account.vpc)
    made = world.elbv2.create_load_balancer(
        Name=f"l{uuid.uuid4().hex[:20]}", Subnets=list(world.account.subnets.values())
    )
    groups = [{"TargetGroupArn": world.group, "Weight": 0}, {"TargetGroupArn": other, "Weight": 2}]
    listener = world.elbv2.create_listener(
        LoadBalancerArn=made["LoadBalancers"][0]["LoadBalancerArn"],
        Protocol="HTTP",
        Port=80,
        DefaultActions=[{"Type": "forward", "ForwardConfig": {"TargetGroups": groups}}],
    )["Listeners"][0]["ListenerArn"]
    balancer = world.build(strategy="weighted", listener=listener)

    def weights() -> dict[str, int]:
        action = world.elbv2.describe_listeners(ListenerArns=[listener])["Listeners"][0]["DefaultActions"][0]
        return {one["TargetGroupArn"]: one["Weight"] for one in action["ForwardConfig"]["TargetGroups"]}

    await balancer.admit(world.endpoints(3))
    assert weights() == {world.group: 3, other: 2}
    await balancer.drain(world.endpoints(1))
    assert weights() == {world.group: 2, other: 2}
    groups = [{"TargetGroupArn": world.group, "Weight": 2}]
    action = {"Type": "forward", "ForwardConfig": {"TargetGroups": groups}}
    world.elbv2.modify_listener(ListenerArn=listener, DefaultActions=[action])
    await balancer.evict(world.endpoints(3))
    assert weights() == {world.group: 2}  # the last group with a weight keeps it


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure("Throttling", 400), Throttled),
        (Failure("InternalFailure", 500), Unreachable),
        (Failure("ExpiredToken", 403), Unreachable),
        (Failure("AccessDenied", 403), Refused),
        (Failure("SomethingNew", 503), Unreachable),
        (Failure("SomethingNew", 400), Refused),
        (Failure("TargetGroupNotFound", 400), Refused),
    ],
)
async def test_each_failure_is_a_fault_by_what_to_do_next(
    world: World, failure: Failure, kind: type[PortFault]
) -> None:
    balancer = world.build()
    world.quirks.failures.append(failure)
    with pytest.raises(kind, match=failure.code):
        await balancer.members()
    with pytest.raises(kind, match=failure.code):
        await balancer.admit(world.endpoints(1))


async def test_a_classic_load_balancer_sends_to_one_port_of_each_machine(world: World) -> None:
    name = f"c{uuid.uuid4().hex[:20]}"
    listener = {"Protocol": "HTTP", "LoadBalancerPort": 80, "InstancePort": 8000, "InstanceProtocol": "HTTP"}
    elb = moto.client(world.account.url, "elb")
    elb.create_load_balancer(LoadBalancerName=name, Listeners=[listener], AvailabilityZones=["us-east-1a"])
    balancer = world.build(target_group="", load_balancer=name, region=moto.REGION, family="classic")
    endpoints = world.endpoints(2)
    await balancer.admit(endpoints)
    assert await shown(balancer) == [(one.replica, MemberState.ADMITTED, Traffic.YES) for one in endpoints]
    await balancer.drain(endpoints[:1])
    assert [name for name, _, _ in await shown(balancer)] == [endpoints[1].replica]
    elsewhere = Endpoint(replica=replica_id(InstanceId("i-9"), 1), instance=InstanceId("i-9"), host="h", port=1)
    with pytest.raises(Refused, match="port 8000 only"):
        await balancer.admit([elsewhere])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"target_group": "tg-1"}, "target_group: found 'tg-1'"),
        ({"family": "gateway"}, "family: found 'gateway', allowed: application, network, classic"),
        ({"region": "eu-west-1"}, "allowed: us-east-1, where the target group is"),
        ({"strategy": "least_load"}, "least_connections is next to it"),
        ({"family": "network", "strategy": "round_robin"}, "hashes flows, use an application one"),
        ({"strategy": "weighted"}, "listener: allowed exactly with strategy weighted"),
        ({"listener": LISTENER}, "listener: allowed exactly with strategy weighted"),
        ({"strategy": "weighted", "listener": "arn:x"}, "listener: found 'arn:x'"),
        ({"target_type": "lambda"}, "target_type: found 'lambda', allowed: instance, ip"),
        ({"slow_start": 20.0}, "slow_start: found 20 s, allowed: 30 to 900 s"),
        ({"slow_start": 60.0, "strategy": "least_connections"}, "round_robin only"),
        ({"family": "classic"}, "load_balancer: a classic one is named"),
        ({"family": "classic", "target_group": "", "load_balancer": "c"}, "region: found ''"),
    ],
)
def test_what_elb_cannot_do_is_refused_with_the_way_out(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=r"^[a-z_]+: ") as refused:
        aws_elb.Settings(**{"target_group": GROUP, **settings})
    assert says in str(refused.value)
