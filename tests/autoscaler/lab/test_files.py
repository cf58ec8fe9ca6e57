"""What is read and written: results, the world's file, assertions; and what is said of files that are none."""

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from autoscaler.domain.base import PoolName
from autoscaler.domain.faults import ConfigError
from autoscaler.domain.pool import Bounds, Offer, Pool
from autoscaler.lab.assertions import read_assertions
from autoscaler.lab.hardware import profile
from autoscaler.lab.overrides import Wishes
from autoscaler.lab.result import OK, Life
from autoscaler.lab.saved import Run, judge, plain, read, save
from autoscaler.lab.scorecard import Slo, score
from autoscaler.lab.settings import WorldSettings
from autoscaler.lab.trial import Trial
from autoscaler.lab.world_file import read_world
from tests.support.lab_results import a_result


def a_run() -> Run:
    pool = Pool(
        installation="t", name=PoolName("p"), bounds=Bounds(min=1, max=2), offers=(Offer(name="a", compute="c"),)
    )
    life = Life("i-1", "a", "z", 1.0, 2.0, 3.0, np.inf, "", 1.5, 2)
    never = Life("i-2", "a", "z", 1.0, 2.0, np.inf, 9.0, "crash", 1.5, 2)
    result = a_result((0.0, 3, 0.5, 1.0, OK), (4.0, 3, None, None, 0), lives=(life, never))
    return judge(Trial("by hand", pool, (), WorldSettings(), Slo()), result)


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    run = a_run()
    file = save(run, tmp_path / "one")
    again = read(file)
    assert again._replace(result=run.result) == run
    assert again.result.lives == run.result.lives
    assert score(again.result, again.slo, again.part) == run.card
    for name in ("requests", "ticks"):
        for mine, theirs in zip(getattr(run.result, name), getattr(again.result, name), strict=True):
            np.testing.assert_array_equal(mine, theirs)
            assert mine.dtype == theirs.dtype
    assert sorted(one.name for one in (tmp_path / "one").iterdir()) == ["result.json", "result.npz"]
    assert read(tmp_path / "one").card == run.card  # the folder will do


def test_equal_runs_are_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(a_run(), tmp_path / name)
    digests = {
        name: [hashlib.sha256(one.read_bytes()).hexdigest() for one in sorted((tmp_path / name).iterdir())]
        for name in ("one", "two")
    }
    assert digests["one"] == digests["two"]


def test_a_result_is_valid_json_without_infinities(tmp_path: Path) -> None:
    document = json.loads(save(a_run(), tmp_path).read_text(), parse_constant=pytest.fail)
    assert document["version"] == 1
    assert "lives" not in plain(a_run())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text[:40], "is no result"),
        (lambda text: text.replace('"version": 1', '"version": 99'), "version 99; allowed: .*version 1"),
        (lambda text: text.replace("lab result", "other"), "allowed: 'llm-pool-autoscaler lab result'"),
        (lambda _: "[]", "is no result"),
    ],
)
def test_what_is_no_result_is_told(tmp_path: Path, change: object, told: str) -> None:
    file = save(a_run(), tmp_path)
    assert callable(change)
    file.write_text(change(file.read_text()))
    with pytest.raises(ConfigError, match=told):
        read(file)


def test_a_result_without_its_arrays_is_told(tmp_path: Path) -> None:
    file = save(a_run(), tmp_path)
    arrays = tmp_path / "result.npz"
    arrays.write_bytes(arrays.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"result.npz: cannot be read"):
        read(file)
    with pytest.raises(ConfigError, match=r"nowhere: cannot be read: No such file"):
        read(tmp_path / "nowhere")


# --- assertions ---


def test_assertions_hold_or_say_by_how_much_they_do_not() -> None:
    card = msgspec.structs.replace(a_run().card, slo_attainment=0.985, flaps=4, ttft_s_p99=None)
    good = read_assertions(["slo_attainment >= 98.5%", "flaps<=4", "flaps<5", "flaps>3.5", "flaps==4"])
    assert [one.failure(card) for one in good] == [""] * 5
    bad = read_assertions(["slo_attainment>=0.99", "flaps<4", "ttft_s_p99<=1"])
    assert [one.failure(card) for one in bad] == [
        "slo_attainment>=0.99: slo_attainment is 0.985, 0.005 below",
        "flaps<4: flaps is 4, just that",
        "ttft_s_p99<=1: ttft_s_p99 is not known, nothing got that far",
    ]


def test_assertions_that_cannot_be_read_are_all_told() -> None:
    with pytest.raises(ConfigError) as told:
        read_assertions(["slo_atainment>=0.99", "flaps", "flaps<=", "flaps<=nan", "cost_usd<=1e9"])
    assert "did you mean 'slo_attainment'" in told.value.mistakes[0]
    assert "idle_share" in told.value.mistakes[0]
    assert len(told.value.mistakes) == 5


# --- the world's file ---


def world(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "world.yaml"
    path.write_text(text)
    return path


def test_a_world_file_with_everything(tmp_path: Path) -> None:
    found = read_world(
        world(
            tmp_path,
            """
            slo: {ttft: 1s, e2e: null, goal: 0.95}
            hardware:
              "*": llama-3.1-8b-1xh100-trtllm
              big: {profile: qwen3-32b-2xh100-vllm, speed: 1.5}
              own: {alpha_s: 0.01, beta_s: 0.001, prefill_tokens_per_s: 9000}
            cold_start: 5m
            front: {strategy: least_load, lag_s: 2}
            telemetry: {window_s: 30, delay_s: 15}
            troubles: [{kind: telemetry_gap, at_s: 3600, for_s: 600}]
            workload: {scale: 2, cv: 3, tokens: {prompt: {p50: 900, p95: 4000}}}
            tune: {"policies[0].target": {low: 1, high: 20, log: true}}
            start: 3
            """,
        )
    )
    settings = found.settings("round_robin")
    assert settings.front.strategy == "least_load"  # the file goes before the config
    assert settings.hardware_of("any other") == profile("llama-3.1-8b-1xh100-trtllm")
    assert settings.hardware_of("big").speed == 1.5
    assert settings.hardware_of("big").gpus == 2
    assert settings.hardware_of("own").alpha_s == 0.01
    cloud = settings.cloud
    assert cloud.launch.p50_s + cloud.boot.p50_s + cloud.load.p50_s == pytest.approx(300)
    assert (settings.start, settings.troubles[0].for_s, found.slo.ttft, found.slo.e2e) == (3, 600, 1.0, None)
    drawing = found.drawing(7)
    assert (drawing.scale, drawing.cv, drawing.seed, drawing.tokens.prompt.p50) == (2.0, 3.0, 7, 900.0)


def test_without_a_file_the_config_names_the_strategy() -> None:
    assert read_world(None).settings("round_robin").front.strategy == "round_robin"
    assert read_world(None).settings(None).front.strategy == "least_connections"


def test_options_lie_above_the_file(tmp_path: Path) -> None:
    path = world(tmp_path, "cloud: {spot_per_h: 1}\nworkload: {scale: 2, cv: 3}\ntroubles: [{kind: crash, at_s: 5}]\n")
    wishes = Wishes(cold_start="2m", scale=0.5, strategy="weighted", faults=["slow@1h+10m,share=0.5,factor=0.2"])
    found = read_world(path, wishes)
    assert (found.cloud, found.cold_start) == (None, 120.0)
    assert (found.workload.scale, found.workload.cv) == (0.5, 3.0)
    assert found.settings("round_robin").front.strategy == "weighted"
    assert [(one.kind, one.at_s, one.for_s, one.share, one.factor) for one in found.troubles] == [
        ("crash", 5.0, 0.0, 1.0, 3.0),
        ("slow", 3600.0, 600.0, 0.5, 0.2),
    ]


def test_every_mistake_of_a_world_file_is_told_at_once(tmp_path: Path) -> None:
    path = world(
        tmp_path,
        """
        slo: {ttft: soon}
        hardware: {"*": nope, own: {speed: -1, profile: qwen3-32b-2xh100-vllm}, other: 3}
        cold_start: 5m
        cloud: {spot_per_h: 1}
        front: {strategy: fastest}
        workload: {scale: 0, tokens: {output: {p50: 9, p95: 2}}}
        tune: {x: {low: 5, high: 2}}
        nonsense: 1
        """,
    )
    with pytest.raises(ConfigError) as told:
        read_world(path)
    text = "\n".join(told.value.mistakes)
    for part in ("slo.ttft", "found 'nope'", "own.speed", "hardware.other", "front: strategy: found 'fastest'",
                 "workload.scale", "nonsense: unknown setting", "tune.x.high"):  # fmt: skip
        assert part in text
    assert all(mistake.startswith(str(path)) for mistake in told.value.mistakes)


@pytest.mark.parametrize(
    "fault", ["crash", "crash@", "crash@soon", "boom@1h", "crash@1h,share=2x", "crash@1h+5m,size=3"]
)
def test_faults_that_cannot_be_read_are_told(fault: str) -> None:
    with pytest.raises(ConfigError, match="telemetry_gap@1h"):
        read_world(None, Wishes(faults=[fault]))


def test_a_fault_with_a_share_above_one_is_told_in_the_words_of_the_file() -> None:
    with pytest.raises(ConfigError, match=r"troubles\[0\].*share: found 2"):
        read_world(None, Wishes(faults=["crash@1h,share=2"]))
