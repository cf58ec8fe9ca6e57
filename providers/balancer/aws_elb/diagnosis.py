"""What a target group, its load balancer and the pool's machines have against each other: for `check --online`.

Does: look whether the group is there, is of the kind and in the network that the config says, is behind a listener, in
the zones of the offers, reachable; and compare ELB's times, health check and attributes with the pool's. Does not:
register anything: ELB has no DryRun, so whether that is allowed shows at the first admission.
Invariant: nothing is changed; when the group itself cannot be what is meant, nothing is said that follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from autoscaler.domain.pool import Pool
from autoscaler.ports.diagnosis import Lack
from providers._shared.aws import Account
from providers._shared.aws_look import Looks, Wants, groups_of, ports_of, sources, wants_of
from providers._shared.presets import PRESETS
from providers.balancer.aws_elb.settings import Settings

#: ALB's idle timeout ends there (seconds), and so does a deregistration delay.
_LONGEST_IDLE_S: Final = 4000.0
_LONGEST_DELAY_S: Final = 3600.0
_FAMILIES: Final = {"HTTP": "application", "HTTPS": "application"}
#: Paths beside a server's own that say as much to a load balancer.
_AS_GOOD: Final = {"triton": ("/v2/health/ready",)}


async def lacks(account: Account, settings: Settings, pool: Pool, preset: str) -> list[Lack]:
    """What this binding needs for this pool and does not have; raises PortFault when nothing can be known."""
    looks = Looks(account)
    offers = [wants for offer in pool.offers if (wants := wants_of(offer)) is not None]
    elsewhere = sorted({one.region for one in offers} - {settings.place})
    if elsewhere:
        looks.lack(
            f"the target group is in {settings.place} and offers launch in {', '.join(elsewhere)}",
            "set region and target_group to one region",
            stops=True,
        )
        return looks.found
    group = await _group(looks, settings)
    if group is None:
        return looks.found
    _kind(looks, settings, group)
    _health(looks, group, preset)
    machines = await _network(looks, offers, group)
    if machines is None:
        return looks.found
    await _attributes(looks, settings, pool)
    await _listener(looks, settings)
    if not group["LoadBalancerArns"]:
        looks.lack(
            "no listener forwards to the target group, so its targets are Target.NotInUse",
            "add a listener or a rule that forwards to it",
            stops=True,
        )
    for arn in group["LoadBalancerArns"]:
        await _load_balancer(looks, arn, pool, machines)
    return looks.found


async def _group(looks: Looks, settings: Settings) -> dict[str, Any] | None:
    missing = (
        f"the target group does not exist in {settings.place}",
        "set target_group to the ARN of one (output target_group_arn of terraform/modules/aws)",
    )
    answer = await looks.read(
        "elbv2", "describe_target_groups", {"TargetGroupNotFound": missing}, TargetGroupArns=[settings.target_group]
    )
    return None if answer is None else answer["TargetGroups"][0]


def _kind(looks: Looks, settings: Settings, group: Mapping[str, Any]) -> None:
    found = group.get("TargetType", "instance")
    if found != settings.target_type:
        looks.lack(
            f"the target group takes targets of type {found}, the config registers type {settings.target_type}",
            f"set target_type: {found}" if found in {"instance", "ip"} else "make a group of type instance or ip",
            stops=True,
        )
    family = _FAMILIES.get(group.get("Protocol", "HTTP"), "network")
    if family != settings.family:
        looks.lack(
            f"the target group speaks {group.get('Protocol')}, so it is of a load balancer of family {family}",
            f"set family: {family}",
            stops=True,
        )


def _health(looks: Looks, group: Mapping[str, Any], preset: str) -> None:
    if not group.get("HealthCheckEnabled", True):
        looks.lack("the group's health check is off, so it is never known who takes traffic", "switch it on")
    server, path = PRESETS.get(preset), group.get("HealthCheckPath", "")
    if server is not None and path and path not in {server.live, *_AS_GOOD.get(preset, ())}:
        looks.lack(
            f"the group's health check asks for {path}, a {preset} server answers at {server.live}",
            f"set its path to {server.live}",
        )


async def _network(looks: Looks, offers: list[Wants], group: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The machines' security groups; None when their subnets are in another VPC than the group, which is noted.

    What is not there is the compute's to tell.
    """
    quiet = Looks(looks.account)
    names = {subnet for offer in offers for subnet in offer.subnets}
    listed = await quiet.subnets(names, "") if names else []
    vpcs = sorted({one["VpcId"] for one in listed or ()})
    if vpcs and vpcs != [group.get("VpcId")]:
        looks.lack(
            f"the target group is in {group.get('VpcId')}, the offers' subnets are in {', '.join(vpcs)}",
            "name a target group and subnets of one VPC",
            stops=True,
        )
        return None
    found: dict[str, dict[str, Any]] = {}
    for wants in dict.fromkeys(offers):
        template = await quiet.template(wants)
        ids = groups_of(template) if template is not None else []
        for one in (await quiet.groups(ids) if ids else None) or ():
            found[one["GroupId"]] = one
    return list(found.values())


async def _attributes(looks: Looks, settings: Settings, pool: Pool) -> None:
    answer = await looks.read("elbv2", "describe_target_group_attributes", TargetGroupArn=settings.target_group)
    if answer is None:
        return
    found = {one["Key"]: str(one["Value"]) for one in answer["Attributes"]}
    delay, deadline = float(found.get("deregistration_delay.timeout_seconds", 300)), pool.drain.deadline
    least = min(deadline, _LONGEST_DELAY_S)
    if delay < least:
        looks.lack(
            f"deregistration_delay is {delay:g} s and drain.deadline {deadline:g} s: ELB lets go of requests too early",
            f"set deregistration_delay to {least:g}, or drain.deadline to {delay:g}s",
        )
    if found.get("deregistration_delay.connection_termination.enabled") == "true":
        looks.lack(
            f"the load balancer cuts what is still running {delay:g} s after a drain began",
            "switch deregistration_delay.connection_termination off",
        )
    for key, value in settings.attributes().items():
        if found.get(key, "") != value:
            looks.lack(
                f"the target group's {key} is {found.get(key, 'unset')}, the config asks for {value}",
                "set it where the group is made (Terraform), or the daemon does so at its first admission",
            )


async def _listener(looks: Looks, settings: Settings) -> None:
    """The listener of strategy weighted must forward to the group by default."""
    if not settings.listener:
        return
    missing = (f"listener {settings.listener} does not exist", "set listener to the ARN of one")
    answer = await looks.read(
        "elbv2", "describe_listeners", {"ListenerNotFound": missing}, ListenerArns=[settings.listener]
    )
    actions = answer["Listeners"][0]["DefaultActions"] if answer is not None else []
    groups = {one["TargetGroupArn"] for action in actions for one in _forwards(action)}
    if answer is not None and settings.target_group not in groups:
        mend = "add the group to its default forward action, with a weight"
        looks.lack(f"listener {settings.listener} does not forward to the target group by default", mend, stops=True)


def _forwards(action: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = action.get("ForwardConfig", {}).get("TargetGroups", [])
    return found


async def _load_balancer(looks: Looks, arn: str, pool: Pool, machines: list[dict[str, Any]]) -> None:
    answer = await looks.read("elbv2", "describe_load_balancers", LoadBalancerArns=[arn])
    if answer is None:
        return
    balancer = answer["LoadBalancers"][0]
    name, enabled = balancer["LoadBalancerName"], balancer["AvailabilityZones"]
    zones(looks, pool, name, {one["ZoneName"] for one in enabled})
    attributes = await looks.read("elbv2", "describe_load_balancer_attributes", LoadBalancerArn=arn)
    found = {one["Key"]: one["Value"] for one in (attributes or {}).get("Attributes", ())}
    if "idle_timeout.timeout_seconds" in found:  # a network load balancer has none
        idle_timeout(looks, pool, name, float(found["idle_timeout.timeout_seconds"]))
    if balancer.get("SecurityGroups"):
        await _ways(looks, pool, balancer, machines)


def zones(looks: Looks, pool: Pool, name: str, enabled: set[str]) -> None:
    """Zones of offers in which the load balancer is not."""
    wanted = {(wants, zone) for offer in pool.offers if (wants := wants_of(offer)) is not None for zone in offer.zones}
    for zone in sorted({wants.zone(zone) for wants, zone in wanted} - enabled):
        looks.lack(
            f"load balancer {name} is not enabled in zone {zone}, so targets there are Target.NotInUse",
            "add a subnet of that zone to the load balancer, or leave the zone out of the offers",
            stops=True,
        )


def idle_timeout(looks: Looks, pool: Pool, name: str, idle: float) -> None:
    """An idle timeout that cuts a request which may rightly be silent for so long."""
    least = min(pool.drain.deadline, _LONGEST_IDLE_S)
    if idle < least:
        looks.lack(
            f"load balancer {name} cuts a stream that is silent for {idle:g} s; drain.deadline lets requests take "
            f"{pool.drain.deadline:g} s",
            f"set its idle timeout to {least:g} s",
        )


async def _ways(looks: Looks, pool: Pool, balancer: Mapping[str, Any], machines: list[dict[str, Any]]) -> None:
    """Whether the load balancer may send to the machines' ports, they take it, and somebody else may probe them."""
    ours = set(balancer["SecurityGroups"])
    theirs = {one["GroupId"] for one in machines}
    quiet = Looks(looks.account)  # that EC2 may not be asked is the compute's to tell
    own = await quiet.groups(ours)
    blocks = await _blocks(quiet, balancer)
    for port in ports_of(pool):
        away = sources(own or (), port, "IpPermissionsEgress")
        if own and theirs and not away.groups & theirs and not away.blocks:
            looks.lack(
                f"the load balancer's security group lets nothing out to port {port} of the machines",
                "allow it to the machines' group",
                stops=True,
            )
        found = sources(machines, port)
        if not found.groups and not found.blocks:
            continue  # nobody may: the compute says so
        if not found.groups & ours and not all(found.cover(one) for one in blocks):
            looks.lack(
                f"the machines' security group does not let the load balancer reach port {port}",
                f"allow it to group {', '.join(sorted(ours))}",
                stops=True,
            )
        elif found.groups <= ours and not found.blocks:
            looks.lack(
                f"only the load balancer may reach port {port} of the machines: the daemon's probe is blocked",
                "allow it to the daemon's group too",
                stops=True,
            )


async def _blocks(looks: Looks, balancer: Mapping[str, Any]) -> list[str]:
    """The addresses from which the load balancer sends."""
    ids = [one["SubnetId"] for one in balancer["AvailabilityZones"] if "SubnetId" in one]
    listed = await looks.subnets(ids, "its region") if ids else None
    return [one["CidrBlock"] for one in listed or ()]


async def classic_lacks(account: Account, settings: Settings, pool: Pool) -> list[Lack]:
    """The same of a Classic load balancer."""
    looks, name = Looks(account), settings.load_balancer
    offers = [wants for offer in pool.offers if (wants := wants_of(offer)) is not None]
    missing = (
        f"classic load balancer {name} does not exist in {settings.region}",
        "set load_balancer and region to one",
    )
    answer = await looks.read(
        "elb", "describe_load_balancers", {"LoadBalancerNotFound": missing}, LoadBalancerNames=[name]
    )
    if answer is None:
        return looks.found
    found = answer["LoadBalancerDescriptions"][0]
    if not found.get("ListenerDescriptions"):
        looks.lack(f"load balancer {name} has no listener", "add one that sends to the replicas' port", stops=True)
    await _network(looks, offers, {"VpcId": found.get("VPCId")})
    zones(looks, pool, name, set(found.get("AvailabilityZones", ())))
    attributes = await looks.read("elb", "describe_load_balancer_attributes", LoadBalancerName=name)
    if attributes is not None:
        known = attributes["LoadBalancerAttributes"]
        idle_timeout(looks, pool, name, float(known.get("ConnectionSettings", {}).get("IdleTimeout", 60)))
        draining = known.get("ConnectionDraining", {})
        _draining(looks, pool, float(draining.get("Timeout", 300)) if draining.get("Enabled") else 0.0)
    return looks.found


def _draining(looks: Looks, pool: Pool, timeout: float) -> None:
    least = min(pool.drain.deadline, _LONGEST_DELAY_S)
    if timeout < least:
        looks.lack(
            f"connection draining ends after {timeout:g} s and drain.deadline is {pool.drain.deadline:g} s",
            f"set connection draining to {least:g} s",
        )
