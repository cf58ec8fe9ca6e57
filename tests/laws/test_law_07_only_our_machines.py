"""Law 7: only machines with our tags are touched; an adopted one is ended only when it did not get ready in grace."""

import pytest

from autoscaler.engine import planner, victims
from tests.support.campaign import DAEMON, LOAD, Campaign

pytestmark = pytest.mark.law(7)
CAMPAIGN = Campaign(
    *LOAD, "foreign", "orphan", "orphan", "orphan", "lose_ledger", "never_loads", "stops", *DAEMON, examples=16, calm=40
)


def test_foreign_machines_are_left_alone_and_orphans_have_their_grace() -> None:
    CAMPAIGN.holds(7, with_foreign=20, orphans_ended=3)


def test_a_mutant_without_grace_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "in_grace", lambda *_: False)
    monkeypatch.setattr(victims, "in_grace", lambda *_: False)
    CAMPAIGN.bites(7)


def test_a_mutant_that_takes_every_machine_for_ours_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from autoscaler.engine import reconcile

    monkeypatch.setattr(reconcile, "_ours", lambda *_: True)
    CAMPAIGN.bites(7)
