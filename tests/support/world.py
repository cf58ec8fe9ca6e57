"""A small world in virtual time around decide(): machines, members, looks, telemetry, and everything that fails.

Does: apply plans to imitation machines, let a script of troubles happen to them, and let a judge see each decision and
each action. Does not: decide, judge (tests/support/judge.py does) or read any clock.
Invariant: a world is a function of its script: the same script gives the same run.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from autoscaler.domain.base import Duration, InstanceId, Instant, ReplicaId, Token, replica_id
from autoscaler.domain.decision import (
    Action,
    Admit,
    Calendar,
    Decision,
    Drain,
    Evict,
    Launch,
    Observation,
    Outcome,
    OutcomeStatus,
    Recall,
    SourceFault,
    Terminate,
    Withdraw,
)
from autoscaler.domain.directives import AtLeast, Directives, Pause
from autoscaler.domain.faults import Fault, FaultKind
from autoscaler.domain.load import Idleness, Kind, LoadSample, Reading, ReadingState, Signal
from autoscaler.domain.memory import Memory
from autoscaler.domain.pool import BalancerTraits, Bounds, Offer, Pool
from autoscaler.domain.replica import (
    BalancerView,
    ComputeView,
    Instance,
    InstanceState,
    LaunchState,
    LaunchStatus,
    Member,
    MemberState,
    Notice,
    ProbeRecord,
    ProbeVerdict,
    Traffic,
)
from autoscaler.engine import decide as engine
from autoscaler.ports.policy import Policy
from autoscaler.runtime.probe_rules import Look, Track, follow, rules_of
from tests.support.builders import a_pace, a_pool, tracking

replace = msgspec.structs.replace
FOREVER = float("inf")
LIES = ("t_absent", "t_error", "t_stale", "t_old_reading", "t_zero", "t_partial", "t_nan", "t_one_lost", "t_fewer")


class Event(msgspec.Struct, frozen=True):
    """After `wait` more ticks, `kind` happens to number `which`, for `lasts` ticks where it lasts."""

    wait: int
    kind: str
    which: int = 0
    lasts: int = 1


class Script(msgspec.Struct, frozen=True):
    """All that happens in one run. `demand`: requests waiting at first; `calm`: quiet ticks at the end."""

    pool: Pool
    events: tuple[Event, ...]
    demand: int = 8
    calm: int = 0
    warm: int = 0


def pools(ports: int = 1, zones: int = 1, balancers: int = 1, counts: bool = True, **changes: object) -> Pool:
    """A pool of machines with so many ports, over so many zones, behind so many balancers."""
    where = tuple("abc"[:zones])
    offers = (
        Offer(name="spot", compute="c", zones=where, usd_per_h=1.0, capacity=ports, ports=tuple(range(80, 80 + ports))),
        Offer(name="dear", compute="c", zones=where, usd_per_h=3.0, capacity=ports, ports=tuple(range(80, 80 + ports))),
    )
    members = (
        BalancerTraits(name="b", counts_active=counts),
        BalancerTraits(name="b2", settle=Duration(20.0), weights=True),
    )
    return a_pool(**{"offers": offers, "balancers": members[:balancers], **changes})  # type: ignore[arg-type]


@dataclasses.dataclass
class Machine:
    """One imitation machine. Instants in seconds; `loads_at` is when the model of the present boot is loaded."""

    id: InstanceId
    token: Token
    offer: str
    zone: str
    ports: tuple[int, ...]
    launched_at: float
    runs_at: float
    load_s: float
    units: int
    boots: int = 1
    up: bool = True
    hung: bool = False
    stopped: bool = False
    ending_at: float = FOREVER
    ended_by: str = ""
    hidden: int = 0
    no_address: int = 0
    orphan: bool = False
    shown_at: float = FOREVER
    served: bool = False
    was_ready: bool = False
    loads_at: float = FOREVER
    inside: dict[int, list[float]] = dataclasses.field(default_factory=dict)

    @property
    def boot(self) -> str:
        return f"boot-{self.boots}"

    def answers(self, now: float) -> bool:
        return self.up and not self.stopped and not self.hung and now >= self.runs_at and self.ending_at == FOREVER

    def loaded(self, now: float) -> bool:
        return self.answers(now) and now >= self.loads_at


@dataclasses.dataclass
class Pending:
    """A launch that the compute accepted and whose machines come at `at`."""

    order: Launch
    at: float
    fails: bool = False


class World:
    """Run a script: `run()` steps to its end. `judge` is called with each decision, action and step."""

    def __init__(self, script: Script, judge: "Judge | None" = None) -> None:
        self.pool = script.pool
        self.script = script
        self.judge = judge or Judge()
        self.now = Instant(1_000_000.0)
        self.memory = Memory(epoch="e1")
        self.machines: dict[InstanceId, Machine] = {}
        self.pending: dict[Token, Pending] = {}
        self.tokens: dict[Token, tuple[Launch, list[InstanceId]]] = {}
        self.withdrawn: set[Token] = set()
        self.members: dict[str, dict[ReplicaId, MemberState]] = {one.name: {} for one in self.pool.balancers}
        self.admitted_at: dict[ReplicaId, float] = {}
        self.no_traffic: set[ReplicaId] = set()
        self.tracks: dict[ReplicaId, Track] = {}
        self.outcomes: tuple[Outcome, ...] = ()
        self.directives = Directives()
        self.demand = script.demand
        self.until: dict[str, int] = {}  # trouble -> last step of it
        self.notices: dict[InstanceId, Notice] = {}
        self.foreign: list[Instance] = []
        self.step_no = 0
        self.epochs = 1
        self.disturbed_at = float(self.now)
        self.gap_at = float(self.now)
        self.reach: Counter[str] = Counter()
        self.cut = 0
        self.decision: Decision | None = None
        self.policies: list[Policy] = [tracking(4.0), tracking(8.0, Signal.RUNNING)]

    # ------------------------------------------------------------------------------------- running

    def run(self) -> "World":
        for _ in range(self.script.warm):
            self.step()
        for event in self.script.events:
            for _ in range(event.wait):
                self.step()
            self.happen(event)
        self.step()
        if self.script.calm:
            self.heal()
            for _ in range(self.script.calm):
                self.step()
            self.judge.ended(self)
        return self

    def is_on(self, trouble: str) -> bool:
        return self.until.get(trouble, -1) >= self.step_no

    def heal(self) -> None:
        """All troubles end; what is broken already stays broken."""
        self.until.clear()
        self.directives = Directives(protect=frozenset())
        self.no_traffic.clear()
        self.disturb()

    def disturb(self) -> None:
        self.disturbed_at = float(self.now)

    def step(self) -> None:
        """One tick: the world moves on, the pool looks, decides, saves and acts."""
        self.step_no += 1
        self.now = Instant(self.now + self.pool.pace.tick)
        self._move()
        if self.is_on("down"):  # the daemon does not run
            self.disturb()
            return
        observation = self._observe()
        before = self.memory
        decision = engine.decide(self.pool, self.policies, before, observation, Calendar(utc="2026-12-01"))
        if self.is_on("crash_before_save"):
            self._crash()
            return
        self.memory = msgspec.json.decode(msgspec.json.encode(decision.memory), type=Memory)
        self.decision = decision
        self.judge.decided(self, before, observation, decision)
        self._act(decision)
        self.judge.stepped(self, decision)
        for machine in self.machines.values():
            machine.hidden = max(0, machine.hidden - 1)
            machine.no_address = max(0, machine.no_address - 1)

    def _crash(self) -> None:
        """The process ends: what was not saved is lost, and so is all that the prober knew."""
        self.outcomes = ()
        self.tracks.clear()
        self.reach["crash"] += 1
        self.disturb()

    # ---------------------------------------------------------------------------- the world moves

    def _move(self) -> None:
        for token, pending in sorted(self.pending.items()):
            if self.now >= pending.at and not pending.fails:
                self._appear(token, pending)
        for machine in [*self.machines.values()]:
            if self.now >= machine.ending_at:
                self._vanish(machine, machine.ended_by)
                continue
            self._serve(machine)
        for name in [one for one, notice in self.notices.items() if notice.at is not None and self.now >= notice.at]:
            del self.notices[name]
            if name in self.machines:
                self._vanish(self.machines[name], "cloud")

    def _appear(self, token: Token, pending: Pending) -> None:
        order, ids = self.tokens[token]
        offer = self.pool.offer(order.placement.offer)
        assert offer is not None
        for index in range(order.count):
            self.add_machine(InstanceId(f"i-{token}-{index}"), token, offer, order.placement.zone)
            ids.append(InstanceId(f"i-{token}-{index}"))
        del self.pending[token]

    def add_machine(self, name: InstanceId, token: Token, offer: Offer, zone: str, *, orphan: bool = False) -> Machine:
        slow = 150.0 if self.is_on("slow_boot") else 20.0
        never = self.is_on("never_loads") or (self.is_on("spot_never_loads") and offer.name == "spot")
        load_s = FOREVER if never else 40.0
        machine = Machine(
            id=name, token=token, offer=offer.name, zone=zone, ports=offer.ports, launched_at=self.now,
            runs_at=self.now + slow, load_s=load_s, units=offer.capacity, orphan=orphan,
        )  # fmt: skip
        machine.loads_at = machine.runs_at + load_s
        self.machines[name] = machine
        return machine

    def _vanish(self, machine: Machine, by: str) -> None:
        self.machines.pop(machine.id, None)
        machine.ended_by = by
        for port in machine.ports:
            self.tracks.pop(replica_id(machine.id, port), None)

    def _serve(self, machine: Machine) -> None:
        """Requests come to members that take traffic, and end after half a minute or so."""
        for port in machine.ports:
            rid = replica_id(machine.id, port)
            inside = [end for end in machine.inside.get(port, []) if end > self.now or machine.hung]
            if not machine.up or machine.stopped:
                inside = []
            if self.takes(rid) and len(inside) < 3 and self.demand > 0:
                inside.append(self.now + 20.0 + (machine.boots * 7 + port) % 20)
            machine.inside[port] = inside

    # ---------------------------------------------------------------------------- what is so, really

    def machine_of(self, rid: ReplicaId) -> Machine | None:
        return self.machines.get(InstanceId(rid.rpartition(":")[0]))

    def states(self, rid: ReplicaId) -> list[MemberState]:
        """How the balancers have it."""
        return [members[rid] for members in self.members.values() if rid in members]

    def takes(self, rid: ReplicaId) -> bool:
        """Whether clients' requests reach it and it can answer."""
        return self.serves(rid) and rid not in self.no_traffic

    def serves(self, rid: ReplicaId) -> bool:
        """Whether it is admitted everywhere and can answer."""
        machine, states = self.machine_of(rid), self.states(rid)
        everywhere = len(states) == len(self.members) and all(one is MemberState.ADMITTED for one in states)
        return everywhere and machine is not None and machine.loaded(self.now)

    def taking(self) -> float:
        """Units that take traffic."""
        return sum(
            one.units / len(one.ports)
            for one in self.machines.values()
            for port in one.ports
            if self.takes(replica_id(one.id, port))
        )

    def inside(self, rid: ReplicaId) -> int:
        machine = self.machine_of(rid)
        return len(machine.inside.get(int(rid.rpartition(":")[2]), ())) if machine is not None else 0

    def launching(self) -> list[Launch]:
        """Orders whose machines are still to come."""
        return [one.order for one in self.pending.values() if not one.fails]

    # ------------------------------------------------------------------------------------- looking

    def _observe(self) -> Observation:
        if not self.is_on("prober_stuck"):
            self._probe()
        faults: list[SourceFault] = []
        computes: dict[str, ComputeView] = {}
        lost = Fault(kind=FaultKind.UNREACHABLE, detail="no answer")
        if self.is_on("blind_compute"):
            faults.append(SourceFault(source="compute:c", fault=lost))
            self.disturb()
        else:
            computes["c"] = self._compute_view()
        balancers: dict[str, BalancerView] = {}
        for name in self.members:
            if self.is_on("blind_balancer") and name == "b":
                faults.append(SourceFault(source=f"balancer:{name}", fault=lost))
                self.disturb()
            else:
                balancers[name] = self._balancer_view(name)
        load = self._load(faults)
        outcomes, self.outcomes = self.outcomes, ()
        return Observation(
            now=self.now, computes=computes, balancers=balancers, load=load, probes=self._records(), outcomes=outcomes,
            directives=self.directives, faults=tuple(faults),
        )  # fmt: skip

    def _records(self) -> dict[ReplicaId, ProbeRecord]:
        return {rid: track.record for rid, track in self.tracks.items() if not self.is_on("records_lost")}

    def _dark(self) -> tuple[str, ...]:
        zones = self.pool.offers[0].zones
        return (zones[0],) if self.is_on("dark_zone") and len(zones) > 1 else ()

    def _compute_view(self) -> ComputeView:
        dark = self._dark()
        shown = []
        if dark:
            self.disturb()
        for machine in self.machines.values():
            if machine.hidden or machine.zone in dark:
                self.disturb()
                continue
            machine.shown_at = min(machine.shown_at, float(self.now))
            shown.append(self._instance(machine))
        launches: dict[Token, LaunchState] = {}
        for one in self.memory.launches:
            pending = self.pending.get(one.token)
            ids = tuple(each for each in self.tokens.get(one.token, (None, []))[1] if each in self.machines)
            if pending is not None and pending.fails:
                fault = Fault(kind=FaultKind.NO_CAPACITY, detail="none left")
                launches[one.token] = LaunchState(status=LaunchStatus.FAILED, fault=fault)
            elif pending is not None:
                launches[one.token] = LaunchState(status=LaunchStatus.PENDING)
            elif ids:
                launches[one.token] = LaunchState(status=LaunchStatus.DONE, ids=ids)
        if self.step_no % 2:
            shown.reverse()
        return ComputeView(
            compute="c", instances=tuple(shown), as_of=self.now, launches=launches, unreachable_zones=dark,
            notices=tuple(self.notices.values()), foreign=tuple(self.foreign),
        )  # fmt: skip

    def _instance(self, machine: Machine) -> Instance:
        state = InstanceState.RUNNING
        if self.now < machine.runs_at or machine.no_address:
            state = InstanceState.PENDING
        if machine.stopped:
            state = InstanceState.STOPPED
        if machine.ending_at != FOREVER:
            state = InstanceState.STOPPING if machine.boots % 2 else InstanceState.TERMINATED
        up = state is not InstanceState.PENDING
        return Instance(
            id=machine.id, token=machine.token, offer=machine.offer, zone=machine.zone, state=state,
            launched_at=Instant(machine.launched_at), address=f"host-{machine.id}" if up else None, ports=machine.ports,
            boot=machine.boot,
        )  # fmt: skip

    def _balancer_view(self, name: str) -> BalancerView:
        members = []
        counts = next(one.counts_active for one in self.pool.balancers if one.name == name)
        for rid, state in self.members[name].items():
            host, _, port = rid.rpartition(":")
            machine = self.machine_of(rid)
            healthy = machine is not None and machine.loaded(self.now) and rid not in self.no_traffic
            traffic = Traffic.YES if healthy else Traffic.NO
            if self.now - self.admitted_at.get(rid, 0.0) <= self.pool.pace.tick:
                traffic = Traffic.UNKNOWN
            members.append(
                Member(
                    endpoint=f"host-{host}:{port}", state=state, traffic=traffic,
                    replica=rid if name == "b" else None, active=self.inside(rid) if counts else None,
                    weight=100,
                )
            )  # fmt: skip
        return BalancerView(balancer=name, members=tuple(members), as_of=self.now)

    def _probe(self) -> None:
        """One look at every running machine, by the prober's own rules."""
        at = Instant(self.now - 1.0)
        for machine in self.machines.values():
            seen = not (machine.hidden or machine.no_address or machine.stopped or machine.zone in self._dark())
            if self.now < machine.runs_at or not seen:
                continue
            for port in machine.ports:
                rid = replica_id(machine.id, port)
                verdict = self._verdict(machine, port)
                look = Look(rid, verdict, at, at, machine.boot, generated=True, admitted=bool(self.states(rid)))
                self.tracks[rid] = follow(self.tracks.get(rid), look, rules_of(self.pool))
                if self.tracks[rid].record.passes >= self.pool.ready.passes:
                    machine.was_ready = True
        self.judge.looked(self)

    def _verdict(self, machine: Machine, port: int) -> ProbeVerdict:
        if machine.hung:
            return ProbeVerdict(alive=False, loaded=False, certain=False, detail="no answer in time")
        if not machine.up or machine.ending_at != FOREVER:
            return ProbeVerdict(alive=False, loaded=False, detail="refused")
        if not machine.loaded(self.now):
            return ProbeVerdict(alive=True, loaded=False, detail="503: loading")
        return ProbeVerdict(alive=True, loaded=True, running=len(machine.inside.get(port, ())), waiting=0)

    # ----------------------------------------------------------------------------------- telemetry

    @property
    def lies(self) -> str:
        """What is wrong with telemetry now; empty when nothing is."""
        return next((one for one in LIES if self.is_on(one)), "")

    def _load(self, faults: list[SourceFault]) -> LoadSample | None:
        serving = [
            replica_id(one.id, port)
            for one in self.machines.values()
            for port in one.ports
            if self.serves(replica_id(one.id, port))
        ]
        lies, at, count = self.lies, self.now, len(serving)
        if lies == "t_error":
            faults.append(SourceFault(source="telemetry", fault=Fault(kind=FaultKind.UNREACHABLE, detail="500")))
            return None
        if lies == "t_stale":
            at = Instant(self.now - self.pool.pace.stale_after - 1.0)
        covered, expected, idleness = count, count, Idleness(arrivals=10.0, completions=10.0)
        values: dict[Signal, float | None] = {
            Signal.QUEUE_LENGTH: float(self.demand), Signal.RUNNING: float(self.demand),
        }  # fmt: skip
        state, reading_at = ReadingState.OK, at
        if lies in ("t_absent", "t_one_lost"):
            state = ReadingState.ABSENT
        elif lies == "t_old_reading":
            reading_at = Instant(self.now - self.pool.pace.stale_after - 1.0)
            values = dict.fromkeys(values, 1.0)
        elif lies == "t_zero":
            values = dict.fromkeys(values, 0.0)
            idleness = (
                Idleness(families_present=False),
                Idleness(counter_went_back=True),
                Idleness(arrivals=9.0, completions=4.0),
            )[self.step_no % 3]
        elif lies in ("t_partial", "t_fewer"):
            covered = max(0, min(count - 1, int(0.8 * count)))
            expected = covered if lies == "t_fewer" else count
            state = ReadingState.OK if covered else ReadingState.ABSENT
            values = dict.fromkeys(values, float(self.demand) * covered / max(1, count))
        elif lies == "t_nan":
            values[Signal.QUEUE_LENGTH] = (float("nan"), -1.0)[self.step_no % 2]
            values[Signal.RUNNING] = 1.0
        readings = {
            signal: Reading(
                signal=signal, kind=Kind.TOTAL, state=state, at=reading_at, covered=covered, expected=expected,
                value=value if state is ReadingState.OK else None,
            )
            for signal, value in values.items()
        }  # fmt: skip
        if lies == "t_one_lost":
            lost = readings[Signal.RUNNING]
            readings[Signal.RUNNING] = replace(lost, state=ReadingState.OK, value=1.0)
        return LoadSample(at=at, readings=readings, idleness=idleness)

    # -------------------------------------------------------------------------------------- acting

    def _act(self, decision: Decision) -> None:
        """Carry out the plan, or the part of it that a crash or a short tick lets be started."""
        done, plan = [], list(decision.plan)
        crash = self.is_on("crash")
        if crash:
            plan = plan[: self.until.get("crash_after", 0)]
        for index, action in enumerate(plan):
            if self.is_on("dropped") and (index + self.step_no) % 2:
                done.append(Outcome(action=action, status=OutcomeStatus.DROPPED, at=self.now))
                self.disturb()
                continue
            fault = self._do(action)
            self.disturbed_at = float(self.now) if fault else self.disturbed_at
            status = OutcomeStatus.FAULT if fault else OutcomeStatus.ACCEPTED
            if isinstance(action, Withdraw) and not fault:
                status = OutcomeStatus.DONE
            done.append(Outcome(action=action, status=status, at=self.now, fault=fault))
        self.outcomes = tuple(done)
        if crash:
            self._crash()
        elif self.is_on("outcomes_lost"):
            self.outcomes = ()

    def _do(self, action: Action) -> Fault | None:
        self.judge.acting(self, action)
        match action:
            case Launch():
                return self._launch(action)
            case Withdraw():
                if self.is_on("unreachable"):
                    return Fault(kind=FaultKind.UNREACHABLE, detail="no answer")
                self.pending.pop(action.token, None)
                self.withdrawn.add(action.token)
            case Terminate():
                if self.is_on("unreachable") or self.is_on("terminate_throttled"):
                    kind = FaultKind.THROTTLED if self.is_on("terminate_throttled") else FaultKind.UNREACHABLE
                    return Fault(kind=kind, detail="not now", retry_after_s=40.0)
                self._terminate(action)
            case Admit() | Recall() | Drain() | Evict():
                return self._balance(action)
            case _:
                pass
        return None

    def _launch(self, order: Launch) -> Fault | None:
        if order.token in self.tokens or order.token in self.withdrawn:
            return None  # the same token gives the same machines, and none where it was taken back
        for trouble, kind in (
            ("throttled", FaultKind.THROTTLED), ("refused", FaultKind.REFUSED), ("quota", FaultKind.QUOTA_REACHED)
        ):  # fmt: skip
            if self.is_on(trouble):
                return Fault(kind=kind, detail=trouble, retry_after_s=60.0 if kind is FaultKind.THROTTLED else 0.0)
        if self.is_on("no_capacity") and order.placement.zone == "a":
            return Fault(kind=FaultKind.NO_CAPACITY, detail="no such machine in a")
        lost = self.is_on("unreachable")
        if lost and self.step_no % 2:
            return Fault(kind=FaultKind.UNREACHABLE, detail="never arrived")
        wait = 200.0 if self.is_on("slow_launch") else 0.0
        self.tokens[order.token] = (order, [])
        fails = self.is_on("fails_later") and not wait
        self.pending[order.token] = Pending(order, self.now + wait + 1.0, fails)
        return Fault(kind=FaultKind.UNREACHABLE, detail="the answer was lost") if lost else None

    def _terminate(self, action: Terminate) -> None:
        machine = self.machines.get(action.instance)
        if machine is None or machine.ending_at != FOREVER:
            return
        self.cut += sum(len(one) for one in machine.inside.values())
        machine.inside.clear()
        machine.up, machine.ended_by = False, "us"
        machine.ending_at = self.now + self.pool.pace.tick * (1 + self.step_no % 3)

    def _balance(self, action: Admit | Recall | Drain | Evict) -> Fault | None:
        if self.is_on("balancer_fault"):
            return Fault(kind=FaultKind.UNREACHABLE, detail="balancer does not answer")
        members, rid = self.members[action.balancer], action.endpoint.replica
        match action:
            case Admit() | Recall():
                if rid not in members or members[rid] is not MemberState.ADMITTED:
                    self.admitted_at[rid] = float(self.now)
                members[rid] = MemberState.ADMITTED
                machine = self.machine_of(rid)
                if machine is not None:
                    machine.served = True
            case Drain() if rid in members:
                members[rid] = MemberState.DRAINING
            case Evict():
                members.pop(rid, None)
            case _:
                pass
        return None

    # ------------------------------------------------------------------------------------ troubles

    def happen(self, event: Event) -> None:
        """Let one event of the script happen."""
        self.reach[f"event:{event.kind}"] += 1
        special = getattr(self, f"_on_{event.kind}", None)
        if special is not None:
            special(event)
        else:
            self.until[event.kind] = self.step_no + event.lasts
        if event.kind in ("crash", "crash_before_save"):
            self.until[event.kind] = self.step_no + 1
            self.until["crash_after"] = event.which

    def pick(self, which: int) -> Machine | None:
        living = [one for one in self.machines.values() if one.ending_at == FOREVER and not one.orphan]
        return living[which % len(living)] if living else None

    def _on_load(self, event: Event) -> None:
        self.demand = event.which * 4

    def _on_down(self, event: Event) -> None:
        self._crash()
        self.until["down"] = self.step_no + event.lasts

    def _each(self, event: Event, change: Callable[[Machine], None]) -> None:
        machine = self.pick(event.which)
        if machine is not None:
            change(machine)

    def _on_dies(self, event: Event) -> None:
        self._each(event, self._die)

    def _die(self, machine: Machine) -> None:
        machine.up = False
        machine.inside.clear()

    def _on_hangs(self, event: Event) -> None:
        self._each(event, lambda one: setattr(one, "hung", True))

    def _on_recovers(self, event: Event) -> None:
        for machine in self.machines.values():
            machine.hung = False
            if not machine.up and machine.ending_at == FOREVER:
                self._reboot(machine)

    def _on_reboots(self, event: Event) -> None:
        self._each(event, self._reboot)

    def _reboot(self, machine: Machine) -> None:
        machine.up, machine.hung, machine.stopped = True, False, False
        machine.boots += 1
        machine.inside.clear()
        machine.loads_at = max(float(self.now), machine.runs_at) + machine.load_s

    def _on_crash_loop(self, event: Event) -> None:
        self._each(event, lambda one: setattr(one, "load_s", FOREVER))
        self._each(event, self._reboot)

    def _on_stops(self, event: Event) -> None:
        def stop(machine: Machine) -> None:
            machine.stopped = True
            machine.inside.clear()

        self._each(event, stop)

    def _on_vanishes(self, event: Event) -> None:
        self._each(event, lambda one: self._vanish(one, "cloud"))

    def _on_mass(self, event: Event) -> None:
        """Half of all that lives fails at once, for certain or in silence."""
        living = [one for one in self.machines.values() if one.ending_at == FOREVER]
        for machine in living[event.which % 2 :: 2]:
            if event.which % 3 == 0:
                machine.hung = True
            else:
                self._die(machine)

    def _on_hide(self, event: Event) -> None:
        self._each(event, lambda one: setattr(one, "hidden", 1 + event.lasts % 2))

    def _on_blinks(self, event: Event) -> None:
        self._each(event, lambda one: setattr(one, "no_address", 1 + event.lasts % 2))
        self.disturb()

    def _member(self, which: int) -> ReplicaId | None:
        known = sorted(self.members.get("b", ()))
        return known[which % len(known)] if known else None

    def _on_forgets(self, event: Event) -> None:
        rid = self._member(event.which)
        if rid is not None:
            self.members["b"].pop(rid)

    def _on_undrains(self, event: Event) -> None:
        for members in self.members.values():
            for rid in members:
                members[rid] = MemberState.ADMITTED
        self.disturb()

    def _on_no_traffic(self, event: Event) -> None:
        rid = self._member(event.which)
        if rid is not None:
            self.no_traffic.add(rid)

    def _on_stream(self, event: Event) -> None:
        """Long answers: one in each replica that has requests."""
        for machine in self.machines.values():
            for port in machine.ports:
                if machine.inside.get(port):
                    machine.inside[port].append(self.now + 15.0 * (4 + event.lasts))

    def _on_pause(self, event: Event) -> None:
        self.directives = replace(self.directives, pause=(Pause.NONE, Pause.IN, Pause.OUT, Pause.BOTH)[event.which % 4])

    def _on_at_least(self, event: Event) -> None:
        until = Instant(self.now + 15.0 * event.lasts)
        self.directives = replace(self.directives, at_least=AtLeast(units=event.which % 8, until=until))

    def _on_protect(self, event: Event) -> None:
        self._each(event, lambda one: self._direct(protect=frozenset({one.id})))

    def _on_drain(self, event: Event) -> None:
        self._each(event, lambda one: self._direct(drain=frozenset({replica_id(one.id, one.ports[0])})))

    def _on_replace(self, event: Event) -> None:
        self._each(event, lambda one: self._direct(replace=frozenset(replica_id(one.id, port) for port in one.ports)))

    def _direct(self, **changes: object) -> None:
        self.directives = replace(self.directives, **changes)

    def _on_notice(self, event: Event) -> None:
        at = Instant(self.now + 120.0) if event.lasts % 2 else None
        self._each(event, lambda one: self.notices.update({one.id: Notice(instance=one.id, kind="spot", at=at)}))

    def _on_foreign(self, event: Event) -> None:
        name = InstanceId(f"f-{self.step_no}")
        self.foreign.append(
            Instance(
                id=name, token=Token("other-1-0"), offer="spot", zone="a", state=InstanceState.RUNNING,
                launched_at=self.now, address=f"host-{name}", ports=(80,), boot="boot-1",
            )
        )  # fmt: skip

    def _on_orphan(self, event: Event) -> None:
        offer = self.pool.offers[0]
        name = InstanceId(f"o-{self.step_no}")
        machine = self.add_machine(name, Token(f"e0-9-{self.step_no}"), offer, offer.zones[0], orphan=True)
        machine.launched_at -= 100_000.0
        machine.runs_at = float(self.now)
        machine.loads_at = self.now + (FOREVER if event.which % 2 else 100.0)

    def _on_lose_ledger(self, event: Event) -> None:
        self.epochs += 1
        self.memory = Memory(epoch=f"e{self.epochs}")
        for machine in self.machines.values():
            machine.orphan = True
            machine.shown_at = FOREVER
            machine.was_ready = False
        self._crash()
        self.gap_at = float(self.now)


class Judge:
    """Sees everything; this one has no opinion."""

    def looked(self, world: World) -> None:
        """The prober has looked."""

    def decided(self, world: World, before: Memory, observation: Observation, decision: Decision) -> None:
        """A decision was saved."""

    def acting(self, world: World, action: Action) -> None:
        """An action is about to be carried out."""

    def stepped(self, world: World, decision: Decision) -> None:
        """The plan was carried out as far as it was."""

    def ended(self, world: World) -> None:
        """The script is over, and a calm time has passed."""


def counted(worlds: Sequence[World]) -> Counter[str]:
    """What all these worlds reached."""
    return sum((world.reach for world in worlds), Counter())


__all__ = ["Bounds", "Event", "Judge", "Machine", "Script", "World", "a_pace", "counted", "pools"]
