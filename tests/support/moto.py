"""A moto server as a process of the test's own, and an account in it: a VPC on loopback, subnets, a launch template.

moto imitates the API; what it does not imitate is in aws_quirks.py. It takes a VPC of 127.0.0.0/16 and hands out
127.0.x.y addresses, which Linux answers: stand-in model servers listen there and the product needs no hook.
"""

import contextlib
import functools
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import boto3

from tests.support.streaming import free_ports

REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}


@contextlib.contextmanager
def moto_server(folder: Path) -> Generator[str]:
    """Run moto on a free port of loopback until the block ends; gives its URL."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "moto.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**os.environ, "MOTO_EC2_LOAD_DEFAULT_AMIS": "0", "MOTO_IAM_LOAD_MANAGED_POLICIES": "true"},
        )
    try:
        _wait(url, process, folder / "moto.log")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=1):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, "moto does not answer"
        time.sleep(0.05)


@functools.cache
def client(url: str, service: str) -> Any:
    """A plain client of that server, for arranging and for looking."""
    return boto3.client(
        service, region_name=REGION, endpoint_url=url, aws_access_key_id="testing", aws_secret_access_key="testing"
    )


class Account(NamedTuple):
    """What a test finds in its account."""

    url: str
    vpc: str
    subnets: dict[str, str]
    template: str
    security_group: str


def account(url: str, zones: str = "ab") -> Account:
    """A VPC of 127.0.0.0/16, a subnet a zone, a security group and a launch template."""
    ec2 = client(url, "ec2")
    vpc = ec2.create_vpc(CidrBlock="127.0.0.0/16")["Vpc"]["VpcId"]
    subnets = {
        zone: ec2.create_subnet(VpcId=vpc, CidrBlock=f"127.0.{n + 1}.0/24", AvailabilityZone=f"{REGION}{zone}")[
            "Subnet"
        ]["SubnetId"]
        for n, zone in enumerate(zones)
    }
    group = ec2.create_security_group(GroupName="replicas", Description="replicas", VpcId=vpc)["GroupId"]
    made = ec2.create_launch_template(
        LaunchTemplateName=f"replica-{vpc}",
        LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "g6e.12xlarge"},
    )
    return Account(url, vpc, subnets, made["LaunchTemplate"]["LaunchTemplateId"], group)
