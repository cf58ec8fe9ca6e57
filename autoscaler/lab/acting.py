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
from autoscaler.domain.replica import LaunchState, LaunchStatus
from autoscaler.lab.world import World

#: Into traffic, out of it, new machines, ends: as runtime.executor.STAGES.
_STAGE: Final[dict[type[Action], int]] = {
    Admit: 0, Recall: 0, Reweigh: 0, Drain: 1, Evict: 1, Launch: 2, Start: 2, Withdraw: 3, Terminate: 3, Stop: 3,
}  # fmt: skip


class Actor:
    """The hands of one run. `actions`, `faults`: how many there were, by kind."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._outcomes: list[Outcome] = []
        self.actions: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def take_outcomes(self) -> tuple[Outcome, ...]:
        """Outcomes since the last call."""
        taken = tuple(self._outcomes)
        self._outcomes.clear()
        return taken

    def act(self, plan: Sequence[Action]) -> None:
        """Carry a plan out."""
        for action in sorted(plan, key=lambda one: _STAGE[type(one)]):
            kind = type(action).__name__.lower()
            self.actions[kind] += 1
            fault: Fault | None = None
            state: LaunchState | None = None
            try:
                state = self._perform(action)
            except PortFault as raised:
                fault = raised.fault
                self.faults[f"{kind}: {fault.kind}"] += 1
            self._outcomes.append(self._outcome(action, state, fault))

    def _perform(self, action: Action) -> LaunchState | None:
        world = self._world
        match action:
            case Launch():
                return world.cloud.launch(action)
            case Withdraw():
                world.cloud.withdraw(action.token)
            case Terminate():
                world.cloud.terminate((action.instance,))
            case Admit() | Recall():
                world.front.admit((action.endpoint,))
            case Reweigh():
                world.front.reweigh((action.endpoint,))
            case Drain():
                world.front.drain((action.endpoint,))
            case Evict():
                world.front.evict((action.endpoint,))
            case Start() | Stop():
                raise Refused("the simulated cloud has no standby")
            case _:
                assert_never(action)
        return None

    def _outcome(self, action: Action, state: LaunchState | None, fault: Fault | None) -> Outcome:
        at = self._world.now
        if fault is not None:
            return Outcome(action=action, status=OutcomeStatus.FAULT, at=at, fault=fault)
        later = isinstance(action, Terminate) or (state is not None and state.status is LaunchStatus.PENDING)
        status = OutcomeStatus.ACCEPTED if later else OutcomeStatus.DONE
        return Outcome(action=action, status=status, at=at, ids=state.ids if state is not None else ())
