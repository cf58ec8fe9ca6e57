"""The study: its ladders, what is made of the runs, what is kept, and that the page says what the results say."""

from pathlib import Path

import numpy as np
import pytest

from autoscaler.domain.faults import ConfigError
from autoscaler.lab.study.__main__ import main
from autoscaler.lab.study.contenders import BY_NAME, CLAIRVOYANT, FIXED, SLO, policies_of, setting_of
from autoscaler.lab.study.figures import chosen, gap, hours_at_goal, rows, summed
from autoscaler.lab.study.ladder import climb
from autoscaler.lab.study.page import filled
from autoscaler.lab.study.records import GOAL, Case, Half, Kept, Run, SourceTold, Study, read_study, write_study
from autoscaler.lab.study.running import Runner, Spent, without
from autoscaler.lab.study.strategies import Way, serve
from autoscaler.lab.study.traffic import A100, PEAK_UNITS, Source, Traffic, load
from autoscaler.lab.workload import Workload, from_counts
from autoscaler.lab.yardsticks import work_s

ROOT = Path(__file__).parents[3]
PAGE, RESULTS = ROOT / "docs" / "policy-study.md", ROOT / "docs" / "data" / "policy-study.json"
TUNED = BY_NAME["request_rate"]
TINY = Source("tiny", "tiny.csv", "made here")


def half(attainment: float, hours: float) -> Half:
    return Half(attainment, hours, 3.0, 5.0, 1.0, 0)


def a_run(name: str, rung: int, first: float, second: float, hours: float) -> Run:
    return Run(name, rung, 1.0, half(first, hours), half(second, hours))


def a_workload() -> Workload:
    return from_counts("tiny", 60.0, np.full(20, 40.0), seed=1)


def a_study() -> Study:
    """`slo` holds for 11 hours, a tuned policy holds on the first half alone, the yardstick takes 10."""
    fixed = (a_run(FIXED, -5, 0.999, 0.999, 20.0), a_run(FIXED, -4, 0.98, 0.98, 16.0))
    runs = (
        a_run(CLAIRVOYANT, 0, 0.99, 0.99, 10.0),
        a_run(SLO, 0, 0.9, 0.992, 11.0),
        a_run("request_rate", 0, 0.999, 0.999, 15.0),
        a_run("request_rate", 1, 0.992, 0.97, 9.0),
        a_run("request_rate", 2, 0.9, 0.9, 8.0),
    )
    told = SourceTold("tiny", "tiny.csv", "made here", "all", 1.0, 800, "one", 2.0, 15.0, smooth=True)
    return Study(sources=(told,), cases=(Case("tiny", 0, fixed), Case("tiny", 60, runs)))


# ------------------------------------------------------------------------------------------ the ladder


def tried(first: int, second: int, start: int | None, name: str = "request_rate") -> list[int]:
    """Rungs tried when rungs up to `first` hold on the first half, and up to `second` on the second."""
    order: list[int] = []

    def attain(rung: int) -> tuple[float, float]:
        order.append(rung)
        return (1.0 if rung <= first else 0.5), (1.0 if rung <= second else 0.5)

    climb(BY_NAME[name], start, GOAL, attain)
    return order


@pytest.mark.parametrize("edge", [-5, -1, 0, 3])
@pytest.mark.parametrize("start", [None, -3, 2])
def test_a_ladder_is_climbed_until_the_last_rung_that_holds_is_known(edge: int, start: int | None) -> None:
    order = tried(edge, edge, start)
    assert len(order) == len(set(order)) <= TUNED.runs_most
    assert {edge, edge + 1} <= set(order) or len(order) == TUNED.runs_most


def test_the_second_half_is_bracketed_too() -> None:
    order = tried(0, -2, 0)
    assert any(rung <= -2 for rung in order)


def test_a_yardstick_looks_at_the_second_half_alone() -> None:
    order = tried(-14, 1, None, CLAIRVOYANT)
    assert {1, 2} <= set(order)
    assert min(order) >= -1


def test_a_ladder_ends() -> None:
    assert tried(-100, -100, None) == [0, -2, -4, -6, -8]
    assert max(tried(100, 100, None)) == TUNED.rungs[1]


# ------------------------------------------------------------------------------------------ figures


def test_a_choice_is_the_cheapest_that_held_on_the_first_half_whatever_the_second() -> None:
    found = chosen(a_study().case("tiny", 60), TUNED)
    assert found is not None
    assert (found.rung, found.second.holds) == (1, False)


def test_without_one_that_held_the_nearest_is_chosen() -> None:
    case = Case("tiny", 60, (a_run("request_rate", 0, 0.9, 1.0, 5.0), a_run("request_rate", 1, 0.95, 1.0, 6.0)))
    found = chosen(case, TUNED)
    assert found is not None
    assert found.rung == 1


def test_hours_at_the_goal_lie_between_the_runs_around_it() -> None:
    case = Case("tiny", 60, (a_run("request_rate", 0, 0, 0.999, 20.0), a_run("request_rate", 1, 0, 0.9, 10.0)))
    assert hours_at_goal(case, "request_rate") == pytest.approx(15.0)  # 0.1, 0.01, 0.001 missed: half way
    assert hours_at_goal(Case("tiny", 60, case.runs[1:]), "request_rate") is None
    assert hours_at_goal(Case("tiny", 60, case.runs[:1]), "request_rate") == 20.0


def test_a_case_is_told_by_ratios_to_the_yardstick() -> None:
    (row,) = rows(a_study())
    assert (row.best_h, row.clairvoyant_h) == (20.0, 10.0)
    assert row.entries[SLO].ratio == pytest.approx(1.1)
    assert not row.entries["request_rate"].holds
    found = gap(row)
    assert found is not None
    assert found[0] == "request_rate"
    sums = {one.contender: one for one in summed([row])}
    assert (sums[SLO].holds, sums[SLO].cases, sums["request_rate"].holds) == (1, 1, 0)


def test_a_case_that_no_fixed_size_holds_counts_for_nobody() -> None:
    study = a_study()
    poor = Case("tiny", 0, (a_run(FIXED, -60, 0.9, 0.9, 99.0),))
    assert summed(rows(Study(sources=study.sources, cases=(poor, study.cases[1])))) == []


# ------------------------------------------------------------------------------------------ running


def test_what_is_kept_is_not_run_again(tmp_path: Path) -> None:
    write_trace(tmp_path)
    kept, said, again = Kept(tmp_path / "out"), list[str](), list[str]()
    Runner(tmp_path, kept, float("inf"), said.append).source(TINY, frozenset({FIXED, SLO}))
    Runner(tmp_path, kept, float("inf"), again.append).source(TINY, frozenset({FIXED, SLO}))
    assert said
    assert again == []
    names = {run.contender for run in kept.case("tiny", 60).runs}
    assert names == {SLO}
    assert kept.case("tiny", 600).runs == ()
    kept.keep(without(kept.case("tiny", 60), frozenset({SLO})))
    assert kept.case("tiny", 60).runs == ()


def test_it_ends_when_its_time_is_spent(tmp_path: Path) -> None:
    write_trace(tmp_path)
    with pytest.raises(Spent):
        Runner(tmp_path, Kept(tmp_path / "out"), 0.0, print).source(TINY, frozenset())


def write_trace(folder: Path) -> None:
    made = a_workload()
    lines = zip(made.arrival_s, made.input_tokens, made.output_tokens, strict=True)
    text = "".join(f"{at:.3f},{prompt},{output}\n" for at, prompt, output in lines)
    (folder / TINY.file).write_text("arrival_s,input_tokens,output_tokens\n" + text)


def test_one_rule_sets_the_amount_of_traffic(tmp_path: Path) -> None:
    write_trace(tmp_path)
    found = load(TINY, tmp_path).workload
    minutes = np.bincount((found.arrival_s / 60.0).astype(int), weights=work_s(found, A100)) / 60.0
    assert np.quantile(minutes, 0.99) == pytest.approx(PEAK_UNITS[0], rel=0.1)


def test_a_higher_rung_asks_for_less() -> None:
    traffic = Traffic(TINY, a_workload(), 1.0)
    for name in BY_NAME:
        settings = [setting_of(name, rung, traffic) for rung in (-2, -1)]
        less_is_more_capacity = name not in {FIXED, SLO}
        assert (settings[0] < settings[1]) == less_is_more_capacity
        assert policies_of(name, -1, traffic, 60.0)
    assert setting_of(SLO, 0, traffic) == 1.0


# ------------------------------------------------------------------------------------------ strategies


def test_a_pool_of_unlike_replicas_is_served_worse_by_turns() -> None:
    busy = from_counts("busy", 60.0, np.full(10, 6000.0), seed=1)
    turns = serve("mixed", 0.5, Way("", "round_robin"), busy)
    weighted = serve("mixed", 0.5, Way("", "weighted", weighs=True), busy)
    assert turns.attainment < weighted.attainment


# ------------------------------------------------------------------------------------------ files and page


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_study(tmp_path / "a.json", a_study())
    assert read_study(tmp_path / "a.json") == a_study()
    write_study(tmp_path / "b.json", read_study(tmp_path / "a.json"))
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(ConfigError, match=r"c\.json"):
        read_study(tmp_path / "c.json")


def test_a_table_stands_between_its_marks_and_the_text_is_left_alone() -> None:
    page = "before\n<!-- table: summary -->\nstale words\n<!-- end -->\nafter\n"
    made = filled(page, a_study())
    assert made.startswith("before\n<!-- table: summary -->\n| policy |")
    assert made.endswith("|\n<!-- end -->\nafter\n")
    assert "stale words" not in made
    assert "| `slo` | 1 of 1 | 1.10 |" in made
    assert filled(made, a_study()) == made
    with pytest.raises(ConfigError, match="nonsense"):
        filled(page.replace("summary", "nonsense"), a_study())


def test_the_page_says_what_the_results_say() -> None:
    page, study = PAGE.read_text("utf-8"), read_study(RESULTS)
    assert page.count("<!-- table: ") == 6
    assert filled(page, study) == page
    assert len(rows(study)) > 5


def test_mistakes_are_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert main([*out, "--traces", str(tmp_path), "--sources", "azure-conv"]) == 2
    assert "azure2023_conv" in capsys.readouterr().err
    assert main([*out, "--traces", str(tmp_path), "--contenders", "wizard"]) == 2
    assert "found 'wizard'; allowed: fixed" in capsys.readouterr().err
