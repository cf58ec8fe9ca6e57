"""Processes of a run: each is ended, and no other one."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from autoscaler.demo.children import MARK, Child, marked, sweep

SLEEPS = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
)
PARENT = (
    "import subprocess, sys, time;"
    f"subprocess.Popen([sys.executable, '-c', {SLEEPS!r}], start_new_session=True);"
    "print('up', flush=True)"
)


def until(true: Callable[[], bool], within_s: float = 20.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


def child(world: Path, code: str) -> Child:
    return Child([sys.executable, "-c", code], world=world, log=world / "child.log")


def test_sweeping_ends_what_was_started_and_what_that_started_in_a_session_of_its_own(tmp_path: Path) -> None:
    parent = child(tmp_path, PARENT)
    assert until(lambda: parent.exit_code == 0)
    (orphan,) = marked(tmp_path)
    assert sweep(tmp_path) == 0
    assert not psutil.pid_exists(orphan.pid) or orphan.status() == psutil.STATUS_ZOMBIE
    assert marked(tmp_path) == []


def test_a_process_that_is_deaf_to_sigterm_is_killed(tmp_path: Path) -> None:
    deaf = child(tmp_path, STUBBORN)
    assert until(lambda: deaf.last_words() == ["deaf"])
    assert sweep(tmp_path, patience_s=0.3) == 0
    assert deaf.stop(1.0) == -9


def test_a_process_of_another_run_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    theirs = child(other, SLEEPS)
    plain = subprocess.Popen([sys.executable, "-c", SLEEPS, str(tmp_path)])
    try:
        assert until(lambda: [one.pid for one in marked(other)] == [theirs.pid])
        assert sweep(tmp_path) == 0
        assert theirs.exit_code is None
        assert plain.poll() is None
    finally:
        plain.kill()
        plain.wait()
        theirs.stop(5.0)


def test_this_process_never_ends_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    code = (
        "import sys; from pathlib import Path; from autoscaler.demo.children import sweep;"
        "sys.exit(sweep(Path(sys.argv[1])))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0


def test_stopping_asks_first_and_tells_how_it_ended(tmp_path: Path) -> None:
    polite = child(tmp_path, SLEEPS)
    assert polite.stop(10.0) == -15
    assert polite.stop(10.0) == -15
    assert polite.exit_code == -15


def test_the_last_words_are_the_end_of_the_output(tmp_path: Path) -> None:
    speaks = child(tmp_path, "import sys; print(*range(9), sep='\\n'); print('why', file=sys.stderr)")
    assert until(lambda: speaks.exit_code == 0)
    assert speaks.last_words(2) == ["8", "why"]
    (tmp_path / "child.log").unlink()
    assert speaks.last_words() == []
