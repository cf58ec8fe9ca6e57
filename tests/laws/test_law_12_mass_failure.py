"""Law 12: when many fail at once nothing that serves is ended and replacement is paced; what is gone is replaced."""

import pytest

from autoscaler.domain.decision import Reason
from autoscaler.engine import decide, planner
from tests.support.builders import replace
from tests.support.campaign import DAEMON, LOAD, Campaign
from tests.support.judge import Laws
from tests.support.world import Event, Script, World, pools

pytestmark = pytest.mark.law(12)
CAMPAIGN = Campaign(
    *LOAD, "mass", "mass", "mass", "recovers", "dies", "replace", "t_error", *DAEMON,
    shapes=(pools(), pools(least=3), pools(zones=2), pools(ports=2, zones=2)), examples=20, calm=60,
)  # fmt: skip


def test_while_many_are_unhealthy_nothing_that_serves_ends_and_replacement_is_paced() -> None:
    CAMPAIGN.holds(12, mass_unhealthy=20, paced_replacement=3)


def blind_loss() -> World:
    """Four serve; telemetry fails for good; two machines vanish."""
    events = (Event(0, "t_error", lasts=500), Event(1, "vanishes", 0), Event(0, "vanishes", 1), Event(40, "t_error"))
    return World(Script(pool=pools(), demand=16, warm=30, events=events), Laws())


def test_a_machine_that_is_gone_is_replaced_though_telemetry_is_blind() -> None:
    world = blind_loss().run()
    assert world.taking() == 4.0


def test_a_mutant_that_does_not_notice_mass_failure_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "unhealthy_share", lambda joined: "")
    CAMPAIGN.bites(12)


def test_a_mutant_that_launches_for_all_that_failed_at_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "resting", lambda joined: 0.0)
    CAMPAIGN.bites(12)


def test_a_mutant_that_holds_at_what_is_left_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from autoscaler.engine import sizing

    real = sizing._trusted

    def shrinking(question: sizing.Question, current: int) -> tuple[int, Reason]:
        return real(replace(question, memory=replace(question.memory, size=None)), current)

    monkeypatch.setattr(sizing, "_trusted", shrinking)
    assert blind_loss().run().taking() < 4.0
