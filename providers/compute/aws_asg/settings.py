"""What a user writes for an offer that is an Auto Scaling group.

Does: check without the network. Does not: know the group. Invariant: an offer names one group and no zones.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from autoscaler.domain.faults import Refused
from autoscaler.domain.pool import Offer

_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-\d{1,2}")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group of EC2 machines. It must carry the tags autoscaler:installation and autoscaler:pool.

    `group`: its name. Its launch template says what is launched, its subnets where: `zones` and `market` stay at their
    defaults. `address`: which of a machine's addresses is probed and registered. `profile`: of the AWS configuration
    files; the daemon's role needs none.
    """

    region: str
    group: str
    address: str = "private"
    profile: str = ""

    def __post_init__(self) -> None:
        if not _REGION.fullmatch(self.region):
            raise ValueError(f"region: found {self.region!r}, allowed: a region's name, such as eu-west-1")
        if not 1 <= len(self.group) <= 255 or ":" in self.group:
            raise ValueError(f"group: found {self.group[:80]!r}, allowed: the name of an Auto Scaling group")
        if self.address not in {"private", "public"}:
            raise ValueError(f"address: found {self.address!r}, allowed: private, public")


def read(request: str) -> Settings:
    """Read an offer's frozen request. Raises Refused with what is wrong."""
    try:
        return msgspec.json.decode(request, type=Settings)
    except msgspec.DecodeError as error:  # also what __post_init__ says
        raise Refused(f"the offer's request is not one of aws_asg: {error}") from error


def mistakes(offer: Offer) -> list[str]:
    """What only shows when an offer is seen as a whole."""
    found = []
    if len(offer.zones) != 1:
        found.append(f"zones: found {', '.join(offer.zones)}, allowed: none, the group spreads over its own subnets")
    if offer.market != "on_demand":
        found.append(f"market: found {offer.market!r}, allowed: none, the group's launch template says it")
    return found
