"""Looks at an AWS account for `check --online`: what it refuses becomes one line with the mend.

Does: ask for launch templates, subnets and security groups, name what is not allowed or not there. Does not: change
anything: what would change something is only asked with DryRun.
Invariant: a cause is named once; who asked for what was refused gets None, and leaves out what hangs on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Final, NamedTuple

import msgspec

from autoscaler.domain.faults import PortFault, Refused
from autoscaler.domain.pool import Offer, Pool
from autoscaler.ports.diagnosis import Lack
from providers._shared.aws import Account, code_of

#: IAM's prefix of a service of the SDK, where it is another.
_PREFIXES: Final = {"elb": "elasticloadbalancing", "elbv2": "elasticloadbalancing"}
#: EC2 says the first, other services the others; moto's word for all is AccessDenied.
_DENIED: Final = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "AuthorizationError"})
_NO_CREDENTIALS: Final = frozenset({"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"})
_BAD_CREDENTIALS: Final = frozenset(
    {"AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClientException", "OptInRequired"}
)
_PERFORM: Final = re.compile(r"perform:? ([a-z0-9-]+:[A-Za-z]+)")
#: `aws_asg` offers have these settings in other words, and their group names the network: they are left out.
_COMPUTE: Final = "aws_ec2"


def action_of(service: str, operation: str) -> str:
    """IAM's name of an operation as boto3 spells it: `ec2`, `run_instances` is `ec2:RunInstances`."""
    return f"{_PREFIXES.get(service, service)}:{operation.title().replace('_', '')}"


class Wants(msgspec.Struct, frozen=True):
    """What an EC2 offer says of the network, out of its frozen request."""

    region: str
    launch_template: str
    version: str = "$Default"
    subnets: tuple[str, ...] = ()
    profile: str = ""

    def zone(self, name: str) -> str:
        """The whole name of an availability zone."""
        return f"{self.region}{name}" if len(name) == 1 else name

    @property
    def template(self) -> dict[str, str]:
        """The launch template as EC2's calls name it."""
        key = "LaunchTemplateId" if self.launch_template.startswith("lt-") else "LaunchTemplateName"
        return {key: self.launch_template}


def wants_of(offer: Offer) -> Wants | None:
    """None for an offer that is not one of single EC2 machines."""
    if offer.compute.partition(":")[0] != _COMPUTE:
        return None
    return msgspec.json.decode(offer.request, type=Wants)


class Looks:
    """Reads of one account that collect what is lacking in `found`."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.found: list[Lack] = []

    def lack(self, what: str, mend: str, *, stops: bool = False) -> None:
        """Note a lack, once."""
        one = Lack(what, mend, stops)
        if one not in self.found:
            self.found.append(one)

    async def read(
        self, service: str, operation: str, missing: Mapping[str, tuple[str, str]] | None = None, **asked: Any
    ) -> dict[str, Any] | None:
        """The answer; or None once the reason is noted. `missing`: a start of error codes to what it means, the mend.

        Raises PortFault where nothing can be known: no network, throttled, no credentials.
        """
        try:
            return await self.account.read(service, operation, **asked)
        except Refused as fault:
            self._refused(action_of(service, operation), fault, missing or {})
            return None

    async def may(self, service: str, operation: str, **asked: Any) -> None:
        """Ask with DryRun whether this would be done, and note why not."""
        try:
            await self.account.call(service, operation, DryRun=True, **asked)
        except PortFault as fault:
            if _code(fault) == "DryRunOperation":  # how EC2 says yes
                return
            if not isinstance(fault, Refused):
                raise
            self._refused(action_of(service, operation), fault, {})

    def _refused(self, action: str, fault: Refused, missing: Mapping[str, tuple[str, str]]) -> None:
        code = _code(fault)
        if code in _NO_CREDENTIALS:
            mend = "give the host an instance profile (terraform/modules/aws makes one), or set AWS_PROFILE or profile"
            raise Refused(f"no AWS credentials are found here ({code}); {mend}") from fault
        if code in _BAD_CREDENTIALS:
            mend = "use those of an account where this region is enabled"
            raise Refused(f"AWS does not accept the credentials here ({code}); {mend}") from fault
        if code in _DENIED:
            named = _PERFORM.search(str(fault))
            mend = "add it to the daemon's role (terraform/modules/aws/iam.tf has all that is needed)"
            self.lack(f"IAM does not allow {named[1] if named else action}", mend, stops=True)
            return
        for start, (what, mend) in missing.items():
            if code.startswith(start):
                self.lack(what, mend, stops=True)
                return
        self.lack(str(fault), f"see what EC2 and ELB say of {code}", stops=True)

    async def template(self, wants: Wants) -> dict[str, Any] | None:
        """What the launch template's version says; None when it is not there, which is noted."""
        name, region = wants.launch_template, wants.region
        unknown = (
            f"launch template {name} does not exist in {region}",
            "name one that does, or set region to where it was made",
        )
        answer = await self.read(
            "ec2",
            "describe_launch_template_versions",
            {
                "InvalidLaunchTemplateId.VersionNotFound": (
                    f"launch template {name} has no version {wants.version}",
                    "set version to one that it has, or to $Default",
                ),
                "InvalidLaunchTemplate": unknown,
            },
            **wants.template,
            Versions=[wants.version],
        )
        if answer is None:
            return None
        if not answer["LaunchTemplateVersions"]:
            self.lack(*unknown, stops=True)
            return None
        data: dict[str, Any] = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
        return data

    async def subnets(self, ids: Iterable[str], region: str) -> list[dict[str, Any]] | None:
        """Subnets by id; None when one is not there, which is noted."""
        wanted = sorted(ids)
        missing = (f"one of the subnets {', '.join(wanted)} does not exist in {region}", "name subnets of that region")
        answer = await self.read("ec2", "describe_subnets", {"InvalidSubnet": missing}, SubnetIds=wanted)
        return None if answer is None else list(answer["Subnets"])

    async def groups(self, ids: Iterable[str]) -> list[dict[str, Any]] | None:
        """Security groups by id; None when one is not there, which is noted."""
        wanted = sorted(ids)
        missing = (f"one of the security groups {', '.join(wanted)} does not exist", "name groups that do")
        answer = await self.read("ec2", "describe_security_groups", {"InvalidGroup": missing}, GroupIds=wanted)
        return None if answer is None else list(answer["SecurityGroups"])


def _code(fault: PortFault) -> str:
    cause = fault.__cause__
    return code_of(cause) if isinstance(cause, Exception) else ""


def groups_of(template: Mapping[str, Any]) -> list[str]:
    """The security groups that a launch template gives its machines; none: the VPC's default one."""
    inside = [group for each in template.get("NetworkInterfaces", ()) for group in each.get("Groups", ())]
    return sorted({*template.get("SecurityGroupIds", ()), *inside})


class Sources(NamedTuple):
    """Who may reach a port: security groups, and blocks of addresses (prefix lists count as blocks of unknown size)."""

    groups: frozenset[str]
    blocks: frozenset[str]

    def cover(self, block: str) -> bool:
        """Whether all addresses of `block` may."""
        inner = ip_network(block, strict=False)
        return any(one.startswith("pl-") or _within(inner, ip_network(one, strict=False)) for one in self.blocks)


def _within(inner: IPv4Network | IPv6Network, outer: IPv4Network | IPv6Network) -> bool:
    if isinstance(inner, IPv4Network):
        return isinstance(outer, IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, IPv6Network) and inner.subnet_of(outer)


def sources(groups: Iterable[Mapping[str, Any]], port: int, rules: str = "IpPermissions") -> Sources:
    """Who may reach TCP `port` through these security groups; `rules`: IpPermissionsEgress for whom they may reach."""
    names: set[str] = set()
    blocks: set[str] = set()
    for group in groups:
        for rule in group.get(rules, ()):
            whole = rule.get("IpProtocol") == "-1"
            if not whole and not (
                rule.get("IpProtocol") in {"tcp", "6"} and rule.get("FromPort", 0) <= port <= rule.get("ToPort", 65535)
            ):
                continue
            names |= {one["GroupId"] for one in rule.get("UserIdGroupPairs", ()) if "GroupId" in one}
            blocks |= {one["CidrIp"] for one in rule.get("IpRanges", ())}
            blocks |= {one["CidrIpv6"] for one in rule.get("Ipv6Ranges", ())}
            blocks |= {one["PrefixListId"] for one in rule.get("PrefixListIds", ())}
    return Sources(frozenset(names), frozenset(blocks))


def ports_of(pool: Pool) -> list[int]:
    """All ports of a pool's replicas."""
    return sorted({port for offer in pool.offers for port in offer.ports})
