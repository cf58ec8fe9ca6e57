"""Law 13: equal input, equal output: whatever the order, whenever it is; more load is never less; dwell is time."""

import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from autoscaler.domain.base import NEVER, Duration
from autoscaler.domain.decision import Calendar, Decision, Observation
from autoscaler.domain.memory import Memory, Wanted
from autoscaler.domain.pool import Pool
from autoscaler.engine import opinions, reconcile, sizing
from autoscaler.engine.decide import decide
from tests.support.builders import (
    Asks,
    a_pace,
    a_pool,
    a_sample,
    an_observation,
    decided,
    in_service,
    replace,
    tracking,
)
from tests.support.campaign import EVERYTHING, SHAPES, a_script
from tests.support.judge import Laws
from tests.support.world import World

pytestmark = pytest.mark.law(13)

Case = tuple[Pool, Memory, Observation, Decision]


class Sampler(Laws):
    """Keeps every fourth case, as it went in and came out."""

    def __init__(self) -> None:
        super().__init__()
        self.cases: list[Case] = []

    @override
    def decided(self, world: World, before: Memory, observation: Observation, decision: Decision) -> None:
        super().decided(world, before, observation, decision)
        if world.step_no % 4 == 0 and len(decision.replicas) > 1:
            self.cases.append((world.pool, before, observation, decision))


def cases(worlds: int = 8) -> list[Case]:
    sampler = Sampler()
    for seed in range(worlds):
        one = Sampler()
        World(a_script(seed, EVERYTHING, SHAPES, 0, 10), one).run()
        sampler.cases += one.cases
    assert len(sampler.cases) >= 5 * worlds
    return sampler.cases


def again(pool: Pool, memory: Memory, observation: Observation) -> Decision:
    from autoscaler.domain.load import Signal

    policies = [tracking(4.0), tracking(8.0, Signal.RUNNING)]
    return decide(pool, policies, memory, observation, Calendar(utc="2026-12-01"))


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same observation with all that has no order in another order."""
    changes: dict[str, Any] = {}
    for name, view in value.computes.items():
        instances, notices = list(view.instances), list(view.notices)
        chance.shuffle(instances)
        chance.shuffle(notices)
        changes.setdefault("computes", {})[name] = replace(view, instances=tuple(instances), notices=tuple(notices))
    for name, view in reversed(value.balancers.items()):
        members = list(view.members)
        chance.shuffle(members)
        changes.setdefault("balancers", {})[name] = replace(view, members=tuple(members))
    return replace(value, **changes, probes=dict(reversed(value.probes.items())))


def order_matters(sample: list[Case]) -> list[Decision]:
    chance = random.Random(13)
    return [
        decision
        for pool, memory, observation, decision in sample
        for other in [replace(memory, intents=dict(reversed(memory.intents.items())))]
        if again(pool, other, shuffled(observation, chance)) != decision
    ]


def test_the_order_of_what_is_seen_changes_nothing() -> None:
    assert order_matters(cases()) == []


def test_a_mutant_that_takes_replicas_as_they_come_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "sorted", lambda found, key=None: list(found), raising=False)
    assert order_matters(cases())


INSTANTS = ("now", "at", "since", "launched_at", "deadline", "until", "expires_at", "as_of", "last_at", "retry_at")
SHIFT = 1_048_576.0


def moved(value: Any) -> Any:
    """Builtins of a value with every instant moved by SHIFT; all instants in here are near a million seconds."""
    if isinstance(value, dict):
        return {key: moved(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [moved(one) for one in value]
    if isinstance(value, float) and value > 500_000.0:
        return value + SHIFT
    return value


def shift_matters(sample: list[Case]) -> list[tuple[object, object]]:
    different: list[tuple[object, object]] = []
    for pool, memory, observation, decision in sample:
        later = again(
            pool,
            msgspec.convert(moved(msgspec.to_builtins(memory)), Memory),
            msgspec.convert(moved(msgspec.to_builtins(observation)), Observation),
        )
        expected = msgspec.convert(moved(msgspec.to_builtins(decision)), Decision)
        if expected != later:
            different.append((expected.sentence, later.sentence))
    return different


def test_moving_all_instants_changes_nothing() -> None:
    assert NEVER + SHIFT < 0
    assert shift_matters([one for one in cases() if not _has_nan(one[2])]) == []


def _has_nan(observation: Observation) -> bool:
    load = observation.load
    return load is not None and any(one.value is not None and one.value != one.value for one in load.readings.values())


def test_a_mutant_that_reads_the_clock_by_the_wall_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "_remaining", lambda last, cooldown, now: now % 45.0)
    assert shift_matters([one for one in cases() if not _has_nan(one[2])])


def targets(loads: list[float]) -> list[int]:
    """What is aimed at, at each load, by a pool of three that may move freely."""
    pace = a_pace(scale_in=replace(a_pace().scale_in, max_step=9), scale_out=replace(a_pace().scale_out, max_step=9))
    pool = a_pool(1, 9, pace=pace)
    seen = [in_service(name) for name in ("r1", "r2", "r3")]
    from tests.support.builders import a_memory

    return [
        decide(
            pool, [tracking(4.0), Asks(1)], a_memory(*seen), an_observation(*seen, load=a_sample(load, covered=3)),
            Calendar(),
        ).target
        for load in loads
    ]  # fmt: skip


def test_more_load_never_lowers_the_target() -> None:
    found = targets([load / 2 for load in range(1, 100)])
    assert found[0] == 1
    assert found[-1] == 9
    assert all(one <= two for one, two in pairwise(found))


def test_a_mutant_that_takes_the_lowest_opinion_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def upside_down(asked: Any) -> Any:
        composed = real(asked)
        return replace(composed, wanted=10 - (composed.wanted or 0))

    real = opinions.compose
    monkeypatch.setattr(opinions, "compose", upside_down)
    found = targets([load / 2 for load in range(1, 100)])
    assert not all(one <= two for one, two in pairwise(found))


def dwell(tick: float) -> list[float]:
    """Seconds from the moment the load goes to each of three scale-ins, with ticks of so many seconds."""
    pool = a_pool(1, 6, pace=a_pace(tick=Duration(tick)))
    seen = [in_service(name) for name in ("r1", "r2", "r3", "r4")]
    from tests.support.builders import NOW, a_memory

    memory, begun = a_memory(*seen), float(NOW)
    found: list[float] = []
    gone: set[str] = set()
    now, step = begun, 0
    while len(found) < 3 and step < 500:
        wants = 4 if now < begun + 60.0 else 1
        left = [one for one in seen if one.id not in gone]
        views = an_observation(*left)
        views = replace(
            views, now=now, probes={rid: replace(one, last_at=now) for rid, one in views.probes.items()},
            balancers={name: replace(one, as_of=now) for name, one in views.balancers.items()},
        )  # fmt: skip
        decision = decide(pool, [Asks(wants)], replace(memory, last_at=memory.last_at), views, Calendar())
        memory = decision.memory
        leaving = [rid for rid, one in memory.intents.items() if one.drain is not None and rid not in gone]
        if leaving:
            found.append(now - (begun + 60.0))
            gone |= set(leaving)
        now, step = now + tick, step + 1
    return found


def ticks_matter() -> bool:
    """Whether dwell differs by more than the coarsest tick between ticks of 5, 15 and 30 s."""
    fine, middle, coarse = dwell(5.0), dwell(15.0), dwell(30.0)
    return any(
        max(row) - min(row) > 30.0 for row in zip(fine, middle, coarse, strict=True)
    ) or not (115.0 <= fine[0] <= 125.0)  # fmt: skip


def test_dwell_is_time_and_not_a_number_of_ticks() -> None:
    assert not ticks_matter()


def test_a_mutant_that_counts_ticks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_eight(question: sizing.Question, wanted: int) -> Any:
        return (*question.memory.window[-7:], Wanted(at=question.observation.now, units=wanted))

    monkeypatch.setattr(sizing, "_window", last_eight)
    assert ticks_matter()


def test_the_same_call_twice_gives_the_same_answer() -> None:
    for pool, memory, observation, decision in cases(3):
        assert again(pool, memory, observation) == decision
    assert decided(a_pool(), in_service("r1"), wants=3) == decided(a_pool(), in_service("r1"), wants=3)
