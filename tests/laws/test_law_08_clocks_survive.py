"""Law 8: cooldown and stabilisation are time, and survive restarts; without history nothing is scaled in."""

import pytest

from autoscaler.domain.memory import Wanted
from autoscaler.engine import sizing
from tests.support.campaign import DAEMON, LOAD, Campaign
from tests.support.world import pools

pytestmark = pytest.mark.law(8)
CAMPAIGN = Campaign(
    *LOAD, *LOAD, "load", *DAEMON, "crash", "down", "lose_ledger", shapes=(pools(), pools(zones=2), pools(ports=2)),
    examples=30, most=12,
)  # fmt: skip


def test_cooldown_and_window_are_kept_through_crashes_and_gaps() -> None:
    CAMPAIGN.holds(8, scale_in=4, scale_in_after_restart=2, crash=10, **{"block:no_history": 5})


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        # only the present
        ("history_since", lambda pool, memory, now: memory.history_since or now),  # a gap is not noticed
        ("_remaining", lambda last, cooldown, now: 0.0),  # no cooldown
        (
            "_window",
            lambda question, wanted: (Wanted(at=question.observation.now, units=wanted),),
        ),
    ],
)
def test_a_mutant_of_the_clocks_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, broken: object) -> None:
    monkeypatch.setattr(sizing, name, broken)
    CAMPAIGN.bites(8, examples=150)
