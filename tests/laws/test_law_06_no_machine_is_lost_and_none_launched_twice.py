"""Law 6: each launched machine ends in the pool or is ended; one token is one order, whatever crashes wherever."""

import pytest

from autoscaler.engine import missing, placing
from tests.support.campaign import BALANCER, COMPUTE, DAEMON, LOAD, OPERATOR, REPLICAS, Campaign

pytestmark = pytest.mark.law(6)
CAMPAIGN = Campaign(
    *LOAD, *DAEMON, "crash", "crash", *COMPUTE, *REPLICAS, *BALANCER, *OPERATOR, "lose_ledger", examples=14, calm=90
)


def test_after_any_crash_at_any_step_nothing_is_left_over_and_nothing_came_twice() -> None:
    CAMPAIGN.holds(6, crash=8, launch=20, terminations=5, calm_ends=14)


def test_a_mutant_that_numbers_tokens_without_the_sequence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = placing.Site

    def unnumbered(**fields: object) -> placing.Site:
        return real(**{**fields, "token_prefix": "e1-p"})  # type: ignore[arg-type]

    monkeypatch.setattr(placing, "Site", unnumbered)
    CAMPAIGN.bites(6)


def test_a_mutant_that_forgets_whom_a_balancer_still_lists_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing, "_gone", lambda *_: None)
    Campaign("load", "vanishes", "vanishes", "blind_balancer", "balancer_fault", calm=40).bites(6, examples=100)
