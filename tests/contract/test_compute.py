"""What every compute adapter must do, against real machines or a faithful emulator. One row in HARNESSES an adapter."""

import asyncio
import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest

from autoscaler.domain.base import NEVER, Duration, InstanceId, Instant, PoolName, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import Refused
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import Bounds, Offer, Placement, Pool
from autoscaler.domain.replica import InstanceState, LaunchStatus
from autoscaler.lab.adapters import SimulatedCompute
from autoscaler.ports.build import Context
from autoscaler.ports.compute import Compute
from providers.compute import aws_ec2, local_process, static_hosts
from tests.support import moto
from tests.support.aws_quirks import Quirks, hook
from tests.support.lab_world import a_compute
from tests.support.own_hosts import end_hosts, host_settings
from tests.support.streaming import WallClock

pytestmark = pytest.mark.e2e

CLOCK = WallClock()


class World(NamedTuple):
    """Where machines come from. `again`: another adapter on the same account, as after a restart of the daemon.

    `request`: an offer that works; `impossible`: one that can never work, for what `wrong` says (empty where a request
    is not read at all, as in the lab); `gone_within_s`: how long a machine may take to end.
    """

    compute: Compute
    again: Callable[[], Compute]
    request: str
    impossible: str
    gone_within_s: float
    installation: str
    zone: str = "local"
    wrong: str = "no-such-program"

    def pool(self, name: str = "p", installation: str = "") -> Pool:
        """A pool of this world."""
        offer = Offer(name="offer", compute="c", zones=(self.zone,), request=self.request)
        bounds = Bounds(min=0, max=10)
        owner = f"{self.installation}{installation}"
        return Pool(installation=owner, name=PoolName(name), bounds=bounds, offers=(offer,))


Harness = Callable[[Path, pytest.FixtureRequest], AbstractAsyncContextManager[World]]


@asynccontextmanager
async def _local_process(folder: Path, _: pytest.FixtureRequest) -> AsyncGenerator[World]:
    installation = uuid.uuid4().hex  # tests that run at the same time share this machine

    def build() -> Compute:
        return local_process.build(settings, Context(installation=installation, state_dir=str(folder), clock=CLOCK))

    def request(program: str) -> local_process.Settings:
        command = (program, "-c", "import time; time.sleep(300)", "{port}")
        return local_process.Settings(command=command, grace=Duration(1.0))

    settings = request(sys.executable)
    compute = build()
    try:
        yield World(
            compute,
            build,
            msgspec.json.encode(settings).decode(),
            msgspec.json.encode(request("no-such-program")).decode(),
            gone_within_s=5.0,
            installation=installation,
        )
    finally:
        await compute.aclose()
        end_all(folder)


def end_all(folder: Path) -> None:
    """End every process that has this test's folder in its records: nothing is left running."""
    for record in (folder / "local_process").glob("*/*.json"):
        found = msgspec.json.decode(record.read_bytes())
        with contextlib.suppress(psutil.Error, KeyError):
            process = psutil.Process(found["pid"])
            if process.environ().get("AUTOSCALER_TAG_INSTANCE") == found["tags"]["instance"]:
                os.killpg(process.pid, signal.SIGKILL)


@asynccontextmanager
async def _static_hosts(folder: Path, _: pytest.FixtureRequest) -> AsyncGenerator[World]:
    installation = uuid.uuid4().hex
    settings = host_settings(folder)

    def build() -> Compute:
        return static_hosts.build(settings, Context(installation=installation, state_dir=str(folder), clock=CLOCK))

    compute = build()
    try:
        yield World(
            compute,
            build,
            msgspec.json.encode(settings).decode(),
            msgspec.json.encode(msgspec.structs.replace(settings, start=("no-such-program", "{name}"))).decode(),
            gone_within_s=5.0,
            installation=installation,
        )
    finally:
        await compute.aclose()
        end_hosts(folder)


@asynccontextmanager
async def _aws_ec2(folder: Path, request: pytest.FixtureRequest) -> AsyncGenerator[World]:
    """EC2 as moto imitates it, with what moto lacks made up by tests/support/aws_quirks.py."""
    url: str = request.getfixturevalue("moto_url")
    request.getfixturevalue("aws_environment")
    there = moto.account(url)
    quirks = Quirks(CLOCK.now)
    quirks.pending_s = 0.2
    settings = aws_ec2.Settings(region=moto.REGION, launch_template=there.template)
    installation = uuid.uuid4().hex
    context = Context(installation=installation, state_dir=str(folder), clock=CLOCK)

    def build() -> Compute:
        return aws_ec2.Ec2Compute(settings, context, hook(quirks))

    compute = build()
    works = msgspec.json.encode(settings).decode()
    try:
        yield World(
            compute,
            build,
            works,
            works.replace("$Default", "no-such-version"),
            gone_within_s=5.0,
            installation=installation,
            zone="a",
            wrong="no-such-version",
        )
    finally:
        await compute.aclose()


@asynccontextmanager
async def _lab(_: Path, __: pytest.FixtureRequest) -> AsyncGenerator[World]:
    """The lab's simulated cloud, on the machine's clock."""
    compute, account = a_compute(CLOCK, "c")
    yield World(
        compute,
        lambda: SimulatedCompute("c", account),
        request="",
        impossible="",
        gone_within_s=5.0,
        installation="lab",
        wrong="",
    )


HARNESSES: dict[str, Harness] = {
    "aws_ec2": _aws_ec2,
    "lab": _lab,
    "local_process": _local_process,
    "static_hosts": _static_hosts,
}


@pytest.fixture(params=HARNESSES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[World]:
    async with HARNESSES[request.param](tmp_path, request) as one:
        yield one


def an_order(world: World, token: str = "e7-3-0", count: int = 1) -> Launch:
    placement = Placement(offer="offer", zone=world.zone)
    return Launch(token=Token(token), placement=placement, count=count, total_after=count, request=world.request)


def opened(order: Launch) -> OpenLaunch:
    return OpenLaunch(
        token=order.token,
        placement=order.placement,
        count=order.count,
        units=order.count,
        total_after=order.total_after,
        request=order.request,
        at=CLOCK.now(),
        expires_at=Instant(CLOCK.now() + 300),
    )


async def ids(compute: Compute, pool: Pool) -> list[InstanceId]:
    """Return the machines that are there and not on their way out."""
    view = await compute.observe(pool, (), CLOCK.now())
    return [one.id for one in view.instances if one.state is not InstanceState.STOPPING]


async def until_gone(world: World, pool: Pool) -> None:
    end = time.monotonic() + world.gone_within_s
    while (await world.compute.observe(pool, (), CLOCK.now())).instances:
        assert time.monotonic() < end, "the machines are still there"
        await asyncio.sleep(0.05)


async def test_an_empty_account_shows_an_empty_pool(world: World) -> None:
    view = await world.compute.observe(world.pool(), (), CLOCK.now())
    assert (view.instances, view.launches) == ((), {})


async def test_a_launch_shows_machines_with_token_offer_zone_and_epoch(world: World) -> None:
    before = CLOCK.now()
    order = an_order(world, count=2)
    state = await world.compute.launch(world.pool(), order)
    view = await world.compute.observe(world.pool(), [opened(order)], CLOCK.now())
    assert state.status is LaunchStatus.DONE
    assert sorted(one.id for one in view.instances) == sorted(state.ids)
    assert len(set(state.ids)) == 2
    assert len({(one.address, one.ports) for one in view.instances}) == 2
    for one in view.instances:
        assert (one.token, one.offer, one.zone, one.epoch) == (order.token, "offer", world.zone, "e7")
        assert one.state in {InstanceState.PENDING, InstanceState.RUNNING}
        assert int(before) <= one.launched_at <= CLOCK.now()  # clouds tell whole seconds
        assert one.boot
    assert view.launches[order.token] == state


async def test_the_same_token_gives_the_same_machines(world: World) -> None:
    order = an_order(world, count=2)
    first = await world.compute.launch(world.pool(), order)
    assert await world.compute.launch(world.pool(), order) == first
    other = world.again()
    assert await other.launch(world.pool(), order) == first
    assert sorted(await ids(other, world.pool())) == sorted(first.ids)
    await other.aclose()


async def test_launches_of_one_token_at_the_same_time_start_it_once(world: World) -> None:
    order, other = an_order(world, count=2), world.again()
    states = await asyncio.gather(*(one.launch(world.pool(), order) for one in (world.compute, other) * 3))
    assert {state.ids for state in states} == {states[0].ids}
    assert sorted(await ids(world.compute, world.pool())) == sorted(states[0].ids)
    await other.aclose()


async def test_tokens_and_pools_are_kept_apart(world: World) -> None:
    one, other = world.pool("one"), world.pool("other")
    first = await world.compute.launch(one, an_order(world))
    second = await world.compute.launch(other, an_order(world))
    third = await world.compute.launch(one, an_order(world, token="e7-4-0"))
    assert sorted(await ids(world.compute, one)) == sorted((*first.ids, *third.ids))
    assert await ids(world.compute, other) == list(second.ids)


async def test_a_machine_keeps_its_boot_from_look_to_look(world: World) -> None:
    await world.compute.launch(world.pool(), an_order(world))
    other = world.again()
    looks = [await one.observe(world.pool(), (), CLOCK.now()) for one in (world.compute, other, world.compute)]
    assert len({look.instances for look in looks}) == 1
    await other.aclose()


async def test_an_observation_is_as_young_as_asked_for(world: World) -> None:
    asked = CLOCK.now()
    first = await world.compute.observe(world.pool(), (), asked)
    assert first.as_of >= asked
    assert (await world.compute.observe(world.pool(), (), NEVER)).as_of >= first.as_of


async def test_an_unknown_token_is_not_invented(world: World) -> None:
    order = an_order(world, token="e7-9-9")
    view = await world.compute.observe(world.pool(), [opened(order)], CLOCK.now())
    assert order.token not in view.launches


async def test_what_can_never_work_is_refused_in_words(world: World) -> None:
    if not world.wrong:
        # A simulated machine is what the world's settings say: no request can be wrong, and any is let pass.
        offer = msgspec.structs.replace(world.pool().offers[0], request="no-such-program")
        assert world.compute.check_offer(offer) == []
        return
    order = msgspec.structs.replace(an_order(world), request=world.impossible)
    with pytest.raises(Refused, match=world.wrong):
        await world.compute.launch(world.pool(), order)
    assert await ids(world.compute, world.pool()) == []
    offer = msgspec.structs.replace(world.pool().offers[0], request=world.impossible)
    (mistake,) = world.compute.check_offer(offer)
    assert mistake.startswith("offer offer: ")
    assert world.compute.check_offer(world.pool().offers[0]) == []


async def test_terminated_machines_go_and_their_token_does_not_bring_them_back(world: World) -> None:
    order = an_order(world, count=2)
    state = await world.compute.launch(world.pool(), order)
    await world.compute.terminate(world.pool(), state.ids[:1])
    assert await ids(world.compute, world.pool()) == list(state.ids[1:])
    await world.compute.terminate(world.pool(), state.ids)
    await world.compute.terminate(world.pool(), state.ids)
    await until_gone(world, world.pool())
    await world.compute.terminate(world.pool(), state.ids)
    assert (await world.compute.launch(world.pool(), order)).ids == state.ids
    assert await ids(world.compute, world.pool()) == []


async def test_terminate_touches_only_the_pool_that_asks(world: World) -> None:
    state = await world.compute.launch(world.pool("mine"), an_order(world))
    await world.compute.terminate(world.pool("other"), state.ids)
    await world.compute.terminate(world.pool("mine", installation="elsewhere"), state.ids)
    await world.compute.terminate(world.pool("mine"), [])
    await asyncio.sleep(0.3)
    assert await ids(world.compute, world.pool("mine")) == list(state.ids)


async def test_machines_of_another_installation_are_reported_and_not_shown_as_ours(world: World) -> None:
    state = await world.compute.launch(world.pool(installation="elsewhere"), an_order(world))
    view = await world.compute.observe(world.pool(), (), CLOCK.now())
    assert view.instances == ()
    assert set(state.ids) <= {one.id for one in view.foreign}


async def test_a_token_that_was_taken_back_starts_nothing(world: World) -> None:
    order = an_order(world)
    await world.compute.withdraw(world.pool(), order.token)
    await world.compute.withdraw(world.pool(), order.token)
    with pytest.raises(Refused, match="withdrawn"):
        await world.compute.launch(world.pool(), order)
    view = await world.compute.observe(world.pool(), [opened(order)], CLOCK.now())
    assert (view.instances, view.launches[order.token].status) == ((), LaunchStatus.FAILED)


async def test_a_removal_that_would_be_accepted_is_not_objected_to(world: World) -> None:
    state = await world.compute.launch(world.pool(), an_order(world))
    assert await world.compute.precheck(world.pool(), state.ids) == {}
