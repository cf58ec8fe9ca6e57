"""Launches of aws_ec2 that go wrong in the ways of EC2: replays, lacks, limits, silence, machines that end at once."""

import asyncio
import re
from typing import Any

import msgspec
import pytest

from autoscaler.domain.base import Token
from autoscaler.domain.faults import (
    Conflict,
    FaultKind,
    NoCapacity,
    PortFault,
    QuotaReached,
    Refused,
    Throttled,
    Unreachable,
)
from autoscaler.domain.replica import LaunchStatus
from providers._shared import aws, aws_clients
from providers._shared.aws import fault_of
from providers.compute.aws_ec2.orders import client_token, run_instances
from tests.support.aws_ec2_world import World, ids, opened, order
from tests.support.aws_quirks import Failure, error


async def test_a_token_gives_its_machines_again_after_a_restart(world: World) -> None:
    pool = world.pool()
    first = await world.build().launch(pool, order(pool, count=2))
    assert await world.build().launch(pool, order(pool, count=2)) == first
    assert sorted(world.states()) == sorted(first.ids)


async def test_a_token_whose_offer_changed_meanwhile_gives_what_it_gave(world: World) -> None:
    pool, other = world.pool(), world.pool(instance_type="p5.48xlarge")
    first = await world.build().launch(pool, order(pool))
    again = await world.build().launch(other, order(other))
    assert again == first
    assert list(world.states()) == list(first.ids)


async def test_a_mismatch_whose_machines_are_not_listed_yet_is_a_conflict_and_starts_nothing(world: World) -> None:
    pool, other = world.pool(), world.pool(instance_type="p5.48xlarge")
    await world.build().launch(pool, order(pool))
    world.quirks.unlisted_s = 30
    restarted = world.build()
    with pytest.raises(Conflict, match="not listed yet"):
        await restarted.launch(other, order(other))
    assert len(world.states()) == 1
    world.clock.at += 31
    assert (await restarted.launch(other, order(other))).status is LaunchStatus.DONE


async def test_a_machine_that_is_not_listed_yet_is_shown_until_its_grace_ends(world: World) -> None:
    world.quirks.unlisted_s = 1000
    compute, pool = world.build(), world.pool(not_found_grace=60)
    asked = order(pool)
    state = await compute.launch(pool, asked)
    for _ in range(3):
        view = await world.look(compute, pool, opened(asked, world.clock.now()))
        assert (ids(view), view.launches[asked.token]) == (list(state.ids), state)
        world.clock.at += 19
    world.clock.at += 10
    assert ids(await world.look(compute, pool)) == []


async def test_fewer_than_asked_is_an_answer(world: World) -> None:
    world.quirks.room["us-east-1a"] = 2
    compute, pool = world.build(), world.pool()
    asked = order(pool, count=5)
    state = await compute.launch(pool, asked)
    assert (state.status, len(state.ids)) == (LaunchStatus.DONE, 2)
    assert (await world.look(compute, pool, opened(asked, world.clock.now()))).launches[asked.token] == state


async def test_a_zone_without_room_says_so_and_the_next_one_has_some(world: World) -> None:
    world.quirks.room["us-east-1a"] = 0
    compute, pool = world.build(), world.pool()
    with pytest.raises(NoCapacity, match="InsufficientInstanceCapacity"):
        await compute.launch(pool, order(pool, zone="a"))
    assert world.quirks.calls.count("RunInstances") == 1  # the SDK must not repeat it by itself
    assert (await compute.launch(pool, order(pool, "e7-p-4-0", zone="b"))).status is LaunchStatus.DONE


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("UnfulfillableCapacity", 400, NoCapacity),
        ("Unsupported", 400, NoCapacity),
        ("InsufficientFreeAddressesInSubnet", 400, NoCapacity),
        ("ReservationCapacityExceeded", 400, NoCapacity),
        ("SpotMaxPriceTooLow", 400, NoCapacity),
        ("VcpuLimitExceeded", 400, QuotaReached),
        ("InstanceLimitExceeded", 400, QuotaReached),
        ("MaxSpotInstanceCountExceeded", 400, QuotaReached),
        ("PendingVerification", 400, Unreachable),
        ("ExpiredToken", 400, Unreachable),
        ("RequestExpired", 400, Unreachable),
        ("InvalidAMIID.NotFound", 400, Refused),
        ("InvalidLaunchTemplateId.NotFound", 400, Refused),
        ("UnauthorizedOperation", 403, Refused),
        ("SomethingNew", 400, Refused),
        ("SomethingNew", 500, Unreachable),
    ],
)
async def test_each_code_of_a_launch_is_a_fault_by_what_to_do_next(
    world: World, code: str, status: int, kind: type[PortFault]
) -> None:
    world.quirks.failures.append(Failure(code, status, action="RunInstances"))
    compute, pool = world.build(), world.pool()
    with pytest.raises(kind, match=re.escape(code)) as raised:
        await compute.launch(pool, order(pool))
    assert type(raised.value) is kind
    assert (world.states(), world.quirks.calls.count("RunInstances")) == ({}, 1)


async def test_throttling_passes_on_how_long_to_wait(world: World) -> None:
    world.quirks.failures.append(Failure("RequestLimitExceeded", 503, action="RunInstances", retry_after=7))
    compute, pool = world.build(), world.pool()
    with pytest.raises(Throttled) as raised:
        await compute.launch(pool, order(pool))
    assert raised.value.fault.retry_after_s == 7
    assert world.quirks.calls.count("RunInstances") == 1


@pytest.mark.parametrize("took_effect", [False, True])
async def test_an_error_of_the_service_loses_no_machine(world: World, took_effect: bool) -> None:
    compute, pool = world.build(), world.pool()
    world.quirks.failures.append(Failure("InternalError", 500, action="RunInstances", took_effect=took_effect))
    with pytest.raises(Unreachable):
        await compute.launch(pool, order(pool))
    there = list(world.states())
    assert len(there) == took_effect
    world.quirks.failures.clear()
    state = await compute.launch(pool, order(pool))
    assert list(state.ids) == list(world.states())
    assert not took_effect or list(state.ids) == there


async def test_a_launch_without_an_answer_is_not_taken_back_before_its_machines_would_show(world: World) -> None:
    world.quirks.unlisted_s = 30
    compute, pool = world.build(), world.pool(not_found_grace=60)
    asked = order(pool)
    world.quirks.failures.append(Failure("InternalError", 500, action="RunInstances", took_effect=True))
    with pytest.raises(Unreachable):
        await compute.launch(pool, asked)
    world.quirks.failures.clear()
    with pytest.raises(Unreachable, match="is known in 60 s"):
        await compute.withdraw(pool, asked.token)
    with pytest.raises(Refused, match="withdrawn"):
        await compute.launch(pool, asked)
    withdrawn = opened(asked, world.clock.now(), withdrawn=True)
    assert (await world.look(compute, pool, withdrawn)).launches == {}  # neither failed nor there: not known
    world.clock.at += 31
    assert (await world.look(compute, pool, withdrawn)).launches[asked.token].status is LaunchStatus.DONE
    world.clock.at += 30
    await compute.withdraw(pool, asked.token)


async def test_a_call_that_hangs_ends_within_the_socket_timeout(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the other side gives up
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    monkeypatch.setattr(aws_clients, "READ_S", 0.2)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    account = aws.Account("us-east-1")
    with pytest.raises(Unreachable, match="ReadTimeoutError"):
        await asyncio.wait_for(account.call("ec2", "describe_instances"), 20)
    await account.aclose()
    server.close()


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Server.InsufficientInstanceCapacity", FaultKind.NO_CAPACITY),
        ("Server.SpotInstanceTermination", FaultKind.NO_CAPACITY),
        ("Client.VolumeLimitExceeded", FaultKind.QUOTA_REACHED),
        ("Client.InternalError", FaultKind.REFUSED),
        ("Client.InstanceInitiatedShutdown", FaultKind.REFUSED),
    ],
)
async def test_a_launch_whose_machines_ended_at_once_has_failed_for_their_reason(
    world: World, reason: str, kind: FaultKind
) -> None:
    compute, pool = world.build(), world.pool()
    asked = order(pool)
    (machine,) = (await compute.launch(pool, asked)).ids
    world.quirks.held[machine] = ("terminated", reason)
    view = await world.look(compute, pool, opened(asked, world.clock.now()))
    state = view.launches[asked.token]
    assert (view.instances, state.status, state.ids) == ((), LaunchStatus.FAILED, (machine,))
    assert state.fault is not None
    assert state.fault.kind is kind
    assert reason in state.fault.detail
    assert machine in state.fault.detail


async def test_a_launch_of_which_some_ended_at_once_gave_fewer_than_asked(world: World) -> None:
    compute, pool = world.build(), world.pool()
    asked = order(pool, count=3)
    state = await compute.launch(pool, asked)
    world.quirks.held[state.ids[1]] = ("terminated", "Client.InternalError")
    view = await world.look(compute, pool, opened(asked, world.clock.now()))
    assert view.launches[asked.token].ids == (state.ids[0], state.ids[2])
    assert view.launches[asked.token].status is LaunchStatus.DONE


@pytest.mark.parametrize(
    ("market", "changed", "options"),
    [
        ("on_demand", {}, None),
        ("spot", {}, {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}),
        ("capacity_block", {"reservation": "cr-1"}, {"MarketType": "capacity-block"}),
        ("reservation", {"reservation": "cr-1"}, None),
    ],
)
def test_a_market_becomes_parameters_and_the_token_fits(
    world: World, market: str, changed: dict[str, Any], options: dict[str, Any] | None
) -> None:
    pool = world.pool(market=market, **changed)
    asked = run_instances(pool, order(pool), world.settings(**changed), market, "")
    assert asked.get("InstanceMarketOptions") == options
    target = asked.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget")
    assert target == ({"CapacityReservationId": "cr-1"} if changed else None)
    assert (asked["MinCount"], asked["MaxCount"], asked["Placement"]) == (1, 1, {"AvailabilityZone": "us-east-1a"})
    assert len(asked["ClientToken"]) <= 64


def test_tokens_of_other_pools_and_long_names_stay_apart(world: World) -> None:
    pools = [world.pool(name) for name in ("p", "q", "a" * 63, "a" * 62 + "b")]
    tokens = {client_token(pool, Token("e7-x-3-0")) for pool in pools}
    assert len(tokens) == 4
    assert all(re.fullmatch(r"[\x21-\x7e]{1,64}", one) for one in tokens)


async def test_each_zone_has_its_subnet_and_offers_do_not_share_them_by_mistake(world: World) -> None:
    subnets = world.account.subnets
    both, only_b = world.pool("both", subnets=tuple(subnets.values())), world.pool("only", subnets=(subnets["b"],))
    compute = world.build()
    for token, pool, zone in (("e7-1-0", both, "a"), ("e7-2-0", both, "b"), ("e7-3-0", only_b, "b")):
        (machine,) = (await compute.launch(pool, order(pool, token, zone=zone))).ids
        assert world.parameters(machine)["SubnetId"] == subnets[zone]
    with pytest.raises(Refused, match=r"none of the subnets .* is in us-east-1a"):
        await compute.launch(only_b, order(only_b, "e7-4-0", zone="a"))
    assert world.quirks.calls.count("DescribeSubnets") == 2
    wrong = world.pool("wrong", subnets=("subnet-0",))
    with pytest.raises(Refused, match=r"InvalidSubnetID\.NotFound"):
        await compute.launch(wrong, order(wrong, "e7-5-0"))


async def test_an_offer_that_left_the_config_starts_nothing(world: World) -> None:
    pool = world.pool()
    renamed = msgspec.structs.replace(pool, offers=(msgspec.structs.replace(pool.offers[0], name="other"),))
    with pytest.raises(Refused, match="no longer in the config"):
        await world.build().launch(renamed, order(pool))
    assert world.states() == {}


async def test_withdrawn_tokens_are_not_kept_for_ever(world: World) -> None:
    compute, pool = world.build(), world.pool()
    for n in range(50):
        await compute.withdraw(pool, Token(f"e7-{n}-0"))
    world.clock.at += 3601
    await compute.withdraw(pool, Token("e7-last-0"))
    assert len(compute._withdrawn) == 1


async def test_what_was_withdrawn_before_a_restart_is_closed_by_withdrawing_it_again(world: World) -> None:
    pool = world.pool()
    asked = order(pool)
    await world.build().withdraw(pool, asked.token)
    restarted = world.build()
    view = await world.look(restarted, pool, opened(asked, world.clock.now(), withdrawn=True))
    assert view.launches == {}  # the outcome of the withdrawal says that it is over, and no failure is counted
    await restarted.withdraw(pool, asked.token)
    with pytest.raises(Refused, match="withdrawn"):
        await restarted.launch(pool, asked)


async def test_a_machine_with_a_public_address_shows_that_one_and_stays_the_same_object(world: World) -> None:
    subnet = world.account.subnets["a"]
    world.ec2.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
    pool = world.pool(subnets=(subnet,), address="public")
    compute = world.build()
    (machine,) = (await compute.launch(pool, order(pool))).ids
    first = await world.one(compute, pool)
    assert first.address == world.parameters(machine)["PublicIpAddress"]
    world.clock.at += 15
    assert await world.one(compute, pool) is first


def test_error_texts_hide_what_opens_an_account() -> None:
    from botocore.exceptions import ClientError

    secret = "AKIAIOSFODNN7EXAMPLE"
    told = f"not authorized, key {secret}. Encoded authorization failure message: aBcD-{'x' * 300}"
    answer = {"Error": {"Code": "UnauthorizedOperation", "Message": told}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    text = str(fault_of("run_instances", ClientError(answer, "RunInstances")))
    assert text.startswith("run_instances: An error occurred (UnauthorizedOperation)")
    assert secret not in text
    assert "aBcD" not in text
    assert len(text) < 400


async def test_an_answer_that_is_none_of_aws_proves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, pool = world.build(), world.pool()
    page = error("ec2", "x", 200)._replace(body=b"<html>proxy: sign in</body>")
    monkeypatch.setattr(world.quirks, "answer", lambda *_: page)
    with pytest.raises(Unreachable, match="none of AWS"):
        await world.look(compute, pool)


async def test_an_address_of_aws_that_is_none_is_a_persons_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no address")
    account = aws.Account("us-east-1")
    with pytest.raises(Refused, match="Invalid endpoint"):
        await account.read("ec2", "describe_instances")
    await account.aclose()
