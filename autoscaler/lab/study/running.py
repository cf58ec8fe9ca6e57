"""The runs of the study: each case, each contender, each rung that its ladder asks for, kept as it ends.

All pools have one pace: machines go two at a time, a minute apart, on the highest wish of the last ten minutes; the
rest is the default. The tick is 15 s for an hour's trace and 30 s for days.

Does: run what is not kept yet. Does not: choose a policy's rung or make tables.
Invariant: what is kept is not run again; a run ends whole or leaves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from autoscaler.domain.base import Duration, PoolName
from autoscaler.domain.pool import Bounds, Offer, Pace, Pool, ScaleIn
from autoscaler.lab.fast import simulate
from autoscaler.lab.scorecard import Part, part_of, score
from autoscaler.lab.settings import WorldSettings, cold_start
from autoscaler.lab.study.contenders import CONTENDERS, FIXED, MAX_UNITS, Contender, policies_of, setting_of
from autoscaler.lab.study.figures import chosen
from autoscaler.lab.study.ladder import Attainments, climb
from autoscaler.lab.study.records import GOAL, Case, Kept, Run, SourceTold, half_of
from autoscaler.lab.study.traffic import SEED, Source, Traffic, load

COLD_STARTS: Final = (60, 300, 600)
_SCALE_IN: Final = ScaleIn(cooldown=Duration(60.0), max_step=2)
#: A fixed size needs no decisions: they are made seldom, which saves time and changes nothing.
_TICK_FIXED_S: Final = 300.0
_START: Final = -12
#: Rungs tried at most of a tuned policy where days are run.
_RUNS_OF_DAYS: Final = 4


class Spent(Exception):
    """The processor time is spent; what is done is kept."""


def tick_s(source: Source) -> float:
    """Seconds between decisions."""
    return 30.0 if source.long else 15.0


def colds_of(source: Source) -> tuple[int, ...]:
    """A cold start of ten minutes is not tried on a trace of an hour."""
    return COLD_STARTS if source.long else COLD_STARTS[:-1]


class Runner:
    """Runs of one source after another. `cpu_s`: processor time after which it ends. `say` hears each run."""

    def __init__(self, traces: Path, kept: Kept, cpu_s: float, say: Callable[[str], None]) -> None:
        self._traces = traces
        self._kept = kept
        self._cpu_s = cpu_s
        self._say = say

    def source(self, source: Source, only: frozenset[str]) -> None:
        """All cases of a source, or those of the contenders in `only`. Raises ConfigError, Spent."""
        traffic = load(source, self._traces)
        self._kept.told(told_of(traffic))
        for cold_s in (0, *colds_of(source)):
            for one in CONTENDERS:
                if (one.name == FIXED) == (cold_s == 0) and (not only or one.name in only):
                    self._ladder(traffic, cold_s, one)

    def _ladder(self, traffic: Traffic, cold_s: int, contender: Contender) -> None:
        def attain(rung: int) -> Attainments:
            case = self._kept.case(traffic.source.name, cold_s)
            found = next((one for one in case.runs if (one.contender, one.rung) == (contender.name, rung)), None)
            if found is None:
                found = self._run(traffic, cold_s, contender, rung)
                self._kept.keep(msgspec.structs.replace(case, runs=(*case.runs, found)))
            return found.first.attainment, found.second.attainment

        few = traffic.source.long and contender.tuned and contender.name != FIXED
        shorter = contender._replace(runs_most=_RUNS_OF_DAYS) if few else contender
        climb(shorter, self._start(traffic, cold_s, contender), GOAL, attain)

    def _start(self, traffic: Traffic, cold_s: int, contender: Contender) -> int | None:
        """Where the ladder is begun: at the rung that was right for the cold start before."""
        if contender.name == FIXED:
            return _START
        before = [one for one in COLD_STARTS if one < cold_s]
        known = chosen(self._kept.case(traffic.source.name, before[-1]), contender) if before else None
        return known.rung if known is not None else None

    def _run(self, traffic: Traffic, cold_s: int, contender: Contender, rung: int) -> Run:
        if time.process_time() > self._cpu_s:
            raise Spent
        begun = time.process_time()
        run = run_of(traffic, cold_s, contender.name, rung, self._size(traffic))
        self._say(
            f"{traffic.source.name} {cold_s} s, {contender.name} {run.setting:.4g}: {run.first.attainment:.3%} then "
            f"{run.second.attainment:.3%}, {run.second.gpu_hours:.1f} GPU h, {time.process_time() - begun:.1f} s"
        )
        return run

    def _size(self, traffic: Traffic) -> int:
        """Units at second 0: the fixed size that is right for the first half."""
        known = chosen(self._kept.case(traffic.source.name, 0), CONTENDERS[0])
        return MAX_UNITS // 4 if known is None else int(known.setting)


def run_of(traffic: Traffic, cold_s: int, name: str, rung: int, start: int) -> Run:
    """One run over both halves, each judged by itself."""
    source, fixed = traffic.source, name == FIXED
    setting = setting_of(name, rung, traffic)
    pace = Pace(tick=Duration(_TICK_FIXED_S if fixed else tick_s(source)), scale_in=_SCALE_IN)
    pool = Pool(
        installation="study", name=PoolName("study"), bounds=Bounds(min=1, max=MAX_UNITS),
        offers=(Offer(name="gpu", compute="lab"),), pace=pace,
    )  # fmt: skip
    world = WorldSettings(
        hardware={"": source.hardware}, cloud=cold_start(cold_s), start=int(setting) if fixed else start
    )
    result = simulate(pool, policies_of(name, rung, traffic, cold_s), traffic.workload, world, SEED)
    if not result.complete:
        raise KeyboardInterrupt
    middle = Part(0.0, result.duration_s / 2.0)
    first, second = (score(result, source.slo, part) for part in (middle, part_of(result, 0.5)))
    return Run(name, rung, setting, half_of(first), half_of(second))


def told_of(traffic: Traffic) -> SourceTold:
    """What is run of a source, for the document."""
    source, hours = traffic.source, traffic.workload.duration_s / 3600.0
    return SourceTold(
        name=source.name, file=source.file, how=source.how, scale=traffic.scale, requests=traffic.workload.requests,
        part=f"{_days(source)}, {hours / 2:.2g} h + {hours / 2:.2g} h",
        replica="4 x H100" if source.fast else "4 x A100",
        ttft_s=source.ttft_s, tick_s=tick_s(source), smooth=source.smooth,
    )  # fmt: skip


def _days(source: Source) -> str:
    if source.days is None:
        return "all"
    first, last = source.days[0] + 1, source.days[1]
    return f"day {first:g}" if first == last else f"days {first:g} and {last:g}"


def without(case: Case, names: frozenset[str]) -> Case:
    """A case less the runs of some contenders, so that they are run again."""
    return msgspec.structs.replace(case, runs=tuple(one for one in case.runs if one.contender not in names))
