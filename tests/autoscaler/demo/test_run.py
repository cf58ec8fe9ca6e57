"""The demo as a user runs it: what it refuses, a short run to its end, and one that is broken off."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autoscaler.demo.children import MARK
from autoscaler.demo.run import Options, main

AUTOSCALER = [sys.executable, "-m", "autoscaler.cli.main", "demo"]


def worlds(parent: str) -> list[psutil.Process]:
    """Everything that a demo with this folder for temporary files has started and that still runs."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(parent) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    """Where the demo makes its world; whatever a failed test leaves there is ended."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    yield folder
    for process in worlds(str(folder)):
        process.kill()


def environment(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "200"}


@pytest.mark.parametrize(
    ("changed", "text", "says"),
    [
        ({"duration": 0.0}, "", "--duration: found 0, allowed is above 0 s"),
        ({"duration": float("nan")}, "", "--duration: found nan"),
        ({"trace": "mine"}, "a,b\n", "mine: line 1: no column arrival_s"),
        ({"trace": "missing"}, None, "missing: cannot be read: No such file"),
        ({"policy": "mine"}, "policies: 3\n", "mine: allowed: a list of policies"),
        (
            {"policy": "mine"},
            "- {kind: fixd, size: 1}\n",
            "mine: policies[0].kind: found 'fixd' (did you mean 'fixed'?)",
        ),
        ({"policy": "mine"}, "- {kind: fixed}\n", "mine: policies[0].size: missing"),
        ({"policy": "missing"}, None, "missing: cannot be read: No such file"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_started(
    *,
    changed: dict[str, object],
    text: str | None,
    says: str,
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    if text is not None:
        (tmp_path / "mine").write_text(text)
    options = {key: tmp_path / value if isinstance(value, str) else value for key, value in changed.items()}
    assert main(Options(out=tmp_path / "out", **options)) == 2  # type: ignore[arg-type]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert says in shown.err
    assert len(shown.err.splitlines()) == 1
    assert worlds(str(temporary)) == []
    assert list(temporary.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(Options(out=tmp_path / "file" / "out")) == 3
    assert capsys.readouterr().err.splitlines() == [f"{tmp_path}/file/out: Not a directory"]
    assert main(Options(out=tmp_path / "out", json_path=tmp_path / "none" / "figures.json")) == 3
    assert capsys.readouterr().err.splitlines() == [f"{tmp_path}/none/figures.json: No such file or directory"]


def test_an_haproxy_that_is_not_installed_is_told_before_anything_starts(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert main(Options(out=tmp_path / "out", balancer="haproxy")) == 3
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("--balancer haproxy: HAProxy is not installed: install the package `haproxy`")
    assert list(temporary.iterdir()) == []


@pytest.mark.e2e
@pytest.mark.timeout(120)
@pytest.mark.parametrize("balancer", ["envoy", "haproxy"])
def test_a_short_run_ends_by_itself_with_a_picture_and_figures_and_leaves_nothing(
    balancer: str, tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "one.yaml").write_text("- {kind: fixed, size: 1}\n")
    command = [*AUTOSCALER, "--duration", "4s", "--policy", "one.yaml", "--json", "figures.json", "--out", "out"]
    command += ["--balancer", balancer]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(temporary), capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["requests"] > 10
    assert [figures[name] for name in ("failed", "cut", "sent_before_ready", "retried")] == [0, 0, 0, 0]
    assert [figures["replicas_peak"], figures["replicas_end"]] == [1, 1]
    assert (tmp_path / "out" / "demo.png").read_bytes()[:4] == b"\x89PNG"
    assert "0 failed, 0 cut, 0 sent before ready, 0 retried" in done.stdout
    assert worlds(str(temporary)) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.e2e
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_broken_off_leaves_nothing(tmp_path: Path, temporary: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        demo = subprocess.Popen(
            AUTOSCALER, cwd=tmp_path, env=environment(temporary), stdout=output, stderr=output, start_new_session=True
        )
    try:
        end = time.monotonic() + 60
        while "replaying" not in log.read_text() and time.monotonic() < end:
            time.sleep(0.1)
        assert len(worlds(str(temporary))) >= 4, log.read_text()  # the daemon, a replica, Envoy, the load client
        demo.send_signal(number)
        assert demo.wait(45) == 130, log.read_text()
    finally:
        demo.kill()
        demo.wait()
    assert "interrupted: everything that was started has ended" in log.read_text()
    assert worlds(str(temporary)) == []
    assert list(temporary.iterdir()) == []
