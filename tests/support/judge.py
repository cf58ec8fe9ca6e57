"""The laws of the design, checked against what is really so in a World after every decision, action and step.

Does: raise LawBroken with the law's number, and count how often the states that matter were reached.
Does not: read the engine's reasons, or trust Memory where the world knows better.
Invariant: each law is checked from the world's own account: its machines, its members, its looks, its clock.
"""

import math
from collections import defaultdict
from itertools import pairwise

from typing_extensions import override

from autoscaler.domain.base import InstanceId, ReplicaId, Token, instance_of
from autoscaler.domain.decision import (
    Action,
    Admit,
    Decision,
    Drain,
    Evict,
    Launch,
    Observation,
    OutcomeStatus,
    Recall,
    Reweigh,
    Start,
    Stop,
    Terminate,
    Withdraw,
)
from autoscaler.domain.faults import FaultKind
from autoscaler.domain.lifecycle import MOVES, Phase
from autoscaler.domain.memory import Memory
from autoscaler.domain.replica import MemberState
from tests.support.world import FOREVER, Judge, World

GAP_TICKS = 3


class LawBroken(AssertionError):
    """A law does not hold. `law` is its number in the design; 0 is the transition table."""

    def __init__(self, law: int, message: str) -> None:
        super().__init__(f"law {law}: {message}")
        self.law = law


class Laws(Judge):
    """Checks the laws named; all of them when none is."""

    def __init__(self, *laws: int) -> None:
        self._laws = frozenset(laws)
        self.moves: set[tuple[Phase, Phase]] = set()
        self._bad_since: dict[ReplicaId, float] = {}
        self._idle_looks: dict[ReplicaId, list[float]] = defaultdict(list)
        self._out_at: dict[ReplicaId, float] = {}
        self._known_tokens: dict[Token, Launch] = {}
        self._open: set[Token] = set()
        self._closed: set[Token] = set()
        self._ins: list[float] = []
        self._outs: list[float] = []
        self._wanted: list[tuple[float, int]] = []
        self._last_at: float | None = None
        self._history_since: float | None = None
        self._throttled_until = -math.inf
        self._no_capacity: dict[str, float] = {}
        self._paced_at = -math.inf
        self._recalled: set[ReplicaId] = set()
        self._doomed: set[ReplicaId] = set()
        self._balancer_looks: dict[ReplicaId, int] = defaultdict(int)

    def broken(self, law: int, message: str) -> None:
        if not self._laws or law in self._laws:
            raise LawBroken(law, message)

    # --------------------------------------------------------------------------------------- looks

    @override
    def looked(self, world: World) -> None:
        for rid, track in world.tracks.items():
            record = track.record
            good = record.last.loaded and not record.hung
            if good:
                self._bad_since.pop(rid, None)
            else:
                self._bad_since.setdefault(rid, float(record.last_at))
            out = self._out_at.get(rid)
            if record.last.running == 0 and record.last.loaded and out is not None:
                looks = self._idle_looks[rid]
                if record.last_at >= out + world.pool.settle and (not looks or record.last_at > looks[-1]):
                    looks.append(float(record.last_at))
            elif record.last.running:
                self._idle_looks[rid].clear()

    # ----------------------------------------------------------------------------------- decisions

    @override
    def decided(self, world: World, before: Memory, observation: Observation, decision: Decision) -> None:
        self._track_history(world, before, decision)
        self._count_balancers(world, observation)
        self._count(world, before, decision)
        self._moves(before, decision)
        self._law_3(world, before, decision)
        self._law_5(world, before, decision)
        self._law_6(before, decision)
        self._law_8(world, before, decision)
        self._law_9(world, before, decision)
        self._law_10(world, observation, decision)
        self._law_12(world, before, observation, decision)
        self._law_15(world, before, decision)

    def _track_history(self, world: World, before: Memory, decision: Decision) -> None:
        now, tick = float(decision.at), float(world.pool.pace.tick)
        gap = self._last_at is None or now - self._last_at > GAP_TICKS * tick
        if gap or before.history_since is None:
            self._history_since = now
            self._wanted.clear()
        if before.last_at is None:
            self._ins.clear()
            self._outs.clear()
            self._doomed.clear()
            self._open.clear()
            self._recalled.clear()
            self._no_capacity.clear()
            self._throttled_until = self._paced_at = -math.inf
        self._last_at = now

    def _count_balancers(self, world: World, observation: Observation) -> None:
        """Looks of the balancer that counts, which showed a member empty after it had left and settled."""
        view = observation.balancers.get("b")
        for member in view.members if view is not None else ():
            if member.replica is None:
                continue
            out = self._out_at.get(member.replica)
            settled = out is not None and observation.now >= out + world.pool.settle
            if member.active == 0 and settled:
                self._balancer_looks[member.replica] += 1
            else:
                self._balancer_looks.pop(member.replica, None)

    def _count(self, world: World, before: Memory, decision: Decision) -> None:
        reach = world.reach
        reach["decisions"] += 1
        for action in decision.plan:
            reach[type(action).__name__.lower()] += 1
        if begun_in(before, decision):
            reach["scale_in"] += 1
        reach["breaker_open"] += any(one.tripped for one in decision.memory.breakers.values())
        reach["marks"] += bool(decision.memory.marks)
        reach["at_max"] += decision.capacity.existing >= world.pool.bounds.max
        reach["distrust"] += bool(world.lies)
        reach[f"trust:{decision.trust.level.value}"] += 1
        for block in decision.blocks:
            reach[f"block:{block.code}"] += 1

    def _moves(self, before: Memory, decision: Decision) -> None:
        """Each replica goes from what memory had, to what was joined, to what the plan made of it."""
        joined = {one.id: one.phase for one in decision.replicas}
        for rid, intent in decision.memory.intents.items():
            known = before.intents.get(rid)
            was = known.phase if known is not None else Phase.REQUESTED
            if was is Phase.GONE and joined.get(rid, was) is not was:
                was = Phase.REQUESTED  # taken for gone, and shown again
            way = [was, joined[rid]] if rid in joined else [was]
            for move in pairwise([*way, intent.phase]):
                if move[0] is move[1]:
                    continue
                self.moves.add(move)
                if move not in MOVES:
                    self.broken(0, f"{rid} moved from {move[0]} to {move[1]}")

    def _law_3(self, world: World, before: Memory, decision: Decision) -> None:
        """Live plus launching never passes max, nor the budget, by a launch of ours."""
        fresh = [one for one in decision.memory.launches if one.token not in {each.token for each in before.launches}]
        if not fresh:
            return
        world.reach["launches_opened"] += len(fresh)
        pool, units, price = world.pool, 0.0, 0.0
        for machine in world.machines.values():
            offer = pool.offer(machine.offer)
            gone = machine.hidden or (machine.ending_at != FOREVER and not machine.boots % 2)  # shown as terminated
            if offer is not None and not gone and machine.shown_at != FOREVER:
                units, price = units + machine.units, price + offer.usd_per_h
        unsent = [one for one in decision.memory.launches if one.token not in world.tokens]
        coming = [(one.placement, one.count) for one in world.launching()]
        coming += [(one.placement, one.count) for one in unsent]
        for placement, count in coming:
            offer = pool.offer(placement.offer)
            assert offer is not None
            units, price = units + count * offer.capacity, price + count * offer.usd_per_h
        if units > pool.bounds.max + 1e-6:
            self.broken(3, f"{units:g} units live or launch, max is {pool.bounds.max}: {decision.sentence}")
        if pool.budget_usd_per_h is not None and price > pool.budget_usd_per_h + 1e-6:
            self.broken(3, f"{price:g} $/h, the budget is {pool.budget_usd_per_h:g}")
        world.reach["filled_to_max"] += units >= pool.bounds.max
        if pool.budget_usd_per_h is not None:
            world.reach["near_budget"] += price + 1.0 > pool.budget_usd_per_h

    def _law_5(self, world: World, before: Memory, decision: Decision) -> None:
        if not world.lies:
            return
        world.reach[f"lie:{world.lies}"] += 1
        if begun_in(before, decision):
            self.broken(5, f"scaled in while telemetry was {world.lies}: {decision.sentence}")

    def _law_6(self, before: Memory, decision: Decision) -> None:
        """One token, one order, from the plan that opened it until it closes, and never again."""
        was_open = {one.token for one in before.launches}
        now_open = {one.token for one in decision.memory.launches}
        for token in now_open - was_open:
            if token in self._known_tokens or token in self._closed:
                self.broken(6, f"token {token} is used a second time")
        self._closed |= was_open - now_open
        for action in decision.plan:
            if not isinstance(action, Launch):
                continue
            if action.token not in now_open:
                self.broken(6, f"{action.token} is sent but not open")
            known = self._known_tokens.setdefault(action.token, action)
            if known != action:
                self.broken(6, f"{action.token} is sent as another order than before")
        keys = [one.key for one in decision.plan]
        if len(set(keys)) != len(keys):
            self.broken(6, f"the same action twice in one plan: {sorted(keys)}")

    def _law_8(self, world: World, before: Memory, decision: Decision) -> None:
        """Cooldowns and the window, by the world's own account of time."""
        now, pace = float(decision.at), world.pool.pace
        if decision.wanted is not None and not world.lies:
            self._wanted.append((now, min(decision.wanted, world.pool.bounds.max)))
        if not begun_in(before, decision):
            return
        since = self._history_since if self._history_since is not None else now
        if now - since < pace.scale_in.stabilization:
            self.broken(8, f"scaled in {now - since:g} s after a start without history")
        if self._ins and now - self._ins[-1] < pace.scale_in.cooldown:
            self.broken(8, f"scaled in {now - self._ins[-1]:g} s after the last time")
        window = [units for at, units in self._wanted if now - at < pace.scale_in.stabilization]
        if window and decision.target < max(window):
            self.broken(8, f"scaled in to {decision.target}, yet {max(window)} was wanted within the window")
        self._ins.append(now)
        world.reach["scale_in_after_restart"] += world.reach["crash"] > 0

    def _law_9(self, world: World, before: Memory, decision: Decision) -> None:
        """What is about to be done is in what was saved, and an end that was saved is never undone."""
        memory = decision.memory
        if memory.sequence != before.sequence + 1:
            self.broken(9, f"sequence went from {before.sequence} to {memory.sequence}")
        tokens = {one.token for one in memory.launches}
        for action in decision.plan:
            if isinstance(action, Launch | Withdraw) and action.token not in tokens:
                self.broken(9, f"{action.key} is not in the saved memory")
            if isinstance(action, Terminate):
                intents = [one for rid, one in memory.intents.items() if instance_of(rid) == action.instance]
                if not intents or any(one.terminating_since is None for one in intents):
                    self.broken(9, f"{action.key} is not saved as terminating")
            if isinstance(action, Admit | Recall) and action.endpoint.replica in self._doomed:
                self.broken(9, f"{action.key} though its end was saved")
        for rid in [*self._doomed]:
            intent = memory.intents.get(rid)
            if intent is not None and intent.phase not in (Phase.TERMINATING, Phase.GONE):
                self.broken(9, f"{rid} was to be terminated and is {intent.phase} again")
            if intent is None and instance_of(rid) in world.machines:
                self.broken(9, f"{rid} was to be terminated and is forgotten while it lives")
        self._doomed |= {rid for rid, one in memory.intents.items() if one.terminating_since is not None}
        world.reach["terminating_saved"] += len(self._doomed) > 0

    def _law_10(self, world: World, observation: Observation, decision: Decision) -> None:
        """Throttled: no launch until it is over, and no mark; a place without capacity is left alone, it alone."""
        now, pace = float(decision.at), world.pool.pace
        marked = set()
        for outcome in observation.outcomes:
            if outcome.status is not OutcomeStatus.FAULT or outcome.fault is None:
                continue
            # A balancer's API has a budget of its own: its throttling says nothing of the compute's.
            by_balancer = isinstance(outcome.action, Admit | Recall | Reweigh | Drain | Evict)
            if outcome.fault.kind is FaultKind.THROTTLED and not by_balancer:
                wait = max(outcome.fault.retry_after_s, float(pace.tick))
                self._throttled_until = max(self._throttled_until, now + wait)
                world.reach["throttled"] += 1
            if isinstance(outcome.action, Launch) and outcome.fault.kind is FaultKind.NO_CAPACITY:
                marked.add(outcome.action.placement.key)
            if isinstance(outcome.action, Launch) and outcome.fault.kind is FaultKind.QUOTA_REACHED:
                marked.add(outcome.action.placement.offer)
        for view in observation.computes.values():
            for token, state in view.launches.items():
                opened = self._known_tokens.get(token)
                if state.fault is not None and opened is not None:
                    marked.add(opened.placement.key)
        for key in marked:
            self._no_capacity[key] = now + pace.no_capacity_memory
        world.reach["no_capacity"] += len(marked)
        for key in decision.memory.marks:
            if key not in self._no_capacity:
                self.broken(10, f"{key} is marked though nothing said that it has no capacity")
        for action in decision.plan:
            if not isinstance(action, Launch):
                continue
            if now < self._throttled_until:
                self.broken(10, f"{action.key} while throttled for {self._throttled_until - now:g} s more")
            until = max(self._no_capacity.get(key, -math.inf) for key in (action.placement.key, action.placement.offer))
            if now < until:
                self.broken(10, f"{action.key} at {action.placement.key}, which had no capacity")

    def _law_12(self, world: World, before: Memory, observation: Observation, decision: Decision) -> None:
        """With a large share unhealthy nothing that serves is ended, and what failed is replaced one by one."""
        memory, pace, now = decision.memory, world.pool.pace, float(decision.at)
        lost = [one for one in decision.replicas if one.phase is Phase.LOST or _drains(before, one.id) == "lost"]
        lost = [one for one in lost if one.phase in (Phase.LOST, Phase.DRAINING)]
        serving = {one.id for one in decision.replicas if one.phase is Phase.IN_SERVICE}
        if len(lost) <= max(1.0, (len(lost) + len(serving)) / 3):
            return
        world.reach["mass_unhealthy"] += 1
        for rid in serving:
            why = _drains(memory, rid)
            if memory.intents[rid].phase is not Phase.IN_SERVICE and why not in ("notice", "operator", "lost"):
                self.broken(12, f"{rid} serves and is ended ({why}) while {len(lost)} are unhealthy")
        begun = [
            one.id
            for one in lost
            if _drains(memory, one.id) == "lost" and _drains(before, one.id) != "lost"
            and before.intents[one.id].missing_since is None and not _ended(world, one.id)
        ]  # fmt: skip
        spacing = max(float(pace.replace_after), 4 * float(pace.tick))
        if len(begun) > 1 or (begun and now - self._paced_at < spacing):
            self.broken(12, f"{len(begun)} replaced {now - self._paced_at:g} s after the last while many are unhealthy")
        if begun:
            self._paced_at = now
            world.reach["paced_replacement"] += 1
        fresh = {one.token for one in memory.launches} - {one.token for one in before.launches}
        resting = sum(
            one.units
            for one in lost
            if memory.intents[one.id].phase is Phase.LOST and memory.intents[one.id].missing_since is None
            and not _ended(world, one.id)
        )  # fmt: skip
        if fresh and resting:
            held = sum(one.units for one in memory.intents.values() if one.phase in _HELD and not one.replace)
            held += sum(one.units for one in memory.launches if not one.withdrawn)
            if held + resting > max(decision.target, world.pool.bounds.min) + world.pool.offers[0].capacity - 1e-6:
                self.broken(12, f"launched {sorted(fresh)} for replicas that may yet recover: {decision.sentence}")

    def _law_15(self, world: World, before: Memory, decision: Decision) -> None:
        called = {one.endpoint.replica for one in decision.plan if isinstance(one, Recall)}
        for rid, intent in decision.memory.intents.items():
            known = before.intents.get(rid)
            if known is not None and known.drain is not None and intent.drain is None:
                called.add(rid)
        for rid in called:
            intent = before.intents[rid]
            world.reach["recalls"] += 1
            if intent.drain is None or intent.drain.why != "scale_in":
                self.broken(15, f"{rid} is recalled from a drain that was not for scale-in")
            if intent.terminating_since is not None:
                self.broken(15, f"{rid} is recalled though its end was saved")
            if rid in self._recalled:
                self.broken(15, f"{rid} is recalled a second time")
            if instance_of(rid) in world.notices:
                self.broken(15, f"{rid} is recalled though its machine will be taken away")
            self._recalled.add(rid)

    # ------------------------------------------------------------------------------------- actions

    @override
    def acting(self, world: World, action: Action) -> None:
        match action:
            case Admit() | Recall():
                self._law_1_admit(world, action)
            case Drain():
                self._law_4(world, action)
            case Terminate():
                self._law_2(world, action)
                self._law_7_end(world, action)
            case _:
                pass
        self._law_7(world, action)

    def _law_1_admit(self, world: World, action: Admit | Recall) -> None:
        rid = action.endpoint.replica
        track, machine = world.tracks.get(rid), world.machine_of(rid)
        world.reach["admissions"] += 1
        if machine is None or track is None:
            self.broken(1, f"{rid} is admitted and nobody ever looked at it")
            return
        record = track.record
        if record.boot != f"{machine.boot}|" or record.passes < world.pool.ready.passes or record.failing_since:
            self.broken(1, f"{rid} is admitted in {machine.boot} with {record.passes} passes in {record.boot}")
        world.reach["admissions_in_later_boot"] += machine.boots > 1

    def _law_2(self, world: World, action: Terminate) -> None:
        machine = world.machines.get(action.instance)
        if machine is None or machine.ending_at != FOREVER:
            return
        world.reach["terminations"] += 1
        for port in machine.ports:
            rid = ReplicaId(f"{machine.id}:{port}")
            if world.states(rid):
                self.broken(2, f"{rid} is terminated while a balancer lists it")
            intent = world.memory.intents.get(rid)
            if not machine.served or intent is None or not machine.up or machine.stopped:
                world.reach["ended_unserved"] += not machine.served
                continue
            deadline = intent.drain.deadline if intent.drain is not None else math.inf
            if self._balancer_looks[rid] >= 2 and not world.inside(rid):
                world.reach["drained_by_balancer_count"] += 1
                continue
            if world.now >= deadline:
                world.reach["drain_past_deadline"] += world.inside(rid) > 0
                continue
            if machine.hung and machine.orphan:
                continue  # never became ready within grace, as far as this ledger can know
            if world.inside(rid):
                self.broken(2, f"{rid} is terminated with {world.inside(rid)} requests inside, before its deadline")
            if machine.loaded(world.now) and len(self._idle_looks[rid]) < 2:
                self.broken(2, f"{rid} is terminated after {len(self._idle_looks[rid])} looks that showed it empty")
            world.reach["drained_empty"] += 1

    def _law_4(self, world: World, action: Drain) -> None:
        if action.why != "scale_in":
            return
        rid = action.endpoint.replica
        machine = world.machine_of(rid)
        if machine is None or not world.takes(rid):
            return
        world.reach["serving_victims"] += 1
        left = world.taking() - machine.units / len(machine.ports)
        world.reach["victims_at_min"] += left < world.pool.bounds.min + 1
        if left < world.pool.bounds.min - 1e-6:
            self.broken(4, f"{rid} is drained and leaves {left:g} units that take traffic, min {world.pool.bounds.min}")

    def _law_7(self, world: World, action: Action) -> None:
        names = {one.id for one in world.foreign}
        match action:
            case Terminate() | Start() | Stop():
                touched = action.instance
            case Admit() | Reweigh() | Drain() | Recall() | Evict():
                touched = action.endpoint.instance
            case _:
                return
        if touched in names:
            self.broken(7, f"{action.key} touches a machine that is not ours")
        world.reach["with_foreign"] += bool(names)

    def _law_7_end(self, world: World, action: Terminate) -> None:
        machine = world.machines.get(InstanceId(action.instance))
        if machine is None or not machine.orphan or machine.ending_at != FOREVER:
            return
        intent = world.memory.intents[ReplicaId(f"{machine.id}:{machine.ports[0]}")]
        told = intent.drain is not None and intent.drain.why in ("operator", "notice", "replace")
        world.reach["orphans_ended"] += 1
        age = world.now - machine.shown_at
        if not machine.was_ready and not told and age < world.pool.pace.orphan_grace:
            self.broken(7, f"{machine.id} was adopted {age:g} s ago and is ended within its grace: {action.why}")

    # --------------------------------------------------------------------------------------- steps

    @override
    def stepped(self, world: World, decision: Decision) -> None:
        limit = float(world.pool.pace.unhealthy_after + 2 * world.pool.pace.tick)
        for rid, since in self._bad_since.items():
            if MemberState.ADMITTED not in world.states(rid):
                continue
            world.reach["failed_members"] += 1
            if world.now - max(since, world.disturbed_at) > limit:
                self.broken(1, f"{rid} fails since {world.now - since:g} s and is still admitted")
        for machine in world.machines.values():
            for port in machine.ports:
                rid = ReplicaId(f"{machine.id}:{port}")
                if MemberState.ADMITTED in world.states(rid):
                    self._out_at.pop(rid, None)
                    self._idle_looks.pop(rid, None)
                else:
                    self._out_at.setdefault(rid, float(world.now))
        for rid in [one for one in self._bad_since if world.machine_of(one) is None]:
            del self._bad_since[rid]

    @override
    def ended(self, world: World) -> None:
        """After the calm: nothing is left over, nothing is half done, the pool is as large as the load needs."""
        world.reach["calm_ends"] += 1
        known = {instance_of(rid) for rid in world.memory.intents}
        decision = world.decision
        assert decision is not None
        for name, machine in world.machines.items():
            if name not in known:
                self.broken(6, f"{name} lives and the pool does not know it")
            had_its_time = world.now - machine.runs_at > world.pool.ready.give_up_after + 120.0
            if machine.ending_at == FOREVER and had_its_time and not machine.loaded(world.now):
                self.broken(11, f"{name} does not work and is still there ({decision.sentence})")
        for rid in {one for members in world.members.values() for one in members}:
            if world.machine_of(rid) is None:
                self.broken(6, f"{rid} is a member of a balancer and its machine is gone")
        if any(not one.withdrawn for one in world.memory.launches):
            self.broken(6, f"launches stay open: {[one.token for one in world.memory.launches]}")
        live = sum(one.units for one in world.machines.values() if one.ending_at == FOREVER)
        need = max(world.pool.bounds.min, min(world.pool.bounds.max, math.ceil(world.demand / 4 / 1.1 - 1e-9)))
        if world.pool.budget_usd_per_h is None and live < need - 1e-6:
            self.broken(12, f"{live:g} units live, the load needs {need}: {decision.sentence}")


_HELD = frozenset({Phase.REQUESTED, Phase.BOOTING, Phase.LOADING, Phase.READY, Phase.IN_SERVICE})


def _drains(memory: Memory, rid: ReplicaId) -> str:
    intent = memory.intents.get(rid)
    return intent.drain.why if intent is not None and intent.drain is not None else ""


def _ended(world: World, rid: ReplicaId) -> bool:
    """Whether a machine is stopped, ending or gone: it cannot recover by itself."""
    machine = world.machine_of(rid)
    return machine is None or machine.stopped or machine.ending_at != FOREVER


def begun_in(before: Memory, decision: Decision) -> bool:
    """Whether this decision begins to make the pool smaller for the load's sake."""
    for rid, intent in decision.memory.intents.items():
        if _drains(decision.memory, rid) == "scale_in" and _drains(before, rid) != "scale_in" and intent.drain:
            return True
    expired = {str(one.facts.get("token")) for one in decision.alarms if one.code == "launch_expired"}
    already = {one.token for one in before.launches if one.withdrawn} | expired
    marks = decision.memory.marks  # what was not accepted yet is asked for elsewhere: the place has no capacity
    return any(
        (isinstance(one, Terminate) and one.why.startswith("no longer needed"))
        or (
            isinstance(one, Withdraw)
            and one.token not in already
            and not {one.placement.key, one.placement.offer} & marks.keys()
        )
        for one in decision.plan
    )
