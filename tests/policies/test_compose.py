"""Policies of policies, with children that are real ones."""

import msgspec
import pytest

from autoscaler.domain.base import Duration
from autoscaler.domain.load import ReadingState, Signal
from autoscaler.ports.policy import Policy
from policies import compose, fixed, latency_slo, target_tracking
from policies.compose import How, Settings
from tests.policies.conftest import Ask, a_reading, a_situation

QUEUE, TTFT = Signal.QUEUE_LENGTH, Signal.TTFT_S_P95


def of(how: How, *children: Policy) -> compose.Compose:
    return compose.build(Settings(how=how), children)


def size(units: float) -> fixed.Fixed:
    return fixed.build(fixed.Settings(size=units))


def slo() -> latency_slo.LatencySlo:
    return latency_slo.build(latency_slo.Settings(signal=TTFT, objective=Duration(2.0)))


def silent() -> target_tracking.TargetTracking:
    return target_tracking.build(target_tracking.Settings(signal=Signal.RUNNING, target=4))


@pytest.mark.parametrize(
    ("how", "target", "ceiling", "veto", "code"),
    [
        (How.HIGHEST, 5.0, None, False, "highest"),
        (How.LOWEST, 2.0, None, False, "lowest"),
        (How.CEILING, None, 2.0, False, "ceiling"),
        (How.VETO, None, None, True, "veto_in"),
    ],
)
def test_two_opinions_and_one_that_is_silent_become_one(
    ask: Ask, how: How, target: float | None, ceiling: float | None, veto: bool, code: str
) -> None:
    found = ask(of(how, size(2), silent(), size(5)), a_situation(in_service=3.0))
    assert (found.target, found.ceiling, found.veto_in, found.reason.code) == (target, ceiling, veto, code)


@pytest.mark.parametrize("how", How)
def test_children_without_an_opinion_are_together_without_one(ask: Ask, how: How) -> None:
    found = ask(of(how, silent(), silent()), a_situation(in_service=3.0))
    assert (found.target, found.ceiling, found.veto_in, found.reason.code) == (None, None, False, "no_opinion")
    assert found.reason.facts == {"of": 2, "why": "signal_absent"}


def test_nothing_is_vetoed_when_all_want_less(ask: Ask) -> None:
    found = ask(of(How.VETO, size(2)), a_situation(in_service=3.0))
    assert (found.veto_in, found.reason.code) == (False, "veto_none")


def test_a_ceiling_and_a_veto_of_a_child_hold_through_every_layer(ask: Ask) -> None:
    ceiling = of(How.CEILING, size(4))
    veto = of(How.VETO, size(9))
    found = ask(of(How.HIGHEST, size(7), of(How.HIGHEST, ceiling, veto)), a_situation(in_service=3.0))
    assert (found.target, found.ceiling, found.veto_in) == (7.0, 4.0, True)


def test_a_latency_as_ceiling_passes_its_own_veto_on(ask: Ask) -> None:
    readings = a_reading(TTFT, 1.9), a_reading(QUEUE, 0.0)
    found = ask(of(How.HIGHEST, slo(), size(1)), a_situation(*readings, in_service=3.0))
    assert (found.target, found.veto_in) == (1.0, True)


def test_each_child_gets_its_own_carry_back(ask: Ask) -> None:
    """The nested latency policy remembers that capacity joined, two layers down."""
    policy = of(How.HIGHEST, size(0), of(How.HIGHEST, slo(), silent()))
    readings = a_reading(TTFT, 3.0, window=60.0), a_reading(QUEUE, 99.0)
    before = ask(policy, a_situation(*readings, in_service=1.0))
    assert before.target == 2.0
    joined = ask(policy, a_situation(*readings, in_service=2.0), before.carry)
    assert joined.target == 2.0
    assert joined.reason.facts["why"] == "highest"
    forgot = ask(policy, a_situation(*readings, in_service=2.0), "")
    assert forgot.target == 3.0


def test_after_a_change_of_children_all_begin_anew(ask: Ask) -> None:
    readings = a_reading(TTFT, 3.0, window=60.0), a_reading(QUEUE, 99.0)
    before = ask(of(How.HIGHEST, slo(), slo()), a_situation(*readings, in_service=1.0))
    after = ask(of(How.HIGHEST, slo()), a_situation(*readings, in_service=2.0), before.carry)
    assert after.target == 3.0
    assert ask(of(How.HIGHEST, slo()), a_situation(*readings), "no json").target == 2.0


def test_children_without_a_carry_leave_none(ask: Ask) -> None:
    assert ask(of(How.HIGHEST, size(1)), a_situation()).carry == ""


def test_an_equal_size_is_explained_by_the_first(ask: Ask) -> None:
    readings = (a_reading(Signal.RUNNING, 12.0),)
    for how in (How.HIGHEST, How.LOWEST):
        found = ask(of(how, silent(), size(3)), a_situation(*readings, in_service=1.0))
        assert found.reason.facts["policy"] == "target_tracking:running"


def test_it_needs_what_its_children_need() -> None:
    policy = of(How.HIGHEST, silent(), of(How.VETO, slo()))
    assert policy.signals() == {Signal.RUNNING, TTFT, QUEUE, Signal.GPU_UTILIZATION}
    assert policy.name == "highest(target_tracking:running, veto(latency_slo:ttft_s_p95))"


def test_without_children_it_is_refused() -> None:
    with pytest.raises(ValueError, match="needed is at least one"):
        compose.build(Settings(how=How.HIGHEST), ())


def test_it_is_written_as_the_design_shows() -> None:
    whole = {"as": "ceiling", "of": [{"kind": "fixed", "size": 3}]}
    assert msgspec.convert(whole, Settings).how is How.CEILING
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"as": "middle"}, Settings)


def test_a_quiet_child_does_not_lower_the_highest(ask: Ask) -> None:
    quiet = a_reading(Signal.RUNNING, None, state=ReadingState.QUIET)
    assert ask(of(How.HIGHEST, silent(), size(2)), a_situation(quiet)).target == 2.0
