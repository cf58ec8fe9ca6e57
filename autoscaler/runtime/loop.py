"""The loop of one pool: observe, decide, save, act; then the same again.

Does: keep the cadence, the order of the four steps, and what goes from one tick to the next. Does not: decide anything
(`decide` does), interpret an action (the executor does), or wait for another pool.
Invariant: nothing is carried out that was not saved before; never two ticks of one pool at once.

Cadence: fixed from the start of a tick. A tick that takes longer than the interval is counted and named, and the ticks
it ran over are left out, never made up. `wake` brings an early tick, at least min(1 s, tick / 4) after the start of the
last one; wakes in between are one wake.
"""

import asyncio
from collections import deque
from functools import partial
from typing import NamedTuple

import msgspec

from autoscaler.domain.base import Duration, InstanceId, Instant, ReplicaId, instance_of
from autoscaler.domain.decision import Calendar, Decision, Observation, Outcome, Record, SourceFault
from autoscaler.domain.directives import Directives
from autoscaler.domain.faults import FaultKind, InvariantBroken
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import Memory
from autoscaler.domain.pool import Mode
from autoscaler.domain.replica import Endpoint, Instance, Replica
from autoscaler.ports.ledger import Versioned
from autoscaler.runtime.advise import unacted
from autoscaler.runtime.clock import calendar_at
from autoscaler.runtime.executor import Executor, Facts
from autoscaler.runtime.metrics import Seen
from autoscaler.runtime.observer import Ask, Observer, World, guarded, observe_deadline
from autoscaler.runtime.parts import PoolParts, Services
from autoscaler.runtime.prober import Prober, Target

#: Phases in which something may answer on the replica's port.
_ANSWERING = frozenset({Phase.LOADING, Phase.READY, Phase.IN_SERVICE, Phase.DRAINING, Phase.LOST})
#: Outcomes that wait for a save are kept up to this many, oldest dropped first: losing one is safe (law 6).
_OUTCOMES_KEPT = 1000


class Status(NamedTuple):
    """What there is to show of a pool. `trouble`: why the last decision was not saved or made; empty when it was."""

    parts: PoolParts
    decision: Decision | None = None
    observation: Observation | None = None
    tick_at: Instant | None = None
    trouble: str = ""
    overruns: int = 0

    @property
    def fine(self) -> bool:
        """Whether the last tick made a decision that it could keep."""
        return self.tick_at is not None and not self.trouble


class PoolLoop:
    """One pool's loop with its prober and executor. Run `run()` and `prober.run()` as tasks of their own."""

    def __init__(self, parts: PoolParts, services: Services) -> None:
        self._parts = parts
        self._services = services
        self._observer = Observer(services.ledger)
        self.executor = Executor(parts, services.clock, services.gate, services.checkpoint)
        self.prober = Prober(parts.pool, parts.probe, services.clock, self.wake)
        self.status = Status(parts)
        self.born_at = services.clock.now()
        self._woken = asyncio.Event()
        self._stopping = False
        self._ticking = False
        self._memory: Memory | None = None
        self._version: int | None = None  # None: what the ledger holds must be read before the next save
        self._directives: Directives | None = None
        self._outcomes: deque[Outcome] = deque(maxlen=_OUTCOMES_KEPT)
        self._unwritten: list[Outcome] = []  # not yet in the ledger, for explain
        self._next_parts: PoolParts | None = None
        self._slowest = "observe"
        self._endpoints: dict[ReplicaId, Endpoint] = {}

    @property
    def parts(self) -> PoolParts:
        """The parts in use."""
        return self._parts

    def wake(self, why: str) -> None:
        """Ask for an early tick; `why` is for the journal of whoever debugs this."""
        del why
        self._woken.set()

    def exchange(self, parts: PoolParts) -> None:
        """Use these parts from the next tick on; memory and clocks stay."""
        self._next_parts = parts
        self._woken.set()

    def stop(self) -> None:
        """Begin no further tick."""
        self._stopping = True
        self._woken.set()

    def recover(self, why: str) -> None:
        """Start afresh after a crash: read memory again."""
        self._version = None
        self.status = self.status._replace(trouble=f"crashed: {why}")

    async def run(self) -> None:
        """Tick until stopped."""
        clock = self._services.clock
        early, due = False, clock.now()
        while not self._stopping:
            started = clock.now()
            due = due if early else Instant(started + self._parts.pool.pace.tick)
            await self.tick(early=early)
            due = self._next_due(due)
            early = await self._wait(started, due)

    def _next_due(self, due: Instant) -> Instant:
        """The next regular tick: `due`, or the first slot ahead when this tick ran over it."""
        tick, late = self._parts.pool.pace.tick, self._services.clock.now() - due
        if late <= 0:
            return due
        missed = int(late // tick) + 1
        self._services.metrics.overran(self._parts.pool.name, self._slowest, missed)
        self._services.journal.trouble(
            "tick overran", pool=self._parts.pool.name, part=self._slowest, late_s=round(late, 3), missed=missed
        )
        self.status = self.status._replace(overruns=self.status.overruns + 1)
        return Instant(due + missed * tick)

    async def _wait(self, started: Instant, due: Instant) -> bool:
        """Wait for the regular tick or a wake; whether the coming tick is an early one."""
        clock = self._services.clock
        gap = min(1.0, self._parts.pool.pace.tick / 4.0)
        soonest = Instant(min(due, started + gap))
        while not self._stopping:
            now = clock.now()
            if now >= due:
                break
            if self._woken.is_set() and now >= soonest:
                self._woken.clear()
                return True
            try:
                async with asyncio.timeout((soonest if self._woken.is_set() else due) - now):
                    if self._woken.is_set():
                        await asyncio.Event().wait()  # coalesce: nothing but time ends this
                    await self._woken.wait()
            except TimeoutError:
                continue
        self._woken.clear()
        return False

    async def tick(self, *, early: bool = False) -> Decision | None:
        """One tick; the decision, or None when there is no memory to decide from. Raises only errors of ours."""
        if self._ticking:
            raise InvariantBroken(f"pool {self._parts.pool.name}: two ticks at once")
        self._ticking = True
        started = self._services.clock.now()
        try:
            decision = await self._tick(started, early=early and self._next_parts is None)
        finally:
            self._ticking = False
        ended = self._services.clock.now()
        self._services.metrics.ticked(self._parts.pool.name, ended - started)
        self.status = self.status._replace(tick_at=ended)
        return decision

    async def _tick(self, started: Instant, *, early: bool) -> Decision | None:
        self._take_parts()
        services, pool = self._services, self._parts.pool
        trouble = await self._load()
        before = self._memory
        # A machine that one look missed is looked for again, not remembered as missing twice.
        early = early and before is not None and all(one.missing_since is None for one in before.intents.values())
        world = await self._observer.look(self._parts, self._ask(started, before, early=early))
        observed = services.clock.now()
        self._hear(world)
        if before is None:
            self._undecided(trouble)
            return None
        if self._directives is None:
            trouble = trouble or "the operators' directives could not be read"
        observation = self._observation(world, before)
        calendar = calendar_at(observation.now)
        decision = await self._decide(before, observation, calendar)
        saved = False
        if pool.mode is Mode.ADVISE:
            self._memory = unacted(before, decision.memory)
            note = "advice only"
        else:
            if not trouble:
                record = Record(
                    pool=pool.name, at=observation.now, sequence=decision.sequence, observation=observation,
                    memory_before=before, calendar=calendar, decision=decision,
                )  # fmt: skip
                trouble = await self._save(record)
            saved = not trouble
            note = f"not carried out: {trouble}" if trouble else ""
        services.journal.decision(decision, saved=saved, note=note)
        self.status = self.status._replace(decision=decision, observation=observation, trouble=trouble)
        self._watch(decision, observation)
        kept = services.clock.now()
        if saved:
            services.metrics.decided(before, decision)
            await self._act(decision, observation, started)
        elif trouble:
            services.metrics.unsaved(pool.name)
        self._note_slowest(started, observed, kept)
        return decision

    def _undecided(self, trouble: str) -> None:
        self._services.journal.trouble("no decision", pool=self._parts.pool.name, why=trouble)
        self._services.metrics.unsaved(self._parts.pool.name)
        self.status = self.status._replace(trouble=trouble)

    def _take_parts(self) -> None:
        if self._next_parts is None:
            return
        parts, self._next_parts = self._next_parts, None
        if parts.pool.mode is not self._parts.pool.mode:
            self._version = None  # what was only advised is no memory
        self._parts = self.executor.parts = parts
        self.prober.configure(parts.pool, parts.probe)
        self._observer.forget()
        self.status = self.status._replace(parts=parts)

    async def _load(self) -> str:
        """Read memory when the ledger's is not the one in hand; why it could not be read, or empty."""
        if self._version is not None:
            return ""
        pool = self._parts.pool
        call = partial(self._services.ledger.load, pool.name)
        answer = await guarded("ledger", call, observe_deadline(pool.pace.tick))
        if isinstance(answer, Versioned):
            self._memory, self._version = answer
            return ""
        self._count(answer)
        return f"the ledger does not answer: {answer.fault.detail}"

    def _ask(self, started: Instant, memory: Memory | None, *, early: bool) -> Ask:
        decision = self.status.decision
        if decision is not None:
            serving = [
                self._endpoints[one.id]
                for one in decision.replicas
                if one.phase is Phase.IN_SERVICE and one.id in self._endpoints
            ]
        else:
            serving = _remembered(memory) if memory is not None else []
        return Ask(at=started, early=early, launches=memory.launches if memory else (), serving=serving)

    def _hear(self, world: World) -> None:
        """Keep the directives, tell the prober who answered a scrape, count what failed."""
        if world.directives is not None:
            self._directives = world.directives
        if world.load is not None:
            answered = [name for name, load in world.load.replicas.items() if load.running is not None]
            self.prober.answered(answered, world.load.at)
        for fault in world.faults:
            self._count(fault)

    def _count(self, fault: SourceFault) -> None:
        pool = self._parts.pool.name
        self._services.metrics.fault(pool, fault.source, fault.fault.kind)
        self._services.journal.trouble(
            "fault", pool=pool, source=fault.source, kind=fault.fault.kind.value, detail=fault.fault.detail
        )

    def _observation(self, world: World, memory: Memory) -> Observation:
        self._gather_outcomes()
        now = self._services.clock.now()
        return Observation(
            now=now if memory.last_at is None else Instant(max(now, memory.last_at)),
            computes=world.computes,
            balancers=world.balancers,
            load=world.load,
            probes=self.prober.records(),
            outcomes=tuple(self._outcomes),
            directives=self._directives or Directives(),
            in_flight=self.executor.in_flight,
            faults=world.faults,
        )

    def _gather_outcomes(self) -> None:
        fresh = self.executor.take_outcomes()
        self._outcomes.extend(fresh)
        self._unwritten.extend(fresh)
        for outcome in fresh:
            self._services.journal.outcome(self._parts.pool.name, outcome)
            if outcome.fault is not None:
                source = f"action:{outcome.action.key.partition(':')[0]}"
                self._services.metrics.fault(self._parts.pool.name, source, outcome.fault.kind)

    async def _decide(self, memory: Memory, observation: Observation, calendar: Calendar) -> Decision:
        """Decide; in a thread when a policy may block (it runs in a worker process), so that no other pool waits."""
        parts = self._parts
        if any(getattr(policy, "blocking", False) for policy in parts.policies):
            decision = await asyncio.to_thread(
                self._services.decide, parts.pool, parts.policies, memory, observation, calendar
            )
        else:
            decision = self._services.decide(parts.pool, parts.policies, memory, observation, calendar)
        if decision.memory.config_hash == parts.config_hash:
            return decision
        hashed = msgspec.structs.replace(decision.memory, config_hash=parts.config_hash)
        return msgspec.structs.replace(decision, memory=hashed)

    async def _save(self, record: Record) -> str:
        """Save memory and record; why it did not work, or empty. Whatever went wrong, memory is read again next."""
        pool = self._parts.pool
        version, self._version = self._version, None
        if version is None:
            return "the ledger has not been read"
        self._services.checkpoint("before_save")
        call = partial(self._services.ledger.save, pool.name, version, record.decision.memory, record)
        answer = await guarded("ledger", call, observe_deadline(pool.pace.tick))
        self._services.checkpoint("after_save")
        if isinstance(answer, SourceFault):
            self._count(answer)
            if answer.fault.kind is FaultKind.CONFLICT:
                return f"someone else saved meanwhile: {answer.fault.detail}"
            return f"the ledger does not save: {answer.fault.detail}"
        self._memory, self._version = record.decision.memory, answer
        self._outcomes.clear()
        return ""

    async def _act(self, decision: Decision, observation: Observation, started: Instant) -> None:
        """Carry the plan out within what is left of the tick, at least a quarter of one."""
        tick = self._parts.pool.pace.tick
        if decision.plan:
            left = started + tick - self._services.clock.now()
            foreign = frozenset(one.id for view in observation.computes.values() for one in view.foreign)
            facts = Facts(decision, observation.balancers, foreign, self.prober.record)
            await self.executor.run(facts, Duration(max(tick / 4.0, left)))
        self._gather_outcomes()
        if self._unwritten:
            outcomes, self._unwritten = self._unwritten, []
            call = partial(self._services.ledger.append, self._parts.pool.name, decision.sequence, outcomes)
            answer = await guarded("ledger", call, observe_deadline(tick))
            if isinstance(answer, SourceFault):
                self._count(answer)  # losing outcomes is safe: the world is read again

    def _watch(self, decision: Decision, observation: Observation) -> None:
        """Give the prober every machine that runs and has an address."""
        machines: dict[InstanceId, Instance] = {
            one.id: one for view in observation.computes.values() for one in view.instances
        }
        targets = []
        endpoints: dict[ReplicaId, Endpoint] = {}
        for replica in decision.replicas:
            if replica.phase not in _ANSWERING or not replica.host:
                continue
            machine = machines.get(replica.instance)
            known = observation.probes.get(replica.id)
            boot = machine.boot if machine is not None else (known.boot.partition("|")[0] if known else "")
            endpoint = _endpoint(replica, self._endpoints.get(replica.id))
            endpoints[replica.id] = endpoint
            targets.append(Target(endpoint, boot, bool(replica.admitted_in)))
        self._endpoints = endpoints
        self.prober.watch(targets)

    def _note_slowest(self, started: Instant, observed: Instant, kept: Instant) -> None:
        parts = {
            "observe": observed - started,
            "save": kept - observed,
            "act": self._services.clock.now() - kept,
        }
        self._slowest = max(parts, key=lambda part: parts[part])

    def seen(self) -> Seen:
        """The pool's state for the gauges."""
        status = self.status
        foreign: list[Instance] = []
        if status.observation is not None:
            foreign = [one for view in status.observation.computes.values() for one in view.foreign]
        offers = {offer.name: offer.usd_per_h for offer in status.parts.pool.offers}
        cost = sum(offers.get(one.offer, 0.0) for one in foreign)
        return Seen(status.parts.pool.name, status.decision, status.tick_at, len(foreign), cost)


def _endpoint(replica: Replica, known: Endpoint | None) -> Endpoint:
    """Where a replica listens: the known value when it is the same, for that is so in nearly every tick."""
    weight = max(1, round(100 * replica.units))
    if known is not None and (known.host, known.port, known.weight) == (replica.host, replica.port, weight):
        return known
    return Endpoint(
        replica=replica.id, instance=replica.instance, host=replica.host or "", port=replica.port, weight=weight
    )


def _remembered(memory: Memory) -> list[Endpoint]:
    """Who served when memory was saved: whom to scrape in the first tick after a restart."""
    found = []
    for name, intent in memory.intents.items():
        port = ReplicaId(name).rpartition(":")[2]
        if intent.phase is Phase.IN_SERVICE and intent.host and port.isdecimal():
            machine = instance_of(name)
            found.append(Endpoint(replica=name, instance=machine, host=intent.host, port=int(port)))
    return found
