"""Law 2: no end by choice before a replica left every balancer and was seen empty twice, or its deadline passed."""

import pytest

from autoscaler.domain.decision import Terminate
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import Intent
from autoscaler.engine import planner, reconcile
from tests.support.campaign import BALANCER, DAEMON, LOAD, SHAPES, Campaign
from tests.support.world import pools

pytestmark = pytest.mark.law(2)
CAMPAIGN = Campaign(
    *LOAD, *LOAD, "stream", "stream", "stream", *DAEMON, *BALANCER, "hangs", "dies", "notice", "drain",
    shapes=(*SHAPES, pools(balancers=2, ports=2), pools(counts=False), pools(counts=False, zones=2)), examples=60,
)  # fmt: skip


def test_whoever_is_ended_has_left_and_was_seen_empty_twice_or_its_time_was_up() -> None:
    CAMPAIGN.holds(2, terminations=10, drained_empty=1, drain_past_deadline=1, drained_by_balancer_count=1)


def test_a_mutant_that_ends_whoever_has_left_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(draft: planner.Draft, replica: object) -> str:
        return "empty"

    monkeypatch.setattr(planner, "_drained", at_once)
    CAMPAIGN.bites(2)


def test_a_mutant_that_does_not_wait_until_every_balancer_has_let_go_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = planner.finish_drains

    def hasty(draft: planner.Draft) -> None:
        real(draft)
        for machine in planner.machines_in(draft, (Phase.DRAINING,)):
            if not any(isinstance(one, Terminate) and one.instance == machine[0].instance for one in draft.actions):
                planner.terminate(draft, machine, "drained")

    monkeypatch.setattr(planner, "finish_drains", hasty)
    CAMPAIGN.bites(2)


def test_a_mutant_that_counts_one_look_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def every_tick(look: reconcile._Look, intent: Intent, record: object, out: object) -> tuple[object, ...]:
        if intent.drain is None or out is None:
            return ()
        return (look.observation.now, look.observation.now)

    monkeypatch.setattr(reconcile, "_idle", every_tick)
    CAMPAIGN.bites(2)
