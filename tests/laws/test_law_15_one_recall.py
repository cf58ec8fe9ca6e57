"""Law 15: a drain may be recalled once, only one for scale-in, and never after its end was saved."""

import pytest

from autoscaler.domain.replica import Replica
from autoscaler.engine import victims
from autoscaler.engine.planner import Draft
from tests.support.builders import replace
from tests.support.campaign import DAEMON, Campaign
from tests.support.judge import LawBroken, Laws
from tests.support.world import Event, Script, World, pools

pytestmark = pytest.mark.law(15)
CAMPAIGN = Campaign(
    "load", "stream", "load", "load", "stream", "load", "notice", "drain", *DAEMON[:3], "dropped", "undrains",
    shapes=(pools(), pools(balancers=2), pools(ports=2)), examples=80, most=14,
)  # fmt: skip

# Two serve with long answers inside; the load goes, one drains, the load returns; and the same again.
AGAIN = Script(
    pool=pools(most=2), demand=8, warm=30,
    events=(
        Event(0, "stream", lasts=60), Event(0, "load", 0), Event(13, "load", 2), Event(12, "load", 0),
        Event(13, "load", 2), Event(4, "load", 2),
    ),
)  # fmt: skip


def test_load_that_returns_recalls_a_drain_at_once_and_only_once() -> None:
    CAMPAIGN.holds(15, recalls=1)
    world = World(AGAIN, Laws()).run()
    assert world.reach["recalls"] == 1
    assert world.reach["scale_in"] == 2


def test_a_mutant_that_recalls_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = victims._recallable

    def again(draft: Draft, replica: Replica) -> bool:
        draft.update(replica.id, replace(draft.intent(replica.id), recalls=0))
        return real(draft, replica)

    monkeypatch.setattr(victims, "_recallable", again)
    with pytest.raises(LawBroken, match="law 15"):
        World(AGAIN, Laws(15)).run()


def test_a_mutant_that_recalls_whatever_drains_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def anybody(draft: Draft, replica: Replica) -> bool:
        intent = draft.intent(replica.id)
        leaves = intent.drain is not None and intent.terminating_since is None
        return leaves and intent.recalls == 0 and replica.id in draft.joined.fresh_passes

    monkeypatch.setattr(victims, "_recallable", anybody)
    CAMPAIGN.bites(15, examples=200)
