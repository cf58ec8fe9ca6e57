"""What a user writes for an offer of EC2 machines, and what can be wrong with it.

Does: check without the network. Does not: know prices, or what the launch template says.
Invariant: what is frozen into an order is complete: the same order gives the same RunInstances call.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import Refused

#: `capacity_block` is a capacity reservation whose machines are launched with a market type of that name.
MARKETS: Final = ("on_demand", "spot", "reservation", "capacity_block")
_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-\d{1,2}")
_ZONE: Final = re.compile(r"[a-z]|[a-z]{2}(-[a-z]+)+-\d{1,2}[a-z]|[a-z]{2}(-[a-z]+)+-\d{1,2}-[a-z]{3}-\d[a-z]")
_QUEUE: Final = re.compile(r"https?://\S+/\d{1,20}/[A-Za-z0-9_-]{1,80}(\.fifo)?")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to launch EC2 machines. Zones are letters of the region (`a`) or whole names (`eu-west-1a`).

    `launch_template`: id (`lt-…`) or name; `version`: a number, `$Default` or `$Latest` (a number keeps what was
    tested). `instance_type`, `subnets` override the template; of several subnets in a zone the first by id is taken.
    `reservation`: capacity reservation (`cr-…`) for the markets reservation and capacity_block. `address`: which of a
    machine's addresses is probed and registered. `notices_queue`: URL of the SQS queue that EventBridge feeds with
    interruption, rebalance and maintenance events. `not_found_grace`: seconds for which a machine that was just
    launched may be missing from a look. `profile`: of the AWS configuration files; the daemon's role needs none.
    """

    region: str
    launch_template: str
    version: str = "$Default"
    instance_type: str = ""
    subnets: tuple[str, ...] = ()
    reservation: str = ""
    address: str = "private"
    notices_queue: str = ""
    not_found_grace: Duration = Duration(60.0)
    profile: str = ""

    def __post_init__(self) -> None:
        if not _REGION.fullmatch(self.region):
            raise ValueError(f"region: found {self.region!r}, allowed: a region's name, such as eu-west-1")
        if not self.launch_template:
            raise ValueError("launch_template: found nothing, allowed: an id (lt-…) or a name")
        if not (self.version in {"$Default", "$Latest"} or self.version.isdecimal()):
            raise ValueError(f"version: found {self.version!r}, allowed: a number in quotes, $Default or $Latest")
        if self.address not in {"private", "public"}:
            raise ValueError(f"address: found {self.address!r}, allowed: private, public")
        if self.reservation and not self.reservation.startswith("cr-"):
            raise ValueError(f"reservation: found {self.reservation!r}, allowed: the id of one (cr-…)")
        if self.notices_queue and not _QUEUE.fullmatch(self.notices_queue):
            raise ValueError(f"notices_queue: found {self.notices_queue!r}, allowed: the URL of an SQS queue")
        wrong = [name for name in self.subnets if not name.startswith("subnet-")]
        if wrong:
            raise ValueError(f"subnets: found {wrong[0]!r}, allowed: ids of subnets (subnet-…)")

    def zone(self, name: str) -> str:
        """The whole name of an availability zone."""
        return f"{self.region}{name}" if len(name) == 1 else name

    @property
    def template(self) -> dict[str, str]:
        """The launch template as RunInstances wants it."""
        key = "LaunchTemplateId" if self.launch_template.startswith("lt-") else "LaunchTemplateName"
        return {key: self.launch_template, "Version": self.version}


def read(request: str) -> Settings:
    """Read an offer's frozen request. Raises Refused with what is wrong."""
    try:
        return msgspec.json.decode(request, type=Settings)
    except msgspec.DecodeError as error:  # also what __post_init__ says
        raise Refused(f"the offer's request is not one of aws_ec2: {error}") from error


def mistakes(settings: Settings, market: str, zones: tuple[str, ...]) -> list[str]:
    """What only shows when an offer's settings, market and zones are seen together."""
    found = []
    if market not in MARKETS:
        found.append(f"market: found {market!r}, allowed: {', '.join(MARKETS)}")
    if (market in {"reservation", "capacity_block"}) != bool(settings.reservation):
        found.append(
            f"reservation: found {settings.reservation!r} with market {market}, "
            "allowed: an id (cr-…) exactly with the markets reservation and capacity_block"
        )
    found += [
        f"zones: found {zone!r}, allowed: letters of {settings.region} (a) or whole names ({settings.region}a)"
        for zone in zones
        if not _ZONE.fullmatch(zone) or not settings.zone(zone).startswith(settings.region)
    ]
    return found
