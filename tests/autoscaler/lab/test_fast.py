"""The fast loop over a whole world: the daemon's decide, seeds, troubles, and what a run comes to."""

import os
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from autoscaler.domain.base import Duration, PoolName
from autoscaler.domain.decision import Calendar, Decision, Drain, Reason, Recommendation, Situation, Terminate
from autoscaler.domain.faults import ConfigError
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.load import LoadSample, ReadingState, Signal, Trust
from autoscaler.domain.pool import Bounds, Offer, Pace, Pool, ScaleIn, ScaleOut
from autoscaler.lab.fast import Options, Run, simulate
from autoscaler.lab.hardware import Hardware, profile
from autoscaler.lab.result import CUT, FAILED, OK, UNFINISHED, Result, Ticks
from autoscaler.lab.settings import (
    CloudSettings,
    FrontSettings,
    TelemetrySettings,
    Trouble,
    TroubleKind,
    WorldSettings,
    cold_start,
)
from autoscaler.lab.workload import Lengths, Tokens, Workload, from_counts
from autoscaler.lab.world import World
from autoscaler.ports.policy import Policy

T = TroubleKind
ROOT = Path(__file__).parents[3]
QUICK = cold_start(40.0)


class Wants:
    """A policy that wants what a list says, tick by tick; the last value stands."""

    name = "wants"

    def __init__(self, *units: float, signals: frozenset[Signal] = frozenset()) -> None:
        self._units = units
        self._asks = signals
        self._tick = -1

    def signals(self) -> frozenset[Signal]:
        return self._asks

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        tick = int(carry or "0")
        units = self._units[min(tick, len(self._units) - 1)]
        return Recommendation(target=units, reason=Reason(code="asked"), carry=str(tick + 1))


def a_pool(most: int = 6, **changes: object) -> Pool:
    pace = Pace(
        scale_out=ScaleOut(max_step=4, max_growth=4.0, cooldown=Duration(0.0)),
        scale_in=ScaleIn(cooldown=Duration(30.0), stabilization=Duration(60.0)),
        min_age=Duration(0.0),
    )
    values: dict[str, object] = {
        "installation": "t", "name": PoolName("p"), "bounds": Bounds(min=1, max=most), "pace": pace,
        "offers": (Offer(name="gpu", compute="lab", zones=("a", "b"), usd_per_h=3.0),),
    }  # fmt: skip
    return Pool(**(values | changes))  # type: ignore[arg-type]


def flat(per_bin: float = 600.0, bins: int = 3, output: int = 50) -> Workload:
    """Requests at an even rate, 600 s a bin."""
    tokens = Tokens(Lengths(300, 600), Lengths(output, 2 * output))
    return from_counts("flat", 600.0, np.full(bins, per_bin), tokens)


def built(policy: str, **settings: object) -> Policy:
    module = import_module(f"policies.{policy}")
    found: Policy = module.build(module.Settings(**settings))
    return found


def tracking(target: float, signal: Signal = Signal.RUNNING) -> Policy:
    return built("target_tracking", signal=signal, target=target)


def run(*units: float, settings: WorldSettings | None = None, workload: Workload | None = None,
        pool: Pool | None = None, seed: int = 1) -> Result:  # fmt: skip
    world = settings or WorldSettings(cloud=QUICK)
    return simulate(pool or a_pool(), [Wants(*units)], workload or flat(), world, seed, Options(keep=True))


def test_same_seed_same_bytes_and_another_seed_another_world() -> None:
    settings = WorldSettings(cloud=CloudSettings(spot_per_h=2.0, slow_loads=0.3, crashes_per_h=1.0))
    spot = a_pool(offers=(Offer(name="gpu", compute="lab", market="spot", usd_per_h=1.0),))
    one, same, other = (
        simulate(spot, [tracking(0.3)], flat(6000.0), settings, seed, Options(keep=True)) for seed in (1, 1, 2)
    )
    assert one.decisions == same.decisions
    assert one.lives == same.lives
    for name in ("ttft_s", "e2e_s", "status"):
        assert getattr(one.requests, name).tobytes() == getattr(same.requests, name).tobytes()
    for name in Ticks._fields:
        assert getattr(one.ticks, name).tobytes() == getattr(same.ticks, name).tobytes()
    assert one.lives != other.lives
    assert len(one.lives) > 3


IN_A_PROCESS = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from tests.autoscaler.lab.test_fast import *
cloud = CloudSettings(crashes_per_h=2.0, slow_loads=0.3)
settings = WorldSettings(cloud=cloud, telemetry=TelemetrySettings(gateway=True))
policies = [tracking(0.3), tracking(2.0, Signal.QUEUE_LENGTH), tracking(0.5, Signal.GPU_UTILIZATION)]
result = simulate(a_pool(), policies, flat(6000.0), settings, 5, Options(keep=True))
digest = hashlib.sha256()
for part in (*result.requests, *result.ticks):
    digest.update(part.tobytes())
digest.update(repr([(one.sentence, one.plan, one.replicas) for one in result.decisions]).encode())
digest.update(repr(result.lives).encode())
print(digest.hexdigest())
"""


def test_same_seed_same_bytes_in_another_process_with_other_hashes() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", IN_A_PROCESS, str(ROOT)], env={**os.environ, "PYTHONHASHSEED": seed}, text=True,
            check=True, capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1


def test_a_machine_serves_after_its_cold_start_and_is_paid_from_when_it_is_shown() -> None:
    steady = cold_start(100.0, spread=1.0)
    result = run(2.0, settings=WorldSettings(cloud=steady))
    ticks = result.ticks
    first = ticks.at_s[ticks.in_service >= 2][0]
    assert 100.0 < first < 100.0 + 6.0  # found by the prober, which wakes the loop; admitted, seen in the next tick
    ordered = result.lives[1]
    assert (ordered.ordered_s, ordered.shown_s, ordered.loaded_s) == pytest.approx((0.0, 10.0, 100.0))
    assert result.machine_hours() == pytest.approx((1800.0 + 1790.0) / 3600.0)
    assert result.cost_usd() == pytest.approx(3.0 * result.machine_hours())
    assert result.gpu_hours(0.0, 900.0) == pytest.approx(2 * (900.0 + 890.0) / 3600.0)  # two H100 a replica
    assert result.launches == 1
    assert (result.requests.status == OK).all()


def test_scale_in_drains_first_and_cuts_nobody() -> None:
    result = run(*[3.0] * 20, 1.0, workload=flat(2000.0, output=400))
    assert result.ticks.in_service.max() == 3
    assert result.ticks.in_service[-1] == 1
    assert (result.requests.status == OK).all()
    kinds = [type(action) for decision in result.decisions for action in decision.plan]
    assert kinds.index(Drain) < kinds.index(Terminate)
    assert sum(one.why == "terminated" for one in result.lives) == 2


def test_a_drain_whose_deadline_passes_cuts_what_is_inside_and_counts_it() -> None:
    slow = Hardware(alpha_s=0.5, beta_s=0.0, prefill_tokens_per_s=1e6)
    rule = import_module("autoscaler.domain.pool").DrainRule(deadline=Duration(60.0))
    result = run(*[2.0] * 20, 1.0, pool=a_pool(drain=rule), workload=flat(300.0, output=2000),
                 settings=WorldSettings(cloud=QUICK, hardware={"": slow}))  # fmt: skip
    cut = int((result.requests.status == CUT).sum())
    assert cut > 0
    ends = [a for decision in result.decisions for a in decision.plan if isinstance(a, Terminate)]
    assert sum(one.cut for one in ends) >= cut > 0.9 * sum(one.cut for one in ends)


def test_what_the_cloud_takes_away_is_failed_not_cut() -> None:
    storm = (Trouble(kind=T.CRASH, at_s=600.0, share=1.0),)
    result = run(2.0, settings=WorldSettings(cloud=QUICK, troubles=storm), workload=flat(20_000.0, output=200))
    counts = Counter(result.requests.status.tolist())
    assert counts[FAILED] > 0
    assert counts[CUT] == 0
    assert counts[UNFINISHED] == 0
    assert sum(one.why == "crash" for one in result.lives) == 2
    assert result.ticks.in_service[-1] == 2  # replaced


def test_a_spot_notice_drains_before_the_machine_goes() -> None:
    spot = a_pool(offers=(Offer(name="gpu", compute="lab", market="spot", usd_per_h=1.0),))
    storm = (Trouble(kind=T.SPOT_STORM, at_s=600.0, share=1.0),)
    result = run(2.0, pool=spot, settings=WorldSettings(cloud=QUICK, troubles=storm))
    assert sum(one.why in ("spot", "terminated") for one in result.lives) == 2
    assert (result.requests.status == OK).all()
    drained = [a for one in result.decisions for a in one.plan if isinstance(a, Drain) and a.why == "notice"]
    assert len(drained) == 2


@pytest.mark.parametrize(
    ("trouble", "fault"),
    [
        (Trouble(kind=T.NO_CAPACITY, at_s=0.0, for_s=400.0, where="a"), "launch: no_capacity"),
        (Trouble(kind=T.THROTTLED, at_s=0.0, for_s=200.0, share=1.0), "launch: throttled"),
        (Trouble(kind=T.CLOUD_DARK, at_s=0.0, for_s=200.0), ""),
        (Trouble(kind=T.FRONT_DARK, at_s=100.0, for_s=200.0), ""),
        (Trouble(kind=T.FRONT_LAG, at_s=0.0, for_s=1000.0, factor=60.0), ""),
        (Trouble(kind=T.LOADS_SLOW, at_s=0.0, for_s=10.0, factor=5.0), ""),
        (Trouble(kind=T.LOADS_FAIL, at_s=0.0, for_s=10.0), ""),
        (Trouble(kind=T.SLOW, at_s=0.0, for_s=900.0, factor=0.5), ""),
    ],
)
def test_a_pool_gets_over_each_trouble(trouble: Trouble, fault: str) -> None:
    ready = import_module("autoscaler.domain.pool").ReadyRule(give_up_after=Duration(300.0))
    worlds = (WorldSettings(cloud=QUICK, troubles=troubles) for troubles in ((), (trouble,)))
    calm, hit = (run(3.0, pool=a_pool(ready=ready), workload=flat(bins=4), settings=world) for world in worlds)
    if fault:
        assert hit.faults.get(fault, 0) >= 1
    assert hit.ticks.in_service[-1] == 3
    assert hit.decisions != calm.decisions  # the trouble was felt
    assert calm.faults == {}


def test_a_quota_is_told_and_kept() -> None:
    result = run(5.0, settings=WorldSettings(cloud=CloudSettings(quota=3)))
    assert result.faults["launch: quota_reached"] >= 1
    assert result.ticks.machines.max() == 3


def last_of(troubles: tuple[Trouble, ...], telemetry: TelemetrySettings | None = None) -> list[Decision]:
    settings = WorldSettings(cloud=QUICK, troubles=troubles, telemetry=telemetry or TelemetrySettings())
    asked = frozenset({Signal.RUNNING, Signal.TTFT_S_P95, Signal.REQUEST_RATE, Signal.TOKEN_RATE})
    return list(
        simulate(a_pool(), [Wants(2.0, signals=asked)], flat(12_000.0), settings, 1, Options(keep=True)).decisions
    )


@pytest.mark.parametrize(
    ("trouble", "level", "why"),
    [
        (Trouble(kind=T.TELEMETRY_GAP, at_s=900.0, for_s=900.0), Trust.HOLD, "does not answer"),
        (Trouble(kind=T.TELEMETRY_PARTIAL, at_s=900.0, for_s=900.0), Trust.HOLD, "no signal"),
        (Trouble(kind=T.TELEMETRY_ZERO, at_s=900.0, for_s=900.0), Trust.TRUST, "all signals read"),  # a perfect lie
    ],
)
def test_bad_telemetry_is_seen_by_the_daemons_own_trust(trouble: Trouble, level: Trust, why: str) -> None:
    decisions = last_of((trouble,))
    before = [one for one in decisions if one.at < decisions[0].at + 899.0]
    assert before[-1].trust.level is Trust.TRUST
    assert decisions[-1].trust.level is level
    assert why in decisions[-1].trust.why


def test_late_telemetry_is_as_old_as_it_says() -> None:
    assert last_of((), TelemetrySettings(delay_s=20.0))[-1].trust.level is Trust.TRUST
    assert last_of((), TelemetrySettings(delay_s=60.0))[-1].trust.level is Trust.HOLD


def test_every_signal_can_be_read_and_means_what_it_says() -> None:
    workload = flat(12_000.0, output=100)  # 20 requests a second
    world = World(a_pool(), workload, WorldSettings(start=2), seed=1)
    asked = frozenset(Signal)
    sample = LoadSample(at=world.now)
    for at_s in (900.0, 915.0, 930.0, 945.0):
        world.advance(at_s)
        sample = world.telemetry.sample(asked, [*world.slots])
    readings = sample.readings
    assert all(readings[one].state is ReadingState.OK for one in asked)
    assert readings[Signal.REQUEST_RATE].value == pytest.approx(20.0, rel=0.2)
    mean_output = float(workload.output_tokens.mean())
    assert readings[Signal.TOKEN_RATE].value == pytest.approx(20.0 * mean_output, rel=0.2)
    assert readings[Signal.INPUT_TOKEN_RATE].value == pytest.approx(20.0 * workload.input_tokens.mean(), rel=0.2)
    running = readings[Signal.RUNNING].value
    e2e_s = float(np.nanmean(world.fleet.state.e2e))
    assert running == pytest.approx(20.0 * e2e_s, rel=0.5)  # Little's law
    assert sum(one.running or 0 for one in sample.replicas.values()) == running
    assert 0 < (readings[Signal.KV_CACHE_USE].value or 0) < 1
    assert 0.5 < (readings[Signal.GPU_UTILIZATION].value or 0) <= 1
    assert readings[Signal.TTFT_S_P95].value == pytest.approx(
        float(np.nanquantile(world.fleet.state.ttft, 0.95)), rel=0.5
    )


def test_a_gateway_sees_load_with_nothing_in_service_and_wakes_the_pool() -> None:
    from_zero = a_pool(bounds=Bounds(min=0, max=3))
    settings = WorldSettings(
        cloud=QUICK, telemetry=TelemetrySettings(gateway=True), front=FrontSettings(patience_s=300.0)
    )
    blind = WorldSettings(cloud=QUICK, front=FrontSettings(patience_s=300.0))
    policy = [tracking(1.0, Signal.QUEUE_LENGTH)]
    woken = simulate(from_zero, policy, flat(), settings, 1)
    asleep = simulate(from_zero, policy, flat(), blind, 1)
    assert woken.ticks.in_service.max() >= 1
    assert (woken.requests.status == OK).all()
    assert asleep.ticks.machines.max() == 0
    assert (asleep.requests.status != OK).all()


def test_ctrl_c_keeps_what_is_done() -> None:
    def stop(now_s: float, end_s: float) -> None:
        assert end_s == 24_000.0
        if now_s > 3000.0:
            raise KeyboardInterrupt

    result = simulate(a_pool(), [Wants(1.0)], flat(bins=40), WorldSettings(cloud=QUICK), 1, Options(progress=stop))
    assert not result.complete
    assert 3000.0 < result.ended_s < 9000.0
    assert len(result.requests.status) == pytest.approx(result.ended_s, rel=0.05)  # one a second
    assert result.machine_hours() == pytest.approx(result.ended_s / 3600.0)


def test_machines_of_two_kinds_and_several_ports() -> None:
    offers = (
        Offer(name="small", compute="x", usd_per_h=1.0, capacity=1),
        Offer(name="big", compute="y", usd_per_h=4.0, capacity=4, ports=(1, 2)),
    )
    hardware = {"": profile("qwen3-32b-2xh100-vllm"), "big": profile("qwen3-32b-4xh100-vllm")}
    no_small = (Trouble(kind=T.NO_CAPACITY, at_s=0.0, for_s=1e6, where="small"),)
    settings = WorldSettings(cloud=QUICK, hardware=hardware, troubles=no_small)
    result = run(6.0, pool=a_pool(offers=offers), settings=settings)
    big = [one for one in result.lives if one.offer == "big"]
    assert len(big) == 1
    assert big[0].gpus == 8  # two replicas of four
    phases = Counter(one.phase for one in result.decisions[-1].replicas)
    assert phases[Phase.IN_SERVICE] == 3


def test_hardware_that_no_offer_has_is_a_clear_mistake() -> None:
    settings = WorldSettings(hardware={"other": profile("qwen3-32b-2xh100-vllm")})
    with pytest.raises(ConfigError, match="none for offer 'gpu'"):
        run(1.0, settings=settings)
    with pytest.raises(ConfigError, match="allowed: gpt-oss"):
        profile("h900")


def test_the_loop_ticks_early_when_a_replica_is_ready() -> None:
    world = World(a_pool(), flat(), WorldSettings(cloud=cold_start(100.0, spread=1.0)), seed=1)
    loop = Run([Wants(2.0)], world, seed=1)
    loop.loop()
    at_s = loop.result(complete=True).ticks.at_s
    early = at_s[at_s % 15.0 != 0]
    assert len(early) == 1
    assert 100.0 < early[0] < 102.0
