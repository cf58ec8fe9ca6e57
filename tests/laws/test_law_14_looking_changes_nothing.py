"""Law 14: deciding changes nothing that it was given, and advice changes neither ledger nor world."""

import copy

import pytest

from autoscaler.domain.decision import Launch, Observation
from autoscaler.domain.memory import Breaker, Memory
from autoscaler.domain.pool import Mode, Pool
from autoscaler.engine import launches
from autoscaler.runtime.loop import PoolLoop
from tests.laws.test_law_13_equal_input_equal_output import Case, again, cases
from tests.support.builders import replace
from tests.support.memory_ledger import MemoryLedger
from tests.support.pool_world import PoolWorld, services
from tests.support.virtual_time import VirtualClock, run_virtual

pytestmark = pytest.mark.law(14)


def disturbed(sample: list[Case]) -> int:
    """In how many cases decide() changed its own input."""
    count = 0
    for pool, memory, observation, _ in sample:
        before = copy.deepcopy((repr(memory), repr(observation)))
        again(pool, memory, observation)
        count += before != (repr(memory), repr(observation))
    return count


def test_deciding_leaves_memory_and_observation_as_they_were() -> None:
    assert disturbed(cases(4)) == 0


def test_a_mutant_that_keeps_its_books_in_the_memory_it_was_given_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = cases(4)
    real = launches.settle

    def careless(pool: Pool, memory: Memory, observation: Observation) -> launches.Launches:
        memory.breakers["spot"] = Breaker(failures=len(memory.breakers) + 7)
        return real(pool, memory, observation)

    monkeypatch.setattr(launches, "settle", careless)
    assert disturbed(sample) > 0


def test_advice_is_what_would_be_done() -> None:
    """The plan in `advise` is the plan in `act`: the mode is the runtime's business."""
    for pool, memory, observation, decision in cases(3):
        advice = again(replace(pool, mode=Mode.ADVISE), memory, observation)
        assert (advice.plan, advice.target, advice.memory) == (decision.plan, decision.target, decision.memory)


async def an_hour_of_advice(world: PoolWorld, ledger: MemoryLedger, clock: VirtualClock, mode: Mode) -> int:
    """How many plans it made that would have launched."""
    loop = PoolLoop(world.parts(mode=mode), services(clock, ledger))
    advised = 0
    for _ in range(60):
        decision = await loop.tick()
        assert decision is not None
        advised += any(isinstance(one, Launch) for one in decision.plan)
        await clock.sleep(world.pool.pace.tick)
    return advised


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.ACT])
def test_an_hour_of_advice_writes_no_row_and_touches_nothing(mode: Mode) -> None:
    """The mutant is the other mode: the same hour in `act` leaves rows and machines, so the check sees them."""

    async def scenario() -> None:
        clock = VirtualClock()
        ledger, world = MemoryLedger(), PoolWorld(clock)
        advised = await an_hour_of_advice(world, ledger, clock, mode)
        assert advised >= 1
        untouched = (ledger.touched, dict(world.compute.launched), (await world.balancer.members()).members)
        if mode is Mode.ADVISE:
            assert untouched == (set(), {}, ())
        else:
            assert all(untouched[:2])

    run_virtual(scenario)
