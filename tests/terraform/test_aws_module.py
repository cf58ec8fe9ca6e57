"""The AWS module applied to moto with the vendor's own provider, and the daemon run on what it made.

Apply, no drift, the rendered config accepted, the real daemon 1 -> 3 -> 1 with real probes and real requests, destroy.
moto checks no permission here and has no load balancer that forwards: what stands in is in tests/support/aws_*.py.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from autoscaler.demo.children import Child
from tests.support import moto
from tests.support.aws_machines import Front, Machines, machines
from tests.support.aws_proxy import aws_proxy
from tests.support.aws_quirks import Quirks
from tests.support.streaming import free_ports

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "terraform/modules/aws"
MIRROR = os.environ.get("AUTOSCALER_TERRAFORM_MIRROR", "")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not MIRROR or shutil.which("terraform") is None,
        reason="needs terraform, and AUTOSCALER_TERRAFORM_MIRROR naming a folder with the AWS provider",
    ),
]

PROVIDER = """
provider "aws" {{
  region                      = "us-east-1"
  access_key                  = "testing"
  secret_key                  = "testing"
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  endpoints {{
{endpoints}
  }}
}}
"""
POOL = """
module "pool" {{
  source          = "{source}"
  installation    = "e2e"
  pool            = "llm"
  mode            = "act"
  vpc_cidr        = "127.0.0.0/16"
  zones           = ["us-east-1a", "us-east-1b"]
  client_cidrs    = ["127.0.0.0/8"]
  image_id        = "ami-12c6146b"
  daemon_image_id = "ami-12c6146b"
  usd_per_hour    = 10.5
  model_port      = {port}
  capacity        = {{ min = 1, max = 3 }}
  policies        = [{{ kind = "target_tracking", signal = "running", target = 4 }}]
  extra = {{
    pace = {{
      tick      = "1s"
      stale_after = "10s"
      min_age   = "1s"
      scale_out = {{ cooldown = "1s", max_step = 2 }}
      scale_in  = {{ cooldown = "3s", stabilization = "8s", max_step = 1 }}
    }}
    drain     = {{ deadline = "60s" }}
    telemetry = {{ kind = "scrape", preset = "vllm", timeout = "1s" }}
  }}
}}

output "config" {{ value = module.pool.config }}
output "group" {{ value = module.pool.target_group_arn }}
output "policies" {{ value = module.pool.daemon_policies }}
"""
SERVICES = ("ec2", "elbv2", "iam", "sts", "sqs", "events")


class Terraform:
    """One root module in a folder of its own; nothing is written into the repository."""

    def __init__(self, folder: Path, url: str, port: int) -> None:
        folder.mkdir()
        self.folder = folder
        endpoints = "\n".join(f'    {name} = "{url}"' for name in SERVICES)
        source = os.path.relpath(MODULE, folder)
        text = PROVIDER.format(endpoints=endpoints) + POOL.format(source=source, port=port)
        (folder / "main.tf").write_text(text)
        (folder / "rc").write_text(
            f'provider_installation {{\n  filesystem_mirror {{\n    path = "{MIRROR}"\n  }}\n}}\n'
        )

    def run(self, *words: str, allowed: tuple[int, ...] = (0,)) -> str:
        env = {**os.environ, "TF_CLI_CONFIG_FILE": str(self.folder / "rc"), "CHECKPOINT_DISABLE": "1"}
        env["TF_IN_AUTOMATION"] = "1"
        done = subprocess.run(
            ["terraform", *words], cwd=self.folder, env=env, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode in allowed, f"terraform {words}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout

    def outputs(self) -> dict[str, Any]:
        return {name: one["value"] for name, one in json.loads(self.run("output", "-json")).items()}


class Applied(NamedTuple):
    """What `terraform apply` made, and where."""

    terraform: Terraform
    url: str
    proxy: str
    quirks: Quirks
    outputs: dict[str, Any]
    port: int
    folder: Path


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applied]:
    folder = tmp_path_factory.mktemp("aws")
    quirks = Quirks(time.monotonic)
    quirks.pending_s, quirks.unlisted_s, quirks.initial_s, quirks.draining_s = 1.0, 0.5, 1.0, 3.0
    (port,) = free_ports(1)
    with moto.moto_server(folder) as url, aws_proxy(url, quirks) as proxy:
        terraform = Terraform(folder / "root", proxy, port)
        terraform.run("init", "-input=false", "-no-color")
        terraform.run("validate", "-no-color")
        terraform.run("apply", "-auto-approve", "-input=false", "-no-color", "-parallelism=20")
        try:
            yield Applied(terraform, url, proxy, quirks, terraform.outputs(), port, folder)
        finally:
            terraform.run("destroy", "-auto-approve", "-input=false", "-no-color", "-parallelism=20")
            left = moto.client(url, "elbv2").describe_load_balancers()["LoadBalancers"]
            assert left == []


def test_a_second_plan_shows_no_drift(applied: Applied) -> None:
    text = applied.terraform.run("plan", "-detailed-exitcode", "-input=false", "-no-color", allowed=(0, 2))
    changes = re.findall(r"^  # (.*)$", text, re.MULTILINE)
    why = re.findall(r"^.*(?:forces replacement|^ +[-+~] (?!.*known after apply)).*$", text, re.MULTILINE)
    assert changes == [], "\n".join(why[:60])


def test_what_the_module_promises_is_in_the_account(applied: Applied) -> None:
    ec2, elbv2 = moto.client(applied.url, "ec2"), moto.client(applied.url, "elbv2")
    (template,) = ec2.describe_launch_templates()["LaunchTemplates"]
    versions = ec2.describe_launch_template_versions(LaunchTemplateId=template["LaunchTemplateId"])
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    assert data.get("SecurityGroupIds")
    private = ec2.describe_subnets(Filters=[{"Name": "tag:Name", "Values": ["*-private-*"]}])["Subnets"]
    assert [one["MapPublicIpOnLaunch"] for one in private] == [False, False]
    attributes = elbv2.describe_target_group_attributes(TargetGroupArn=applied.outputs["group"])["Attributes"]
    values = {one["Key"]: one["Value"] for one in attributes}
    assert values["deregistration_delay.timeout_seconds"] == "900"
    assert values["load_balancing.algorithm.type"] == "least_outstanding_requests"
    (balancer,) = elbv2.describe_load_balancers()["LoadBalancers"]
    found = elbv2.describe_load_balancer_attributes(LoadBalancerArn=balancer["LoadBalancerArn"])["Attributes"]
    assert {one["Key"]: one["Value"] for one in found}["idle_timeout.timeout_seconds"] == "900"


class Daemon:
    """The daemon over the rendered config, with nothing changed but where its own files and its port are."""

    def __init__(self, applied: Applied) -> None:
        self.folder = applied.folder / "daemon"
        self.folder.mkdir(exist_ok=True, mode=0o700)
        (self.folder / "autoscaler.yaml").write_text(applied.outputs["config"])
        (self.folder / "autoscaler.yaml").chmod(0o600)
        (self.admin,) = free_ports(1)
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AUTOSCALER_", "AWS_"))},
            **moto.CREDENTIALS,
            "AWS_ENDPOINT_URL": applied.proxy,
            "AUTOSCALER_STATE_DIR": str(self.folder),
            "AUTOSCALER_LEDGER": f"sqlite:///{self.folder}/autoscaler.db",
            "AUTOSCALER_ADMIN__LISTEN": f"127.0.0.1:{self.admin}",
        }
        self.child: Child | None = None

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        config = ["--config", str(self.folder / "autoscaler.yaml")]
        command = ["autoscaler", words[0], *config, *words[1:]]
        command[0] = str(ROOT / ".venv/bin/autoscaler") if shutil.which("autoscaler") is None else "autoscaler"
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120, check=False)

    def start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in self.env.items():
            monkeypatch.setenv(name, value)
        program = shutil.which("autoscaler") or str(ROOT / ".venv/bin/autoscaler")
        config = str(self.folder / "autoscaler.yaml")
        self.child = Child([program, "run", "--config", config], world=self.folder, log=self.folder / "daemon.log")

    def phases(self) -> dict[str, int]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/v1/pools/llm", timeout=5) as answer:
                pool = json.load(answer)
        except OSError:
            return {}
        return {phase: n for phase, n in (pool.get("phases") or {}).items() if n and phase != "gone"}


def until(true: Callable[[], bool], within_s: float, what: Callable[[], str]) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.3)


def test_check_accepts_the_rendered_config_and_reaches_everything(applied: Applied) -> None:
    daemon = Daemon(applied)
    done = daemon.command("check")
    assert done.returncode == 0, done.stdout + done.stderr
    done = daemon.command("check", "--online")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_daemon_scales_one_three_one_on_what_terraform_made(
    applied: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(applied)
    with machines(applied.url, applied.folder, applied.port, load_s=20.0) as there:
        daemon.start(monkeypatch)
        try:
            front = asyncio.run(_scales(applied, daemon, there))
        finally:
            assert daemon.child is not None
            daemon.child.stop(15)
    print(f"requests: {dict(front.results)}, machines ever: {len(there.ever)}")
    assert set(front.results) == {"ok"}
    assert front.results["ok"] > 50
    assert len(there.ever) == 3  # none was launched twice


async def _scales(applied: Applied, daemon: Daemon, there: Machines) -> Front:
    assert daemon.child is not None

    def told() -> str:
        assert daemon.child is not None
        return f"{daemon.phases()}, daemon: {daemon.child.last_words(30)}"

    def address(instance: str) -> str:
        answer = moto.client(applied.url, "ec2").describe_instances(InstanceIds=[instance])
        return str(answer["Reservations"][0]["Instances"][0]["PrivateIpAddress"])

    front = Front(applied.proxy, applied.outputs["group"], address)

    def serving(count: int) -> Callable[[], bool]:
        return lambda: daemon.phases() == {"in_service": count}

    await asyncio.to_thread(until, serving(1), 60, told)
    load = asyncio.create_task(front.load(clients=11, for_s=45, tokens=200))
    await asyncio.to_thread(until, serving(3), 60, told)
    await load
    await asyncio.to_thread(until, serving(1), 90, told)
    return front
