"""One seeded world: workload, cloud, replicas, balancer and telemetry under one time.

Does: move all of it on together, and give each part of an Observation. Does not: decide or loop (fast does).
Invariant: nothing in here depends on the order of calls at one instant but through what they do to the world; same
workload, settings and seed, same world.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from autoscaler.domain.base import InstanceId, Instant, ReplicaId, Token, replica_id
from autoscaler.domain.pool import Offer, Pool
from autoscaler.domain.replica import Endpoint
from autoscaler.lab import kernel as k
from autoscaler.lab.cloud import START, Cloud, Machine
from autoscaler.lab.events import Agenda, chance
from autoscaler.lab.fleet import Fleet
from autoscaler.lab.front import Front, traits_of
from autoscaler.lab.hardware import Hardware
from autoscaler.lab.scrape import Scrape
from autoscaler.lab.settings import Trouble, TroubleKind, WorldSettings
from autoscaler.lab.troubles import Troubles
from autoscaler.lab.watch import Watch
from autoscaler.lab.workload import Workload

#: The epoch of the simulated ledger: machines that are there at second 0 carry it, so they are nobody else's.
EPOCH: Final = "lab"
_PORTS: Final = (8000,)


def simulated(pool: Pool, settings: WorldSettings) -> Pool:
    """The pool as the world has it: its one balancer, and a port for offers whose ports the compute would choose."""
    offers = tuple(msgspec.structs.replace(one, ports=one.ports or _PORTS) for one in pool.offers)
    return msgspec.structs.replace(pool, offers=offers, balancers=(traits_of(settings.front),))


class World:
    """All parts of one run. Instants are seconds of the workload; `START` plus them are the domain's."""

    def __init__(self, pool: Pool, workload: Workload, settings: WorldSettings, seed: int) -> None:
        self.pool = simulated(pool, settings)
        self.workload = workload
        self.settings = settings
        self.now_s = 0.0
        self.failed = self.cut = 0
        self.slots: dict[ReplicaId, int] = {}
        self._hardware = {one.name: settings.hardware_of(one.name) for one in pool.offers}
        self._agenda = Agenda()
        self._troubles = Troubles(settings.troubles)
        self._seed = seed
        self.fleet = Fleet(
            workload, settings.front.strategy, clients=settings.front.clients, seed=seed,
            batch_max=max(one.max_batch for one in self._hardware.values()),
        )  # fmt: skip
        self.cloud = Cloud(self.pool, settings.cloud, self._agenda, self._troubles, seed)
        self.front = Front(self.fleet, self._agenda, settings.front, self._troubles, self.slots)
        self.telemetry = Scrape(self.fleet, settings.telemetry, self._troubles, self.slots, seed)
        self.watch = Watch(self.pool, self.cloud, self.fleet, self.slots)
        self.cloud.on_loaded, self.cloud.on_end = self._loaded, self._ended
        for trouble in settings.troubles:
            if trouble.kind is TroubleKind.SLOW:
                self._agenda.at(trouble.at_s, partial(self._slow, trouble))
        self._begin(pool.bounds.min if settings.start is None else settings.start)

    @property
    def now(self) -> Instant:
        """The domain's instant."""
        return Instant(START + self.now_s)

    def next_s(self) -> float:
        """When the next thing happens that is not a request or a step of a replica; infinity for never."""
        return self._agenda.next_s()

    def advance(self, to_s: float) -> None:
        """Move everything on to `to_s` seconds of the workload."""
        patience_s = self.settings.front.patience_s
        while (next_s := self._agenda.next_s()) <= to_s:
            if next_s > self.now_s:
                self.fleet.advance(next_s, patience_s)
                self._set(next_s)
            self._agenda.happen()
        self.fleet.advance(to_s, patience_s)
        self._set(to_s)

    def finish(self) -> None:
        """Move on to the end of the workload, then let what is inside replicas finish, without further decisions."""
        self.advance(self.workload.duration_s)
        self.fleet.advance(self.workload.duration_s + self.settings.tail_s, self.settings.front.patience_s)

    def _set(self, now_s: float) -> None:
        self.now_s = self.cloud.now_s = self.front.now_s = self.telemetry.now_s = now_s

    # ------------------------------------------------------------------------------------- machines and slots

    def _begin(self, units: int) -> None:
        """Machines of the first offer that have served since before second 0, spread over its zones."""
        offer = self.pool.offers[0]
        for index in range(-(-units // offer.capacity)):
            token = Token(f"{EPOCH}-{self.pool.name}-0-{index}")
            machine = self.cloud.begin(offer, offer.zones[index % len(offer.zones)], 0, token)
            self._loaded(machine)
            for rid, port in replicas_of(machine):
                self.front.begin(endpoint_of(machine.id, machine.shown.address or "", port, offer))
                self.watch.begin(rid, machine)

    def _loaded(self, machine: Machine) -> None:
        hardware = self.hardware_of(machine)
        for rid, _ in replicas_of(machine):
            self.slots[rid] = self.fleet.take(hardware, 1.0)
            self.front.came(rid)

    def hardware_of(self, machine: Machine) -> Hardware:
        """What a machine's replicas are, its own slowness included."""
        found = self._hardware[machine.offer.name]
        trouble = self._troubles.now(TroubleKind.SLOW, self.now_s)
        return found.times(machine.speed * (self._slowness(trouble, machine) if trouble is not None else 1.0))

    def gpus_of(self, machine: Machine) -> int:
        """GPUs of one of its replicas."""
        return self._hardware[machine.offer.name].gpus

    def _slowness(self, trouble: Trouble, machine: Machine) -> float:
        hit = chance(self._seed, f"slow {trouble.at_s} {machine.id}").random() < trouble.share
        return trouble.factor if hit else 1.0

    def _slow(self, trouble: Trouble) -> None:
        """Machines change their speed at the start of a trouble and again at its end."""
        for machine in self.cloud.living.values():
            for rid, _ in replicas_of(machine):
                if rid in self.slots:
                    self.fleet.change(self.slots[rid], self.hardware_of(machine))
        if self.now_s < trouble.at_s + trouble.for_s:
            self._agenda.at(trouble.at_s + trouble.for_s, partial(self._slow, trouble))

    def _ended(self, machine: Machine) -> None:
        """What was inside is lost: cut when we ended the machine, failed when it was taken from us."""
        by_us = machine.why == "terminated"
        for rid, _ in replicas_of(machine):
            slot = self.slots.pop(rid, None)
            if slot is not None:
                lost = self.fleet.end(slot, k.CUT if by_us else k.FAILED)
                if by_us:
                    self.cut += lost
                else:
                    self.failed += lost
                self.front.went(rid)
        self.watch.ended(machine)


def replicas_of(machine: Machine) -> list[tuple[ReplicaId, int]]:
    """A machine's replicas with their ports."""
    return [(replica_id(machine.id, port), port) for port in machine.offer.ports]


def endpoint_of(instance: InstanceId, host: str, port: int, offer: Offer) -> Endpoint:
    """Where a replica listens, with the weight of its share of its machine's units."""
    weight = max(1, round(100 * offer.capacity / len(offer.ports)))
    return Endpoint(replica=replica_id(instance, port), instance=instance, host=host, port=port, weight=weight)
