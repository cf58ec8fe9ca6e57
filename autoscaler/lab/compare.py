"""Several policies, workloads and seeds side by side, in as many processes as asked for.

Does: run jobs in processes, keep what is done when interrupted, sum up over seeds. Does not: draw or print.
Invariant: a row is the mean of its seeds, and is there only for jobs that ended whole; order never depends on speed.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import msgspec

from autoscaler.domain.faults import ConfigError
from autoscaler.lab import saved
from autoscaler.lab.overrides import Wishes
from autoscaler.lab.picture import Point, frontier
from autoscaler.lab.scorecard import Part, Scorecard
from autoscaler.lab.trial import load_workload, make_trial, read_pool
from autoscaler.lab.world_file import read_world

VERSION: Final = 1


class Job(NamedTuple):
    """One run, in words that another process understands. `out`: where its result is kept; None: nowhere."""

    label: str
    config: Path
    pool: str | None
    policies: Path | None
    world: Path | None
    wishes: Wishes
    workload: Path
    seed: int
    judge_from: float
    use_until: float
    out: Path | None


class Done(NamedTuple):
    """What a run came to. `mistakes`: why it could not be run, and then there is no card."""

    label: str
    workload: str
    seed: int
    goal: float
    card: Scorecard | None
    part: Part = Part(0.0, 0.0)
    partial: str = ""
    mistakes: tuple[str, ...] = ()


def run_job(job: Job, progress: Callable[[float, float], None] | None = None) -> Done:
    """Run one job and keep its result. Raises nothing for bad input: another process could not tell it."""
    try:
        world = read_world(job.world, job.wishes)
        trial = make_trial(read_pool(job.config, job.pool, job.policies), world, job.seed, job.label)
        workload = load_workload(job.workload, world, job.seed, job.use_until)
        run = saved.judge(trial, trial.run(workload, progress), job.judge_from)
        if job.out is not None and not run.partial:
            saved.save(run, job.out / job.label / workload.name / f"seed-{job.seed}")
    except ConfigError as error:
        return Done(job.label, job.workload.name, job.seed, 0.0, None, mistakes=tuple(error.mistakes))
    return done_of(run)


def done_of(run: saved.Run) -> Done:
    """A run in short."""
    return Done(run.label, run.result.workload, run.result.seed, run.slo.goal, run.card, run.part, run.partial)


def _without_ctrl_c() -> None:
    """A worker is ended by whoever started it, who knows what is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_all(jobs: Sequence[Job], processes: int, told: Callable[[float, float], None]) -> tuple[list[Done], bool]:
    """Run all; those that ended, in the order of `jobs`, and whether all did. Raises ConfigError when one cannot run.

    `told` hears how many are done. Ctrl-C ends what is under way and keeps the rest.
    """
    found: dict[int, Done] = {}
    told(0, len(jobs))
    try:
        for index, done in _in_turn(jobs) if processes <= 1 else _at_once(jobs, processes):
            if done.mistakes:
                raise ConfigError(list(done.mistakes))
            if done.partial:
                break
            found[index] = done
            told(len(found), len(jobs))
    except KeyboardInterrupt:
        pass
    return [found[index] for index in sorted(found)], len(found) == len(jobs)


def _in_turn(jobs: Sequence[Job]) -> Iterator[tuple[int, Done]]:
    for index, job in enumerate(jobs):
        yield index, run_job(job)


def _at_once(jobs: Sequence[Job], processes: int) -> Iterator[tuple[int, Done]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_without_ctrl_c) as pool:
        futures: dict[Future[Done], int] = {pool.submit(run_job, job): index for index, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise ConfigError(
                ["jobs: a process was ended from outside, by lack of memory?; allowed: fewer --jobs"]
            ) from None
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one workload: means over `seeds` runs, and the worst share inside the objective."""

    label: str
    workload: str
    seeds: int
    slo_attainment: float
    slo_attainment_worst: float
    ttft_s_p95: float | None
    gpu_hours: float
    cost_usd: float
    failed: float
    cut: float
    flaps: float
    size_mean: float
    keeps_goal: bool
    on_frontier: bool = False


class Comparison(NamedTuple):
    """Rows in the order given. `priced`: cost is in US dollars, else in GPU hours."""

    rows: list[Row]
    goal: float
    priced: bool

    def cost(self, row: Row) -> float:
        """What a row is compared by."""
        return row.cost_usd if self.priced else row.gpu_hours

    def points(self) -> list[Point]:
        """For the chart."""
        return [Point(one.label, one.workload, self.cost(one), one.slo_attainment) for one in self.rows]

    @property
    def cost_words(self) -> str:
        """What cost is in."""
        return "cost, US dollars" if self.priced else "GPU hours (no offer has a price)"

    def plain(self, *, complete: bool) -> dict[str, Any]:
        """For --json and the file."""
        return {
            "version": VERSION,
            "complete": complete,
            "goal": self.goal,
            "cost_in": "usd" if self.priced else "gpu_hours",
            "rows": msgspec.to_builtins(self.rows),
        }


def compare(done: Sequence[Done]) -> Comparison:
    """Sum up by policy and workload. Raises ConfigError for goals that differ, or nothing to compare."""
    goals = {one.goal for one in done}
    if not done:
        raise ConfigError(["compare: found no run that ended; allowed: at least one"])
    if len(goals) > 1:
        told = ", ".join(f"{goal:g}" for goal in sorted(goals))
        raise ConfigError([f"slo.goal: found {told}; allowed: results that were judged by one goal"])
    goal = goals.pop()
    _same_parts(done)
    grouped: dict[tuple[str, str], list[Scorecard]] = {}
    for one in done:
        if one.card is not None:
            grouped.setdefault((one.label, one.workload), []).append(one.card)
    priced = all(card.cost_usd > 0 for cards in grouped.values() for card in cards)
    rows = [_row(label, workload, cards, goal) for (label, workload), cards in grouped.items()]
    made = Comparison(rows, goal, priced)
    best = {(one.label, one.workload) for name in {row.workload for row in rows}
            for one in frontier([point for point in made.points() if point.workload == name])}  # fmt: skip
    marked = [msgspec.structs.replace(row, on_frontier=(row.label, row.workload) in best) for row in rows]
    return made._replace(rows=marked)


def _same_parts(done: Sequence[Done]) -> None:
    """Raise ConfigError when one workload was judged in different parts: such figures do not stand side by side."""
    parts: dict[str, Part] = {}
    for one in done:
        known = parts.setdefault(one.workload, one.part)
        if any(abs(a - b) > 1.0 for a, b in zip(known, one.part, strict=True)):
            told = " and ".join(f"{part.start_s:.0f} to {part.end_s:.0f} s" for part in (known, one.part))
            raise ConfigError([f"{one.workload}: judged from {told}; allowed: results of one part (--from, --until)"])


def _row(label: str, workload: str, cards: Sequence[Scorecard], goal: float) -> Row:
    shares = [card.slo_attainment or 0.0 for card in cards]
    late = [card.ttft_s_p95 for card in cards if card.ttft_s_p95 is not None]
    return Row(
        label=label, workload=workload, seeds=len(cards), slo_attainment=fmean(shares),
        slo_attainment_worst=min(shares), ttft_s_p95=fmean(late) if late else None,
        gpu_hours=fmean(card.gpu_hours for card in cards), cost_usd=fmean(card.cost_usd for card in cards),
        failed=fmean(card.failed for card in cards), cut=fmean(card.cut for card in cards),
        flaps=fmean(card.flaps for card in cards), size_mean=fmean(card.size_mean for card in cards),
        keeps_goal=fmean(shares) >= goal,
    )  # fmt: skip


def read_results(paths: Sequence[Path]) -> list[Done]:
    """Results that were kept, from files or from all files below folders. Raises ConfigError."""
    found, seen = [], dict[tuple[str, str, int], Path]()
    for path in paths:
        files = sorted(path.rglob(saved.JSON_NAME)) if path.is_dir() else [path]
        if not files:
            raise ConfigError([f"{path}: holds no {saved.JSON_NAME}; allowed: what `--out` wrote"])
        for file in files:
            one = done_of(saved.read(file))
            key = (one.label, one.workload, one.seed)
            if key in seen:
                label = f"{one.label} ({file.parent})"
                one = one._replace(label=label)
            seen[key] = file
            found.append(one)
    return found
