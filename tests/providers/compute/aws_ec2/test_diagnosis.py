"""What `check --online` finds of EC2: each lack in one line, and nothing where all is well."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoscaler.domain.base import PoolName
from autoscaler.domain.faults import Refused
from autoscaler.domain.pool import Bounds, Mode, Offer, Pool
from autoscaler.ports.build import Context
from autoscaler.ports.diagnosis import DiagnosingPart, Lack
from providers._shared.aws_look import Sources, sources
from providers.compute import aws_ec2
from tests.support import moto
from tests.support.aws_quirks import Failure, Quirks, hook
from tests.support.aws_site import PORT, Site, allow, forbid, site
from tests.support.streaming import WallClock

Look = Callable[..., Any]
NAME = "aws_ec2:us-east-1"


@pytest.fixture
def one(aws_environment: str) -> Site:
    return site(aws_environment)


@pytest.fixture
async def look(one: Site, tmp_path: Path) -> AsyncGenerator[Look]:
    """Ask what a pool lacks; `quirks` stand before moto."""
    made: list[aws_ec2.Ec2Compute] = []

    async def ask(
        *, zones: tuple[str, ...] = ("a", "b"), mode: Mode = Mode.ACT, quirks: Quirks | None = None, **changes: Any
    ) -> list[Lack]:
        written = one.offer(**changes)
        written.pop("compute"), written.pop("zones")
        settings = msgspec.convert(written, aws_ec2.Settings)
        context = Context(installation="test", state_dir=str(tmp_path), clock=WallClock(), name=NAME)
        made.append(aws_ec2.Ec2Compute(settings, context, hook(quirks or Quirks(lambda: 0.0))))
        request = msgspec.json.encode(settings).decode()
        offers = tuple(
            Offer(name=name, compute=NAME, zones=zones, ports=(PORT,), market=market, request=request)
            for name, market in (("cheap", "spot"), ("dear", "on_demand"))
        )
        pool = Pool(installation="test", name=PoolName("llm"), bounds=Bounds(min=1, max=3), offers=offers, mode=mode)
        return await made[-1].lacks(pool, "vllm")

    yield ask
    for each in made:
        assert isinstance(each, DiagnosingPart)
        await each.aclose()


async def test_where_all_is_well_nothing_lacks_and_nothing_is_made(look: Look, one: Site) -> None:
    assert await look() == []
    ec2 = moto.client(one.account.url, "ec2")
    asked = [{"Name": "tag:autoscaler:installation", "Values": ["test"]}]
    assert ec2.describe_instances(Filters=asked)["Reservations"] == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"launch_template": "lt-0123456789abcdef0"},
            "launch template lt-0123456789abcdef0 does not exist in us-east-1",
        ),
        ({"launch_template": "no-such"}, "launch template no-such does not exist in us-east-1"),
        ({"version": "9"}, "launch template {template} has no version 9"),
        ({"subnets": ("subnet-0123",)}, "one of the subnets subnet-0123 does not exist in us-east-1"),
        ({"zones": ("a", "c")}, "none of the subnets is in zone us-east-1c"),
        ({"subnets": None, "zones": ("a", "z")}, "no default subnet is in zone us-east-1z"),
        (
            {"notices_queue": "http://127.0.0.1/123456789012/none"},
            "the notices queue http://127.0.0.1/123456789012/none does not exist",
        ),
    ],
)
async def test_what_is_not_there_is_one_line_with_its_mend(
    look: Look, one: Site, changes: dict[str, Any], says: str
) -> None:
    (lack,) = await look(**changes)
    assert lack.what == says.format(template=one.template, asked=changes.get("launch_template"))
    assert lack.mend
    assert lack.stops


async def test_subnets_of_two_vpcs_are_told(look: Look, one: Site) -> None:
    other = moto.account(one.account.url)
    (lack,) = await look(subnets=(one.account.subnets["a"], other.subnets["b"]))
    assert lack.what.startswith("the subnets are in 2 VPCs (")


async def test_a_template_with_network_interfaces_takes_no_subnet(look: Look, one: Site) -> None:
    """EC2 would refuse each launch; moto launches."""
    data = {"ImageId": "ami-1", "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": [one.machines]}]}
    made = moto.client(one.account.url, "ec2").create_launch_template(
        LaunchTemplateName=f"n-{one.template}", LaunchTemplateData=data
    )
    (lack,) = await look(launch_template=made["LaunchTemplate"]["LaunchTemplateId"])
    assert "has network interfaces, beside which EC2 takes no subnet" in lack.what


async def test_a_port_that_nobody_may_reach_is_told(look: Look, one: Site) -> None:
    forbid(one.account.url, one.machines, one.balancer, one.daemon)
    (lack,) = await look()
    assert lack.what == f"no security group of the machines ({one.machines}) lets anybody reach port 8000"
    allow(one.account.url, one.machines, "10.0.0.0/8")
    assert await look() == []


async def test_a_permission_that_only_the_launch_shows_is_named_by_ec2s_own_words(look: Look) -> None:
    """CreateTags is asked for by RunInstances, and moto does not look."""
    quirks = Quirks(lambda: 0.0)
    quirks.failures = [Failure("UnauthorizedOperation", 403, action="RunInstances")]
    (lack,) = await look(quirks=quirks)
    assert lack.what == "IAM does not allow ec2:RunInstances"
    assert await look(quirks=quirks, mode=Mode.ADVISE) == []  # it will launch nothing


@pytest.mark.parametrize("code", ["AuthFailure", "InvalidClientTokenId", "OptInRequired"])
async def test_credentials_that_are_not_accepted_stop_the_look(look: Look, code: str) -> None:
    quirks = Quirks(lambda: 0.0)
    quirks.failures = [Failure(code, 401)]
    with pytest.raises(Refused, match=f"AWS does not accept the credentials here .{code}.; use those of an account"):
        await look(quirks=quirks)


def test_who_may_reach_a_port_is_read_from_all_kinds_of_rules() -> None:
    groups = [
        {
            "IpPermissions": [
                {"IpProtocol": "tcp", "FromPort": 80, "ToPort": 9000, "UserIdGroupPairs": [{"GroupId": "sg-1"}]},
                {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "10.0.0.0/8"}], "Ipv6Ranges": [{"CidrIpv6": "fd00::/8"}]},
                {"IpProtocol": "udp", "FromPort": 0, "ToPort": 65535, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]},
                {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "UserIdGroupPairs": [{"GroupId": "sg-2"}]},
            ]
        }
    ]
    found = sources(groups, 8000)
    assert found == Sources(frozenset({"sg-1"}), frozenset({"10.0.0.0/8", "fd00::/8"}))
    assert (found.cover("10.1.0.0/16"), found.cover("192.168.0.0/16"), found.cover("fd00:1::/32")) == (
        True,
        False,
        True,
    )
    assert Sources(frozenset(), frozenset({"pl-1"})).cover("10.0.0.0/8")
