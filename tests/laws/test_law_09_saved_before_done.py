"""Law 9: launches and ends are saved before they are asked for, and an end that was saved is never undone.

The engine's side: what the plan does is in the memory that goes with it. The runtime's side: who cannot save, acts not.
"""

import pytest

from autoscaler.domain.base import ReplicaId
from autoscaler.domain.decision import Terminate
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import Memory
from autoscaler.domain.replica import Instance, Replica
from autoscaler.engine import planner, reconcile
from autoscaler.runtime.loop import PoolLoop
from tests.support.campaign import COMPUTE, DAEMON, LOAD, REPLICAS, Campaign
from tests.support.judge import LawBroken, Laws
from tests.support.memory_ledger import MemoryLedger
from tests.support.pool_world import PoolWorld, services
from tests.support.virtual_time import VirtualClock, run_virtual
from tests.support.world import Event, Script, World, pools

pytestmark = pytest.mark.law(9)
CAMPAIGN = Campaign(*LOAD, "load", *DAEMON, *REPLICAS, "hide", "hide", *COMPUTE, examples=16)


def test_what_is_done_was_saved_and_an_end_stays_an_end() -> None:
    CAMPAIGN.holds(9, terminating_saved=50, terminations=8, launch=20, crash=2)


def test_a_mutant_that_does_not_save_the_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsaved(draft: planner.Draft, machine: list[Replica], why: str) -> None:
        draft.actions.append(Terminate(instance=machine[0].instance, offer=machine[0].offer, why=why))

    monkeypatch.setattr(planner, "terminate", unsaved)
    CAMPAIGN.bites(9)


def test_a_mutant_that_forgets_the_end_of_a_machine_that_comes_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(memory: Memory, rid: ReplicaId, instance: Instance) -> object:
        known = memory.intents.get(rid)
        return None if known is not None and known.phase is Phase.GONE else known

    # Machines whose end was asked for in vain are missed by two looks, and are there again.
    events = (
        Event(0, "unreachable", lasts=60), Event(0, "load", 1), Event(22, "hide", 0, 1), Event(0, "hide", 1, 1),
        Event(0, "hide", 2, 1), Event(0, "hide", 3, 1), Event(8, "load", 1),
    )  # fmt: skip
    script = Script(pool=pools(), demand=16, warm=30, events=events)
    World(script, Laws()).run()
    monkeypatch.setattr(reconcile, "_known", forgetful)
    with pytest.raises(LawBroken, match="law 9"):
        World(script, Laws(9)).run()


def test_of_two_daemons_only_the_one_that_could_save_acts() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        ledger, world = MemoryLedger(), PoolWorld(clock)
        first, second = (PoolLoop(world.parts(), services(clock, ledger)) for _ in range(2))
        await first.tick()
        machines = dict(world.compute.launched)
        assert machines
        ledger.steal(world.name)  # a third one saved meanwhile: both hold an old version now
        await first.tick()
        assert world.compute.launched == machines
        assert "saved meanwhile" in first.status.trouble
        await second.tick()  # it has read just now, so it may act, and knows the launch
        assert world.compute.launched == machines

    run_virtual(scenario)
