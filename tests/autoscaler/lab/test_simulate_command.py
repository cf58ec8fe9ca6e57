"""`autoscaler simulate` from end to end: what it prints, writes and exits with."""

import html.parser
import json
from pathlib import Path

import pytest
import yaml
from typing_extensions import override

from autoscaler.lab.saved import read
from tests.support.lab_commands import AZURE, Lab, a_lab_pool


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


class _Page(html.parser.HTMLParser):
    """Open tags that must be closed, pictures without words, and what refers outside."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append(tag)
        if tag not in {"meta", "img"}:
            self.open.append(tag)
        if tag == "img" and not named.get("alt"):
            self.wrong.append("a picture without words")
        self.wrong += [
            f"{tag} {value}" for key, value in attrs if key in {"src", "href"} and not (value or "").startswith("data:")
        ]

    @override
    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")


def test_a_scorecard_files_and_a_report(lab: Lab) -> None:
    ran = lab(
        "simulate", "--workload", "day.csv", "--out", "out", "--assert", "slo_attainment>=1%", "--assert", "cut<=0"
    )
    assert (ran.code, ran.err) == (0, "written: out/report.html, out/result.json\n")
    assert "inside the objective" in ran.out
    assert "all 2 assertions hold" in ran.out
    assert sorted(one.name for one in (lab.folder / "out").iterdir()) == [
        "picture.png", "report.html", "result.json", "result.npz",
    ]  # fmt: skip
    page = _Page()
    text = (lab.folder / "out" / "report.html").read_text()
    page.feed(text)
    assert (page.open, page.wrong) == ([], [])
    assert page.tags.count("h1") == 1
    assert {"table", "caption", "img", "main", "title"} <= set(page.tags)
    assert str(lab.folder) not in text
    assert (lab.folder / "out" / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_same_seed_same_bytes_and_another_seed_is_another_world(lab: Lab) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert lab("simulate", "-w", "day.csv", "--out", name, "--seed", seed).code == 0
    kept = {name: [(lab.folder / name / file).read_bytes() for file in ("result.json", "result.npz", "report.html")]
            for name in "abc"}  # fmt: skip
    assert kept["a"] == kept["b"]
    assert kept["a"][1] != kept["c"][1]


def test_a_failed_assertion_is_exit_code_1_and_says_by_how_much(lab: Lab) -> None:
    ran = lab("simulate", "-w", "day.csv", "--assert", "launches<=0", "--assert", "failed<=0", "--json")
    assert ran.code == 1
    (run,) = ran.json["runs"]
    assert ran.json["exit_code"] == 1
    assert [line.partition(":")[0] for line in run["failed_assertions"]] == ["launches<=0"]
    assert f"launches is {run['scorecard']['launches']}" in run["failed_assertions"][0]
    shown = lab("simulate", "-w", "day.csv", "--assert", "launches<=0", "--assert", "failed<=0")
    assert shown.code == 1
    assert "assertion failed: launches<=0: launches is" in shown.out


def test_the_config_is_the_daemons_and_what_it_says_is_what_is_tried(lab: Lab) -> None:
    """A daemon's token file and database are not there in CI, and are not asked for."""
    pool = a_lab_pool(capacity={"min": 3, "max": 3})
    lab.write("big.yaml", {
        "installation": "lab", "ledger": "sqlite:///nowhere/x.db", "admin": {"token_file": "/nowhere/token"},
        "pools": [a_lab_pool("other", balancers=[]), pool],
    })  # fmt: skip
    ran = lab("simulate", "-c", "big.yaml", "--pool", "llama", "-w", "day.csv", "--json", AUTOSCALER_LOG__LEVEL="x")
    assert ran.code == 0
    card = ran.json["runs"][0]["scorecard"]
    assert (card["size_mean"], card["size_max"], card["launches"]) == (3.0, 3.0, 0)
    assert card["cost_usd"] == pytest.approx(2.5 * card["machine_hours"])


def test_the_strategy_is_the_configs_and_the_hardware_the_worlds(lab: Lab) -> None:
    lab.write("world.yaml", {"hardware": {"here": "llama-3.1-8b-1xh100-trtllm"}, "cold_start": "1m"})
    assert lab("simulate", "-w", "day.csv", "--world", "world.yaml", "--out", "out").code == 0
    settings = read(lab.folder / "out").settings
    assert settings.front.strategy == "round_robin"
    assert settings.hardware_of("here").gpus == 1
    assert settings.cloud.load.p50_s == pytest.approx(39.0)


def test_other_policies_from_a_file(lab: Lab) -> None:
    lab.write("fixed.yaml", {"policies": [{"kind": "fixed", "size": 2}]})
    ran = lab("simulate", "-w", "day.csv", "--policies", "fixed.yaml", "--json", "--start", "2")
    assert ran.json["runs"][0]["policies"] == ["fixed"]
    assert ran.json["runs"][0]["scorecard"]["size_max"] == 2.0


def test_the_second_half_alone(lab: Lab) -> None:
    whole = lab("simulate", "-w", "day.csv", "--json").json["runs"][0]["scorecard"]
    half = lab("simulate", "-w", "day.csv", "--from", "50%", "--json").json["runs"][0]["scorecard"]
    first = lab("simulate", "-w", "day.csv", "--until", "0.5", "--json").json["runs"][0]["scorecard"]
    assert whole["requests"] == half["requests"] + first["requests"]
    assert half["hours"] == pytest.approx(whole["hours"] / 2)


def test_several_workloads_each_in_its_folder(lab: Lab) -> None:
    lab.trace("night.csv", 600.0, 0.1)
    ran = lab("simulate", "-w", "day.csv", "-w", "night.csv", "--out", "out", "--json")
    assert [run["workload"] for run in ran.json["runs"]] == ["day", "night"]
    assert (lab.folder / "out" / "night" / "report.html").exists()


def test_a_recorded_trace_that_ships(lab: Lab) -> None:
    ran = lab("simulate", "-w", AZURE, "--from", "50%", "--json", "--fault", "telemetry_gap@40m+5m")
    assert ran.json["runs"][0]["scorecard"]["requests"] == 3466


# --- bad input: one line each, exit code 2, no traceback ---

BAD_TRACES = {
    "arrival_s,input_tokens,output_tokens\n0.5,10,abc\n": "line 2: found output_tokens 'abc'; expected: output_tok",
    "arrival_s,input_tokens,output_tokens\n5,10,1\n4,10,1\n": "line 3: found arrival_s '4' after 5; expected: time",
    "arrival_s,input_tokens,output_tokens\n1,2\n": "line 2: found 2 cells",
    "arrival_s,input_tokens,output_tokens\n-1,2,3\n": "line 2: found arrival_s '-1'",
    "arrival_s,input_tokens,output_tokens\n": "found no request; allowed: at least one",
    "": "is empty; expected: a header",
    "a,b\n1,2\n": "line 1: found 'a,b'; expected: a header",
    "start_s,requests\n0,5\n60,5\n180,5\n": "line 4: found a bin that starts at '180'; expected: bins of equal width",
    "start_s,requests\n0,5\n": "expected: at least two",
}  # fmt: skip


@pytest.mark.parametrize(("text", "told"), BAD_TRACES.items())
def test_a_bad_trace(lab: Lab, text: str, told: str) -> None:
    (lab.folder / "bad.csv").write_text(text)
    ran = lab("simulate", "-w", "bad.csv")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: bad.csv: ")
    assert told in ran.err
    assert ran.err.count("\n") == 1


def test_a_signal_that_the_workload_lacks(lab: Lab) -> None:
    lab.write("tokens.yaml", {"policies": [{"kind": "target_tracking", "signal": "token_rate", "target": 900}]})
    (lab.folder / "blank.csv").write_text("arrival_s,input_tokens,output_tokens\n1,10,\n2,20,\n")
    ran = lab("simulate", "-w", "blank.csv", "--policies", "tokens.yaml")
    assert ran.code == 2
    assert "target_tracking:token_rate reads token_rate, and output_tokens are blank in every line" in ran.err
    assert lab("simulate", "-w", "blank.csv").code == 0  # other signals do not need them


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"policies": [{"kind": "target_traking", "target": 4}]}, "did you mean 'target_tracking'"),
        (
            {"policies": [{"kind": "target_tracking", "signal": "queue_length"}]},
            "mine.yaml: policies[0].target:",
        ),
        ({"policies": []}, "policies"),
        ({"policies": [{"kind": "fixed", "size": 1}], "pace": {}}, "found 'pace'; allowed: the one key 'policies'"),
        ({"policy": []}, "found 'policy'"),
    ],
)
def test_a_policy_file_with_mistakes(lab: Lab, document: object, told: str) -> None:
    lab.write("mine.yaml", document)
    ran = lab("simulate", "-w", "day.csv", "--policies", "mine.yaml")
    assert ran.code == 2
    assert told in ran.err
    assert "Traceback" not in ran.err


def test_every_mistake_of_the_config_is_told_with_its_file(lab: Lab) -> None:
    text = yaml.safe_dump(
        {"installation": "lab", "pools": [a_lab_pool(capacity={"min": 5, "max": 2}, policies=[{"kind": "x"}])]}
    )
    (lab.folder / "bad.yaml").write_text(text)
    ran = lab("simulate", "-c", "bad.yaml", "-w", "day.csv", "--json")
    assert ran.code == 2
    assert len(ran.json["errors"]) == 2
    assert all(line.startswith("bad.yaml: pools[0].") for line in ran.json["errors"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--from", "60%", "--until", "50%"), "--from: found '60%' with --until '50%'"),
        (("--from", "half"), "--from: found 'half'; allowed: a share such as 50% or 0.5"),
        (("--replica", "a100"), "hardware.'*': found 'a100'; allowed: gpt-oss-120b"),
        (("--cold-start", "soon"), "cold_start: found 'soon'"),
        (("--scale", "0"), "workload.scale: found 0.0; allowed: a number, more than 0"),
        (("--pool", "llamas"), "did you mean 'llama'"),
        (("--assert", "flap<=4"), "did you mean 'flaps'"),
        (("--world", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
    ],
)
def test_options_that_cannot_be(lab: Lab, arguments: tuple[str, str], told: str) -> None:
    ran = lab("simulate", "-w", "day.csv", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_hardware_of_an_offer_that_is_not_there(lab: Lab) -> None:
    lab.write("world.yaml", {"hardware": {"there": "qwen3-32b-2xh100-vllm"}})
    ran = lab("simulate", "-w", "day.csv", "--world", "world.yaml")
    assert "hardware: found 'there', no offer of llama; allowed: here, *" in ran.err


def test_an_out_folder_that_cannot_be(lab: Lab) -> None:
    (lab.folder / "file").write_text("")
    ran = lab("simulate", "-w", "day.csv", "--out", "file")
    assert ran.code == 2
    assert "cannot be written: " in ran.err


# --- a terminal and Ctrl-C ---


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_marks_it(lab: Lab) -> None:
    rows = [f"{index * 600},{60 + index % 144}" for index in range(14 * 144)]
    (lab.folder / "long.csv").write_text("\n".join(["start_s,requests", *rows, ""]))
    arguments = ("-w", "long.csv", "--scale", "20", "--out", "out", "--assert", "slo_attainment>=1")
    with lab.on_a_terminal("simulate", *arguments) as command:
        command.until(lambda: b"%" in command.seen)  # the bar has come: it is at work
        assert b"on long" in command.seen
        code, out = command.interrupt()
    assert code == 130
    assert "PARTIAL: interrupted after" in out
    assert "assertion failed" not in out
    saved = json.loads((lab.folder / "out" / "result.json").read_text())
    assert (saved["complete"], saved["part"][1]) == (False, saved["ended_s"])
    assert 0 < saved["ended_s"] < saved["duration_s"]
    assert "partial result" in (lab.folder / "out" / "report.html").read_text()
