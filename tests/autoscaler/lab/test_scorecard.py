"""The figures of a run, each worked out on paper."""

import numpy as np
import pytest

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import ConfigError
from autoscaler.lab.result import CUT, FAILED, OK, UNFINISHED, Life
from autoscaler.lab.scorecard import FLAP_WINDOW_S, METRICS, Part, Slo, part_of, score
from autoscaler.lab.words import ROWS, shown, verdict
from tests.support.lab_results import a_result


def test_what_is_inside_the_objective() -> None:
    """TTFT <= 2 s and end to end <= 2 s + 0.1 s a token; both bounds belong to it; failed, cut, unfinished do not."""
    card = score(
        a_result(
            (0.0, 10, 2.0, 3.0, OK),  # on both bounds
            (1.0, 10, 2.5, 2.9, OK),  # its first token is late
            (2.0, 10, 0.5, 3.5, OK),  # its end is late
            (3.0, 100, 0.5, 11.0, OK),  # a long answer may take long
            (4.0, 10, 0.1, 0.2, CUT),
            (5.0, 10, 0.1, None, FAILED),
            (6.0, 10, None, None, UNFINISHED),
            (7.0, 10, 0.1, 0.2, OK),
        )
    )
    assert (card.requests, card.slo_attainment) == (8, 3 / 8)
    assert (card.failed, card.cut, card.unfinished) == (1, 1, 1)
    assert card.e2e_s_p99 == pytest.approx(11.0)  # of those that finished only
    assert card.ttft_s_p50 == pytest.approx(0.5)


def test_the_users_own_objective() -> None:
    result = a_result((0.0, 10, 5.0, 5.5, OK), (1.0, 10, 0.1, 90.0, OK))
    assert score(result, Slo(ttft=Duration(6.0), e2e=None)).slo_attainment == 1.0
    assert score(result, Slo(ttft=None, e2e=Duration(6.0), per_token=Duration(0.0))).slo_attainment == 0.5
    with pytest.raises(ValueError, match=r"goal: found 1\.5"):
        Slo(goal=1.5)
    with pytest.raises(ValueError, match="one of the two"):
        Slo(ttft=None, e2e=None)


def test_only_the_part_is_judged() -> None:
    """Requests, money and moves of the second half; a request belongs to the half in which it arrived."""
    life = Life("i-1", "a", "z", -1.0, 0.0, 0.0, 2700.0, "terminated", 40.0, 2)
    late = Life("i-2", "a", "z", 1900.0, 1950.0, 2000.0, np.inf, "", 40.0, 2)
    result = a_result(
        (1799.0, 1, 9.0, 9.1, OK), (1800.0, 1, 0.1, 0.2, OK), (3600.0, 1, 0.1, 0.2, OK),
        targets=((0.0, 1.0), (600.0, 2.0), (2400.0, 3.0)), lives=(life, late),
    )  # fmt: skip
    whole, half = score(result), score(result, Slo(), part_of(result, 0.5))
    assert (whole.requests, half.requests) == (3, 2)
    assert (whole.slo_attainment, half.slo_attainment) == (2 / 3, 1.0)
    assert half.machine_hours == pytest.approx((2700 - 1800 + 3600 - 1950) / 3600)
    assert half.gpu_hours == pytest.approx(2 * half.machine_hours)
    assert half.cost_usd == pytest.approx(40 * half.machine_hours)
    assert (whole.launches, half.launches) == (1, 1)  # the first machine was there before
    assert half.hours == 0.5
    assert (whole.scale_moves, half.scale_moves) == (2, 0)  # 3 is the only size that it was decided in this part


def test_a_flap_is_a_move_that_takes_the_last_one_back_soon() -> None:
    soon, late = 60.0, 60.0 + FLAP_WINDOW_S
    up_down = a_result(targets=((0.0, 1.0), (30.0, 2.0), (30.0 + soon, 1.0), (200.0, 1.0)))
    up_up = a_result(targets=((0.0, 1.0), (30.0, 2.0), (60.0, 3.0)))
    slowly = a_result(targets=((0.0, 1.0), (30.0, 2.0), (31.0 + late, 1.0)))
    thrice = a_result(targets=((0.0, 1.0), (30.0, 2.0), (60.0, 1.0), (90.0, 2.0)))
    found = [(card.scale_moves, card.flaps) for card in map(score, (up_down, up_up, slowly, thrice))]
    assert found == [(2, 1), (2, 0), (2, 0), (3, 2)]


def test_minutes_over_the_objective_are_those_that_missed_the_goal() -> None:
    fine = [(60.0 + index * 0.1, 1, 0.1, 0.2, OK) for index in range(99)]
    card = score(a_result(*fine, (80.0, 1, 9.0, 9.0, OK), (130.0, 1, 9.0, 9.0, OK), (200.0, 1, 0.1, 0.2, OK)))
    assert card.minutes_over_slo == 1  # of the first minute 99 % were inside, of the second none, of the third all


def test_idle_is_what_was_paid_and_ran_nothing() -> None:
    """One replica busy throughout; one paid for the first half hour, two for the second."""
    card = score(a_result(targets=((0.0, 1.0), (1800.0, 2.0))))
    assert card.idle_share == pytest.approx(1 - 3600 / (1800 + 3600))
    assert (card.size_mean, card.size_max) == (1.5, 2.0)


def test_after_an_interruption_what_could_still_be_in_time_is_left_out() -> None:
    rows = ((10.0, 10, 0.1, 0.2, OK), (50.0, 10, None, None, UNFINISHED), (99.0, 10, None, None, UNFINISHED))
    stopped = a_result(*rows, complete=False, ended_s=100.0)
    assert (score(stopped).requests, score(stopped).slo_attainment) == (2, 0.5)
    assert score(a_result(*rows)).slo_attainment == 1 / 3
    with pytest.raises(ConfigError, match=r"from: found 50%, the run ended at 3%"):
        part_of(stopped, 0.5)


def test_nothing_to_judge_is_nothing_and_not_zero() -> None:
    card = score(a_result((0.0, 1, None, None, FAILED)), Slo(), Part(100.0, 200.0))
    assert (card.requests, card.slo_attainment, card.ttft_s_p95) == (0, None, None)
    assert shown("slo_attainment", card) == "-"
    assert "No request" in verdict(card, Slo())


def test_every_figure_has_its_words_once() -> None:
    assert [row.metric for row in ROWS if row.metric in METRICS] == [row.metric for row in ROWS]
    assert sorted(METRICS) == sorted(row.metric for row in ROWS)
