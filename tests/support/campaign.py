"""Campaigns: many worlds from hypothesis, each judged; they fail when the states that matter were never reached.

Does: draw scripts, run them, add up what they reached. Does not: say what a law is (tests/support/judge.py does).
Invariant: the same source gives the same examples unless LAWS_RANDOM is set; a failing one prints how to repeat it.
"""

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from autoscaler.domain.pool import Pool
from tests.support.judge import LawBroken, Laws
from tests.support.world import LIES, Event, Script, World, pools

LOAD = ("load", "load", "load")
DAEMON = ("crash", "crash_before_save", "down", "dropped", "outcomes_lost", "prober_stuck")
REPLICAS = ("dies", "hangs", "recovers", "reboots", "stops", "vanishes", "mass", "hide", "blinks")
MODELS = ("never_loads", "spot_never_loads", "crash_loop", "slow_boot")
COMPUTE = (
    "no_capacity", "quota", "refused", "throttled", "terminate_throttled", "unreachable", "slow_launch", "fails_later",
    "blind_compute", "dark_zone",
)  # fmt: skip
BALANCER = ("blind_balancer", "balancer_fault", "forgets", "undrains", "no_traffic")
TELEMETRY = LIES
OPERATOR = ("pause", "at_least", "protect", "drain", "replace", "notice", "stream", "foreign", "orphan")
EVERYTHING = (*LOAD, *DAEMON, *REPLICAS, *MODELS, *COMPUTE, *BALANCER, *TELEMETRY, *OPERATOR, "lose_ledger")


def a_script(seed: int, kinds: Sequence[str], shapes: Sequence[Pool], calm: int, most: int) -> Script:
    """A pool of one of these shapes and a row of events of these kinds; long quiet stretches now and then."""
    chance = Random(seed)
    events = tuple(
        Event(
            wait=chance.choice((0, 1, 2, 4, 7, 12, 20)),
            kind=chance.choice(kinds),
            which=chance.randint(0, 11),
            lasts=chance.randint(1, 12),
        )
        for _ in range(chance.randint(4, most))
    )
    warm, demand = chance.choice((9, 16, 30)), chance.choice((0, 4, 8, 12, 16, 24))
    return Script(pool=chance.choice(shapes), events=events, demand=demand, warm=warm, calm=calm)


SHAPES = (pools(), pools(zones=2), pools(ports=2, zones=2), pools(balancers=2), pools(least=2, most=5))


class Campaign:
    """`kinds`: what may happen. `examples`: how many worlds. `calm`: quiet ticks at the end of each."""

    def __init__(
        self, *kinds: str, examples: int = 12, calm: int = 0, shapes: Sequence[Pool] = SHAPES, most: int = 10
    ) -> None:
        self.examples = examples
        self.script = partial(a_script, kinds=kinds, shapes=shapes, calm=calm, most=most)

    def run(self, *laws: int, examples: int | None = None) -> Counter[str]:
        """What all worlds reached; raises LawBroken for the first that breaks one of the laws (of any, without)."""
        reached: Counter[str] = Counter()

        @settings(
            max_examples=examples or self.examples,
            derandomize="LAWS_RANDOM" not in os.environ,
            database=None,
            deadline=None,
            phases=(Phase.generate,),  # a smaller seed is no simpler world
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(seed=st.integers(0, 2**32 - 1))
        def play(seed: int) -> None:
            world = World(self.script(seed), Laws(*laws))
            try:
                world.run()
            finally:
                reached.update(world.reach)

        play()
        return reached

    def holds(self, law: int, **least: int) -> None:
        """The law holds in all worlds (and so do the others), and each state was reached at least so often."""
        reached = self.run()
        told = {name: reached[name] for name in least}
        print(f"law {law}: {reached['decisions']} decisions, reached {told}")
        missed = {name: (reached[name], wanted) for name, wanted in least.items() if reached[name] < wanted}
        assert not missed, f"law {law} was hardly tried: (reached, wanted) {missed}"

    def bites(self, law: int, examples: int = 60) -> None:
        """With a mutant planted, some world breaks the law."""
        with pytest.raises(LawBroken) as found:
            self.run(law, examples=examples)
        assert found.value.law == law
