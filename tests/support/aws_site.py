"""A whole set-up in moto, as terraform/modules/aws makes one: what `check --online` finds nothing wrong with."""

import uuid
from typing import Any, NamedTuple

from tests.support import moto

PORT = 8000


class Site(NamedTuple):
    """Names of what was made. `balancer`, `machines`, `daemon`: security groups."""

    account: moto.Account
    template: str
    group: str
    load_balancer: str
    listener: str
    balancer: str
    machines: str
    daemon: str

    def offer(self, **changes: Any) -> dict[str, Any]:
        """An offer as a user writes it."""
        offer = {
            "compute": "aws_ec2", "region": moto.REGION, "launch_template": self.template, "version": "1",
            "subnets": sorted(self.account.subnets.values()), "zones": sorted(self.account.subnets),
        }  # fmt: skip
        return {key: value for key, value in {**offer, **changes}.items() if value is not None}

    def binding(self, **changes: Any) -> dict[str, Any]:
        """A binding as a user writes it."""
        return {"kind": "aws_elb", "target_group": self.group, "strategy": "least_connections", **changes}

    def pool(self, **changes: Any) -> dict[str, Any]:
        """A pool as a user writes it."""
        pool: dict[str, Any] = {
            "name": "llm", "capacity": {"min": 1, "max": 3}, "offers": [self.offer()],
            "ready_when": {"preset": "vllm", "port": PORT}, "balancers": [self.binding()],
            "telemetry": {"kind": "scrape", "preset": "vllm"},
            "policies": [{"kind": "target_tracking", "signal": "queue_length", "target": 4}],
        }  # fmt: skip
        return {**pool, **changes}


def site(url: str) -> Site:
    """Make one, with everything as it should be."""
    account = moto.account(url)
    ec2, elbv2, unique = moto.client(url, "ec2"), moto.client(url, "elbv2"), uuid.uuid4().hex[:12]
    balancer, daemon, machines = (
        ec2.create_security_group(GroupName=f"{name}-{unique}", Description=name, VpcId=account.vpc)["GroupId"]
        for name in ("balancer", "daemon", "machines")
    )
    for source in (balancer, daemon):
        allow(url, machines, source)
    data = {"ImageId": "ami-12c6146b", "InstanceType": "g6e.12xlarge", "SecurityGroupIds": [machines]}
    made = ec2.create_launch_template(LaunchTemplateName=f"t-{unique}", LaunchTemplateData=data)
    group = elbv2.create_target_group(
        Name=f"g-{unique}", Protocol="HTTP", Port=PORT, VpcId=account.vpc, TargetType="instance",
        HealthCheckPath="/health",
    )["TargetGroups"][0]["TargetGroupArn"]  # fmt: skip
    set_attributes(
        url, group,
        {"deregistration_delay.timeout_seconds": "900", "load_balancing.algorithm.type": "least_outstanding_requests"},
    )  # fmt: skip
    load_balancer = elbv2.create_load_balancer(
        Name=f"l-{unique}", Subnets=sorted(account.subnets.values()), SecurityGroups=[balancer], Scheme="internal"
    )["LoadBalancers"][0]["LoadBalancerArn"]
    idle(url, load_balancer, 900)
    listener = elbv2.create_listener(
        LoadBalancerArn=load_balancer, Protocol="HTTP", Port=80,
        DefaultActions=[{"Type": "forward", "TargetGroupArn": group}],
    )["Listeners"][0]["ListenerArn"]  # fmt: skip
    template = made["LaunchTemplate"]["LaunchTemplateId"]
    return Site(account, template, group, load_balancer, listener, balancer, machines, daemon)


def allow(url: str, group: str, source: str, port: int = PORT) -> None:
    """Let `source` (a security group or a block) reach a port."""
    pair = {"IpRanges": [{"CidrIp": source}]} if "/" in source else {"UserIdGroupPairs": [{"GroupId": source}]}
    rule = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, **pair}
    moto.client(url, "ec2").authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])


def forbid(url: str, group: str, *sources: str) -> None:
    """Take that back."""
    pairs = [{"GroupId": one} for one in sources]
    rule = {"IpProtocol": "tcp", "FromPort": PORT, "ToPort": PORT, "UserIdGroupPairs": pairs}
    moto.client(url, "ec2").revoke_security_group_ingress(GroupId=group, IpPermissions=[rule])


def set_attributes(url: str, group: str, attributes: dict[str, str]) -> None:
    """Set attributes of a target group."""
    shown = [{"Key": key, "Value": value} for key, value in attributes.items()]
    moto.client(url, "elbv2").modify_target_group_attributes(TargetGroupArn=group, Attributes=shown)


def idle(url: str, load_balancer: str, seconds: int) -> None:
    """Set a load balancer's idle timeout."""
    shown = [{"Key": "idle_timeout.timeout_seconds", "Value": str(seconds)}]
    moto.client(url, "elbv2").modify_load_balancer_attributes(LoadBalancerArn=load_balancer, Attributes=shown)
