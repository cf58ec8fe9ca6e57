"""The real loop and engine over a real HAProxy that others reload: members come back, whoever leaves does not."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import count

import msgspec
import pytest

from autoscaler.domain.base import Duration, PoolName, ReplicaId
from autoscaler.domain.decision import Admit, Calendar, Decision, Drain, Observation, Recall
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import Memory
from autoscaler.domain.pool import DrainRule, Pace, Pool, ScaleIn, ScaleOut
from autoscaler.engine.decide import decide
from autoscaler.engine.explain import phrase
from autoscaler.ports.build import Context
from autoscaler.ports.policy import Policy
from autoscaler.runtime.loop import PoolLoop
from autoscaler.runtime.parts import PoolParts
from providers.balancer import haproxy
from providers.balancer.haproxy import HaproxyBalancer, Settings
from providers.balancer.haproxy.names import Names
from tests.support.haproxy import Someones, someone_elses
from tests.support.memory_ledger import MemoryLedger
from tests.support.pool_world import PoolWorld, a_pool, services
from tests.support.streaming import WallClock

pytestmark = pytest.mark.e2e

NAMES = Names.of("t", "p")
QUICK = Pace(
    tick=Duration(0.2),
    scale_out=ScaleOut(cooldown=Duration(0.1), max_step=4, max_growth=4.0),
    scale_in=ScaleIn(cooldown=Duration(0.1), stabilization=Duration(0.5)),
    min_age=Duration(0.0),
)


class Scene:
    """A pool of machines in memory, whose balancer is an HAProxy of somebody else. `admitted`: by which tick."""

    def __init__(self, theirs: Someones, **options: object) -> None:
        clock = WallClock()
        self.theirs = theirs
        # Machines in memory have no port that a check could reach.
        settings = msgspec.convert(theirs.settings(server_options="", **options), Settings)
        context = Context(installation="t", state_dir="", clock=clock, pool=PoolName("p"), name="front")
        self.balancer: HaproxyBalancer = haproxy.build(settings, context)
        self.world = PoolWorld(clock, a_pool(pace=QUICK, drain=DrainRule(deadline=Duration(60.0))))
        self.world.compute.boot_s, self.world.compute.end_s, self.world.probe.load_s = 0.1, 0.1, 0.1
        self.world.compute.address = "127.0.0.1"
        self.world.asks.units = 3
        self.ticks = count()
        self.admitted: list[tuple[int, ReplicaId]] = []
        self.drained: list[tuple[int, ReplicaId]] = []
        self.phases: dict[ReplicaId, Phase] = {}
        self.alarms: list[str] = []
        self.now = 0
        self.loop = PoolLoop(self._parts(), services(clock, MemoryLedger(), decide_with=self._decide))

    def _parts(self) -> PoolParts:
        parts = self.world.parts()
        pool = msgspec.structs.replace(parts.pool, balancers=(self.balancer.traits(),))
        return parts._replace(pool=pool, balancers={"front": self.balancer})

    def _decide(
        self, pool: Pool, policies: tuple[Policy, ...], memory: Memory, observation: Observation, calendar: Calendar
    ) -> Decision:
        decision = decide(pool, policies, memory, observation, calendar)
        self.now = next(self.ticks)
        self.alarms = [phrase(one) for one in decision.alarms]
        self.phases = {one.id: one.phase for one in decision.replicas}
        self.admitted += [(self.now, one.endpoint.replica) for one in decision.plan if isinstance(one, Admit | Recall)]
        self.drained += [(self.now, one.endpoint.replica) for one in decision.plan if isinstance(one, Drain)]
        return decision

    def drained_after(self, tick: int) -> set[ReplicaId]:
        return {name for at, name in self.drained if at > tick}

    def serving(self) -> set[ReplicaId]:
        """Who gets requests, by HAProxy's own word."""
        found = set()
        for line in self.theirs.ask("show servers state replicas").splitlines()[2:]:
            if line and line.split()[6] == "0":
                replica = NAMES.replica(line.split()[3])
                found.add(replica or ReplicaId(line.split()[3]))
        return found

    def of(self, phase: Phase) -> set[ReplicaId]:
        return {name for name, one in self.phases.items() if one is phase}

    async def until(self, true: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
        end = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < end, (
                f"{what}: {self.phases}, serving {self.serving()}, {self.loop.status.trouble}"
            )
            await asyncio.sleep(0.02)

    async def ticked(self, times: int = 3) -> None:
        begun = self.now
        await self.until(lambda: self.now >= begun + times, "ticks")

    async def one_leaves(self) -> ReplicaId:
        """Three serve; then one drains, with a request inside that does not end."""
        await self.until(lambda: len(self.serving()) == 3 and len(self.of(Phase.IN_SERVICE)) == 3, "three serve")
        for replica in self.serving():
            self.world.probe.set(replica, running=1)
        self.world.asks.units = 2
        await self.until(lambda: len(self.serving()) == 2 and len(self.of(Phase.DRAINING)) == 1, "one drains")
        (leaving,) = self.of(Phase.DRAINING)
        return leaving


@asynccontextmanager
async def running(theirs: Someones, **options: object) -> AsyncGenerator[Scene]:
    scene = Scene(theirs, **options)
    tasks = [asyncio.create_task(scene.loop.run()), asyncio.create_task(scene.loop.prober.run())]
    try:
        yield scene
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await scene.loop.executor.finish(Duration(2.0))


@pytest.mark.parametrize("how", ["reload", "restart"])
@pytest.mark.parametrize("servers_file", ["kept", ""], ids=["servers file", "no servers file"])
async def test_who_serves_is_put_back_and_who_leaves_is_not(how: str, servers_file: str) -> None:
    with someone_elses() as theirs:
        options: dict[str, object] = {} if servers_file else {"servers_file": ""}
        async with running(theirs, **options) as scene:
            leaving = await scene.one_leaves()
            staying = scene.serving()
            since = scene.now
            await asyncio.to_thread(getattr(theirs, how))
            await scene.until(lambda: scene.serving() == staying, "who serves is put back")
            await scene.ticked()
            assert scene.serving() == staying
            assert scene.phases[leaving] is Phase.DRAINING, "its request has not ended"
            assert [name for tick, name in scene.admitted if tick > since and name == leaving] == []
            scene.world.probe.set(leaving, running=0)
            # HAProxy's count proves nothing after a reload; the replica's own does, and ends the drain.
            await scene.until(lambda: leaving not in scene.phases or scene.phases[leaving] is Phase.GONE, "it ends")
            assert scene.serving() == staying
            assert scene.world.compute.terminated


async def test_an_old_file_that_a_reload_brings_back_is_drained_again() -> None:
    """As when somebody puts back yesterday's configuration: one that leaves takes traffic, by no doing of ours."""
    with someone_elses() as theirs:
        async with running(theirs) as scene:
            await scene.until(lambda: len(scene.serving()) == 3, "three serve")
            old = theirs.servers.read_text()
            leaving = await scene.one_leaves()
            staying, since = scene.serving(), scene.now
            theirs.servers.write_text(old)
            await asyncio.to_thread(theirs.reload)
            await scene.until(lambda: leaving in scene.drained_after(since), "it is seen to take traffic")
            await scene.until(lambda: scene.serving() == staying, "drained again")
            await scene.ticked()
            assert scene.serving() == staying
            assert NAMES.server(leaving) not in theirs.servers.read_text()
            assert [name for tick, name in scene.admitted if tick > since and name == leaving] == []


async def test_while_haproxy_is_gone_nothing_is_ended_and_then_all_is_as_it_was() -> None:
    with someone_elses() as theirs:
        async with running(theirs) as scene:
            await scene.until(lambda: len(scene.of(Phase.IN_SERVICE)) == 3, "three serve")
            serving = scene.serving()
            theirs.end()
            scene.world.asks.units = 1
            await scene.ticked(8)
            assert scene.world.compute.terminated == []
            scene.world.asks.units = 3
            await asyncio.to_thread(theirs.start)
            await scene.until(lambda: scene.serving() == serving and len(scene.of(Phase.IN_SERVICE)) == 3, "as it was")


async def test_a_server_of_somebody_else_is_told_and_takes_nobodys_place() -> None:
    with someone_elses("server gpu7 127.0.0.1:8000 weight 16") as theirs:  # the very address of the pool's machines
        async with running(theirs) as scene:
            await scene.until(lambda: len(scene.of(Phase.IN_SERVICE)) == 3, "three serve")
            assert scene.alarms == [
                "1 in front are not ours, not touched; first 127.0.0.1:8000 (server gpu7 is not ours)"
            ]
            assert len(theirs.server_names()) == 4
