"""Law 11: a model that never loads is replaced with growing delays; the breaker trips and says so."""

from itertools import pairwise

import pytest
from typing_extensions import override

from autoscaler.domain.decision import Decision, Observation
from autoscaler.domain.memory import Breaker, Memory
from autoscaler.engine import launches
from tests.support.builders import replace
from tests.support.campaign import LOAD, MODELS, REPLICAS, Campaign
from tests.support.judge import LawBroken, Laws
from tests.support.world import Event, Script, World, pools

pytestmark = pytest.mark.law(11)
CAMPAIGN = Campaign(*LOAD, *MODELS, *MODELS, *REPLICAS, examples=14, calm=110)


class Trials(Laws):
    """Notes when launches are opened, and judges the gaps: law 11 by the world's own clock."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []
        self.told = False

    @override
    def decided(self, world: World, before: Memory, observation: Observation, decision: Decision) -> None:
        super().decided(world, before, observation, decision)
        if {one.token for one in decision.memory.launches} - {one.token for one in before.launches}:
            self.at.append(float(world.now))
        if any(one.code == "breaker_tripped" for one in decision.alarms):
            self.told = "breaker open" in decision.sentence

    def check(self, give_up: float, first: float, most: float) -> None:
        """Each trial lasts `give_up`; then the wait doubles from `first` up to `most`."""
        gaps = [later - earlier for earlier, later in pairwise(self.at)][2:]
        for index, gap in enumerate(gaps):
            wait = min(most, first * 2.0**index)
            if gap < give_up + wait:
                raise LawBroken(11, f"trial {index + 3} came {gap:g} s after the one before, not {give_up + wait:g} s")


def never_loads() -> tuple[World, Trials]:
    only = pools(offers=pools().offers[:1])
    trials = Trials()
    script = Script(pool=only, demand=4, events=(Event(0, "never_loads", lasts=2000), Event(700, "load", 1)))
    world = World(script, trials)
    return world, trials


def test_a_template_that_never_works_is_tried_ever_less_and_the_breaker_says_so() -> None:
    world, trials = never_loads()
    world.run()
    trials.check(give_up=240.0, first=30.0, most=480.0)
    assert world.reach["breaker_open"] > 100
    assert trials.told
    assert 6 <= len(trials.at) <= 20  # 10,500 s: some trials, no storm


def test_in_the_end_no_machine_that_does_not_work_is_left() -> None:
    CAMPAIGN.holds(11, calm_ends=14, terminate=10, **{"event:never_loads": 3, "event:crash_loop": 2})


def test_a_mutant_that_does_not_wait_between_trials_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(pool: object, breaker: Breaker, now: object, why: str) -> Breaker:
        return replace(breaker, failures=breaker.failures + 1, last_failure=why)

    monkeypatch.setattr(launches, "failed_again", at_once)
    world, trials = never_loads()
    world.run()
    with pytest.raises(LawBroken, match="law 11"):
        trials.check(give_up=240.0, first=30.0, most=480.0)


def test_a_mutant_that_never_gives_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from autoscaler.engine import planner

    monkeypatch.setattr(planner, "_gives_up", lambda *_: False)
    CAMPAIGN.bites(11)
