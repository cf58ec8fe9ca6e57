"""Law 5: blind, stale, failing, partial or suspiciously silent telemetry never scales in."""

import pytest

from autoscaler.engine import trust
from tests.support.campaign import LOAD, TELEMETRY, Campaign
from tests.support.world import pools

pytestmark = pytest.mark.law(5)
CAMPAIGN = Campaign(
    *LOAD, *TELEMETRY, *TELEMETRY, "crash", "dies", shapes=(pools(most=8), pools(zones=2, most=8)), examples=40, most=12
)  # fmt: skip


def test_nothing_is_scaled_in_on_telemetry_that_cannot_be_trusted() -> None:
    lies = {f"lie:{name}": 3 for name in TELEMETRY}
    CAMPAIGN.holds(5, scale_in=1, **lies)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_outage_of_zeros", lambda *_: ""),
        ("COVERAGE_MIN", 0.0),
        ("_flaw", lambda *_: ""),
        ("_blindness", lambda *_: ""),
    ],
)
def test_a_mutant_of_trust_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    monkeypatch.setattr(trust, name, value)
    Campaign("load", *TELEMETRY, shapes=(pools(most=8),), most=14).bites(5, examples=300)
