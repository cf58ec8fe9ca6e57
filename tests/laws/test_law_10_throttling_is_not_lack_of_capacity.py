"""Law 10: throttling stops calls and marks nothing; a lack of capacity marks one placement; no fault makes a storm."""

import pytest

from autoscaler.domain.base import NEVER, Duration, after
from autoscaler.domain.decision import Launch, Observation
from autoscaler.domain.memory import Mark
from autoscaler.engine import launches
from tests.support.campaign import COMPUTE, LOAD, Campaign
from tests.support.judge import LawBroken, Laws
from tests.support.world import Event, Script, World, pools

pytestmark = pytest.mark.law(10)
CAMPAIGN = Campaign(
    *LOAD, *COMPUTE, "throttled", "no_capacity", "quota", "vanishes", "dropped",
    shapes=(pools(), pools(zones=2), pools(zones=3)), examples=45, most=12,
)  # fmt: skip


def test_a_throttled_pool_waits_and_a_place_without_capacity_is_left_alone() -> None:
    CAMPAIGN.holds(10, throttled=2, no_capacity=3, marks=5, launch=30)


def test_a_mutant_that_goes_on_while_throttled_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = launches.settle

    def deaf(*args: object) -> launches.Launches:
        book = real(*args)  # type: ignore[arg-type]
        book.throttled_until = NEVER
        return book

    # Two of four vanish while the account is throttled, one after the other.
    events = (Event(0, "throttled", lasts=30), Event(0, "vanishes", 0), Event(4, "vanishes", 0), Event(9, "load", 4))
    script = Script(pool=pools(), demand=16, warm=30, events=events)
    World(script, Laws()).run()
    monkeypatch.setattr(launches, "settle", deaf)
    with pytest.raises(LawBroken, match="law 10"):
        World(script, Laws(10)).run()


def test_a_mutant_that_takes_throttling_for_lack_of_capacity_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = launches._settle_one

    def confused(book: launches.Launches, pool: object, observation: Observation, *rest: object) -> None:
        real(book, pool, observation, *rest)  # type: ignore[arg-type]
        for outcome in observation.outcomes:
            if outcome.fault is not None and isinstance(outcome.action, Launch):
                mark = Mark(until=after(observation.now, Duration(60.0)), why="no")
                book.marks[outcome.action.placement.key] = mark

    monkeypatch.setattr(launches, "_settle_one", confused)
    CAMPAIGN.bites(10)
