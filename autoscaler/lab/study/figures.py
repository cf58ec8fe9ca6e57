"""What the runs come to: the setting chosen, what it did on the second half, and what 99 % would have cost.

Hours at the goal are interpolated on the second half, between the cheapest run that holds it and the dearest cheaper
one that does not, linearly in the logarithm of the share that missed. The same is done for every contender: over its
own setting, for `slo` over a factor on what it wants, for `clairvoyant` over the share of its time that a unit may be
busy.

Does: choose and interpolate. Does not: run or print.
Invariant: a choice on the first half never looks at the second.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Final, NamedTuple

from autoscaler.lab.study.contenders import BY_NAME, CLAIRVOYANT, CONTENDERS, FIXED, SLO, Contender
from autoscaler.lab.study.records import GOAL, Case, Run, Study

_LEAST_MISS: Final = 1e-6


def chosen(case: Case, contender: Contender) -> Run | None:
    """The run that stands for a contender: of those tuned, the cheapest that held the goal on the first half.

    When none held it there, the one that came nearest. `slo`: its defaults. `clairvoyant`: the cheapest that holds on
    the second half, for it knows it.
    """
    runs = [one for one in case.runs if one.contender == contender.name]
    if contender.name == SLO:
        return next((one for one in runs if one.rung == 0), None)
    if contender.name == CLAIRVOYANT:
        return min((one for one in runs if one.second.holds), key=lambda one: one.second.gpu_hours, default=None)
    holding = [one for one in runs if one.first.holds]
    if holding:
        return min(holding, key=lambda one: one.first.gpu_hours)
    return max(runs, key=lambda one: one.first.attainment, default=None)


def hours_at_goal(case: Case, name: str) -> float | None:
    """GPU hours of the second half at the goal; None when no run of the contender holds it there."""
    runs = [one.second for one in case.runs if one.contender == name]
    holding = min((one for one in runs if one.holds), key=lambda one: one.gpu_hours, default=None)
    if holding is None:
        return None
    cheaper = [one for one in runs if one.gpu_hours < holding.gpu_hours]
    if not cheaper:
        return holding.gpu_hours
    failing = max(cheaper, key=lambda one: one.gpu_hours)
    low, goal, high = (
        math.log(max(_LEAST_MISS, 1.0 - share)) for share in (failing.attainment, GOAL, holding.attainment)
    )
    share = (low - goal) / (low - high) if low > high else 1.0
    return failing.gpu_hours + share * (holding.gpu_hours - failing.gpu_hours)


class Entry(NamedTuple):
    """One contender in one case. `ratio`: of its hours to those of `clairvoyant` at the goal, as is `ratio_at_goal`."""

    contender: str
    run: Run
    ratio: float | None
    ratio_at_goal: float | None

    @property
    def holds(self) -> bool:
        """On the second half."""
        return self.run.second.holds


class Row(NamedTuple):
    """One case. `feasible`: whether a fixed size holds the goal on the second half; `best_h`: its GPU hours then."""

    source: str
    cold_s: int
    smooth: bool
    best_h: float | None
    clairvoyant_h: float | None
    entries: dict[str, Entry]

    @property
    def feasible(self) -> bool:
        """See the class."""
        return self.best_h is not None


def rows(study: Study) -> list[Row]:
    """All cases in which `slo` was run."""
    smooth = {one.name for one in study.sources if one.smooth}
    return [
        _row(study, case, smooth=case.source in smooth)
        for case in study.cases
        if any(run.contender == SLO for run in case.runs)
    ]


def _row(study: Study, case: Case, *, smooth: bool) -> Row:
    fixed = study.case(case.source, 0)
    all_runs = Case(source=case.source, cold_s=case.cold_s, runs=(*fixed.runs, *case.runs))
    own = hours_at_goal(all_runs, CLAIRVOYANT)
    best = [one.second.gpu_hours for one in fixed.runs if one.second.holds]
    entries = {}
    for contender in CONTENDERS:
        run = chosen(all_runs, contender)
        if run is not None:
            at_goal = hours_at_goal(all_runs, contender.name)
            ratio = run.second.gpu_hours / own if own else None
            entries[contender.name] = Entry(contender.name, run, ratio, at_goal / own if own and at_goal else None)
    return Row(case.source, case.cold_s, smooth, min(best, default=None), own, entries)


class Sum(NamedTuple):
    """A contender over all feasible cases that it was run in.

    `ratio`: median of the ratios of those cases that it holds; `ratio_at_goal`: of all that it could hold with some
    setting, `reached` of them.
    """

    contender: str
    holds: int
    cases: int
    ratio: float | None
    ratio_at_goal: float | None
    reached: int


def summed(found: list[Row]) -> list[Sum]:
    """One line a contender."""
    sums = []
    for name in BY_NAME:
        entries = [row.entries[name] for row in found if row.feasible and name in row.entries]
        kept = [one.ratio for one in entries if one.holds and one.ratio is not None]
        goal = [one.ratio_at_goal for one in entries if one.ratio_at_goal is not None]
        if entries:
            sums.append(
                Sum(name, sum(one.holds for one in entries), len(entries), _median(kept), _median(goal), len(goal))
            )
    return sums


def _median(values: list[float]) -> float | None:
    return median(values) if values else None


def gap(row: Row) -> tuple[str, float, float] | None:
    """The best of the others at the goal, tuned with hindsight: who, and slo's hours over its, as run, and at goal."""
    others = {
        name: one.ratio_at_goal for name, one in row.entries.items()
        if name not in {SLO, CLAIRVOYANT, FIXED} and one.ratio_at_goal is not None
    }  # fmt: skip
    own = row.entries.get(SLO)
    if not others or own is None or own.ratio is None or own.ratio_at_goal is None:
        return None
    best = min(others, key=lambda name: others[name])
    return best, own.ratio / others[best], own.ratio_at_goal / others[best]
