"""What stands between a pool and its EC2 machines: for `check --online`.

Does: look for each offer's template, version, subnets and zones, whether anybody may reach the machines' ports, and
ask EC2 with DryRun whether it would launch and end. Does not: ask about capacity or quota, which only a launch shows.
Invariant: nothing is changed; in mode advise, which needs no permission to change, none is asked for.

That CreateTags is allowed shows in the DryRun of RunInstances, since tags are part of it (from memory; moto does not
check it). Whether TerminateInstances is allowed can be asked of a machine of ours only: the module's role may end
nothing else, and would deny any other name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from autoscaler.domain.base import Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.pool import Mode, Offer, Placement, Pool
from autoscaler.ports.diagnosis import Lack
from providers._shared.aws import Account
from providers._shared.aws_fleet import INSTALLATION, POOL
from providers._shared.aws_look import Looks, Wants, groups_of, ports_of, sources, wants_of
from providers.compute.aws_ec2 import orders
from providers.compute.aws_ec2 import settings as wanted

_LIVING: Final = ["pending", "running", "stopping", "stopped"]
_NO_QUEUE: Final = ("the notices queue {0} does not exist", "set notices_queue to the URL of one, or leave it out")


async def lacks(account: Account, pool: Pool, offers: Sequence[Offer], unique: str) -> list[Lack]:
    """What these offers of one account and region need and do not have; raises PortFault when nothing can be known.

    `unique`: makes the client tokens of this look none that were used before.
    """
    looks, seen = Looks(account), dict[Wants, dict[str, str] | None]()
    for number, offer in enumerate(offers):
        wants = wants_of(offer)
        if wants is None:
            continue
        if wants not in seen:
            seen[wants] = await _network(looks, pool, offers, wants)
        subnets = seen[wants]
        if subnets is not None and pool.mode is Mode.ACT:
            await _may_launch(looks, pool, offer, subnets, f"{unique}-{number}")
    await _may_end(looks, pool)
    for queue in sorted({wanted.read(offer.request).notices_queue for offer in offers} - {""}):
        await _may_listen(looks, queue)
    return looks.found


async def _network(looks: Looks, pool: Pool, offers: Sequence[Offer], wants: Wants) -> dict[str, str] | None:
    """The subnet of each zone (empty: the zone's default ones); None when a launch cannot even be asked about."""
    template = await looks.template(wants)
    if template is None:
        return None
    if wants.subnets and template.get("NetworkInterfaces"):
        # EC2's InvalidParameterCombination: "Network interfaces and an instance-level subnet ID may not be specified
        # on the same request"; moto accepts both.
        looks.lack(
            f"launch template {wants.launch_template} has network interfaces, beside which EC2 takes no subnet",
            "give the template security groups of its own instead (vpc_security_group_ids in Terraform)",
            stops=True,
        )
    await _reachable(looks, pool, template)
    zones = {wants.zone(zone) for offer in offers if wants_of(offer) == wants for zone in offer.zones}
    return await _subnets(looks, wants, zones)


async def _subnets(looks: Looks, wants: Wants, zones: set[str]) -> dict[str, str] | None:
    if wants.subnets:
        listed = await looks.subnets(wants.subnets, wants.region)
    else:
        standard = [{"Name": "default-for-az", "Values": ["true"]}]
        answer = await looks.read("ec2", "describe_subnets", Filters=standard)
        listed = None if answer is None else answer["Subnets"]
    if listed is None:
        return None
    vpcs = sorted({one["VpcId"] for one in listed})
    if len(vpcs) > 1:
        looks.lack(f"the subnets are in {len(vpcs)} VPCs ({', '.join(vpcs)})", "name subnets of one VPC", stops=True)
    found = {one["AvailabilityZone"]: one["SubnetId"] for one in sorted(listed, key=_id_of, reverse=True)}
    for zone in sorted(zones - found.keys()):
        kind = "none of the subnets" if wants.subnets else "no default subnet"
        looks.lack(
            f"{kind} is in zone {zone}", "add a subnet of that zone to subnets, or leave the zone out", stops=True
        )
    return {zone: one if wants.subnets else "" for zone, one in found.items()}


def _id_of(subnet: dict[str, Any]) -> str:
    return str(subnet["SubnetId"])


async def _reachable(looks: Looks, pool: Pool, template: dict[str, Any]) -> None:
    names = groups_of(template)
    groups = await looks.groups(names) if names else None
    for port in ports_of(pool) if groups is not None else ():
        found = sources(groups or (), port)
        if not found.groups and not found.blocks:
            looks.lack(
                f"no security group of the machines ({', '.join(names)}) lets anybody reach port {port}",
                "allow it to the load balancer's group and to the daemon's",
                stops=True,
            )


async def _may_launch(looks: Looks, pool: Pool, offer: Offer, subnets: dict[str, str], unique: str) -> None:
    """Ask for one machine, as the daemon would, in the first zone that has a subnet."""
    settings = wanted.read(offer.request)
    zone = next((one for one in offer.zones if settings.zone(one) in subnets), None)
    if zone is None:
        return
    order = Launch(
        token=Token(f"check-{unique}"),
        placement=Placement(offer=offer.name, zone=zone),
        count=1,
        total_after=1,
        request=offer.request,
    )
    asked = orders.run_instances(pool, order, settings, offer.market, subnets[settings.zone(zone)])
    await looks.may("ec2", "run_instances", **asked)


async def _may_end(looks: Looks, pool: Pool) -> None:
    """Find a machine of ours and ask whether it could be ended; without one only whether machines can be listed."""
    ours = [
        {"Name": f"tag:{INSTALLATION}", "Values": [pool.installation]},
        {"Name": f"tag:{POOL}", "Values": [pool.name]},
        {"Name": "instance-state-name", "Values": _LIVING},
    ]
    answer = await looks.read("ec2", "describe_instances", Filters=ours, MaxResults=5)
    ids = [item["InstanceId"] for one in (answer or {}).get("Reservations", ()) for item in one["Instances"]]
    if ids and pool.mode is Mode.ACT:
        await looks.may("ec2", "terminate_instances", InstanceIds=ids[:1])


async def _may_listen(looks: Looks, queue: str) -> None:
    """Read one message and leave it there."""
    what, mend = _NO_QUEUE
    missing = dict.fromkeys(
        ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"), (what.format(queue), mend)
    )
    await looks.read(
        "sqs", "receive_message", missing, QueueUrl=queue, MaxNumberOfMessages=1, VisibilityTimeout=0, WaitTimeSeconds=0
    )
