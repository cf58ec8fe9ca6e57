"""Every decision reads as one sentence, whatever is in it."""

from string import Formatter

import pytest

from autoscaler.domain.decision import Reason
from autoscaler.engine import explain
from tests.support.builders import a_pool, decided, in_service


@pytest.mark.parametrize("code", sorted(explain.TEMPLATES))
def test_every_template_renders_with_facts_and_without(code: str) -> None:
    names = [name for _, name, _, _ in Formatter().parse(explain.TEMPLATES[code]) if name]
    assert "?" not in explain.phrase(Reason(code=code, facts=dict.fromkeys(names, 1.5))) or code == "vetoed"
    assert explain.phrase(Reason(code=code))


def test_a_reason_of_a_users_policy_renders_as_its_name_and_facts() -> None:
    assert explain.phrase(Reason(code="tea_time", facts={"cups": 3})) == "tea time (cups 3)"


def test_a_decision_in_one_sentence() -> None:
    found = decided(a_pool(), in_service("r1"), wants=3)
    assert found.sentence == ("wants 3 (asked); has 1 in service; aims at 3; does: launch 2 at o/local")
