"""When latency may move a pool, and when it only holds it."""

import msgspec
import pytest

from autoscaler.domain.base import Duration, Instant
from autoscaler.domain.load import Reading, ReadingState, Signal
from policies import latency_slo
from policies.latency_slo import Confirm, Settings
from tests.policies.conftest import NOW, Ask, a_reading, a_situation

TTFT, QUEUE, GPU = Signal.TTFT_S_P95, Signal.QUEUE_LENGTH, Signal.GPU_UTILIZATION
POLICY = latency_slo.build(Settings(signal=TTFT, objective=Duration(2.0)))


def ttft(value: float, window: float = 0.0, at: Instant = NOW) -> Reading:
    return a_reading(TTFT, value, window=window, at=at)


@pytest.mark.parametrize(
    ("value", "queue", "gpu", "in_service", "on_the_way", "target", "veto", "code"),
    [
        (2.1, 5.0, 0.1, 3.0, 0.0, 4.0, True, "slo_breach"),  # 5 / 3 > 1
        (2.1, 3.0, 0.1, 3.0, 0.0, None, True, "slo_breach_unconfirmed"),  # 3 / 3 is not above 1
        (2.1, 0.0, 0.71, 3.0, 0.0, 4.0, True, "slo_breach"),
        (2.1, 0.0, 0.70, 3.0, 0.0, None, True, "slo_breach_unconfirmed"),
        (4.0, 9.0, 0.9, 3.0, 0.0, 5.0, True, "slo_breach"),  # twice the objective: two
        (40.0, 9.0, 0.9, 3.0, 0.0, 5.0, True, "slo_breach"),  # twenty times: still two
        (2.1, 9.0, 0.9, 3.0, 1.0, 4.0, True, "slo_breach_waits"),  # one is on its way for it
        (2.1, 9.0, 0.9, 3.0, 4.0, 7.0, True, "slo_breach_waits"),  # never below what is held
        (4.0, 9.0, 0.9, 3.0, 1.0, 5.0, True, "slo_breach"),  # it grew: one more than the one on its way
        (2.0, 9.0, 0.9, 3.0, 0.0, None, True, "slo_near"),
        (1.61, 9.0, 0.9, 3.0, 0.0, None, True, "slo_near"),  # above 0.8 x 2
        (1.6, 9.0, 0.9, 3.0, 0.0, None, False, "slo_kept"),
    ],
)
def test_a_breach_steps_out_only_while_the_load_agrees(
    ask: Ask,
    *,
    value: float,
    queue: float,
    gpu: float,
    in_service: float,
    on_the_way: float,
    target: float | None,
    veto: bool,
    code: str,
) -> None:
    readings = ttft(value), a_reading(QUEUE, queue), a_reading(GPU, gpu)
    found = ask(POLICY, a_situation(*readings, in_service=in_service, on_the_way=on_the_way))
    assert (found.target, found.veto_in, found.reason.code) == (target, veto, code)


@pytest.mark.parametrize("state", [ReadingState.QUIET, ReadingState.ABSENT])
def test_what_is_not_known_is_neither_an_opinion_nor_a_veto(ask: Ask, state: ReadingState) -> None:
    found = ask(POLICY, a_situation(a_reading(TTFT, None, state=state), a_reading(QUEUE, 99.0)))
    assert (found.target, found.veto_in) == (None, False)


def test_load_that_cannot_be_read_confirms_nothing(ask: Ask) -> None:
    found = ask(POLICY, a_situation(ttft(9.0), a_reading(QUEUE, None, state=ReadingState.ABSENT)))
    assert (found.target, found.veto_in, found.reason.code) == (None, True, "slo_breach_unconfirmed")


def test_after_capacity_joined_it_waits_until_the_window_holds_only_what_came_later(ask: Ask) -> None:
    """One replica joins at NOW; the p95 looks 60 s back, so it counts again from NOW + 60 on."""
    queue = a_reading(QUEUE, 99.0)

    def look(after_s: float, in_service: float, carry: str) -> tuple[float | None, str, str]:
        now = Instant(NOW + after_s)
        situation = a_situation(ttft(3.0, window=60.0, at=now), queue, in_service=in_service, now=now)
        found = ask(POLICY, situation, carry)
        return found.target, found.reason.code, found.carry

    target, code, carry = look(-15, 1.0, "")
    assert (target, code) == (2.0, "slo_breach")
    target, code, carry = look(0, 2.0, carry)
    assert (target, code) == (2.0, "slo_breach_settling")
    target, code, carry = look(59, 2.0, carry)
    assert (target, code) == (2.0, "slo_breach_settling")
    target, code, carry = look(60, 2.0, carry)
    assert (target, code) == (3.0, "slo_breach")


@pytest.mark.parametrize("carry", ["", "no json", '{"v": 2, "joined_at": 1e9}', '{"joined_at": "x"}'])
def test_a_carry_that_it_does_not_know_is_as_none(ask: Ask, carry: str) -> None:
    found = ask(POLICY, a_situation(ttft(3.0, window=60.0), a_reading(QUEUE, 99.0)), carry)
    assert found.reason.code == "slo_breach"


def test_other_signals_may_confirm(ask: Ask) -> None:
    confirm = (Confirm(signal=Signal.KV_CACHE_USE, above=0.8),)
    policy = latency_slo.build(Settings(signal=Signal.E2E_S_P95, objective=Duration(30.0), confirm=confirm, step=2))
    readings = a_reading(Signal.E2E_S_P95, 31.0), a_reading(Signal.KV_CACHE_USE, 0.9)
    assert ask(policy, a_situation(*readings)).target == 3.0
    assert policy.signals() == {Signal.E2E_S_P95, Signal.KV_CACHE_USE}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"signal": "queue_length"}, "use target_tracking"),
        ({"objective": 0}, "objective: found 0 s"),
        ({"step": 0}, "step: found 0"),
        ({"veto_below": 1.5}, "veto_below: found 1.5"),
        ({"confirm": []}, "latency alone must not buy machines"),
        ({"confirm": [{"signal": "e2e_s_p95", "above": 1}]}, "is a latency too"),
        ({"confirm": [{"signal": "queue_length", "above": -1}]}, "found -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(settings: dict[str, object], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert({"signal": "ttft_s_p95", "objective": 2.0, **settings}, Settings)
