"""Law 1: nobody is admitted before its check passed in its present boot; who fails is out in a stated time."""

import pytest

from autoscaler.engine import reconcile
from tests.support.campaign import BALANCER, DAEMON, LOAD, REPLICAS, Campaign

pytestmark = pytest.mark.law(1)
CAMPAIGN = Campaign(*LOAD, *REPLICAS, "reboots", "recovers", "crash_loop", *DAEMON, *BALANCER, examples=26)


def test_only_replicas_that_passed_in_this_boot_are_admitted_and_failed_ones_leave() -> None:
    CAMPAIGN.holds(1, admissions=50, admissions_in_later_boot=1, failed_members=5, crash=2)


def test_a_mutant_that_takes_one_pass_for_enough_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_passed", lambda pool, record: record is not None and record.passes >= 1)
    CAMPAIGN.bites(1)


def test_a_mutant_that_never_takes_a_failed_one_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_failed", lambda *_: False)
    CAMPAIGN.bites(1)
