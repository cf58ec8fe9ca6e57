import random
import sys
from pathlib import Path

import pytest

from autoscaler.demo.picture import PictureError, Run, draw
from autoscaler.demo.records import RequestRecord
from autoscaler.demo.summary import DaemonSample, Setting, summarise


def a_run(*, ttft_wall_s: float = 0.05, requests: int = 200, failed: int = 0) -> Run:
    chance = random.Random(1)
    records = [
        RequestRecord(
            index=i,
            scheduled_at=1000 + i / 10,
            sent_at=1000 + i / 10,
            first_token_at=1000 + i / 10 + ttft_wall_s * chance.uniform(0.5, 1.0),
            input_tokens=2000,
            output_tokens=10,
            outcome="failed" if i < failed else "ok",
        )
        for i in range(requests)
    ]
    sizes = [1, 1, 1, 3, 3, 6, 6, 6, 6, 5, 4, 3, 2, 1, 1]
    samples = [
        DaemonSample(at=1000 + 2.0 * i, phases={"in_service": n}, capacity=n, desired=n, why="queue 52, aim 4")
        for i, n in enumerate(sizes)
    ]
    setting = Setting(trace="t", time_scale=25, seed=1, ttft_objective_s=2, gpus_per_replica=2)
    summary = summarise(setting, records, [], samples)
    return Run(summary=summary, records=records, samples=samples, prefill_tokens_per_s=13_673)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_the_picture_names_its_rows_and_its_marks(tmp_path: Path) -> None:
    path = tmp_path / "run.svg"
    draw(a_run(), path)
    drawn = text_of(path)
    for words in (
        "Load",
        "Capacity",
        "Latency",
        "Decisions",
        "in service",
        "desired",
        "objective 2 s",
        "SLO met",
    ):
        assert words in drawn
    assert "1 \N{RIGHTWARDS ARROW} 3  queue 52, aim 4" in drawn
    assert "2 out, 5 in" in drawn


def test_a_missed_objective_and_a_failure_are_shown_as_such(tmp_path: Path) -> None:
    path = tmp_path / "run.svg"
    draw(a_run(ttft_wall_s=0.5, failed=3), path)
    drawn = text_of(path)
    assert "SLO MISSED: TTFT p95 " in drawn
    assert "failed or cut" in drawn
    assert "failed 3" in drawn


def test_a_png_is_one(tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    draw(a_run(), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_run_without_requests_can_be_drawn(tmp_path: Path) -> None:
    draw(a_run(requests=0), tmp_path / "run.svg")


def test_equal_runs_make_equal_pictures(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw(a_run(), tmp_path / name)
    assert text_of(tmp_path / "a.svg") == text_of(tmp_path / "b.svg")


def test_what_cannot_be_drawn_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PictureError, match=r"found \.gif, allowed are \.png and \.svg"):
        draw(a_run(), tmp_path / "run.gif")
    run = a_run()
    nothing = Run(summary=run.summary, records=[], samples=[], prefill_tokens_per_s=1)
    with pytest.raises(PictureError, match="never seen"):
        draw(nothing, tmp_path / "run.svg")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PictureError, match=r"install llm-pool-autoscaler\[local\]"):
        draw(run, tmp_path / "run.svg")
