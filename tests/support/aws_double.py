"""EC2 and ELB in memory, at the seam that our adapters have: `Account.call`, `read` and `pages`. A double, not AWS.

It has time, capacity a zone, client tokens, listing that lags, targets that take their time, and fails when it is told
to: before a call takes effect, or after it (the answer is lost). Errors are made as botocore's and go through the
product's own table of codes. Behaviours cite the contracts' AWS section, as tests/support/aws_quirks.py does:

| behaviour | source and mark |
|---|---|
| the same ClientToken gives the same machines; with other parameters: a mismatch | memory |
| MaxCount where there is room, fewer where less is left, else InsufficientInstanceCapacity | codes: read |
| pending, running, listed a while after its launch, shutting-down, terminated and listed for an hour | memory, read |
| an unknown id fails a whole TerminateInstances; ending one that ends is success | read |
| InvalidTarget for a machine that does not run; deregistering what is not there succeeds | read |
| initial, healthy, unhealthy, unused; draining for the delay, then not listed | read |
| a machine that ends leaves its target groups | memory |
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

from autoscaler.domain.faults import PortFault
from providers._shared.aws import fault_of
from tests.support.aws_quirks import Failure

REGION = "us-east-1"
FOREVER = float("inf")
_LISTED_FOR_S = 3600.0


@dataclasses.dataclass
class Machine:
    """One instance. Instants in seconds."""

    id: str
    zone: str
    tags: dict[str, str]
    launched_at: float
    runs_at: float
    listed_at: float
    stopped: bool = False
    ends_at: float = FOREVER

    def state(self, now: float, ending_s: float) -> str:
        if now >= self.ends_at:
            return "terminated"
        if self.ends_at != FOREVER and now >= self.ends_at - ending_s:
            return "shutting-down"
        if self.stopped:
            return "stopped"
        return "running" if now >= self.runs_at else "pending"


@dataclasses.dataclass
class Target:
    """A registered target: since when, and since when it drains."""

    since: float
    draining_since: float = FOREVER


def error(operation: str, code: str, status: int, told: str = "made by the test") -> PortFault:
    """What Account raises when botocore raised this."""
    if code == "timeout":
        return _raised(operation, ReadTimeoutError(endpoint_url="the double"))
    answer = {"Error": {"Code": code, "Message": told}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return _raised(operation, ClientError(answer, operation))


def _raised(operation: str, cause: Exception) -> PortFault:
    fault = fault_of(operation, cause)
    fault.__cause__ = cause
    return fault


class AwsDouble:
    """One account in one region. `fails`: whether and how a call fails; `healthy`: whether a machine's port answers."""

    def __init__(
        self,
        now: Callable[[], float],
        fails: Callable[[str], Failure | None] = lambda _: None,
        healthy: Callable[[str, int], bool] = lambda *_: True,
    ) -> None:
        self.region, self.profile = REGION, ""
        self._now, self._fails, self._healthy = now, fails, healthy
        self.boot_s = self.unlisted_s = self.ending_s = self.initial_s = self.draining_s = 0.0
        self.room: dict[str, int] = {}
        self.machines: dict[str, Machine] = {}
        self.targets: dict[tuple[str, int], Target] = {}
        self.attributes: dict[str, str] = {}
        self.calls: Counter[str] = Counter()
        self.happened: Counter[str] = Counter()
        self.touched: set[str] = set()
        self._tokens: dict[str, tuple[dict[str, Any], list[str]]] = {}
        self._names = itertools.count(1)

    # --- the seam ---

    async def call(self, service: str, operation: str, **asked: Any) -> dict[str, Any]:
        del service
        return self._answer(operation, asked)

    async def read(self, service: str, operation: str, **asked: Any) -> dict[str, Any]:
        del service
        return self._answer(operation, asked)

    async def pages(self, service: str, operation: str, **asked: Any) -> list[dict[str, Any]]:
        del service
        asked.pop("PaginationConfig", None)
        return [self._answer(operation, asked)]

    async def aclose(self) -> None:
        """There is nothing to release."""

    def _answer(self, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
        self.calls[operation] += 1
        failure = self._fails(operation)
        if failure is not None and not failure.took_effect:
            self.happened[failure.code] += 1
            raise error(operation, failure.code, failure.status)
        answer: dict[str, Any] = getattr(self, f"_{operation}")(**asked)
        if failure is not None:
            self.happened["lost_answer"] += 1
            self.happened[f"lost_answer:{operation}"] += 1
            raise error(operation, failure.code, failure.status)
        return answer

    # --- EC2 ---

    def launch(self, zone: str, tags: dict[str, str]) -> Machine:
        """A machine appears, whoever asked for it."""
        now = self._now()
        name = f"i-{next(self._names):017x}"
        self.machines[name] = Machine(name, zone, tags, now, now + self.boot_s, now + self.unlisted_s)
        return self.machines[name]

    def _run_instances(self, **asked: Any) -> dict[str, Any]:
        token = asked.pop("ClientToken")
        if token in self._tokens:
            first, ids = self._tokens[token]
            if first != asked:
                raise error("run_instances", "IdempotentParameterMismatch", 400)
            self.happened["token_again"] += 1
        else:
            zone = asked.get("Placement", {}).get("AvailabilityZone") or REGION + asked["SubnetId"][-1]
            count = min(asked["MaxCount"], self.room.get(zone, asked["MaxCount"]))
            if count < asked["MinCount"]:
                self.happened["no_capacity"] += 1
                raise error("run_instances", "InsufficientInstanceCapacity", 500, f"no capacity in {zone}")
            if zone in self.room:
                self.room[zone] -= count
            tags = {one["Key"]: one["Value"] for one in asked["TagSpecifications"][0]["Tags"]}
            ids = [self.launch(zone, tags).id for _ in range(count)]
            self._tokens[token] = (asked, ids)
        return {"Instances": [self._shown(self.machines[one]) for one in ids]}

    def _describe_instances(self, **asked: Any) -> dict[str, Any]:
        now = self._now()
        wanted = {name for one in asked["Filters"] if one["Name"] == "tag-key" for name in one["Values"]}
        listed = [
            self._shown(one)
            for one in self.machines.values()
            if now >= one.listed_at and now < one.ends_at + _LISTED_FOR_S and (not wanted or wanted & one.tags.keys())
        ]
        return {"Reservations": [{"Instances": [one]} for one in listed]}

    def _shown(self, one: Machine) -> dict[str, Any]:
        return {
            "InstanceId": one.id,
            "State": {"Name": one.state(self._now(), self.ending_s)},
            "LaunchTime": datetime.fromtimestamp(one.launched_at, UTC),
            "Tags": [{"Key": key, "Value": value} for key, value in one.tags.items()],
            "PrivateIpAddress": f"host-{one.id}",
            "Placement": {"AvailabilityZone": one.zone},
        }

    def _describe_subnets(self, SubnetIds: list[str]) -> dict[str, Any]:  # noqa: N803 - the service's own word
        return {"Subnets": [{"SubnetId": one, "AvailabilityZone": REGION + one[-1]} for one in SubnetIds]}

    def _describe_instance_attribute(self, **_: Any) -> dict[str, Any]:
        return {"DisableApiTermination": {"Value": False}}

    def _terminate_instances(self, InstanceIds: list[str]) -> dict[str, Any]:  # noqa: N803
        self.touched.update(InstanceIds)
        unknown = [one for one in InstanceIds if one not in self.machines]
        if unknown:
            told = f"The instance ID '{unknown[0]}' does not exist"
            raise error("terminate_instances", "InvalidInstanceID.NotFound", 400, told)
        for one in InstanceIds:
            self.end(one)
        return {}

    def end(self, name: str, *, at_once: bool = False) -> None:
        """A machine ends, by whoever; it leaves its target groups."""
        machine, now = self.machines[name], self._now()
        machine.ends_at = min(machine.ends_at, now if at_once else now + self.ending_s)
        for key in [key for key in self.targets if key[0] == name]:
            del self.targets[key]

    # --- ELB ---

    def _register_targets(self, Targets: list[dict[str, Any]], **_: Any) -> dict[str, Any]:  # noqa: N803
        for one in Targets:
            machine = self.machines.get(one["Id"])
            if machine is None or machine.state(self._now(), self.ending_s) != "running":
                raise error("register_targets", "InvalidTarget", 400, f"{one['Id']} is not in a running state")
        for one in Targets:
            target = self.targets.setdefault((one["Id"], one["Port"]), Target(self._now()))
            target.draining_since = FOREVER
        return {}

    def _deregister_targets(self, Targets: list[dict[str, Any]], **_: Any) -> dict[str, Any]:  # noqa: N803
        for one in Targets:
            target = self.targets.get((one["Id"], one["Port"]))
            if target is not None:
                target.draining_since = min(target.draining_since, self._now())
        return {}

    def settle(self) -> None:
        """Targets whose delay is over are not registered any more."""
        now = self._now()
        for key in [key for key, one in self.targets.items() if now - one.draining_since >= self.draining_s]:
            del self.targets[key]

    def _describe_target_health(self, **_: Any) -> dict[str, Any]:
        self.settle()
        shown = [
            {"Target": {"Id": name, "Port": port}, "TargetHealth": self._health(name, port, target)}
            for (name, port), target in self.targets.items()
        ]
        return {"TargetHealthDescriptions": shown}

    def _health(self, name: str, port: int, target: Target) -> dict[str, str]:
        if target.draining_since != FOREVER:
            return {"State": "draining", "Reason": "Target.DeregistrationInProgress"}
        if self.machines[name].state(self._now(), self.ending_s) != "running":
            return {"State": "unused", "Reason": "Target.InvalidState"}
        if self._now() - target.since < self.initial_s:
            return {"State": "initial", "Reason": "Elb.RegistrationInProgress"}
        if not self._healthy(name, port):
            return {"State": "unhealthy", "Reason": "Target.FailedHealthChecks"}
        return {"State": "healthy"}

    def _describe_target_group_attributes(self, **_: Any) -> dict[str, Any]:
        return {"Attributes": [{"Key": key, "Value": value} for key, value in self.attributes.items()]}

    def _modify_target_group_attributes(self, Attributes: list[dict[str, str]], **_: Any) -> dict[str, Any]:  # noqa: N803
        self.attributes |= {one["Key"]: one["Value"] for one in Attributes}
        return {}
