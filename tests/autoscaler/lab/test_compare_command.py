"""`autoscaler compare` from end to end, and how rows and the frontier come about."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoscaler.domain.faults import ConfigError
from autoscaler.lab.compare import Done, compare
from autoscaler.lab.picture import Point, frontier
from autoscaler.lab.scorecard import Part, score
from tests.support.lab_commands import Lab, a_lab_pool
from tests.support.lab_results import a_result


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path)
    for size in (1, 4):
        made.write(f"fixed{size}.yaml", {"policies": [{"kind": "fixed", "size": size}]})
    return made


def done(label: str, share: float, cost: float, workload: str = "w", **changes: Any) -> Done:
    card = msgspec.structs.replace(score(a_result()), slo_attainment=share, cost_usd=cost, gpu_hours=2 * cost)
    return Done(label, workload, changes.pop("seed", 0), changes.pop("goal", 0.99), card, **changes)


def test_the_frontier_is_what_no_other_beats_in_both() -> None:
    made = (("a", 1, 0.5), ("b", 2, 0.9), ("worse", 3, 0.8), ("dearer", 4, 0.9), ("c", 5, 1.0), ("dear", 5, 0.99))
    points = [Point(name, "w", cost, share) for name, cost, share in made]
    assert [one.label for one in frontier(points)] == ["a", "b", "c"]


def test_rows_are_means_over_seeds_with_the_worst_beside() -> None:
    made = compare([done("a", 1.0, 2.0), done("a", 0.98, 4.0, seed=1), done("b", 0.5, 3.5)])
    first, second = made.rows
    assert (first.seeds, first.slo_attainment, first.slo_attainment_worst) == (2, 0.99, 0.98)
    assert (made.priced, made.cost(first), first.keeps_goal, second.keeps_goal) == (True, 3.0, True, False)
    assert (first.on_frontier, second.on_frontier) == (True, False)


def test_without_prices_gpu_hours_are_compared() -> None:
    made = compare([done("a", 1.0, 0.0), done("b", 1.0, 5.0)])
    assert not made.priced
    assert "GPU hours" in made.cost_words


def test_what_was_judged_otherwise_does_not_stand_beside() -> None:
    with pytest.raises(ConfigError, match=r"slo.goal: found 0.9, 0.99"):
        compare([done("a", 1.0, 1.0), done("b", 1.0, 1.0, goal=0.9)])
    with pytest.raises(ConfigError, match="w: judged from 0 to 9 s and 5 to 9 s"):
        compare([done("a", 1.0, 1.0, part=Part(0.0, 9.0)), done("b", 1.0, 1.0, part=Part(5.0, 9.0))])
    with pytest.raises(ConfigError, match="no run that ended"):
        compare([])


def test_policies_workloads_and_seeds_in_processes_and_again_from_files(lab: Lab) -> None:
    lab.trace("night.csv", 600.0, 0.1)
    ran = lab(
        "compare", "-c", "autoscaler.yaml", "--policies", "fixed1.yaml", "--policies", "fixed4.yaml",
        "-w", "day.csv", "-w", "night.csv", "--seeds", "2", "--jobs", "2", "--start", "1", "--out", "out", "--json",
    )  # fmt: skip
    assert (ran.code, ran.err) == (0, "written: out/compare.html\n")
    rows = {(row["label"], row["workload"]): row for row in ran.json["rows"]}
    assert len(rows) == 6
    assert all(row["seeds"] == 2 for row in rows.values())
    assert rows["fixed4", "day"]["cost_usd"] > rows["autoscaler", "day"]["cost_usd"] > rows["fixed1", "day"]["cost_usd"]
    assert any(row["on_frontier"] for row in rows.values())
    kept = sorted(one.relative_to(lab.folder / "out").as_posix() for one in (lab.folder / "out").rglob("result.json"))
    assert len(kept) == 12
    assert "fixed4/night/seed-1/result.json" in kept
    assert (lab.folder / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")
    again = lab("compare", "out", "--json")
    assert {(row["label"], row["workload"]): row for row in again.json["rows"]} == rows
    shown = lab("compare", "out/fixed1", "out/fixed4")
    assert "fixed1" in shown.out
    assert "autoscaler" not in shown.out


def test_one_process_and_many_give_the_same(lab: Lab) -> None:
    arguments = ("-c", "autoscaler.yaml", "--policies", "fixed4.yaml", "-w", "day.csv", "--json", "--seeds", "2")
    one, many = lab("compare", *arguments, "-j", "1"), lab("compare", *arguments, "-j", "2")
    assert (one.code, many.code) == (0, 0)
    assert len(one.json["rows"]) == 2
    assert one.json == many.json


def test_two_configs_of_one_name_are_told_apart(lab: Lab) -> None:
    (lab.folder / "b").mkdir()
    lab.write("b/autoscaler.yaml", {"installation": "b", "pools": [a_lab_pool(capacity={"min": 3, "max": 3})]})
    ran = lab("compare", "-c", "autoscaler.yaml", "-c", "b/autoscaler.yaml", "-w", "day.csv", "--json", "-j", "1")
    assert [row["label"] for row in ran.json["rows"]] == ["autoscaler-1", "autoscaler-2"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "compare: allowed: --config with --workload, or results of earlier runs"),
        (("-c", "autoscaler.yaml"), "compare: allowed"),
        (("--policies", "fixed1.yaml", "-w", "day.csv"), "compare: allowed"),
        (("nowhere",), "nowhere: cannot be read"),
        (("-c", "autoscaler.yaml", "-w", "nowhere.csv", "-j", "2"), "nowhere.csv: cannot be opened"),
        (("-c", "autoscaler.yaml", "-w", "day.csv", "--policies", "day.csv"), "day.csv"),
    ],
)
def test_options_that_cannot_be(lab: Lab, arguments: tuple[str, ...], told: str) -> None:
    ran = lab("compare", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
    assert "Traceback" not in ran.err


def test_an_empty_folder_holds_no_result(lab: Lab) -> None:
    (lab.folder / "empty").mkdir()
    assert "empty: holds no result.json" in lab("compare", "empty").err


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_keeps_the_runs_that_ended(lab: Lab, jobs: str) -> None:
    rows = [f"{index * 600},{60 + index % 144}" for index in range(14 * 144)]
    (lab.folder / "long.csv").write_text("\n".join(["start_s,requests", *rows, ""]))
    arguments = (
        "-c",
        "autoscaler.yaml",
        "-w",
        "day.csv",
        "-w",
        "long.csv",
        "--scale",
        "20",
        "--out",
        "out",
        "-j",
        jobs,
    )
    with lab.on_a_terminal("compare", *arguments) as command:
        command.until(lambda: b"50%" in command.seen)  # one of the two runs has ended
        code, out = command.interrupt()
    assert code == 130
    assert "PARTIAL: 1 runs were not made" in out
    document = json.loads((lab.folder / "out" / "compare.json").read_text())
    assert document["complete"] is False
    assert [row["workload"] for row in document["rows"]] == ["day"]
