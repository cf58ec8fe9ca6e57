"""Machines that end, stop, start or are adopted; and those that aws_ec2 leaves alone."""

import pytest

from autoscaler.domain.base import NEVER, InstanceId
from autoscaler.domain.faults import Refused, Throttled
from autoscaler.domain.replica import InstanceState
from tests.support import moto
from tests.support.aws_ec2_world import World, ids, order
from tests.support.aws_quirks import Failure


async def test_one_protected_machine_keeps_no_other_from_its_end(world: World) -> None:
    """EC2 refuses the whole zone of a protected machine and ends those of other zones all the same."""
    compute, pool = world.build(), world.pool()
    in_a = (await compute.launch(pool, order(pool, count=3))).ids
    in_b = (await compute.launch(pool, order(pool, "e7-p-4-0", count=2, zone="b"))).ids
    kept = in_a[1]
    world.quirks.protected.add(kept)
    with pytest.raises(Refused, match=kept):
        await compute.terminate(pool, [*in_a, *in_b])
    assert {one for one, state in world.states().items() if state == "running"} == {kept}
    (left,) = [one for one in (await world.look(compute, pool)).instances if one.state is InstanceState.RUNNING]
    assert (left.id, left.protected) == (kept, True)
    assert "OperationNotPermitted" in left.detail
    calls = world.quirks.calls.count("TerminateInstances")
    assert calls == 2  # all five; the two of zone a that were held up by the third
    with pytest.raises(Refused, match=kept):
        await compute.terminate(pool, [kept])
    assert world.quirks.calls.count("TerminateInstances") == calls


async def test_a_protection_that_was_lifted_is_found_out(world: World) -> None:
    compute, pool = world.build(), world.pool()
    (machine,) = (await compute.launch(pool, order(pool))).ids
    world.quirks.protected.add(machine)
    with pytest.raises(Refused):
        await compute.terminate(pool, [machine])
    world.quirks.protected.clear()
    world.clock.at += 601
    assert not (await world.one(compute, pool)).protected
    await compute.terminate(pool, [machine])
    assert world.states() == {machine: "terminated"}
    assert compute._changes._refusing == {}


async def test_what_would_be_refused_is_known_before(world: World) -> None:
    compute, pool = world.build(), world.pool()
    state = await compute.launch(pool, order(pool, count=3))
    world.ec2.modify_instance_attribute(InstanceId=state.ids[0], DisableApiTermination={"Value": True})
    world.ec2.create_tags(Resources=[state.ids[1]], Tags=[{"Key": "autoscaler:protected", "Value": "true"}])
    await compute.observe(pool, (), world.clock.now())
    world.clock.at += 31
    found = await compute.precheck(pool, [*state.ids, InstanceId("i-0")])
    assert sorted(found) == sorted(state.ids[:2])
    assert "DisableApiTermination" in found[state.ids[0]]
    assert "autoscaler:protected" in found[state.ids[1]]
    assert {one.id for one in (await world.look(compute, pool)).instances if one.protected} == {state.ids[1]}


async def test_a_stopped_machine_is_started_in_another_boot(world: World) -> None:
    compute, pool = world.build(), world.pool()
    (machine,) = (await compute.launch(pool, order(pool))).ids
    first = await world.one(compute, pool)
    await compute.start(pool, [machine])  # it runs: nothing to do
    await compute.stop(pool, [machine])
    assert (await world.one(compute, pool)).state is InstanceState.STOPPED
    await compute.stop(pool, [machine])
    world.clock.at += 100
    await compute.start(pool, [machine])
    second = await world.one(compute, pool)
    assert (second.state, second.id, second.token) == (InstanceState.RUNNING, first.id, first.token)
    assert second.boot != first.boot
    assert int(second.launched_at) == int(world.clock.at)
    assert [world.quirks.calls.count(f"{one}Instances") for one in ("Stop", "Start")] == [1, 1]


@pytest.mark.parametrize("call", ["terminate", "stop"])
async def test_machines_of_a_group_of_others_and_of_nobody_are_never_touched(world: World, call: str) -> None:
    compute, pool = world.build(), world.pool()
    (mine,) = (await compute.launch(pool, order(pool))).ids
    (other,) = (await compute.launch(world.pool("other"), order(world.pool("other")))).ids
    answer = world.ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1)
    nobody = InstanceId(answer["Instances"][0]["InstanceId"])
    grouped = _in_a_group(world, "p")
    world.quirks.calls.clear()
    await getattr(compute, call)(pool, [other, nobody, grouped, mine])
    running = {
        item["InstanceId"]
        for one in world.ec2.describe_instances()["Reservations"]
        for item in one["Instances"]
        if item["State"]["Name"] == "running"
    }
    assert {other, nobody, grouped} <= running
    assert mine not in running
    view = await world.look(compute, pool)
    assert grouped not in ids(view)
    assert grouped in {one.id for one in view.foreign}


def _in_a_group(world: World, pool: str) -> InstanceId:
    """A machine with this pool's tags in an Auto Scaling group."""
    name = f"g-{world.installation}"
    tags = {"autoscaler:installation": world.installation, "autoscaler:pool": pool}
    asg = moto.client(world.account.url, "autoscaling")
    asg.create_auto_scaling_group(
        AutoScalingGroupName=name,
        MinSize=0,
        MaxSize=2,
        DesiredCapacity=1,
        LaunchTemplate={"LaunchTemplateId": world.account.template},
        VPCZoneIdentifier=world.account.subnets["a"],
        Tags=[{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in tags.items()],
    )
    answer = asg.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    return InstanceId(answer["AutoScalingGroups"][0]["Instances"][0]["InstanceId"])


async def test_a_machine_is_adopted_in_its_zone_and_one_of_a_group_is_not(world: World) -> None:
    compute, pool, before = world.build(), world.pool(), world.pool("before")
    (machine,) = (await compute.launch(before, order(before, zone="b"))).ids
    world.ec2.delete_tags(Resources=[machine], Tags=[{"Key": "autoscaler:zone"}])
    grouped = _in_a_group(world, "before")
    with pytest.raises(Refused, match="belongs to the Auto Scaling group"):
        await compute.adopt(pool, [grouped])
    with pytest.raises(Refused, match="i-0 cannot be adopted"):
        await compute.adopt(pool, [InstanceId("i-0")])
    await compute.adopt(pool, [machine])
    adopted = await world.one(compute, pool)
    assert (adopted.id, adopted.zone, adopted.offer) == (machine, "b", "o")
    assert ids(await world.look(compute, before)) == []


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("pending", InstanceState.PENDING),
        ("shutting-down", InstanceState.STOPPING),
        ("stopping", InstanceState.STOPPING),
        ("stopped", InstanceState.STOPPED),
        ("hibernating", InstanceState.RUNNING),
    ],
)
async def test_every_state_of_ec2_has_a_meaning_and_a_new_one_ends_no_machine(
    world: World, state: str, shown: InstanceState
) -> None:
    compute, pool = world.build(), world.pool()
    (machine,) = (await compute.launch(pool, order(pool))).ids
    world.quirks.held[machine] = (state, "")
    found = await world.one(compute, pool)
    assert found.state is shown
    assert ("not known" in found.detail) == (state == "hibernating")


async def test_an_end_that_was_throttled_is_told_and_changes_nothing(world: World) -> None:
    compute, pool = world.build(), world.pool()
    (machine,) = (await compute.launch(pool, order(pool))).ids
    world.quirks.failures.append(Failure("RequestLimitExceeded", 503, action="TerminateInstances"))
    with pytest.raises(Throttled):
        await compute.terminate(pool, [machine])
    assert world.states() == {machine: "running"}
    assert (await compute.observe(pool, (), NEVER)).instances[0].id == machine
