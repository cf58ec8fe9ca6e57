"""`autoscaler backtest`: the past out of a real Prometheus, as a workload and as a scorecard."""

import asyncio
import gzip
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler.domain.base import Duration, Instant
from autoscaler.domain.faults import ConfigError
from autoscaler.lab.backtest import save_trace, workload_of
from autoscaler.lab.traces import read_workload
from autoscaler.lab.world_file import WorldFile, world_of
from autoscaler.ports.telemetry import History
from tests.support.lab_commands import Lab, a_lab_pool
from tests.support.real_prometheus import RealPrometheus, a_prometheus, stand_ins, used


def a_history(**changes: Any) -> History:
    bins = 60
    given: dict[str, Any] = {
        "start": Instant(1000.0), "width": Duration(60.0), "requests": (30.0,) * bins,
        "input_tokens": (30.0 * 800,) * 30 + (30.0 * 1600,) * 30, "output_tokens": (30.0 * 90,) * bins,
    }  # fmt: skip
    return History(**{**given, **changes})


# --- a history becomes requests ---


def test_requests_and_lengths_are_what_was_counted() -> None:
    past = workload_of(a_history(), WorldFile(), "p", 1)
    made = past.workload
    assert (made.requests, made.duration_s, made.unknown) == (1800, 3600.0, frozenset())
    np.testing.assert_array_equal(np.bincount((made.arrival_s / 60).astype(int), minlength=60), np.full(60, 30))
    early = made.input_tokens[made.arrival_s < 1500].mean()
    late = made.input_tokens[made.arrival_s > 2100].mean()
    assert early == pytest.approx(800, rel=0.1)
    assert late == pytest.approx(1600, rel=0.1)
    assert made.output_tokens.mean() == pytest.approx(90, rel=0.02)
    assert past.notes == []


def test_bins_that_are_not_known_are_told_and_lie_between_their_neighbours() -> None:
    requests = (10.0,) * 20 + (None,) * 10 + (20.0,) * 30
    past = workload_of(a_history(requests=requests, detail="requests counted on arrival"), WorldFile(), "p", 1)
    assert past.notes == [
        "requests counted on arrival",
        "10 of 60 bins were not known and are drawn between their neighbours",
    ]
    between = np.count_nonzero((past.workload.arrival_s >= 1200) & (past.workload.arrival_s < 1800))
    assert 100 < between < 200


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ((None,) * 40 + (3.0,) * 20, "p: 40 of 60 bins are not known; allowed: a time of which most is"),
        ((None,) * 60, "60 of 60 bins"),
        ((), "0 of 0 bins"),
        ((0.0,) * 60, "p: no request in 60 bins of 60 s"),
    ],
)
def test_too_little_of_the_past_is_a_mistake(requests: tuple[float | None, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        workload_of(a_history(requests=requests), WorldFile(), "p", 1)


def test_lengths_that_were_not_counted_are_said_to_be_guessed(tmp_path: Path) -> None:
    past = workload_of(a_history(input_tokens=(), output_tokens=(None,) * 60), WorldFile(), "p", 1)
    assert past.workload.unknown == {"input_tokens", "output_tokens"}
    assert any("input_tokens were not counted: a default says" in line for line in past.notes)
    path = save_trace(past.workload, tmp_path / "w.csv.gz")
    assert read_workload(path).unknown == {"input_tokens", "output_tokens"}
    tokens = {"workload": {"tokens": {"prompt": {"p50": 50, "p95": 60}, "output": {"p50": 5, "p95": 6}}}}
    own = workload_of(a_history(input_tokens=(), output_tokens=()), world_of(tokens, {}, ""), "p", 1)
    assert own.workload.unknown == frozenset()
    assert float(np.median(own.workload.input_tokens)) == pytest.approx(50, abs=2)


def test_the_kept_trace_is_the_workload(tmp_path: Path) -> None:
    made = workload_of(a_history(), WorldFile(), "p", 1).workload
    first = save_trace(made, tmp_path / "a.csv.gz").read_bytes()
    assert first == save_trace(made, tmp_path / "b.csv.gz").read_bytes()
    again = read_workload(tmp_path / "a.csv.gz")
    np.testing.assert_allclose(again.arrival_s, made.arrival_s, atol=0.0006)
    np.testing.assert_array_equal(again.output_tokens, made.output_tokens)


# --- out of a real server ---


def pool_of(url: str, **telemetry: Any) -> dict[str, Any]:
    return a_lab_pool(telemetry={"kind": "prometheus", "url": url, "preset": "vllm", **telemetry})


def two_hours(prometheus: RealPrometheus, now: int, hole: range) -> None:
    """Two replicas' counters each 15 s for two hours: 12 requests a minute each, of 500 and 80 tokens; one more job."""
    lines: list[str] = []
    for name, slope in (("request_success", 0.2), ("prompt_tokens", 100.0), ("generation_tokens", 16.0)):
        lines.append(f"# TYPE vllm:{name} counter")
        for job, instance in (("vllm", "a"), ("vllm", "b"), ("other", "c")):
            labels = f'job="{job}",instance="{instance}",finished_reason="stop"'
            lines += [
                f"vllm:{name}_total{{{labels}}} {slope * (at - now + 7200):.3f} {at}"
                for at in range(now - 7200, now, 15)
                if at not in hole
            ]
    prometheus.backfill(lines)


@pytest.mark.slow
def test_two_hours_out_of_a_real_server(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    now = int(time.time()) // 60 * 60
    with a_prometheus(tmp_path / "p") as prometheus:
        two_hours(prometheus, now, hole=range(now - 3600, now - 3000))
        prometheus.start()
        pool = pool_of(prometheus.url, replicas={"selector": 'job="vllm"'})
        lab.write("autoscaler.yaml", {"installation": "lab", "pools": [pool]})
        ran = lab("backtest", "--since", "110m", "--out", "out", "--json", "--assert", "failed<=0")
        assert ran.code == 0, ran.err
        (run,) = ran.json["runs"]
        assert "drawn from 110 bins of 60 s" in run["source"]
        assert "llama: requests counted when they ended" in ran.err
        assert "bins were not known and are drawn between their neighbours" in ran.err
        assert run["scorecard"]["requests"] == pytest.approx(110 * 24, rel=0.03)  # the other job's are not ours
        kept = read_workload(lab.folder / "out" / "workload.csv.gz")
        assert kept.input_tokens.mean() == pytest.approx(500, rel=0.05)
        assert kept.output_tokens.mean() == pytest.approx(80, rel=0.05)
        assert lab("simulate", "-w", "out/workload.csv.gz", "--json").code == 0

        own = {"request_rate": {"promql": 'sum(rate(vllm:request_success_total{job="vllm"}[1m]))', "kind": "total"}}
        lab.write("own.yaml", {"installation": "lab", "pools": [pool_of(prometheus.url, queries=own)]})
        mine = lab("backtest", "-c", "own.yaml", "--since", "50m", "--json")
        assert mine.code == 0, mine.err
        assert "requests counted by queries.request_rate" in mine.err
        assert mine.json["runs"][0]["scorecard"]["requests"] == pytest.approx(50 * 24, rel=0.05)

        nothing = pool_of(prometheus.url, replicas={"selector": 'job="nobody"'})
        lab.write("none.yaml", {"installation": "lab", "pools": [nothing]})
        none = lab("backtest", "-c", "none.yaml", "--since", "1h")
        assert (none.code, none.out) == (2, "")
        assert "llama: 60 of 60 bins are not known" in none.err
        prometheus.kill()
        gone = lab("backtest", "--since", "1h")
        assert (gone.code, gone.out) == (3, "")
        assert "connection refused" in gone.err


@pytest.mark.slow
async def test_what_a_real_server_has_scraped_of_real_replicas(tmp_path: Path) -> None:
    """Two replicas answer some real requests, a server scrapes them, and the past has just these."""
    lab = Lab(tmp_path)
    with a_prometheus(tmp_path / "p") as prometheus:
        async with stand_ins(2, "--time-scale", "20") as ports:
            prometheus.show([f"127.0.0.1:{port}" for port in ports])
            prometheus.start()
            await used(ports)  # a counter has no increase before its first scrape
            await prometheus.until("vllm:generation_tokens_total > 0 or vllm:generation_tokens > 0", 2)
            began = time.monotonic()
            await asyncio.sleep(4.0)
            for _ in range(20):
                await used(ports)
            lab.write("autoscaler.yaml", {"installation": "lab", "pools": [pool_of(prometheus.url)]})
            await asyncio.sleep(max(7.0, 26.0 - (time.monotonic() - began)))  # the last request's bin is over
            since = f"{5 * int((time.monotonic() - began) / 5)}s"
            ran = await asyncio.to_thread(lab, "backtest", "--since", since, "--step", "5s", "--out", "out", "--json")
    assert ran.code == 0, ran.err
    rows = gzip.decompress((lab.folder / "out" / "workload.csv.gz").read_bytes()).decode().splitlines()
    assert 30 <= len(rows) - 1 <= 60  # 40 were asked; a server extends a count to the edges of its window


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ((), 2, "pools[0].telemetry: scrape keeps no past; allowed: prometheus"),
        (("--step", "0s"), 2, "--step: found '0s'"),
        (("--since", "1m", "--step", "1m"), 2, "allowed: 2 to 200,000 steps"),
        (("--since", "soon"), 2, "--since: found 'soon'"),
    ],
)
def test_what_cannot_be_asked(tmp_path: Path, arguments: tuple[str, ...], code: int, told: str) -> None:
    ran = Lab(tmp_path)("backtest", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
