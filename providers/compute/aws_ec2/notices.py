"""What EC2 announces: interruptions of spot machines, rebalance recommendations, maintenance, from one SQS queue.

Does: read EventBridge's events from the queue and remember each until its machine is gone. Does not: act on them;
the engine drains and replaces. Invariant: a message is deleted only when its machine is no longer there (or it names
none of ours), so a daemon that crashes in between is told again: the queue is level-triggered like all else. Who only
looks (plan, check, mode advise) deletes nothing and hides nothing from the daemon that acts.

A queue that does not answer blinds no pool at first: what it said before stands for `_DEAF_FOR`. A queue that refuses
does at once, since a person must mend that.

Detail types as the vendor documents them: "EC2 Spot Instance Interruption Warning" (two minutes ahead), "EC2 Instance
Rebalance Recommendation", "AWS Health Event" (resources are instance ids or ARNs).
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from autoscaler.domain.base import Duration, InstanceId, Instant, elapsed
from autoscaler.domain.faults import Throttled, Unreachable
from autoscaler.domain.replica import Notice
from autoscaler.ports.clock import Clock
from providers._shared.aws import Account
from providers._shared.shared_look import SharedLook

#: A message that was read and kept comes back after this time, seconds, and finds its notice known already.
_HIDDEN_S: Final = 60
#: Receives a look; ten messages each. A storm of notices is read over several ticks, not in one.
_RECEIVES: Final = 10
#: A rebalance recommendation says no time; a spot machine has two minutes from its warning.
_WARNING: Final = Duration(120.0)
#: How long a queue may be silent, seconds.
_DEAF_FOR: Final = Duration(600.0)
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
    """One queue, shared by all pools of an account and region."""

    def __init__(self, account: Account, clock: Clock, queue: str) -> None:
        self._account, self._clock, self._queue = account, clock, queue
        self._kept: dict[str, _Kept] = {}
        self._shared: SharedLook[None] = SharedLook(clock, self._receive)
        self._heard_at = clock.now()
        self._acting = False

    async def look(self, not_older_than: Instant, alive: Collection[InstanceId], *, acting: bool) -> list[Notice]:
        """All that stands about machines of `alive`, every pool's; raises PortFault.

        `acting`: what concerns no machine of `alive` is taken out of the queue.
        """
        self._acting |= acting
        try:
            await self._shared.get(not_older_than)
        except (Throttled, Unreachable):
            if elapsed(self._heard_at, self._clock.now()) > _DEAF_FOR:
                raise
        over = {key: one for key, one in self._kept.items() if not any(each.instance in alive for each in one.notices)}
        for key in over:
            del self._kept[key]
        if acting:
            await self._delete([one.receipt for one in over.values()])
        return [notice for kept in self._kept.values() for notice in kept.notices]

    async def _receive(self, _: Instant) -> None:
        for _receive in range(_RECEIVES):
            answer = await self._account.read(
                "sqs",
                "receive_message",
                QueueUrl=self._queue,
                MaxNumberOfMessages=10,
                VisibilityTimeout=_HIDDEN_S if self._acting else 0,
                WaitTimeSeconds=0,
            )
            messages = answer.get("Messages", [])
            for message in messages:
                notices = read(message["Body"], self._clock.now())
                self._kept[message["MessageId"]] = _Kept(notices, message["ReceiptHandle"])
            if len(messages) < 10:
                break
        self._heard_at = self._clock.now()

    async def _delete(self, receipts: list[str]) -> None:
        """Take messages out of the queue; one that stays there is read, and deleted, again."""
        for start in range(0, len(receipts), 10):
            entries = [{"Id": str(n), "ReceiptHandle": one} for n, one in enumerate(receipts[start : start + 10])]
            await self._account.call("sqs", "delete_message_batch", QueueUrl=self._queue, Entries=entries)

    def close(self) -> None:
        """End what is under way."""
        self._shared.close()


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
