"""`autoscaler tune`: the space, the search, and a study that several processes share."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from autoscaler.domain.faults import ConfigError
from autoscaler.lab.space import present, put, read_ranges, space_of
from autoscaler.lab.trial import read_pool
from autoscaler.lab.world_file import Range
from tests.support.lab_commands import Lab, a_lab_pool
from tests.support.postgres import a_postgres


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path)
    made.write("fixed.yaml", {"policies": [{"kind": "fixed", "size": 3}]})
    return made


def chosen(lab: Lab, *policies: dict[str, object]) -> "object":
    lab.write("some.yaml", {"installation": "lab", "pools": [a_lab_pool(policies=list(policies))]})
    return read_pool(lab.folder / "some.yaml", None)


def test_without_ranges_the_numbers_of_the_policies_are_searched_as_far_as_they_are_taken(lab: Lab) -> None:
    found = chosen(
        lab,
        {"kind": "target_tracking", "signal": "gpu_utilization", "target": 0.5},
        {"kind": "concurrency", "target": 8, "stable_window": "1m"},
    )
    space = {one.path: one for one in space_of(found, {})}  # type: ignore[arg-type]
    target = space["policies[0].target"]
    assert (target.now, target.low) == (0.5, 0.125)
    assert 0.95 < target.high <= 1.0  # a share: the Settings refuse more
    assert (space["policies[1].target"].low, space["policies[1].target"].high) == (2.0, 32.0)
    assert space["policies[1].stable_window"].now == 60.0
    assert space["policies[1].panic_threshold"].low > 1.0
    assert space["policies[0].tolerance"].now == 0.1  # a default


def test_parts_of_a_composed_policy_are_searched_too(lab: Lab) -> None:
    inner = {"kind": "target_tracking", "signal": "queue_length", "target": 4}
    found = chosen(lab, {"kind": "compose", "as": "highest", "of": [inner, {"kind": "fixed", "size": 2}]})
    assert "policies[0].of[0].target" in {one.path for one in space_of(found, {})}  # type: ignore[arg-type]


def test_whole_settings_are_searched_in_whole_numbers(lab: Lab) -> None:
    found = read_pool(lab.folder / "autoscaler.yaml", None)
    (size, step) = space_of(found, {"capacity.min": Range(low=1, high=4), "pace.tick": Range(low=10, high=20)})
    assert (size.whole, size.now, step.whole) == (True, 1.0, False)
    assert present(found, "pace.tick") == 15.0  # a default of the pace


def test_values_are_put_where_they_belong_and_the_config_has_the_last_word(lab: Lab) -> None:
    found = read_pool(lab.folder / "autoscaler.yaml", None)
    made = put(found.mapping, {"policies[0].target": 9.0, "pace.scale_in.cooldown": 60})
    assert (made["policies"][0]["target"], made["pace"]["scale_in"]["cooldown"]) == (9.0, 60)
    assert found.mapping["policies"][0]["target"] == 4
    for path, told in (("policies[7].target", "leads nowhere"), ("policies[0].aim", "refused"), ("a b", "a path in")):
        with pytest.raises(ConfigError, match=told):
            space_of(found, {path: Range(low=1, high=2)})
    with pytest.raises(ConfigError, match=r"policies\[0\].target=0 is refused"):
        space_of(found, {"policies[0].target": Range(low=0, high=2)})


def test_ranges_as_options() -> None:
    assert read_ranges(["a.b=1..20 log"])["a.b"] == Range(low=1.0, high=20.0, log=True)
    with pytest.raises(ConfigError) as told:
        read_ranges(["a=1", "a=5..2", "a=0..2log"])
    assert len(told.value.mistakes) == 3


ARGUMENTS = ("tune", "-w", "day.csv", "--policies", "fixed.yaml", "--param", "policies[0].size=1..6", "--start", "1")


def test_the_least_size_that_keeps_the_goal_is_found(lab: Lab) -> None:
    """Six sizes: what the search finds is what trying them all finds."""
    shares = {}
    for size in range(1, 7):
        lab.write("one.yaml", {"policies": [{"kind": "fixed", "size": size}]})
        ran = lab("simulate", "-w", "day.csv", "--policies", "one.yaml", "--start", "1", "--json")
        shares[size] = ran.json["runs"][0]["scorecard"]["slo_attainment"]
    goal = (min(shares.values()) + max(shares.values())) / 2
    cheapest = min(size for size, share in shares.items() if share >= goal)
    assert cheapest > 1
    ran = lab(*ARGUMENTS, "--goal", str(goal), "--trials", "18", "--out", "out", "--json")
    assert ran.code == 0
    best = ran.json["best"]["values"]["policies[0].size"]
    assert math.ceil(best) == cheapest
    assert ran.json["before"]["values"] == {"policies[0].size": 3}  # the config as it is comes first
    assert ran.json["trials"][0]["number"] == ran.json["before"]["number"] == 0
    written = yaml.safe_load((lab.folder / "out" / "policies.yaml").read_text())
    assert written == {"policies": [{"kind": "fixed", "size": best}]}
    again = lab("simulate", "-w", "day.csv", "--policies", "out/policies.yaml", "--start", "1", "--json").json
    assert again["runs"][0]["scorecard"]["slo_attainment"] == ran.json["best"]["slo_attainment"]
    assert (lab.folder / "out" / "tune.png").read_bytes().startswith(b"\x89PNG")


def test_same_seed_same_search(lab: Lab) -> None:
    first, second = (lab(*ARGUMENTS, "--trials", "5", "--goal", "1%", "--json") for _ in range(2))
    assert first.json == second.json


def test_a_goal_that_nothing_keeps_is_exit_code_1_and_says_what_came_nearest(lab: Lab) -> None:
    ran = lab("tune", "-w", "day.csv", "--policies", "fixed.yaml", "--param", "policies[0].size=1..2", "--cold-start",
              "10m", "--goal", "100%", "--trials", "2")  # fmt: skip
    assert ran.code == 1
    assert "no trial keeps the goal of 1; nearest: " in ran.out


def test_a_study_goes_on_and_refuses_another_problem(lab: Lab) -> None:
    storage = ("--storage", "sqlite:///study.db", "--study", "mine")
    assert lab(*ARGUMENTS, *storage, "--trials", "2", "--goal", "1%", "--json").json["trials_here"] == 2
    second = lab(*ARGUMENTS, *storage, "--trials", "2", "--goal", "1%", "--json")
    assert (second.json["trials_here"], len(second.json["trials"])) == (2, 4)
    other = lab(*ARGUMENTS, *storage, "--trials", "2", "--goal", "2%")
    assert (other.code, other.out) == (2, "")
    assert "study: 'mine' is about another pool, world, workload or range" in other.err


@pytest.mark.parametrize(
    ("storage", "code", "told"),
    [
        ("nonsense", 2, "storage: an address that cannot be read: ArgumentError; allowed: sqlite:///FILE"),
        ("foo://lab:hidden@h/d", 2, "storage: foo://lab:***@h/d: NoSuchModuleError"),
        ("sqlite:////nowhere/x.db", 3, "storage sqlite:////nowhere/x.db: unable to open database file"),
        ("postgresql://lab:hidden@127.0.0.1:1/x", 3, "storage postgresql://lab:***@127.0.0.1:1/x: "),
    ],
)
def test_a_storage_that_is_none(lab: Lab, storage: str, code: int, told: str) -> None:
    ran = lab(*ARGUMENTS, "--trials", "1", AUTOSCALER_TUNE_STORAGE=storage)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert "hidden" not in ran.err


@pytest.mark.slow
def test_machines_share_one_study_through_a_real_postgresql(lab: Lab) -> None:
    with a_postgres() as url, ThreadPoolExecutor(2) as both:
        arguments = (*ARGUMENTS, "--goal", "1%", "--storage", url, "--json")
        assert lab(*arguments, "--trials", "1").code == 0
        runs = [both.submit(lab.process, *arguments, "--trials", "3") for _ in range(2)]
        codes = [run.result().code for run in runs]
        last = lab(*arguments, "--trials", "1")
        assert codes == [0, 0]
        assert len(last.json["trials"]) == 1 + 3 + 3 + 1
        assert sorted(one["number"] for one in last.json["trials"]) == list(range(8))


@pytest.mark.slow
def test_ctrl_c_keeps_the_trials_that_ended(lab: Lab) -> None:
    with lab.on_a_terminal(*ARGUMENTS, "--goal", "1%", "--trials", "500", "--out", "out") as command:
        command.until(lambda: b"1%" in command.seen)
        code, out = command.interrupt()
    assert code == 130
    assert "PARTIAL: interrupted" in out
    document = json.loads((lab.folder / "out" / "tune.json").read_text())
    assert document["complete"] is False
    assert 1 <= len(document["trials"]) < 500
