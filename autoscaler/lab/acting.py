"""What the fast loop does: a plan carried out on the world's parts at one instant, in the executor's order.

Does: call each part, turn its faults into outcomes. Does not: plan, or leave out an action for lack of time.
Invariant: an action comes to exactly one outcome, as runtime.executor words it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, assert_never

from autoscaler.domain.decision import (
    Action,
    Admit,
    Drain,
    Evict,
    Launch,
    Outcome,
    OutcomeStatus,
    Recall,
    Reweigh,
    Start,
    Stop,
    Terminate,
    Withdraw,
)
from autoscaler.domain.faults import Fault, PortFault, Refused
from autoscaler.domain.replica import Endpoint, LaunchState, LaunchStatus
from autoscaler.lab.cloud import NO_STANDBY
from autoscaler.lab.world import World
from autoscaler.runtime.executor import STAGES

_KINDS: Final = tuple(kind for stage in STAGES for kind in stage)


class Deeds:
    """How many actions there were, and how many faults, by kind."""

    def __init__(self) -> None:
        self.actions: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def count(self, outcome: Outcome) -> None:
        """One more."""
        kind = type(outcome.action).__name__.lower()
        self.actions[kind] += 1
        if outcome.fault is not None:
            self.faults[f"{kind}: {outcome.fault.kind}"] += 1


class Actor:
    """The hands of one run."""

    def __init__(self, world: World, deeds: Deeds) -> None:
        self._world = world
        self._deeds = deeds
        self._outcomes: list[Outcome] = []

    def take_outcomes(self) -> tuple[Outcome, ...]:
        """Outcomes since the last call."""
        taken = tuple(self._outcomes)
        self._outcomes.clear()
        return taken

    def act(self, plan: Sequence[Action]) -> None:
        """Carry a plan out: what a port takes as a sequence goes in one call."""
        batches: dict[tuple[type[Action], str], list[Action]] = {}
        for action in plan:
            batches.setdefault((type(action), self._target(action)), []).append(action)
        for batch in sorted(batches.values(), key=lambda one: _KINDS.index(type(one[0]))):
            fault: Fault | None = None
            state: LaunchState | None = None
            try:
                state = self._perform(batch)
            except PortFault as raised:
                fault = raised.fault
            for action in batch:
                self._outcomes.append(self._outcome(action, state, fault))
                self._deeds.count(self._outcomes[-1])

    def _target(self, action: Action) -> str:
        match action:
            case Launch() | Withdraw():
                return action.key
            case Start() | Stop() | Terminate():
                offer = self._world.pool.offer(action.offer)
                return offer.compute if offer is not None else ""
            case _:
                return ""

    def _perform(self, batch: Sequence[Action]) -> LaunchState | None:
        world, first = self._world, batch[0]
        match first:
            case Launch():
                return world.cloud.launch(first)
            case Withdraw():
                world.cloud.withdraw(first.token)
            case Terminate():
                world.cloud.terminate([one.instance for one in batch if isinstance(one, Terminate)])
            case Admit() | Recall():
                world.front.admit(_endpoints(batch))
            case Reweigh():
                world.front.reweigh(_endpoints(batch))
            case Drain():
                world.front.drain(_endpoints(batch))
            case Evict():
                world.front.evict(_endpoints(batch))
            case Start() | Stop():
                raise Refused(NO_STANDBY)
            case _:
                assert_never(first)
        return None

    def _outcome(self, action: Action, state: LaunchState | None, fault: Fault | None) -> Outcome:
        at = self._world.now
        if fault is not None:
            return Outcome(action=action, status=OutcomeStatus.FAULT, at=at, fault=fault)
        later = isinstance(action, Terminate) or (state is not None and state.status is LaunchStatus.PENDING)
        status = OutcomeStatus.ACCEPTED if later else OutcomeStatus.DONE
        return Outcome(action=action, status=status, at=at, ids=state.ids if state is not None else ())


def _endpoints(batch: Sequence[Action]) -> list[Endpoint]:
    return [one.endpoint for one in batch if isinstance(one, Admit | Recall | Reweigh | Drain | Evict)]
