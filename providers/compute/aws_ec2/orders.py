"""An order as a RunInstances call, and the tags that make a machine ours.

Does: translate, purely. Does not: call. Invariant: equal orders give equal parameters, and every machine carries its
tags from its first moment: nothing is tagged afterwards, so a crash leaves no machine without an owner.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from autoscaler.domain.base import Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.pool import Pool
from providers._shared.aws_fleet import EPOCH, INSTALLATION, OFFER, POOL, TOKEN, ZONE, epoch_of
from providers.compute.aws_ec2.settings import Settings

_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,64}")


def client_token(pool: Pool, token: Token) -> str:
    """Our token as EC2 takes it: at most 64 ASCII characters, and no other pool's or installation's."""
    text = f"{pool.installation}/{pool.name}/{token}"
    return text if _TOKEN.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def tags(pool: Pool, order: Launch) -> dict[str, str]:
    """What every machine and volume of an order carries."""
    return {
        "Name": f"{pool.name}-{order.token}"[:256],
        INSTALLATION: pool.installation,
        POOL: pool.name,
        TOKEN: order.token,
        OFFER: order.placement.offer,
        ZONE: order.placement.zone,
        EPOCH: epoch_of(order.token),
    }


def run_instances(pool: Pool, order: Launch, settings: Settings, market: str, subnet: str) -> dict[str, Any]:
    """The parameters of RunInstances. `subnet`: its id, "" to let the zone's default one be taken."""
    shown = [{"Key": key, "Value": value} for key, value in sorted(tags(pool, order).items())]
    asked: dict[str, Any] = {
        "LaunchTemplate": settings.template,
        "MinCount": 1,
        "MaxCount": order.count,
        "ClientToken": client_token(pool, order.token),
        "TagSpecifications": [{"ResourceType": kind, "Tags": shown} for kind in ("instance", "volume")],
    }
    if settings.instance_type:
        asked["InstanceType"] = settings.instance_type
    if subnet:
        asked["SubnetId"] = subnet
    else:
        asked["Placement"] = {"AvailabilityZone": settings.zone(order.placement.zone)}
    if market == "spot":
        # One-time: a machine that is taken away is replaced by us, elsewhere if need be.
        asked["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
    if market == "capacity_block":
        asked["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if settings.reservation:
        target = {"CapacityReservationId": settings.reservation}
        asked["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
    return asked
