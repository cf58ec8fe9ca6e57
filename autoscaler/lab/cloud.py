"""The simulated compute: orders, machines that come, load, die and go, and what an observer sees of it.

Does: answer observe, launch, withdraw and terminate as ports/compute.py has it, raising the same faults; keep every
machine's life. Does not: know requests (the world gives each machine's end to `on_end`), nor standby: start and stop
are refused.
Invariant: a token gives the same machines however often it is sent; a machine's fate depends on seed and id alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from autoscaler.domain.base import InstanceId, Instant, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import Fault, FaultKind, NoCapacity, QuotaReached, Refused, Throttled, Unreachable
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import Offer, Pool
from autoscaler.domain.replica import ComputeView, Instance, InstanceState, LaunchState, LaunchStatus, Notice
from autoscaler.lab.events import Agenda, chance
from autoscaler.lab.settings import CloudSettings, Trouble, TroubleKind
from autoscaler.lab.troubles import Troubles

#: Second 0 of every workload: Monday 1 January 2024, 0:00 UTC.
START: Final = Instant(1_704_067_200.0)
_SPOT: Final = "spot"
_RETRY_AFTER_S: Final = 5.0
_PENDING: Final = LaunchState(status=LaunchStatus.PENDING)
NO_STANDBY: Final = "the simulated cloud has no standby"


class Machine(msgspec.Struct, kw_only=True):
    """One machine's life; instants in seconds of the workload, infinity for never.

    `why`: what ended it: "" (it lives), "terminated", "spot", "crash".
    """

    id: InstanceId
    offer: Offer
    zone: str
    ordered_s: float
    shown_s: float
    runs_s: float
    loaded_s: float
    shown: Instance
    ended_s: float = math.inf
    why: str = ""
    speed: float = 1.0

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.ended_s == math.inf


class _Order(msgspec.Struct):
    order: Launch
    offer: Offer
    ids: list[InstanceId]
    withdrawn: bool = False


class Cloud:
    """All computes of one pool: offers keep their compute's name, machines are told apart by it."""

    def __init__(self, pool: Pool, settings: CloudSettings, agenda: Agenda, troubles: Troubles, seed: int) -> None:
        self._pool = pool
        self._settings = settings
        self._agenda = agenda
        self._troubles = troubles
        self._seed = seed
        self._orders: dict[Token, _Order] = {}
        self._refused: set[Token] = set()  # withdrawn before they were ordered
        self._calls = 0
        self._notices: dict[InstanceId, Notice] = {}
        self._views: dict[str, tuple[Instance, ...]] = {}
        self._shown: dict[InstanceId, Machine] = {}  # in the order in which they came
        self.now_s = 0.0
        self.machines: dict[InstanceId, Machine] = {}  # all that ever were
        self.living: dict[InstanceId, Machine] = {}
        self.on_end: Callable[[Machine], None] = lambda _: None
        self.on_loaded: Callable[[Machine], None] = lambda _: None
        for trouble in troubles.all:
            if trouble.kind in (TroubleKind.SPOT_STORM, TroubleKind.CRASH):
                agenda.at(trouble.at_s, partial(self._storm, trouble))

    # ------------------------------------------------------------------------------------- the port

    def observe(self, compute: str, launches: Sequence[OpenLaunch]) -> ComputeView:
        """One compute's view; the very same tuple of instances while nothing changed. Raises Unreachable."""
        dark = self._troubles.places(TroubleKind.CLOUD_DARK, self.now_s)
        if "" in dark:
            raise Unreachable("the cloud does not answer")
        if compute not in self._views:
            self._views[compute] = tuple(one.shown for one in self._shown.values() if one.offer.compute == compute)
        instances, notices = self._views[compute], tuple(self._notices.values())
        if dark:
            instances = tuple(one for one in instances if one.zone not in dark)
        return ComputeView(
            compute=compute, instances=instances, as_of=Instant(START + self.now_s),
            launches={one.token: state for one in launches if (state := self._state(one.token)) is not None},
            notices=notices, unreachable_zones=tuple(sorted(dark)),
        )  # fmt: skip

    def launch(self, order: Launch) -> LaunchState:
        """Accept an order; raises NoCapacity, QuotaReached, Refused, Throttled, Unreachable."""
        known = self._state(order.token)
        if known is not None and known.fault is None:
            return known
        self._answer("launch")
        if known is not None:
            raise Refused(f"{order.token} was withdrawn")
        offer = self._pool.offer(order.placement.offer)
        if offer is None:
            raise NoCapacity(f"the pool has no offer {order.placement.offer}")
        short = self._troubles.places(TroubleKind.NO_CAPACITY, self.now_s)
        if short & {"", order.placement.zone, offer.name, order.placement.key}:
            raise NoCapacity(f"no machine left at {order.placement.key}")
        quota = self._settings.quota
        coming = sum(one.order.count - len(one.ids) for one in self._orders.values() if not one.withdrawn)
        if quota is not None and len(self.living) + coming + order.count > quota:
            raise QuotaReached(f"the account may have {quota} machines")
        self._orders[order.token] = _Order(order, offer, [])
        for index in range(order.count):
            self._order_one(order, offer, index)
        return self._state(order.token) or _PENDING

    def withdraw(self, token: Token) -> None:
        """Take back what has not come yet; raises Throttled, Unreachable."""
        self._answer("withdraw")
        if token in self._orders:
            self._orders[token].withdrawn = True
        else:
            self._refused.add(token)

    def terminate(self, ids: Sequence[InstanceId]) -> None:
        """End machines; raises Throttled, Unreachable."""
        self._answer("terminate")
        for one in ids:
            if one in self.living:
                self._end(self.living[one], "terminated")

    def _answer(self, what: str) -> None:
        """Whether the cloud answers a call that changes something."""
        if "" in self._troubles.places(TroubleKind.CLOUD_DARK, self.now_s):
            raise Unreachable("the cloud does not answer")
        throttled = self._troubles.now(TroubleKind.THROTTLED, self.now_s)
        if throttled is not None:
            self._calls += 1
            if chance(self._seed, f"throttle {self._calls}").random() < throttled.share:
                raise Throttled(f"{what}: rate exceeded", retry_after_s=_RETRY_AFTER_S)

    def _state(self, token: Token) -> LaunchState | None:
        if token in self._refused:
            fault = Fault(kind=FaultKind.REFUSED, detail="withdrawn")
            return LaunchState(status=LaunchStatus.FAILED, fault=fault)
        if token not in self._orders:
            return None
        found = self._orders[token]
        done = len(found.ids) == found.order.count or found.withdrawn
        return LaunchState(status=LaunchStatus.DONE, ids=tuple(found.ids)) if done else _PENDING

    # ------------------------------------------------------------------------------------- lives

    def begin(self, offer: Offer, zone: str, index: int, token: Token) -> Machine:
        """A machine that has been in service since before second 0."""
        machine = self._machine(InstanceId(f"i-{token}-{index}"), token, offer, zone, -1.0)
        machine.shown_s = machine.runs_s = machine.loaded_s = 0.0
        self._appear(machine)
        self._shows(machine, InstanceState.RUNNING)
        return machine

    def _machine(self, name: InstanceId, token: Token, offer: Offer, zone: str, ordered_s: float) -> Machine:
        rng = chance(self._seed, f"machine {name}")
        settings = self._settings
        shown = max(0.0, ordered_s) + settings.launch.draw(rng)
        runs = shown + settings.boot.draw(rng)
        load = settings.load.draw(rng)
        fails, slow, slow_machine = (float(one) for one in rng.random(3))
        load *= settings.slow_factor if slow < settings.slow_loads else 1.0
        trouble = self._troubles.now(TroubleKind.LOADS_SLOW, ordered_s)
        load *= trouble.factor if trouble is not None and slow < trouble.share else 1.0
        trouble = self._troubles.now(TroubleKind.LOADS_FAIL, ordered_s)
        never = fails < max(settings.load_fails, trouble.share if trouble is not None else 0.0)
        instance = Instance(
            id=name, token=token, offer=offer.name, zone=zone, state=InstanceState.PENDING, ports=offer.ports,
            launched_at=Instant(START + ordered_s), boot=f"{name}/1", epoch=token.partition("-")[0],
        )  # fmt: skip
        return Machine(
            id=name, offer=offer, zone=zone, ordered_s=ordered_s, shown_s=shown, runs_s=runs, shown=instance,
            loaded_s=math.inf if never else runs + load,
            speed=settings.slow_machine_factor if slow_machine < settings.slow_machines else 1.0,
        )  # fmt: skip

    def _order_one(self, order: Launch, offer: Offer, index: int) -> None:
        name = InstanceId(f"i-{order.token}-{index}")
        machine = self._machine(name, order.token, offer, order.placement.zone, self.now_s)
        self._when(machine.shown_s, partial(self._come, order.token, machine))

    def _when(self, at_s: float, what: Callable[[], None]) -> None:
        """Now, or when its time has come."""
        if at_s <= self.now_s:
            what()
        else:
            self._agenda.at(at_s, what)

    def _come(self, token: Token, machine: Machine) -> None:
        if self._orders[token].withdrawn:
            return
        self._orders[token].ids.append(machine.id)
        self._appear(machine)
        self._when(machine.runs_s, partial(self._shows, machine, InstanceState.RUNNING))
        self._when(machine.loaded_s, partial(self._loaded, machine))

    def _appear(self, machine: Machine) -> None:
        self.machines[machine.id] = self.living[machine.id] = self._shown[machine.id] = machine
        self._views.clear()
        rng = chance(self._seed, f"fate {machine.id}")
        settings = self._settings
        crash, spot = rng.standard_exponential(2).tolist()
        if settings.crashes_per_h > 0:
            at = machine.runs_s + crash * 3600.0 / settings.crashes_per_h
            self._agenda.at(at, partial(self._end, machine, "crash"))
        if settings.spot_per_h > 0 and machine.offer.market == _SPOT:
            self._agenda.at(machine.runs_s + spot * 3600.0 / settings.spot_per_h, partial(self._give_notice, machine))

    def _loaded(self, machine: Machine) -> None:
        if machine.lives:
            self.on_loaded(machine)

    def _shows(self, machine: Machine, state: InstanceState) -> None:
        """The machine's state as an observer sees it from now on."""
        if machine.id not in self._shown or (state is InstanceState.RUNNING and not machine.lives):
            return
        address = f"10.{machine.id}" if state is InstanceState.RUNNING else machine.shown.address
        machine.shown = msgspec.structs.replace(machine.shown, state=state, address=address)
        self._views.clear()

    def _give_notice(self, machine: Machine) -> None:
        if machine.lives:
            gone_s = self.now_s + self._settings.notice_s
            self._notices[machine.id] = Notice(instance=machine.id, kind=_SPOT, at=Instant(START + gone_s))
            self._agenda.at(gone_s, partial(self._end, machine, _SPOT))

    def _storm(self, trouble: Trouble) -> None:
        for machine in [*self.living.values()]:
            hit = chance(self._seed, f"{trouble.kind} {trouble.at_s} {machine.id}").random() < trouble.share
            if hit and trouble.kind is TroubleKind.CRASH:
                self._end(machine, "crash")
            elif hit and machine.offer.market == _SPOT:
                self._give_notice(machine)

    def _end(self, machine: Machine, why: str) -> None:
        """Its work ends now; it is shown as stopping for a while, then as terminated, then no more."""
        if not machine.lives:
            return
        machine.ended_s, machine.why = self.now_s, why
        del self.living[machine.id]
        self._notices.pop(machine.id, None)
        gone_s = self.now_s + (self._settings.ending_s if why == "terminated" else 0.0)
        if gone_s > self.now_s:
            self._shows(machine, InstanceState.STOPPING)
            self._agenda.at(gone_s, partial(self._shows, machine, InstanceState.TERMINATED))
        else:
            self._shows(machine, InstanceState.TERMINATED)
        self._agenda.at(gone_s + self._settings.listed_s, partial(self._forget, machine))
        self.on_end(machine)

    def _forget(self, machine: Machine) -> None:
        del self._shown[machine.id]
        self._views.clear()
