"""Auto Scaling groups over moto, with what it lacks made up by `Slow`: machines that take their time, failures.

| behaviour of `Slow` | source |
|---|---|
| a machine that was asked for is not there before `arrived()` | a group launches by itself, later: memory |
| the newest activity is Failed with a message of EC2's | names: botocore's model, read; sentences: memory |
| instance refreshes, which moto does not know | states: botocore's model, read |

It is no row of tests/contract/test_compute.py, whose orders do not fit a group; each promise is kept here instead:
orders there name `count` as `total_after` whatever is there already (tokens kept apart); one request serves pools of
several names and installations, but a group is one pool's (pools kept apart, terminate, other installations); what can
never work has to be seen without the network too, and a group that is missing is not; and moto forgets the group of
a machine that ended, whose id would have to be named again (a token that does not bring machines back).
"""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from autoscaler.domain.base import InstanceId, Instant, PoolName, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import Conflict, NoCapacity, PortFault, QuotaReached, Refused
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import Bounds, Offer, Placement, Pool
from autoscaler.domain.replica import ComputeView, InstanceState, LaunchStatus
from autoscaler.ports.build import Context
from providers.compute.aws_asg import AsgCompute, Settings, scope
from tests.support import moto
from tests.support.aws_ec2_world import MovedClock


class Slow:
    """What moto does not do, hung into the SDK; counts calls that change something."""

    def __init__(self) -> None:
        self.there: set[str] | None = None  # only these are shown; None: all
        self.activities: list[dict[str, Any]] = []
        self.refreshes: list[dict[str, Any]] = []
        self.changes: Counter[str] = Counter()
        self.more: dict[str, Any] = {}  # what a group's description has besides
        self.fail_after: str = ""  # this call takes effect, and its answer is lost

    def configure(self, client: Any) -> None:
        events = client.meta.events
        for operation, key, values in (
            ("DescribeScalingActivities", "Activities", self.activities),
            ("DescribeInstanceRefreshes", "InstanceRefreshes", self.refreshes),
        ):
            events.register(f"before-call.autoscaling.{operation}", self._made(key, values))
        events.register("after-call.autoscaling", self._after)
        events.register("after-call.ec2.DescribeInstances", self._machines)

    @staticmethod
    def _made(key: str, values: list[dict[str, Any]]) -> Any:
        return lambda **_: (_Http(), {key: list(values), "ResponseMetadata": {"HTTPStatusCode": 200}})

    def _after(self, model: Any, parsed: dict[str, Any], **_: Any) -> None:
        if not model.name.startswith("Describe"):
            self.changes[model.name] += 1
        if model.name == self.fail_after:
            self.fail_after = ""
            raise ConnectionAbortedError  # as a daemon that ends here
        for group in parsed.get("AutoScalingGroups", ()):
            group.update(self.more)
            group["Instances"] = [one for one in group["Instances"] if self._is_there(one["InstanceId"])]

    def _machines(self, parsed: dict[str, Any], **_: Any) -> None:
        for one in parsed.get("Reservations", ()):
            one["Instances"] = [item for item in one["Instances"] if self._is_there(item["InstanceId"])]

    def _is_there(self, name: str) -> bool:
        return self.there is None or name in self.there


class _Http:
    status_code = 200


class Ticking(MovedClock):
    """Goes on by itself a little, so that a look is older than what was done after it."""

    @override
    def now(self) -> Instant:
        self.at += 0.001
        return Instant(self.at)


class World:
    """One account with one group `g` of pool `p`."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self._folder = url, folder
        self.installation, self.group = uuid.uuid4().hex, f"g-{uuid.uuid4().hex[:12]}"
        self.clock, self.slow = Ticking(), Slow()
        self.asg, self.account = moto.client(url, "autoscaling"), moto.account(url)
        self.made: list[AsgCompute] = []
        self.make(self.group, "p")

    def make(self, name: str, pool: str, **changed: Any) -> None:
        tags = {"autoscaler:installation": self.installation, "autoscaler:pool": pool}
        wanted = {
            "MinSize": 0,
            "MaxSize": 5,
            "DesiredCapacity": 0,
            "LaunchTemplate": {"LaunchTemplateId": self.account.template},
            "VPCZoneIdentifier": self.account.subnets["a"],
            "Tags": [{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in tags.items()],
        }
        self.asg.create_auto_scaling_group(AutoScalingGroupName=name, **{**wanted, **changed})

    def build(self) -> AsgCompute:
        context = Context(
            installation=self.installation, state_dir=str(self._folder), clock=self.clock, name="aws_asg:us-east-1"
        )
        settings = Settings(region=moto.REGION, group=self.group)
        self.made.append(AsgCompute(settings, context, self.slow.configure))
        return self.made[-1]

    def pool(self, name: str = "p", group: str = "") -> Pool:
        request = msgspec.json.encode(Settings(region=moto.REGION, group=group or self.group)).decode()
        offer = Offer(name="o", compute="aws_asg:us-east-1", request=request)
        return Pool(
            installation=self.installation, name=PoolName(name), bounds=Bounds(min=0, max=9), offers=(offer,)
        )  # fmt: skip

    def described(self) -> dict[str, Any]:
        answer = self.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[self.group])
        found: dict[str, Any] = answer["AutoScalingGroups"][0]
        return found

    @property
    def desired(self) -> int:
        return int(self.described()["DesiredCapacity"])

    def running(self) -> set[str]:
        wanted = [{"Name": "tag:aws:autoscaling:groupName", "Values": [self.group]}]
        answer = moto.client(self.url, "ec2").describe_instances(Filters=wanted)
        items = [item for one in answer["Reservations"] for item in one["Instances"]]
        return {item["InstanceId"] for item in items if item["State"]["Name"] == "running"}

    async def look(self, compute: AsgCompute, *launches: OpenLaunch) -> ComputeView:
        self.clock.at += 15
        return await compute.observe(self.pool(), launches, self.clock.now())


def order(world: World, token: str = "e7-p-3-0", count: int = 1, total: int = 0) -> Launch:
    return Launch(
        token=Token(token),
        placement=Placement(offer="o", zone="local"),
        count=count,
        total_after=total or count,
        request=world.pool().offers[0].request,
    )


def opened(one: Launch) -> OpenLaunch:
    return OpenLaunch(
        token=one.token, placement=one.placement, count=one.count, units=one.count, total_after=one.total_after,
        request=one.request, at=Instant(0), expires_at=Instant(300),
    )  # fmt: skip


@pytest.fixture
async def world(aws_environment: str, tmp_path: Path) -> AsyncIterator[World]:
    one = World(aws_environment, tmp_path)
    yield one
    for each in one.made:
        await each.aclose()


async def test_a_launch_raises_the_capacity_to_a_total_and_its_machines_carry_its_token(world: World) -> None:
    compute = world.build()
    first, second = order(world, count=2), order(world, "e7-p-4-0", total=3)
    before = int(time.time())
    state = await compute.launch(world.pool(), first)
    assert (state.status, len(state.ids), world.desired) == (LaunchStatus.DONE, 2, 2)
    view = await world.look(compute, opened(first))
    assert {(one.token, one.offer, one.zone, one.epoch) for one in view.instances} == {
        ("e7-p-3-0", "o", "local", "e7")
    }  # fmt: skip
    assert all(before <= one.launched_at <= time.time() and one.boot and one.address for one in view.instances)
    assert view.launches[first.token] == state
    more = await compute.launch(world.pool(), second)
    assert (len(more.ids), world.desired) == (1, 3)
    tokens = {one.id: one.token for one in (await world.look(compute)).instances}
    assert tokens == {**dict.fromkeys(state.ids, first.token), **dict.fromkeys(more.ids, second.token)}


async def test_a_token_raises_the_capacity_once_also_after_a_restart_and_after_its_machines_ended(
    world: World,
) -> None:
    compute, asked = world.build(), order(world, count=2)
    state = await compute.launch(world.pool(), asked)
    assert await compute.launch(world.pool(), asked) == state
    assert await world.build().launch(world.pool(), asked) == state
    await compute.terminate(world.pool(), state.ids)
    await compute.terminate(world.pool(), state.ids)
    assert (await world.look(compute)).instances == ()
    # moto forgets which group a machine was of that ended (run); EC2 lists it with its tags for about an hour.
    assert (await world.build().launch(world.pool(), asked)).status is LaunchStatus.DONE
    assert (world.desired, world.running()) == (0, set())


@pytest.mark.parametrize("call", ["CreateOrUpdateTags", "SetDesiredCapacity"])
async def test_a_daemon_that_ends_between_asking_and_noting_launches_no_second_machine(world: World, call: str) -> None:
    asked = order(world, count=2)
    world.slow.fail_after = call
    with pytest.raises(ConnectionAbortedError):
        await world.build().launch(world.pool(), asked)
    assert world.desired == (2 if call == "SetDesiredCapacity" else 0)
    state = await world.build().launch(world.pool(), asked)
    assert set(state.ids) == world.running()
    assert (len(state.ids), world.desired) == (2, 2)


async def test_launches_of_one_token_at_the_same_time_raise_it_once(world: World) -> None:
    one, other, asked = world.build(), world.build(), order(world, count=2)
    await asyncio.gather(*(each.launch(world.pool(), asked) for each in (one, other)), return_exceptions=True)
    state = await one.launch(world.pool(), asked)
    assert set(state.ids) <= world.running()
    assert world.desired == 2


async def test_a_group_that_takes_its_time_is_asked_again_and_the_next_launch_waits(world: World) -> None:
    compute, asked = world.build(), order(world)
    world.slow.there = set()
    for _ in range(3):
        with pytest.raises(Conflict, match="launched 0 of 1 so far"):
            await compute.launch(world.pool(), asked)
        view = await world.look(compute, opened(asked))
        assert (view.instances, view.launches) == ((), {})
    with pytest.raises(Conflict, match="still launches what it was asked for before"):
        await compute.launch(world.pool(), order(world, "e7-p-4-0", total=2))
    world.slow.there = None
    assert (await compute.launch(world.pool(), asked)).status is LaunchStatus.DONE
    assert world.slow.changes == {"CreateOrUpdateTags": 2, "SetDesiredCapacity": 1}


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("We currently do not have sufficient g6e.12xlarge capacity in the Availability Zone.", NoCapacity),
        ("Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity.", NoCapacity),
        ("Could not launch On-Demand Instances. VcpuLimitExceeded - You have requested more.", QuotaReached),
        ("The image id '[ami-1]' does not exist. Launching EC2 instance failed.", Refused),
    ],
)
async def test_what_a_group_cannot_launch_is_taken_back_and_told(
    world: World, message: str, kind: type[PortFault]
) -> None:
    compute, asked = world.build(), order(world, count=2)
    old = {"ActivityId": "1", "StatusCode": "Failed", "StatusMessage": "something long ago"}
    world.slow.activities.append(old)
    world.slow.there = set()
    with pytest.raises(Conflict):  # what failed before is not about this launch
        await compute.launch(world.pool(), asked)
    assert world.desired == 2
    world.slow.activities.insert(0, {"ActivityId": "2", "StatusCode": "Failed", "StatusMessage": message})
    with pytest.raises(kind) as raised:
        await compute.launch(world.pool(), asked)
    assert type(raised.value) is kind
    assert message[:40] in str(raised.value)
    assert world.desired == 0  # no machine can come after we were told that none does


async def test_fewer_than_asked_is_an_answer(world: World) -> None:
    compute, asked = world.build(), order(world, count=3)
    world.slow.there = set()
    with pytest.raises(Conflict):
        await compute.launch(world.pool(), asked)
    one = min(world.running())
    world.slow.there = {one}
    world.slow.activities.append({"ActivityId": "2", "StatusCode": "Failed", "StatusMessage": "not sufficient"})
    state = await compute.launch(world.pool(), asked)
    assert (state.status, state.ids, world.desired) == (LaunchStatus.DONE, (one,), 1)


async def test_a_launch_that_is_taken_back_lowers_the_capacity_to_what_is_there(world: World) -> None:
    compute = world.build()
    await compute.launch(world.pool(), order(world))
    world.slow.there = served = set(world.running())
    late = order(world, "e7-p-4-0", total=2)
    with pytest.raises(Conflict):
        await compute.launch(world.pool(), late)
    assert world.desired == 2
    await compute.withdraw(world.pool(), late.token)
    await compute.withdraw(world.pool(), late.token)
    # Its machine came in that very moment: the group ends that one, and not the one that serves.
    assert (world.desired, world.running()) == (1, served)
    with pytest.raises(Refused, match="withdrawn"):
        await compute.launch(world.pool(), late)
    view = await world.look(compute, opened(late))
    assert view.launches[late.token].status is LaunchStatus.FAILED
    await compute.withdraw(world.pool(), Token("e7-p-9-9"))
    assert world.desired == 1


async def test_what_a_group_replaces_by_itself_serves_the_launch_that_asks_for_it(world: World) -> None:
    compute = world.build()
    await compute.launch(world.pool(), order(world, count=2))
    kept = min(world.running())
    world.slow.there = {kept}  # one machine died, its replacement is on its way
    again = order(world, "e7-p-4-0", total=2)
    with pytest.raises(Conflict, match="launched 0 of 1 so far"):
        await compute.launch(world.pool(), again)
    assert (world.desired, world.slow.changes["SetDesiredCapacity"]) == (2, 1)
    tags = {one["Key"]: one["Value"] for one in world.described()["Tags"]}
    assert tags["autoscaler:token"] == "e7-p-4-0"  # what comes carries it


async def test_a_group_that_holds_enough_launches_nothing(world: World) -> None:
    compute = world.build()
    world.asg.set_desired_capacity(AutoScalingGroupName=world.group, DesiredCapacity=2)
    with pytest.raises(Conflict, match="holds 2 already, 1 are wanted"):
        await compute.launch(world.pool(), order(world))
    assert (world.desired, world.slow.changes) == (2, {})


async def test_an_end_takes_the_chosen_machine_and_the_group_does_not_replace_it(world: World) -> None:
    compute = world.build()
    state = await compute.launch(world.pool(), order(world, count=3))
    assert await compute.precheck(world.pool(), state.ids) == {}
    await compute.terminate(world.pool(), [state.ids[1], InstanceId("i-0")])
    assert world.running() == {state.ids[0], state.ids[2]}
    assert world.desired == 2


async def test_the_groups_own_bounds_stand_and_are_told_with_the_mend(world: World) -> None:
    compute = world.build()
    with pytest.raises(QuotaReached, match="max size 5, and 6 are wanted: raise it"):
        await compute.launch(world.pool(), order(world, count=6))
    state = await compute.launch(world.pool(), order(world, count=2))
    world.asg.update_auto_scaling_group(AutoScalingGroupName=world.group, MinSize=1)
    world.clock.at += 31
    assert list(await compute.precheck(world.pool(), state.ids)) == [state.ids[1]]
    with pytest.raises(Refused, match="min size 1"):
        await compute.terminate(world.pool(), state.ids)
    assert world.running() == {state.ids[1]}


def _policy(world: World) -> str:
    world.asg.put_scaling_policy(
        AutoScalingGroupName=world.group, PolicyName="cpu", AdjustmentType="ChangeInCapacity", ScalingAdjustment=1
    )
    return "scaling policy cpu"


def _schedule(world: World) -> str:
    world.asg.put_scheduled_update_group_action(
        AutoScalingGroupName=world.group, ScheduledActionName="night", Recurrence="0 22 * * *", DesiredCapacity=0
    )
    return "scheduled action night"


def _refresh(world: World) -> str:
    world.slow.refreshes.append({"InstanceRefreshId": "r-1", "Status": "InProgress"})
    return "instance refresh r-1 is InProgress"


def _suspended(world: World) -> str:
    world.asg.suspend_processes(AutoScalingGroupName=world.group, ScalingProcesses=["Launch", "Terminate"])
    return "is suspended: resume it"


def _rebalance(world: World) -> str:
    subnets = ",".join(world.account.subnets.values())
    zones = [f"{moto.REGION}{zone}" for zone in world.account.subnets]
    world.asg.update_auto_scaling_group(
        AutoScalingGroupName=world.group, AvailabilityZones=zones, VPCZoneIdentifier=subnets
    )
    return "AZRebalance is on"


def _health(world: World) -> str:
    world.asg.update_auto_scaling_group(AutoScalingGroupName=world.group, HealthCheckType="ELB")
    return "health check type ELB"


def _weights(world: World) -> str:
    template = {"LaunchTemplateId": world.account.template, "Version": "$Default"}
    types = [{"InstanceType": "g6e.12xlarge", "WeightedCapacity": "4"}]
    world.slow.more["MixedInstancesPolicy"] = {
        "LaunchTemplate": {"LaunchTemplateSpecification": template, "Overrides": types}
    }
    return "does not count machines"


def _lifetime(world: World) -> str:
    world.slow.more |= {"MaxInstanceLifetime": 86400, "CapacityRebalance": True}
    return "CapacityRebalance would end machines that serve: turn it off; MaxInstanceLifetime"


def _balancer(world: World) -> str:
    made = moto.client(world.url, "elbv2").create_target_group(
        Name=world.group, Protocol="HTTP", Port=80, VpcId=world.account.vpc
    )
    arn = made["TargetGroups"][0]["TargetGroupArn"]
    world.asg.attach_load_balancer_target_groups(AutoScalingGroupName=world.group, TargetGroupARNs=[arn])
    return "registers machines by itself"


RIVALS = [_policy, _schedule, _refresh, _suspended, _rebalance, _health, _balancer, _weights, _lifetime]


@pytest.mark.parametrize("rival", RIVALS)
async def test_a_group_that_something_else_scales_is_left_alone_and_it_says_what(world: World, rival: Any) -> None:
    compute = world.build()
    state = await compute.launch(world.pool(), order(world))
    says = rival(world)
    with pytest.raises(Refused, match=says):
        await compute.launch(world.pool(), order(world, "e7-p-4-0", total=2))
    with pytest.raises(Refused, match=says):
        await compute.terminate(world.pool(), state.ids)
    world.clock.at += 31
    assert says in (await compute.precheck(world.pool(), state.ids))[state.ids[0]]
    assert (world.desired, world.running()) == (1, set(state.ids))


async def test_a_schedule_that_is_over_and_a_finished_refresh_stand_in_nobodys_way(world: World) -> None:
    world.slow.refreshes.append({"InstanceRefreshId": "r-1", "Status": "Successful"})
    world.asg.put_scheduled_update_group_action(
        AutoScalingGroupName=world.group, ScheduledActionName="past", StartTime=datetime(2020, 1, 1, tzinfo=UTC),
        DesiredCapacity=0,
    )  # fmt: skip
    assert (await world.build().launch(world.pool(), order(world))).status is LaunchStatus.DONE


async def test_a_group_without_our_tags_is_never_changed(world: World) -> None:
    other = f"h-{world.group}"
    world.make(other, "q", DesiredCapacity=1)
    compute, wrong = world.build(), world.pool(group=other)
    asked = msgspec.structs.replace(order(world), request=wrong.offers[0].request)
    with pytest.raises(Refused, match="with the tags autoscaler:installation"):
        await compute.launch(wrong, asked)
    with pytest.raises(Refused, match="make it, or tag it"):
        await compute.observe(wrong, (), world.clock.now())
    there = world.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[other])["AutoScalingGroups"][0]
    await compute.terminate(world.pool(), [InstanceId(there["Instances"][0]["InstanceId"])])
    assert world.slow.changes == {}
    world.clock.at += 61
    view = await world.look(compute)
    assert there["Instances"][0]["InstanceId"] in {one.id for one in view.foreign}


async def test_machines_that_leave_are_leaving_and_unchanged_ones_stay_the_same_object(world: World) -> None:
    compute = world.build()
    state = await compute.launch(world.pool(), order(world, count=2))
    first = {one.id: one for one in (await world.look(compute)).instances}
    world.asg.enter_standby(
        AutoScalingGroupName=world.group, InstanceIds=[state.ids[0]], ShouldDecrementDesiredCapacity=True
    )
    second = {one.id: one for one in (await world.look(compute)).instances}
    assert second[state.ids[1]] is first[state.ids[1]]
    assert second[state.ids[0]].state is InstanceState.RUNNING
    world.slow.there = {state.ids[0]}
    assert [one.id for one in (await world.look(compute)).instances] == [state.ids[0]]


async def test_standby_is_refused_with_the_way_out(world: World) -> None:
    compute = world.build()
    for call in (compute.start, compute.stop):
        with pytest.raises(Refused, match="aws_ec2"):
            await call(world.pool(), [InstanceId("i-0")])


def test_an_offer_says_what_is_wrong_with_it(world: World) -> None:
    offer = world.pool().offers[0]
    compute = world.build()
    assert compute.check_offer(offer) == []
    wrong = msgspec.structs.replace(offer, zones=("a", "b"), market="spot")
    assert len(compute.check_offer(wrong)) == 2
    (mistake,) = compute.check_offer(msgspec.structs.replace(offer, request='{"region": "x", "group": "g"}'))
    assert mistake.startswith("offer o: ")
    assert scope(Settings(region="eu-west-1", group="g", profile="me")) == "me@eu-west-1"
