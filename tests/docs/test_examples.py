"""Every example config passes `autoscaler check`, and the guides' links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yaml"))
#: Programs that the examples start, which need not be on this machine.
PROGRAMS = ("ssh", "vllm", "python3")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_accepted(example: Path, tmp_path: Path) -> None:
    for name in PROGRAMS:
        program = tmp_path / name
        program.write_text("#!/bin/sh\nexit 1\n", encoding="ascii")
        program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOSCALER_")}
    done = subprocess.run(
        [sys.executable, "-m", "autoscaler.cli.main", "check", "--config", str(example)],
        env={**kept, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout + done.stderr


def test_the_guide_to_own_hosts_names_files_and_settings_that_are_there() -> None:
    text = (ROOT / "docs" / "own-hosts.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:deploy|tests|docs)/[A-Za-z0-9_./-]+\.[a-z]+", text))
    assert len(named) >= 6
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
