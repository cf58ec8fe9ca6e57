"""The fast loop: the daemon's own decide() over a simulated world, without a journal, a ledger or a task.

It ticks as the daemon does: at every multiple of the pool's tick, and early when the prober would wake the loop; an
early tick reads compute and load again from the last regular one, as the daemon's observer does. A call takes no time.
Where the tick is a multiple of 3 s it decides what the full-speed run (lab.full) does, bit by bit; else looks at
replicas may lie a quarter of a second apart.

Does: observe, decide, act, and keep what is needed for a Result. Does not: decide or judge.
Invariant: same pool, policies, workload, settings and seed, same Result, byte by byte.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from autoscaler.domain.decision import Decision
from autoscaler.domain.load import Signal
from autoscaler.domain.memory import Memory
from autoscaler.domain.pool import Pool
from autoscaler.engine.decide import conclude, decide
from autoscaler.lab.acting import Actor, Deeds
from autoscaler.lab.looking import Looker
from autoscaler.lab.result import Result
from autoscaler.lab.settings import WorldSettings
from autoscaler.lab.tally import Tally
from autoscaler.lab.workload import Workload
from autoscaler.lab.world import EPOCH, World
from autoscaler.ports.policy import Policy
from autoscaler.runtime.clock import calendar_at

#: Regular ticks between two calls of `progress`.
_TOLD_EVERY: Final = 200


class Options(NamedTuple):
    """`keep`: keep every decision. `progress`: told the second reached and the last one, now and then."""

    keep: bool = False
    progress: Callable[[float, float], None] | None = None


def simulate(
    pool: Pool,
    policies: Sequence[Policy],
    workload: Workload,
    settings: WorldSettings | None = None,
    seed: int = 0,
    options: Options | None = None,
) -> Result:
    """Run one pool over one workload. Ctrl-C ends it early: the Result then is of what was done, and says so.

    Raises ConfigError for settings that do not fit the pool, InvariantBroken on a bug of ours.
    """
    run = Run(policies, World(pool, workload, settings or WorldSettings(), seed), seed, options)
    collecting = gc.isenabled()
    gc.disable()  # nothing in a run is cyclic garbage, and looking for it takes a third of the time
    try:
        run.loop()
    except KeyboardInterrupt:
        return run.result(complete=False)
    finally:
        if collecting:
            gc.enable()
    return run.result(complete=True)


class Run:
    """One run in progress."""

    def __init__(self, policies: Sequence[Policy], world: World, seed: int, options: Options | None = None) -> None:
        options = options or Options()
        self.world = world
        self.pool = world.pool
        self.memory = Memory(epoch=EPOCH)
        self._policies = policies
        self._options = options
        signals: frozenset[Signal] = frozenset().union(*(policy.signals() for policy in policies))
        self._looker = Looker(world, signals)
        deeds = Deeds()
        self._actor = Actor(world, deeds)
        self._decide = decide if options.keep else conclude  # nobody reads the sentence of one that is not kept
        self._tally = Tally(world, deeds, seed, keep=options.keep)

    def loop(self) -> None:
        """Tick to the end of the workload, then let what is inside finish."""
        tick_s, end_s = float(self.pool.pace.tick), self.world.workload.duration_s
        gap_s = min(1.0, tick_s / 4.0)
        number, early, woken = 0, False, False
        while (now_s := self.world.now_s) < end_s:
            self.world.watch.heard(now_s, woken=woken)
            self.tick(early=early)
            if not early:
                number += 1
                if self._options.progress is not None and number % _TOLD_EVERY == 0:
                    self._options.progress(now_s, end_s)
            due, soonest = number * tick_s, now_s + gap_s
            wake = self._move(min(due, end_s), soonest)
            early = self.world.now_s < due
            woken = early and wake >= soonest
        self.world.finish()

    def _move(self, due: float, soonest: float) -> float:
        """Move the world on to the next tick, a wake may bring it early; the instant of that wake."""
        world = self.world
        while True:
            wake = world.watch.wake_s()
            at = min(due, max(wake, soonest))
            step = min(world.next_s(), world.watch.look_s())
            if step > at:
                world.advance(at)
                return wake
            world.advance(step)  # what happens may wake the loop
            world.watch.look(step)

    def tick(self, *, early: bool = False) -> Decision:
        """One tick at the world's present instant."""
        world = self.world
        observation = self._looker.look(self.memory, self._actor.take_outcomes(), early=early)
        decision = self._decide(self.pool, self._policies, self.memory, observation, calendar_at(observation.now))
        self.memory = decision.memory
        world.watch.follow(decision, world.now_s)
        self._looker.follow(decision)
        self._tally.note(decision)
        if decision.plan:
            self._actor.act(decision.plan)
        return decision

    def result(self, *, complete: bool) -> Result:
        """What the run came to so far."""
        return self._tally.result(complete=complete)
