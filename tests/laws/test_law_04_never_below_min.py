"""Law 4: a scale-in never takes capacity that takes traffic below min, also when cut off after any action.

The judge looks before each single drain is carried out, so every prefix of every plan is judged.
"""

import pytest

from autoscaler.engine import victims
from autoscaler.engine.planner import Draft
from tests.support.campaign import DAEMON, LOAD, Campaign
from tests.support.judge import LawBroken, Laws
from tests.support.world import Event, Script, World, pools

pytestmark = pytest.mark.law(4)
CAMPAIGN = Campaign(
    *LOAD, "load", "no_traffic", "no_traffic", "forgets", "hangs", *DAEMON,
    shapes=(pools(least=2, most=5), pools(least=3), pools(least=2, ports=2, zones=2), pools(least=2, balancers=2)),
    examples=30,
)  # fmt: skip
# Four serve, two of them get nothing, one of these is protected: the other goes, then nobody may.
PROTECTED = Script(
    pool=pools(least=2, most=6), demand=16, warm=30,
    events=(
        Event(0, "no_traffic", 0), Event(0, "no_traffic", 1), Event(0, "protect", 0), Event(1, "load", 0),
        Event(40, "load", 1),
    ),
)  # fmt: skip


def test_a_scale_in_leaves_min_in_traffic_after_every_single_action() -> None:
    CAMPAIGN.holds(4, scale_in=5, serving_victims=3, victims_at_min=1, crash=2)


def test_a_mutant_without_the_floor_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    World(PROTECTED, Laws(4)).run()
    real = victims.scale_in

    def no_floor(draft: Draft, units: float, most: float, floor: int) -> float:
        return real(draft, units, most, 0)

    monkeypatch.setattr(victims, "scale_in", no_floor)
    with pytest.raises(LawBroken, match="law 4"):
        World(PROTECTED, Laws(4)).run()
