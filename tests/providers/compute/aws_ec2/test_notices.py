"""Notices from a queue as EventBridge fills it; SQS is moto's."""

import json
import uuid
from typing import Any

import pytest

from autoscaler.domain.base import InstanceId, Instant
from autoscaler.domain.faults import Refused, Unreachable
from autoscaler.domain.pool import Mode, Pool
from autoscaler.domain.replica import Notice
from providers.compute.aws_ec2 import Ec2Compute
from providers.compute.aws_ec2.notices import read
from tests.support import moto
from tests.support.aws_ec2_world import World, order
from tests.support.aws_quirks import Failure


class Queue:
    """A queue of the account, and what EventBridge would put into it."""

    def __init__(self, world: World) -> None:
        self._sqs: Any = moto.client(world.account.url, "sqs")
        self.url: str = self._sqs.create_queue(QueueName=f"q{uuid.uuid4().hex}")["QueueUrl"]

    def put(self, event: object) -> None:
        body = event if isinstance(event, str) else json.dumps(event)
        self._sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def left(self) -> int:
        """Messages in the queue, hidden ones too."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(answer[name]) for name in names)


def spot(instance: str, action: str = "terminate") -> dict[str, Any]:
    return {
        "version": "0", "detail-type": "EC2 Spot Instance Interruption Warning", "source": "aws.ec2",
        "time": "2026-12-01T10:00:00Z", "resources": [f"arn:aws:ec2:us-east-1b:instance/{instance}"],
        "detail": {"instance-id": instance, "instance-action": action},
    }  # fmt: skip


def rebalance(instance: str) -> dict[str, Any]:
    kind = "EC2 Instance Rebalance Recommendation"
    return {"detail-type": kind, "time": "2026-12-01T10:00:00Z", "detail": {"instance-id": instance}}


def health(instance: str, code: str = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED") -> dict[str, Any]:
    detail = {"service": "EC2", "eventTypeCode": code, "startTime": "Wed, 02 Dec 2026 08:00:00 GMT"}
    return {"detail-type": "AWS Health Event", "resources": [instance], "detail": detail}


async def started(world: World, queue: Queue, **changed: Any) -> tuple[Ec2Compute, Pool, InstanceId]:
    compute, pool = world.build(), world.pool(notices_queue=queue.url, **changed)
    (machine,) = (await compute.launch(pool, order(pool))).ids
    return compute, pool, machine


async def told(world: World, compute: Ec2Compute, pool: Pool) -> list[tuple[str, str, float | None]]:
    world.clock.at += 15
    return sorted((one.instance, one.kind, one.at) for one in (await world.look(compute, pool)).notices)


async def test_each_kind_of_event_is_a_notice_until_its_machine_is_gone(world: World) -> None:
    queue = Queue(world)
    compute, pool, machine = await started(world, queue)
    for event in (spot(machine), rebalance(machine), health(machine)):
        queue.put(event)
    expected = [
        (machine, "rebalance_recommendation", None),
        (machine, "scheduled_maintenance", 1796198400.0),
        (machine, "spot_interruption", 1796119320.0),  # two minutes after the warning's own time
    ]
    assert await told(world, compute, pool) == expected
    assert await told(world, compute, pool) == expected
    assert queue.left() == 3
    await compute.terminate(pool, [machine])
    assert await told(world, compute, pool) == []
    assert queue.left() == 0


async def test_a_daemon_that_is_started_again_is_told_again(world: World) -> None:
    queue = Queue(world)
    compute, pool, machine = await started(world, queue)
    queue.put(spot(machine))
    assert len(await told(world, compute, pool)) == 1
    (kept,) = compute._notices[queue.url]._kept.values()  # as after the time for which it is hidden
    sqs = moto.client(world.account.url, "sqs")
    sqs.change_message_visibility(QueueUrl=queue.url, ReceiptHandle=kept.receipt, VisibilityTimeout=0)
    restarted = world.build()
    assert len(await told(world, restarted, pool)) == 1


async def test_what_concerns_no_machine_of_ours_is_taken_out_of_the_queue(world: World) -> None:
    queue = Queue(world)
    compute, pool, machine = await started(world, queue)
    foreign = ["no JSON", "[]", json.dumps({"detail-type": 7}), spot("i-0"), {"detail-type": "EC2 State-change"}]
    for event in (*foreign, health(machine, "AWS_EC2_OPERATIONAL_ISSUE"), health("vol-1"), {"detail": {}}):
        queue.put(event)
    assert await told(world, compute, pool) == []
    assert queue.left() == 0


async def test_a_notice_for_another_pools_machine_reaches_that_pool(world: World) -> None:
    queue = Queue(world)
    compute, pool, _ = await started(world, queue)
    other = world.pool("other", notices_queue=queue.url)
    (machine,) = (await compute.launch(other, order(other))).ids
    queue.put(spot(machine))
    assert await told(world, compute, pool) == []
    assert [one for one, _, _ in await told(world, compute, other)] == [machine]
    before = world.quirks.calls.count("ReceiveMessage")
    world.clock.at += 15
    at = world.clock.now()
    views = [await compute.observe(one, (), at) for one in (pool, other)]
    assert [len(view.notices) for view in views] == [0, 1]
    assert world.quirks.calls.count("ReceiveMessage") == before + 1


@pytest.mark.parametrize(("mode", "looking"), [(Mode.ADVISE, False), (Mode.ACT, True)])
async def test_who_only_looks_leaves_the_queue_as_it_is(world: World, mode: Mode, looking: bool) -> None:
    queue = Queue(world)
    acting, pool, machine = await started(world, queue)
    queue.put(spot(machine))
    queue.put("no JSON")
    onlooker, shown = world.build(looking=looking), world.pool(notices_queue=queue.url, mode=mode)
    assert len(await told(world, onlooker, shown)) == 1
    assert queue.left() == 2
    assert len(await told(world, acting, pool)) == 1  # hidden from nobody
    assert queue.left() == 1


async def test_a_silent_queue_blinds_no_pool_at_once_and_one_that_refuses_does(world: World) -> None:
    queue = Queue(world)
    compute, pool, machine = await started(world, queue)
    queue.put(spot(machine))
    assert len(await told(world, compute, pool)) == 1
    world.quirks.failures.append(Failure("ServiceUnavailable", 503, action="ReceiveMessage"))
    assert len(await told(world, compute, pool)) == 1
    world.clock.at += 600
    with pytest.raises(Unreachable, match="receive_message"):
        await told(world, compute, pool)
    world.quirks.failures[:] = [Failure("AccessDenied", 403, action="ReceiveMessage")]
    with pytest.raises(Refused, match="AccessDenied"):
        await told(world, compute, pool)
    world.quirks.failures.clear()
    assert len(await told(world, compute, pool)) == 1


def test_an_event_that_says_no_time_has_none() -> None:
    body = json.dumps({**health("i-1"), "detail": {"eventTypeCode": "AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED"}})
    assert read(body, Instant(5.0)) == (Notice(instance=InstanceId("i-1"), kind="scheduled_maintenance"),)
