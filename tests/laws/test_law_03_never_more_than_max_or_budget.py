"""Law 3: by its own action live plus launching capacity never exceeds max, nor the budget in $/h."""

import pytest

from autoscaler.domain.decision import Capacity
from autoscaler.engine import decide, launches, placing
from autoscaler.engine.joined import Joined, capacity_of
from tests.support.builders import replace
from tests.support.campaign import COMPUTE, DAEMON, LOAD, SHAPES, Campaign
from tests.support.judge import LawBroken, Laws
from tests.support.world import Event, Script, World, pools

pytestmark = pytest.mark.law(3)
CAMPAIGN = Campaign(
    *LOAD, *COMPUTE, *DAEMON, "dies", "vanishes", "orphan", "stream", "replace", "slow_launch", "slow_launch",
    shapes=(*SHAPES, pools(budget_usd_per_h=4.0), pools(zones=2, budget_usd_per_h=5.5)), examples=30,
)  # fmt: skip


def test_what_lives_and_comes_never_passes_max_or_the_budget() -> None:
    CAMPAIGN.holds(3, launches_opened=30, filled_to_max=3, near_budget=1, crash=2)


def test_a_mutant_that_forgets_those_that_are_leaving_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_held(joined: Joined, requested: float, withdrawn: float) -> Capacity:
        capacity = capacity_of(joined, requested, withdrawn)
        return replace(capacity, existing=capacity.held)

    monkeypatch.setattr(decide, "capacity_of", only_held)
    CAMPAIGN.bites(3)


def test_a_mutant_that_forgets_the_price_of_what_runs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "usd_per_h", lambda site: 0.0)
    CAMPAIGN.bites(3)


def test_a_mutant_that_forgets_a_launch_at_its_deadline_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Script(pool=pools(), demand=24, events=(Event(0, "slow_launch", lasts=40), Event(40, "load", 6)))
    assert World(late, Laws(3)).run().reach["withdraw"] > 0
    monkeypatch.setattr(launches.Launches, "withdrawn_units", lambda self: 0.0)
    monkeypatch.setattr(launches, "withdrawal_of", launches.order_of)
    with pytest.raises(LawBroken, match="law 3"):
        World(late, Laws(3)).run()
