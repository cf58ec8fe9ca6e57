"""HAProxy under 50 streaming clients: members come, change their weight, drain and go, and nobody loses a request.

Somebody else runs the HAProxy, reloads it in the middle of rounds, and restarts it when no client is inside (a hard
restart cuts what is inside, whoever asks for it). Retries are off, so no failure is hidden.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pytest

from autoscaler.domain.base import PoolName
from autoscaler.domain.replica import Traffic
from autoscaler.ports.build import Context
from providers.balancer import haproxy
from providers.balancer.haproxy import HaproxyBalancer, Settings
from tests.support.haproxy import Someones, someone_elses
from tests.support.streaming import Backend, WallClock, ask_many, backends, clients

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(120)]

CLIENTS = 50
ROUNDS = 20
STREAM_S = 1.0
#: Rounds in which HAProxy is reloaded: after the admission, and between the drain and the eviction.
RELOADED_ADMITTED, RELOADED_DRAINING = {4, 12}, {8, 16}


@pytest.fixture
def theirs() -> Iterator[Someones]:
    with someone_elses(balance=("balance leastconn",)) as one:
        yield one


@dataclass
class Figures:
    """What the rounds took. `late`: requests that HAProxy gave to a member after its drain."""

    first_request_s: list[float] = field(default_factory=list)
    empty_s: list[float] = field(default_factory=list)
    late: int = 0
    retried: int = 0


class Campaign:
    """Rounds over three backends that come and go beside one that stays."""

    def __init__(self, theirs: Someones, made: list[Backend]) -> None:
        self.theirs, self.made = theirs, made
        self.settings = msgspec.convert(theirs.settings(strategy="least_connections"), Settings)
        self.figures = Figures()

    def adapter(self) -> HaproxyBalancer:
        """As after a restart of the daemon: nothing is kept in it."""
        context = Context(installation="t", state_dir="", clock=WallClock(), pool=PoolName("p"), name="main")
        return haproxy.build(self.settings, context)

    async def reload(self) -> None:
        """A new worker; counters are of a process, so those of the old one are kept."""
        self.figures.retried += (await haproxy.stats(self.settings)).retried
        await asyncio.to_thread(self.theirs.reload)

    async def round(self, number: int) -> None:
        """Admit, reweigh, drain until empty, evict."""
        balancer, backend = self.adapter(), self.made[1 + number % 3]
        received, began = backend.received, time.monotonic()
        await balancer.admit([backend.endpoint()])
        async with asyncio.timeout(10):
            while backend.received == received:
                await asyncio.sleep(0.002)
        self.figures.first_request_s.append(time.monotonic() - began)
        if number in RELOADED_ADMITTED:
            await self.reload()
        await balancer.reweigh([backend.endpoint(weight=50 + 50 * (number % 5))])
        await asyncio.sleep(0.1)
        assert backend.active > 0, "the drain must meet streams, or this proves nothing"
        began = time.monotonic()
        await balancer.drain([backend.endpoint()])
        name = f"autoscaler.t.p.i-{backend.name}:{backend.port}"
        sent = self.theirs.sent_to(name)
        if number in RELOADED_DRAINING:
            await self.reload()
        async with asyncio.timeout(10):
            while backend.active:
                await asyncio.sleep(0.01)
        self.figures.empty_s.append(time.monotonic() - began)
        if number not in RELOADED_DRAINING:
            self.figures.late += self.theirs.sent_to(name) - sent
        await balancer.evict([backend.endpoint()])

    async def members(self) -> dict[str, Traffic]:
        """Who takes traffic, by address."""
        return {one.endpoint: one.traffic for one in (await self.adapter().members()).members}


async def test_twenty_rounds_and_four_reloads_lose_no_request(theirs: Someones) -> None:
    async with backends(4, chunks=20, every_s=STREAM_S / 20) as made:
        campaign = Campaign(theirs, made)
        base = made[0].endpoint()
        await campaign.adapter().admit([base])
        began = time.monotonic()
        async with clients(theirs.url, CLIENTS) as seen:
            for number in range(ROUNDS):
                await campaign.round(number)
                assert await campaign.members() == {base.address: Traffic.YES}
        took_s, found = time.monotonic() - began, campaign.figures
        retried = found.retried + (await haproxy.stats(campaign.settings)).retried
        print(
            f"{seen.complete} requests of {CLIENTS} clients in {took_s:.0f} s, {seen.refused} failed, {seen.cut} cut, "
            f"{retried} retried; admit to first request: median {statistics.median(found.first_request_s):.3f} s, "
            f"most {max(found.first_request_s):.3f} s; drain to empty: {statistics.median(found.empty_s):.2f} s, "
            f"most {max(found.empty_s):.2f} s; {found.late} requests after a drain"
        )
        assert (seen.refused, seen.cut, retried, found.late) == (0, 0, 0, 0)
        assert seen.complete > CLIENTS * ROUNDS / 2
        assert sum(one.received for one in made) == seen.complete
        assert statistics.median(found.first_request_s) < 2.0
        assert theirs.server_names() == [f"autoscaler.t.p.i-b0:{made[0].port}"]


@pytest.mark.parametrize("kept", [True, False], ids=["servers file", "no servers file"])
async def test_a_hard_restart_with_no_client_inside_costs_nothing_after(theirs: Someones, kept: bool) -> None:
    async with backends(3, chunks=4) as made:
        campaign = Campaign(theirs, made)
        if not kept:
            campaign.settings = msgspec.structs.replace(campaign.settings, servers_file="")
        one, other, leaving = (backend.endpoint() for backend in made)
        await campaign.adapter().admit([one, other, leaving])
        async with clients(theirs.url, CLIENTS) as before:
            await asyncio.sleep(0.5)
            await campaign.adapter().drain([leaving])
        received = made[2].received
        await asyncio.to_thread(theirs.restart)
        if kept:
            assert await campaign.members() == {one.address: Traffic.YES, other.address: Traffic.YES}
        else:
            assert await campaign.members() == {}
            await campaign.adapter().admit([one, other])  # as the next tick does
        async with clients(theirs.url, CLIENTS) as after:
            await asyncio.sleep(0.5)
        assert (before.refused, before.cut, after.refused, after.cut) == (0, 0, 0, 0)
        assert min(before.complete, after.complete) > CLIENTS
        assert made[2].received == received
        assert (await ask_many(theirs.url, 4)).complete == 4
