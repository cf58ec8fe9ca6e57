"""`check --online` against AWS as moto imitates it: what stands in the way, each in one line with the mend."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import moto
from tests.support.aws_iam import a_user, check_permissions
from tests.support.aws_site import Site, site

Spoil = Callable[[Site, pytest.MonkeyPatch], dict[str, Any]]


def wrong_region(one: Site, _: pytest.MonkeyPatch) -> dict[str, Any]:
    return one.pool(offers=[one.offer(region="us-west-2")])


def no_credentials(one: Site, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    return one.pool()


def group_elsewhere(one: Site, _: pytest.MonkeyPatch) -> dict[str, Any]:
    return one.pool(balancers=[site(one.account.url).binding()])


def no_template(one: Site, _: pytest.MonkeyPatch) -> dict[str, Any]:
    return one.pool(offers=[one.offer(launch_template="lt-0123456789abcdef0")])


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials of whoever runs the tests."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.delenv("AWS_PROFILE", raising=False)


def lines_of(out: str) -> list[str]:
    """What is wrong, without what only follows from the pool's own numbers."""
    return [
        line for line in out.splitlines() if line.startswith(("error: ", "failed: ", "warning: pools[0].balancers"))
    ]


@pytest.mark.usefixtures("alone")
def test_a_set_up_as_the_module_makes_it_lacks_nothing(shop: Any, aws_environment: str) -> None:
    one = site(aws_environment)
    shop.write(one.pool())
    done = shop("check", "--online")
    assert (done.code, lines_of(done.out)) == (0, []), done.out + done.err
    assert "ok: llm compute aws_ec2:us-east-1: 0 machines" in done.out
    assert "ok: llm balancer aws_elb: 0 members" in done.out


NOT_THERE = "name one that does, or set region to where it was made"
NO_KEYS = (
    "no AWS credentials are found here (NoCredentialsError); give the host an instance profile "
    "(terraform/modules/aws makes one), or set AWS_PROFILE or profile"
)
ROWS = [
    (
        wrong_region,
        1,
        (
            f"error: pools[0].offers: launch template {{template}} does not exist in us-west-2; {NOT_THERE}\n"
            "error: pools[0].balancers[0]: the target group is in us-east-1 and offers launch in us-west-2; "
            "set region and target_group to one region"
        ),
    ),
    (
        no_credentials,
        3,
        f"failed: llm compute aws_ec2:us-east-1: {NO_KEYS}\nfailed: llm balancer aws_elb: {NO_KEYS}",
    ),
    (
        group_elsewhere,
        1,
        (
            "error: pools[0].balancers[0]: the target group is in {other}, the offers' subnets are in {vpc}; "
            "name a target group and subnets of one VPC"
        ),
    ),
    (
        no_template,
        1,
        f"error: pools[0].offers: launch template lt-0123456789abcdef0 does not exist in us-east-1; {NOT_THERE}",
    ),
]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("spoil", "code", "told"), ROWS, ids=[row[0].__name__ for row in ROWS])
def test_what_is_wrong_is_one_line_with_the_mend(
    shop: Any, aws_environment: str, monkeypatch: pytest.MonkeyPatch, spoil: Spoil, code: int, told: str
) -> None:
    one = site(aws_environment)
    shop.write(pool := spoil(one, monkeypatch))
    done = shop("check", "--online")
    groups = moto.client(aws_environment, "elbv2").describe_target_groups(
        TargetGroupArns=[pool["balancers"][0]["target_group"]]
    )
    names = {"template": one.template, "vpc": one.account.vpc, "other": groups["TargetGroups"][0]["VpcId"]}
    assert sorted(lines_of(done.out)) == sorted(told.format(**names).splitlines()), done.out
    assert (done.code, done.err) == (code, "")
    again = json.loads(shop("check", "--online", "--json").out)
    assert again["ok"] is False


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_one_permission_that_is_missing_is_named(shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto checks actions once it is told to, in a process of its own: it would refuse all other tests too."""
    with moto.moto_server(tmp_path) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        one = site(url)
        ours = {"autoscaler:installation": "test", "autoscaler:pool": "llm"}
        tags = [{"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in ours.items()]}]
        moto.client(url, "ec2").run_instances(
            ImageId="ami-12c6146b", MinCount=1, MaxCount=1, SubnetId=one.account.subnets["a"], TagSpecifications=tags
        )
        shop.write(one.pool())
        missing = (
            "", "ec2:RunInstances", "ec2:TerminateInstances", "ec2:DescribeSubnets",
            "elasticloadbalancing:DescribeTargetGroups",
        )  # fmt: skip
        users = {action: a_user(url, without=action) for action in missing}
        check_permissions(url)
        for action, keys in users.items():
            done = shop("check", "--online", **keys)
            mend = "add it to the daemon's role (terraform/modules/aws/iam.tf has all that is needed)"
            part = "offers" if action.startswith("ec2") else "balancers[0]"
            wanted = [f"error: pools[0].{part}: IAM does not allow {action}; {mend}"] if action else []
            assert (action, lines_of(done.out), done.code) == (action, wanted, 1 if action else 0), done.out
