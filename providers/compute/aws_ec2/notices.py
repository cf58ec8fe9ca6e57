"""What EC2 announces: interruptions of spot machines, rebalance recommendations, maintenance, from one SQS queue.

Does: read EventBridge's events from the queue and remember each until its machine is gone. Does not: act on them;
the engine drains and replaces. Invariant: a message is deleted only when its machine is no longer there (or it names
none of ours), so a daemon that crashes in between is told again: the queue is level-triggered like all else.

Detail types as the vendor documents them: "EC2 Spot Instance Interruption Warning" (two minutes ahead), "EC2 Instance
Rebalance Recommendation", "AWS Health Event" (resources are instance ids or ARNs).
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from autoscaler.domain.base import Duration, InstanceId, Instant
from autoscaler.domain.replica import Notice
from autoscaler.ports.clock import Clock
from providers._shared.aws import Account

#: A message that was read and kept comes back after this time, seconds, and finds its notice known already.
_HIDDEN_S: Final = 60
#: Receives a look; ten messages each. A storm of notices is read over several ticks, not in one.
_RECEIVES: Final = 10
#: A rebalance recommendation says no time; a spot machine has two minutes from its warning.
_WARNING: Final = Duration(120.0)
_SPOT: Final = "EC2 Spot Instance Interruption Warning"
_REBALANCE: Final = "EC2 Instance Rebalance Recommendation"
_HEALTH: Final = "AWS Health Event"
#: Health events are of many kinds; these take a machine away.
_TAKING: Final = (
    "RETIREMENT",
    "SYSTEM_MAINTENANCE",
    "SYSTEM_REBOOT",
    "INSTANCE_REBOOT",
    "INSTANCE_STOP",
    "STORE_DRIVE",
)


class _Event(msgspec.Struct, frozen=True):
    detail_type: str = msgspec.field(name="detail-type", default="")
    time: str = ""
    resources: list[str] = []
    detail: dict[str, Any] = {}


class _Kept(NamedTuple):
    notices: tuple[Notice, ...]
    receipt: str


class Notices:
    """One queue. `known` decides which instance ids are worth remembering."""

    def __init__(self, account: Account, clock: Clock, queue: str) -> None:
        self._account, self._clock, self._queue = account, clock, queue
        self._kept: dict[str, _Kept] = {}

    async def look(self, known: Collection[InstanceId]) -> tuple[Notice, ...]:
        """Read what is new, forget what concerns no machine of `known`; raises PortFault."""
        for _ in range(_RECEIVES):
            answer = await self._account.read(
                "sqs",
                "receive_message",
                QueueUrl=self._queue,
                MaxNumberOfMessages=10,
                VisibilityTimeout=_HIDDEN_S,
                WaitTimeSeconds=0,
            )
            messages = answer.get("Messages", [])
            for message in messages:
                notices = read(message["Body"], self._clock.now())
                self._kept[message["MessageId"]] = _Kept(notices, message["ReceiptHandle"])
            if len(messages) < 10:
                break
        await self._forget(known)
        return tuple(notice for kept in self._kept.values() for notice in kept.notices)

    async def _forget(self, known: Collection[InstanceId]) -> None:
        over = [key for key, kept in self._kept.items() if not any(one.instance in known for one in kept.notices)]
        for batch in (over[start : start + 10] for start in range(0, len(over), 10)):
            entries = [{"Id": str(n), "ReceiptHandle": self._kept[key].receipt} for n, key in enumerate(batch)]
            await self._account.call("sqs", "delete_message_batch", QueueUrl=self._queue, Entries=entries)
            for key in batch:
                del self._kept[key]


def read(body: str, now: Instant) -> tuple[Notice, ...]:
    """The notices in one message; none in one that is something else or broken."""
    try:
        event = msgspec.json.decode(body, type=_Event)
    except msgspec.DecodeError:
        return ()
    if event.detail_type == _SPOT:
        said = _instant(event.time)
        at = Instant((said if said is not None else now) + _WARNING)
        return _of([event.detail.get("instance-id")], "spot_interruption", at)
    if event.detail_type == _REBALANCE:
        return _of([event.detail.get("instance-id")], "rebalance_recommendation", None)
    if event.detail_type == _HEALTH and any(word in str(event.detail.get("eventTypeCode", "")) for word in _TAKING):
        named = [str(one).rpartition("/")[2] for one in event.resources]
        return _of(named, "scheduled_maintenance", _instant(str(event.detail.get("startTime", ""))))
    return ()


def _of(ids: list[Any], kind: str, at: Instant | None) -> tuple[Notice, ...]:
    return tuple(Notice(instance=InstanceId(one), kind=kind, at=at) for one in ids if str(one).startswith("i-"))


def _instant(text: str) -> Instant | None:
    """ISO 8601, or the RFC 1123 date of Health events; None for anything else."""
    for form in (None, "%a, %d %b %Y %H:%M:%S %Z"):
        try:
            found = datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)  # noqa: DTZ007
        except ValueError:
            continue
        return Instant((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    return None
