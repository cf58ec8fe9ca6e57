"""docs/policy-testing.md and the workflow beside it: their commands are run, with the files that they show."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscaler.lab.scorecard import METRICS
from tests.support.lab_commands import AZURE, ROOT, Lab

GUIDE = (ROOT / "docs" / "policy-testing.md").read_text()
WORKFLOW = ROOT / "docs" / "examples" / "policy-check.yml"
COMMANDS = [line.strip() for line in GUIDE.splitlines() if line.startswith("    autoscaler ")]
#: They need a server or a daemon's ledger, which their own tests have.
ELSEWHERE = {"backtest", "replay"}


def in_the_folder_of_the_guide(folder: Path) -> Lab:
    """A config, the files that the guide shows, and recorded traffic where `backtest` would have put it."""
    lab = Lab(folder)
    shutil.copy(ROOT / "docs" / "examples" / "one-machine.yaml", folder / "autoscaler.yaml")
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", GUIDE, re.DOTALL):
        (folder / name).write_text(text)
    (folder / "load").mkdir()
    shutil.copy(AZURE, folder / "load" / "workload.csv.gz")
    return lab


def test_the_guide_shows_every_command_of_the_lab() -> None:
    assert {shlex.split(one)[1] for one in COMMANDS} == {"backtest", "simulate", "compare", "tune", "replay"}
    assert len(COMMANDS) >= 9


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_commands_of_the_guide_do_what_it_says(tmp_path: Path) -> None:
    lab = in_the_folder_of_the_guide(tmp_path)
    for command in COMMANDS:
        _, what, *arguments = shlex.split(command)
        if what in ELSEWHERE:
            told = lab(what, "--help").out
            assert all(one in told for one in arguments if one.startswith("--")), command
            continue
        ran = lab(what, *arguments)
        assert ran.code == 0, (command, ran.out, ran.err)
    for written in ("now/report.html", "candidates/compare.html", "tuned/policies.yaml", "now/result.npz"):
        assert (tmp_path / written).exists(), written


def test_the_figures_of_the_guide_are_those_that_there_are() -> None:
    named = set(re.findall(r"`(\w+)`", "\n".join(line for line in GUIDE.splitlines() if line.startswith("| `"))))
    unknown = named - set(METRICS) - {"ttft", "e2e", "per_token", "usd_per_hour"}
    assert unknown == set()


def steps() -> list[str]:
    document: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())
    return [one["run"] for one in document["jobs"]["simulate"]["steps"] if "autoscaler simulate" in one.get("run", "")]


def run_steps(folder: Path) -> list[int]:
    """Each step as the shell of a CI runs it."""
    codes = []
    for step in steps():
        line = step.replace("autoscaler simulate", f"{shlex.quote(sys.executable)} -m autoscaler.cli.main simulate")
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", line], cwd=folder, env={"PYTHONPATH": str(ROOT), "HOME": str(folder)},
            capture_output=True, text=True, timeout=200, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        codes.append(done.returncode)
    return codes


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_workflow_passes_a_good_pool_and_fails_one_that_was_made_worse(tmp_path: Path) -> None:
    lab = in_the_folder_of_the_guide(tmp_path)
    (tmp_path / "traffic").mkdir()
    lab.trace("calm.csv", 1800.0, 0.5).replace(tmp_path / "traffic" / "workload.csv.gz")  # gzip is seen by its bytes
    config = yaml.safe_load((tmp_path / "autoscaler.yaml").read_text())
    config["pools"][0]["capacity"] = {"min": 4, "max": 6}
    lab.write("autoscaler.yaml", config)
    assert run_steps(tmp_path) == [0, 0]
    assert (tmp_path / "report" / "report.html").exists()

    config["pools"][0]["capacity"] = {"min": 1, "max": 1}
    lab.write("autoscaler.yaml", config)
    assert run_steps(tmp_path)[0] == 1
