"""The executor: the only interpreter of actions.

Does: carry a plan out through the ports, in order, within a budget and a concurrency a kind; turn every result and
every PortFault into an Outcome. Does not: plan, repeat or skip out of its own judgement; it asserts again what planning
asserted, just before each call.
Order: into traffic first (admit, recall, reweigh), then out of it (drain, evict), then new machines (launch, start),
then ends (withdraw, terminate, stop); the plan's own order inside a kind. A stage that hangs lets the next one begin
after its share of the budget, because every action was planned from what was seen and not from the one before it.
Invariant: a key is never started while a call with that key is in flight; what was not started is DROPPED.
"""

import asyncio
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, assert_never

from autoscaler.domain.base import Duration, InstanceId, Instant, ReplicaId, instance_of
from autoscaler.domain.decision import (
    Action,
    Admit,
    Decision,
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
from autoscaler.domain.faults import Fault, FaultKind, InvariantBroken, PortFault
from autoscaler.domain.replica import BalancerView, Endpoint, LaunchState, LaunchStatus, MemberState, ProbeRecord
from autoscaler.ports.balancer import Balancer
from autoscaler.ports.clock import Clock
from autoscaler.ports.compute import Compute
from autoscaler.runtime.gate import Gate
from autoscaler.runtime.parts import Checkpoint, PoolParts

Batch = tuple[Action, ...]

#: Stage by stage; the number is how many calls of that kind may be in flight in one pool.
STAGES: Final[tuple[dict[type[Action], int], ...]] = (
    {Admit: 8, Recall: 8, Reweigh: 2},
    {Drain: 8, Evict: 8},
    {Launch: 4, Start: 4},
    {Withdraw: 4, Terminate: 4, Stop: 4},
)
#: A call that has not returned by then (seconds) counts as Unreachable; ports return on acceptance, so this is long.
CALL_DEADLINE: Final = Duration(60.0)
#: Why a machine may end though a balancer still shows it: it is not ours to choose.
NOT_BY_CHOICE: Final = frozenset({"lost", "notice"})


class Facts(NamedTuple):
    """What the plan was made from, for asserting it again. `records`: the prober's present record of a replica."""

    decision: Decision
    balancers: dict[str, BalancerView]
    foreign: frozenset[InstanceId]
    records: Callable[[ReplicaId], ProbeRecord | None]


class Executor:
    """Carries out the plans of one pool, one plan at a time."""

    def __init__(self, parts: PoolParts, clock: Clock, gate: Gate, checkpoint: Checkpoint) -> None:
        self.parts = parts
        self._clock = clock
        self._gate = gate
        self._checkpoint = checkpoint
        self._flights: dict[str, asyncio.Task[None]] = {}
        self._kinds: Tally[type[Action]] = Tally()
        self._outcomes: list[Outcome] = []
        self._broken: list[BaseException] = []
        self._admitted: set[ReplicaId] = set()

    @property
    def in_flight(self) -> frozenset[str]:
        """Keys of actions whose calls have not returned."""
        return frozenset(self._flights)

    def take_outcomes(self) -> list[Outcome]:
        """Outcomes since the last call of this, oldest first."""
        taken, self._outcomes = self._outcomes, []
        return taken

    async def run(self, facts: Facts, budget: Duration) -> None:
        """Carry out the decision's plan; return when it is done or the budget (seconds) is spent.

        Raises what an adapter raised against its contract, if anything; nothing is lost by that but the outcome.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + budget
        self._admitted.clear()
        batches = self._batches(facts.decision.plan)
        kinds = {type(batch[0]) for batch in batches}
        stages = [here for stage in STAGES if (here := {kind: stage[kind] for kind in stage if kind in kinds})]
        for number, stage in enumerate(stages):
            now = loop.time()
            patience = now + (ends - now) / (len(stages) - number)
            lanes = [
                self._lane([batch for batch in batches if type(batch[0]) is kind], bound, facts, patience)
                for kind, bound in stage.items()
            ]
            await asyncio.gather(*lanes)
        if self._broken:
            broken, self._broken = self._broken, []
            raise broken[0]

    async def finish(self, within: Duration) -> None:
        """Wait for calls in flight, at most `within` seconds, then cut them."""
        flights = set(self._flights.values())
        if flights:
            _, late = await asyncio.wait(flights, timeout=within)
            for flight in late:
                flight.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _batches(self, plan: Sequence[Action]) -> list[Batch]:
        """The plan in calls: what a port takes as a sequence goes in one call a target."""
        batches: dict[tuple[type[Action], str], list[Action]] = {}
        for action in plan:
            batches.setdefault((type(action), self._target(action)), []).append(action)
        return [tuple(batch) for batch in batches.values()]

    def _target(self, action: Action) -> str:
        match action:
            case Launch() | Withdraw():
                return action.key
            case Start(offer=offer) | Stop(offer=offer) | Terminate(offer=offer):
                return self._compute_name(offer)
            case Admit(balancer=name) | Recall(balancer=name) | Reweigh(balancer=name):
                return name
            case Drain(balancer=name) | Evict(balancer=name):
                return name
            case _:
                assert_never(action)

    async def _lane(self, batches: list[Batch], bound: int, facts: Facts, ends: float) -> None:
        """Start the batches of one kind in order, `bound` at a time, until `ends` on the loop's clock."""
        loop = asyncio.get_running_loop()
        waiting = deque(batches)
        running: set[asyncio.Task[None]] = set()
        kind = type(batches[0][0])
        while waiting or running:
            while waiting and self._kinds[kind] < bound and (loop.time() < ends or not running):
                if (flight := self._start(waiting.popleft(), facts)) is not None:
                    running.add(flight)
            left = ends - loop.time()
            if not running or left <= 0:
                break
            _, running = await asyncio.wait(running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for batch in waiting:
            for action in batch:
                if action.key not in self._flights:
                    self._drop(action, "not started within the tick")

    def _start(self, batch: Batch, facts: Facts) -> asyncio.Task[None] | None:
        """One call for what may start; the rest is dropped with its reason."""
        ready: list[Action] = []
        for action in batch:
            if action.key in self._flights:
                continue  # still under way; decide() sees it as in flight
            if why := self._gate.why_shut() or self._objection(action, facts):
                self._drop(action, why)
            else:
                ready.append(action)
        if not ready:
            return None
        kind = type(ready[0])
        flight = asyncio.create_task(self._call(tuple(ready)))
        self._kinds[kind] += 1
        for action in ready:
            self._flights[action.key] = flight
        keys = [action.key for action in ready]

        def landed(task: asyncio.Task[None]) -> None:
            self._kinds[kind] -= 1
            for key in keys:
                del self._flights[key]
            if not task.cancelled() and (error := task.exception()) is not None:
                self._broken.append(error)

        flight.add_done_callback(landed)
        return flight

    def _objection(self, action: Action, facts: Facts) -> str:
        """Why this action must not start after all; empty when what planning asserted still holds."""
        match action:
            case Admit(endpoint=endpoint, boot=boot) | Recall(endpoint=endpoint, boot=boot):
                return self._not_ready(endpoint, boot, facts)
            case Terminate() | Stop():
                return self._still_serves(action, facts)
            case Launch() | Withdraw() | Start() | Reweigh() | Drain() | Evict():
                return ""
            case _:
                assert_never(action)

    def _not_ready(self, endpoint: Endpoint, boot: str, facts: Facts) -> str:
        record = facts.records(endpoint.replica)
        if record is None:
            return "no check of this replica is on record"
        if record.boot != boot:
            return "the replica has restarted since it was planned"
        if record.passes < self.parts.pool.ready.passes or record.failing_since is not None or record.hung:
            return "the replica's check does not pass any more"
        return ""

    def _still_serves(self, action: Terminate | Stop, facts: Facts) -> str:
        instance = action.instance
        if instance in facts.foreign:
            return "the machine carries the tags of another owner"
        cut = action.cut if isinstance(action, Terminate) else 0
        if cut > 0 or (isinstance(action, Terminate) and action.why in NOT_BY_CHOICE):
            return ""
        blind = sorted({traits.name for traits in self.parts.pool.balancers} - set(facts.balancers))
        doubtful = self._admitted_on(instance, facts)
        if blind:
            doubtful |= {name for name in facts.decision.memory.intents if instance_of(name) == instance}
        for name in sorted(doubtful):
            if not self._may_be_cut(name, facts):
                return f"balancer {blind[0]} could not be read" if blind else f"{name} is still admitted in a balancer"
        return ""

    def _may_be_cut(self, name: ReplicaId, facts: Facts) -> bool:
        """Whether its drain deadline has passed, or it is not ours to choose."""
        intent = facts.decision.memory.intents.get(name)
        drain = intent.drain if intent is not None else None
        return drain is not None and (drain.deadline <= self._clock.now() or drain.why in NOT_BY_CHOICE)

    def _admitted_on(self, instance: InstanceId, facts: Facts) -> set[ReplicaId]:
        """Replicas of a machine that the last views, or this very plan, put into traffic."""
        found = {name for name in self._admitted if instance_of(name) == instance}
        own = {f"{one.host}:{one.port}": one.id for one in facts.decision.replicas if one.instance == instance}
        for view in facts.balancers.values():
            for member in view.members:
                name = member.replica or own.get(member.endpoint)
                if name is not None and instance_of(name) == instance and member.state is MemberState.ADMITTED:
                    found.add(name)
        return found

    def _drop(self, action: Action, why: str) -> None:
        outcome = Outcome(action=action, status=OutcomeStatus.DROPPED, at=self._clock.now(), detail=why)
        self._outcomes.append(outcome)

    async def _call(self, batch: Batch) -> None:
        """One call to a port, with its deadline; files the outcomes of all its actions."""
        fault: Fault | None = None
        state: LaunchState | None = None
        name = type(batch[0]).__name__.lower()
        self._checkpoint(f"before_{name}")
        try:
            async with asyncio.timeout(CALL_DEADLINE):
                state = await self._perform(batch)
        except PortFault as raised:
            fault = raised.fault
        except TimeoutError:
            fault = Fault(kind=FaultKind.UNREACHABLE, detail=f"no answer within {CALL_DEADLINE:g} s")
        self._checkpoint(f"after_{name}")
        at = self._clock.now()
        self._outcomes += [_outcome(action, state, fault, at=at) for action in batch]

    async def _perform(self, batch: Batch) -> LaunchState | None:
        """The interpreter: one arm an action."""
        first, pool = batch[0], self.parts.pool
        match first:
            case Launch():
                return await self._compute(first.placement.offer).launch(pool, first)
            case Withdraw():
                await self._compute(first.placement.offer).withdraw(pool, first.token)
            case Start():
                await self._compute(first.offer).start(pool, _instances(batch))
            case Stop():
                await self._compute(first.offer).stop(pool, _instances(batch))
            case Terminate():
                await self._compute(first.offer).terminate(pool, _instances(batch))
            case Admit() | Recall():
                endpoints = _endpoints(batch)
                self._admitted.update(endpoint.replica for endpoint in endpoints)
                await self._balancer(first.balancer).admit(endpoints)
            case Reweigh():
                await self._balancer(first.balancer).reweigh(_endpoints(batch))
            case Drain():
                await self._balancer(first.balancer).drain(_endpoints(batch))
            case Evict():
                await self._balancer(first.balancer).evict(_endpoints(batch))
            case _:
                assert_never(first)
        return None

    def _compute_name(self, offer_name: str) -> str:
        """The compute of an offer; an offer that the config lost still ends where the only compute is."""
        offer = self.parts.pool.offer(offer_name)
        if offer is not None:
            return offer.compute
        if len(self.parts.computes) == 1:
            return next(iter(self.parts.computes))
        return f"?{offer_name}"

    def _compute(self, offer_name: str) -> Compute:
        name = self._compute_name(offer_name)
        if name not in self.parts.computes:
            raise InvariantBroken(f"an action names offer {offer_name}, which no compute of this pool offers")
        return self.parts.computes[name]

    def _balancer(self, name: str) -> Balancer:
        if name not in self.parts.balancers:
            raise InvariantBroken(f"an action names balancer {name}, which this pool does not have")
        return self.parts.balancers[name]


def _instances(batch: Batch) -> list[InstanceId]:
    return [action.instance for action in batch if isinstance(action, Start | Stop | Terminate)]


def _endpoints(batch: Batch) -> list[Endpoint]:
    return [action.endpoint for action in batch if isinstance(action, Admit | Recall | Reweigh | Drain | Evict)]


def _outcome(action: Action, state: LaunchState | None, fault: Fault | None, *, at: Instant) -> Outcome:
    """A call that came back, as the outcome of one of its actions; what ends or starts a machine is only accepted."""
    if state is not None and state.status is LaunchStatus.FAILED:
        fault = state.fault or Fault(
            kind=FaultKind.REFUSED, detail="the launch failed and the compute does not say why"
        )
    if fault is not None:
        return Outcome(action=action, status=OutcomeStatus.FAULT, at=at, fault=fault)
    later = isinstance(action, Start | Stop | Terminate)
    later = later or (state is not None and state.status is LaunchStatus.PENDING)
    ids = state.ids if state is not None else ()
    return Outcome(action=action, status=OutcomeStatus.ACCEPTED if later else OutcomeStatus.DONE, at=at, ids=ids)
