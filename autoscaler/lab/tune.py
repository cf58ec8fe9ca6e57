"""A search for the parameters that cost least among those that keep the goal, by Optuna's TPE sampler.

Several machines may search together: each runs this with one storage and study, and learns from the others' trials.
A study remembers which problem it is about, and refuses another one.

Does: ask, simulate, tell, and keep what is done. Does not: draw or print.
Invariant: the first trial of a study is the config as it is; a trial that breaks the goal is never the best one.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any, Final, NamedTuple

import msgspec

from autoscaler.domain.faults import ConfigError, Unreachable
from autoscaler.lab.extra import require_lab
from autoscaler.lab.saved import judge
from autoscaler.lab.space import Parameter, Value, put
from autoscaler.lab.trial import Chosen, make_trial
from autoscaler.lab.workload import Workload
from autoscaler.lab.world_file import WorldFile

_PROBLEM: Final = "problem"
VERSION: Final = 1


class Problem(NamedTuple):
    """What is searched, and what a trial is judged by. `workloads`: one list a seed, since series are drawn by it."""

    chosen: Chosen
    world: WorldFile
    workloads: Mapping[int, Sequence[Workload]]
    judge_from: float
    space: Sequence[Parameter]

    def words(self) -> str:
        """All that makes it this problem, as text: equal on every machine that searches it."""
        traffic = [
            [seed, one.name, one.requests, int(one.input_tokens.sum()), int(one.output_tokens.sum()), one.duration_s]
            for seed, several in sorted(self.workloads.items()) for one in several
        ]  # fmt: skip
        world = msgspec.to_builtins(self.world)
        whole = [VERSION, self.chosen.mapping, world, traffic, self.judge_from, [one._asdict() for one in self.space]]
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()[:16]


class Where(NamedTuple):
    """Where trials are kept: a database's URL and the study's name in it; no URL: in memory."""

    storage: str | None
    study: str


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One trial that ended. `slo_attainment`: of the workload that has least, mean over seeds."""

    number: int
    values: dict[str, Any]
    cost: float
    slo_attainment: float
    gpu_hours: float
    cost_usd: float
    flaps: float
    keeps_goal: bool


class Tuned(NamedTuple):
    """What a search came to. `whole`: False when it was interrupted. `before`: the config as it is."""

    trials: list[Tried]
    made_here: int
    whole: bool
    best: Tried | None
    before: Tried | None


class Limits(NamedTuple):
    """How long: trials of this process, seconds (None: no limit)."""

    trials: int
    timeout_s: float | None = None


def evaluate(problem: Problem, values: Mapping[str, Value]) -> tuple[dict[str, float], bool]:
    """Figures of one set of values, and whether they are whole. Raises ConfigError for values that are refused."""
    chosen = problem.chosen.changed(put(problem.chosen.mapping, values)) if values else problem.chosen
    shares: dict[str, list[float]] = {}
    sums: dict[str, list[float]] = {"gpu_hours": [], "cost_usd": [], "flaps": []}
    for seed, workloads in problem.workloads.items():
        trial = make_trial(chosen, problem.world, seed)
        for workload in workloads:
            result = trial.run(workload)
            if not result.complete:
                return {}, False
            card = judge(trial, result, problem.judge_from).card
            shares.setdefault(workload.name, []).append(card.slo_attainment or 0.0)
            for name, column in sums.items():
                column.append(float(getattr(card, name)))
    figures = {name: fmean(column) for name, column in sums.items()}
    figures["slo_attainment"] = min(fmean(column) for column in shares.values())
    figures["cost"] = figures["cost_usd"] or figures["gpu_hours"]
    return figures, True


def tune(
    problem: Problem, where: Where, limits: Limits, seed: int, told: Callable[[float, float], None]
) -> Tuned:  # fmt: skip
    """Search. Ctrl-C ends it and keeps what is done. Raises ConfigError, and Unreachable for a storage."""
    require_lab(("optuna",))
    with _quiet(where.storage), _storage(where.storage) as storage:
        study = _study(problem, where.study, storage, seed)
        made, whole = _search(study, problem, limits, told)
        trials = _tried(study, problem.world.slo.goal)
    keeping = [one for one in trials if one.keeps_goal]
    best = min(keeping, key=lambda one: (one.cost, -one.slo_attainment, one.number), default=None)
    now = _now(problem)
    before = next((one for one in trials if len(now) == len(problem.space) and _same(one.values, now)), None)
    return Tuned(trials, made, whole, best, before)


def _same(values: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return all(values.get(path) == other for path, other in others.items())


def _now(problem: Problem) -> dict[str, Value]:
    """The config's own values, where they lie within the ranges."""
    found: dict[str, Value] = {}
    for one in problem.space:
        numeric = isinstance(one.now, int | float) and one.low <= one.now <= one.high
        if one.now is not None and (one.now in one.choices if one.choices else numeric):
            found[one.path] = int(one.now) if one.whole and isinstance(one.now, float) else one.now
    return found


@contextmanager
def _quiet(storage: str | None) -> Iterator[None]:
    """Optuna's own log lines and experimental warnings left out; a database that fails is Unreachable."""
    import optuna
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    allowed = "allowed: sqlite:///FILE or postgresql://USER@HOST/DATABASE"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise ConfigError([f"storage: {shown_url(storage)}: {type(error).__name__}; {allowed}"]) from None
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
        inner = error.__cause__ or error
        told = str(getattr(inner, "orig", None) or inner).strip().partition("\n")[0][:160]
        raise Unreachable(f"storage {shown_url(storage)}: {told}") from None


def shown_url(url: str | None) -> str:
    """A database's address without its password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url or "").render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return "an address that cannot be read"


@contextmanager
def _storage(url: str | None) -> Iterator[Any]:
    """The database, whose connections are closed with the search; None for memory."""
    import optuna

    if url is None:
        yield None
        return
    if url.startswith("postgresql://"):
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)
    made = optuna.storages.RDBStorage(url)
    try:
        yield made
    finally:
        made.remove_session()
        made.engine.dispose()


def _study(problem: Problem, name: str, storage: Any, seed: int) -> Any:
    """The study, made or taken up. Raises ConfigError when it is about something else."""
    import optuna

    sampler = optuna.samplers.TPESampler(
        seed=seed if storage is None else None,  # machines that share a study must not all try the same
        constant_liar=storage is not None,
    )
    study = optuna.create_study(
        storage=storage, study_name=name, sampler=sampler, direction="minimize", load_if_exists=True
    )
    mine = problem.words()
    known = study.user_attrs.get(_PROBLEM)
    if known is None:
        study.set_user_attr(_PROBLEM, mine)
    elif known != mine:
        told = f"study: {name!r} is about another pool, world, workload or range"
        raise ConfigError([f"{told}; allowed: the same options, or another --study"])
    if now := _now(problem):
        study.enqueue_trial(now, skip_if_exists=True)
    return study


def _distributions(problem: Problem) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for one in problem.space:
        if one.choices:
            found[one.path] = CategoricalDistribution(one.choices)
        elif one.whole:
            found[one.path] = IntDistribution(int(one.low), int(one.high), log=one.log)
        else:
            found[one.path] = FloatDistribution(one.low, one.high, log=one.log)
    return found


def _search(
    study: Any, problem: Problem, limits: Limits, told: Callable[[float, float], None]
) -> tuple[int, bool]:  # fmt: skip
    """So many trials; how many ended, and whether nobody interrupted."""
    from optuna.trial import TrialState

    distributions = _distributions(problem)
    began, made = time.monotonic(), 0
    told(0, limits.trials)
    while made < limits.trials:
        if limits.timeout_s is not None and time.monotonic() - began >= limits.timeout_s:
            break
        trial = study.ask(distributions)
        try:
            figures, whole = evaluate(problem, trial.params)
        except ConfigError:  # two values that the policy takes only one by one
            study.tell(trial, state=TrialState.PRUNED)
            made += 1
            continue
        except KeyboardInterrupt:
            figures, whole = {}, False
        if not whole:
            study.tell(trial, state=TrialState.FAIL)
            return made, False
        for name, value in figures.items():
            trial.set_user_attr(name, value)
        trial.set_constraint("goal", problem.world.slo.goal - figures["slo_attainment"])
        study.tell(trial, figures["cost"])
        made += 1
        told(made, limits.trials)
    return made, True


def _tried(study: Any, goal: float) -> list[Tried]:
    """Every trial of the study that ended, whoever made it."""
    from optuna.trial import TrialState

    return [
        Tried(
            number=one.number, values=dict(one.params), cost=float(one.value),
            slo_attainment=one.user_attrs["slo_attainment"], gpu_hours=one.user_attrs["gpu_hours"],
            cost_usd=one.user_attrs["cost_usd"], flaps=one.user_attrs["flaps"],
            keeps_goal=one.user_attrs["slo_attainment"] >= goal,
        )
        for one in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    ]  # fmt: skip
