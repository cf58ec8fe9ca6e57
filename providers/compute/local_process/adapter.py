"""The compute port over processes of this machine.

Does: launch by token under one file lock, show what is there, end sessions. Does not: keep anything in memory that a
restart would miss: environments and files are the state.
Invariant: for one token and index at most one process is ever started, whatever is killed in between: the lock covers
"who is there, who was there, start", and is held by the starting child itself until it has become its command.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, ParamSpec, TypeVar

import msgspec

from autoscaler.domain.base import Duration, InstanceId, Instant, PoolName, Token, elapsed
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import Fault, FaultKind, PortFault, Refused
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import Offer, Pool
from autoscaler.domain.replica import ComputeView, Instance, LaunchState, LaunchStatus
from autoscaler.ports.build import Context
from autoscaler.ports.compute import Compute
from providers._shared import files, processes
from providers.compute.local_process import settings as wanted
from providers.compute.local_process.scan import Machine, Tags, scan, stragglers
from providers.compute.local_process.store import Stamp, Store

_P = ParamSpec("_P")
_T = TypeVar("_T")

_THREADS: Final = 4
_LOCK_WAIT_S: Final = 20.0
_DEFAULT_GRACE_S: Final = 10.0
#: How long after its grace a session may still be on its way out before it is asked again, more firmly.
_LATE_S: Final = 5.0
#: A pool of our installation that no observe() has named for so long is one that this config does not know.
_UNKNOWN_AFTER: Final = Duration(60.0)
_NO_STANDBY: Final = "local_process has no standby: a process cannot be stopped and kept; terminate it instead"


class _Snapshot(NamedTuple):
    as_of: Instant
    machines: tuple[Machine, ...]


class LocalProcessCompute:
    """All local processes of one user on this machine, for the pools of one installation."""

    def __init__(self, context: Context) -> None:
        self._clock, self._name = context.clock, context.name or "local_process"
        self._store = Store(context.state_dir)
        self._workers = ThreadPoolExecutor(_THREADS, thread_name_prefix="local_process")
        self._looking = threading.Lock()
        self._snapshot: _Snapshot | None = None
        self._pools: set[tuple[str, PoolName]] = {(context.installation, context.pool)}
        self._since = context.clock.now()

    async def _in_thread(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        call = functools.partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._workers, call)

    async def observe(self, pool: Pool, launches: Sequence[OpenLaunch], not_older_than: Instant) -> ComputeView:
        self._pools.add((pool.installation, pool.name))
        return await self._in_thread(self._observe, pool, launches, not_older_than)

    def _observe(self, pool: Pool, launches: Sequence[OpenLaunch], not_older_than: Instant) -> ComputeView:
        snapshot = self._look(not_older_than)
        ours = [one for one in snapshot.machines if _owned_by(one.tags, pool)]
        alive = {one.tags.instance for one in ours}
        states = {launch.token: self._launch_state(pool, launch.token, launch.count, alive) for launch in launches}
        return ComputeView(
            compute=self._name,
            instances=tuple(self._show(one) for one in ours),
            as_of=snapshot.as_of,
            launches={token: state for token, state in states.items() if state is not None},
            foreign=tuple(self._show_foreign(one) for one in snapshot.machines if self._is_foreign(one.tags, pool)),
        )

    def _look(self, not_older_than: Instant) -> _Snapshot:
        """One scan for all who ask at the same time, as long as it is not older than they allow."""
        with self._looking:
            snapshot = self._snapshot
            if snapshot is None or snapshot.as_of < not_older_than:
                as_of = self._clock.now()  # before the scan: what changes during it may be missing from it
                snapshot = _Snapshot(as_of, scan(self._store.records))
                self._snapshot = snapshot
                self._store.bound_logs(one.tags.instance for one in snapshot.machines)
            return snapshot

    def _show(self, machine: Machine) -> Instance:
        return machine.as_instance(stopping=self._store.stamp_of(machine.tags.instance) is not None)

    def _show_foreign(self, machine: Machine) -> Instance:
        tags = machine.tags
        return machine.as_instance(stopping=False, detail=f"installation {tags.installation}, pool {tags.pool}")

    def _is_foreign(self, tags: Tags, pool: Pool) -> bool:
        if tags.installation != pool.installation:
            return True
        known = (tags.installation, PoolName(tags.pool)) in self._pools
        # All pools share this adapter and name themselves in their first tick.
        return not known and elapsed(self._since, self._clock.now()) >= _UNKNOWN_AFTER

    def _launch_state(self, pool: Pool, token: Token, count: int, alive: set[str]) -> LaunchState | None:
        names = [_instance(pool, token, index) for index in range(count)]
        seen = tuple(InstanceId(name) for name in names if name in alive or self._store.was_started(name))
        if seen:  # also those that ended already: a token never starts them again
            return LaunchState(status=LaunchStatus.DONE if len(seen) == count else LaunchStatus.PENDING, ids=seen)
        if self._store.is_withdrawn(_key(pool, token)):
            return LaunchState(
                status=LaunchStatus.FAILED, fault=Fault(kind=FaultKind.REFUSED, detail=_withdrawn(token))
            )
        return None

    async def launch(self, pool: Pool, order: Launch) -> LaunchState:
        settings = wanted.read(order.request)
        return await self._in_thread(self._launch, pool, order, settings)

    def _launch(self, pool: Pool, order: Launch, settings: wanted.Settings) -> LaunchState:
        self._store.prepare()
        with files.locked(self._store.lock, _LOCK_WAIT_S) as lock:
            if self._store.is_withdrawn(_key(pool, order.token)):
                raise Refused(_withdrawn(order.token))
            machines = scan(self._store.records)
            # Another installation may have the same pool and token: its machines are not ours.
            alive = {one.tags.instance for one in machines if _owned_by(one.tags, pool)}
            names = {index: _instance(pool, order.token, index) for index in range(order.count)}
            missing = [i for i, name in names.items() if name not in alive and not self._store.was_started(name)]
            failures: list[PortFault] = []
            if missing:
                commands = self._commands(pool, order, settings, missing, {one.tags.port for one in machines})
                answers = processes.start(commands, [lock])
                failures = [answer for answer in answers if isinstance(answer, PortFault)]
                self._store.tidy(one.tags.instance for one in machines)
                self._sweep(pool, machines)
        self._forget_snapshot()
        ids = tuple(InstanceId(name) for name in names.values() if self._store.was_started(name) or name in alive)
        if failures and not ids:
            raise failures[0]
        return LaunchState(status=LaunchStatus.DONE, ids=ids, fault=failures[0].fault if failures else None)

    def _commands(
        self, pool: Pool, order: Launch, settings: wanted.Settings, missing: list[int], taken: set[int]
    ) -> list[processes.Command]:
        env = wanted.environment(settings, dict.fromkeys(wanted.PLACEHOLDERS, ""))
        path = wanted.program(settings, env)
        ports = self._store.free_ports(len(missing), settings.ports(), taken, settings.address)
        commands = []
        for index, port in zip(missing, ports, strict=True):
            tags = Tags(
                installation=pool.installation,
                pool=pool.name,
                token=order.token,
                index=index,
                instance=_instance(pool, order.token, index),
                offer=order.placement.offer,
                zone=order.placement.zone,
                address=settings.address,
                port=port,
                launched_at=self._clock.now(),
            )
            commands.append(self._command(settings, tags, path))
        return commands

    def _command(self, settings: wanted.Settings, tags: Tags, path: str) -> processes.Command:
        values = {"{port}": str(tags.port), "{instance}": tags.instance, "{state_dir}": str(self._store.state_dir)}
        return processes.Command(
            path=path,
            argv=[wanted.fill(text, values) for text in settings.command],
            env={**wanted.environment(settings, values), **tags.to_env()},
            log=str(self._store.log(tags.instance)),
            record=str(self._store.record(tags.instance)),
            tags={name: str(value) for name, value in msgspec.structs.asdict(tags).items()},
        )

    def _sweep(self, pool: Pool, machines: tuple[Machine, ...]) -> None:
        """End what crashed replicas of this pool left behind (workers that still hold their GPU)."""
        left = {mark: tags for mark, tags in stragglers(machines).items() if _owned_by(tags, pool)}
        if left:
            processes.end([self._ending(mark, tags, _DEFAULT_GRACE_S) for mark, tags in left.items()])

    def _ending(self, mark: processes.Mark, tags: Tags, grace_s: float) -> processes.Ending:
        stamp = str(self._store.ending(tags.instance))
        return processes.Ending(pid=mark.pid, started=mark.started, grace_s=grace_s, stamp=stamp)

    def _forget_snapshot(self) -> None:
        with self._looking:
            self._snapshot = None

    async def withdraw(self, pool: Pool, token: Token) -> None:
        await self._in_thread(self._withdraw, pool, token)

    def _withdraw(self, pool: Pool, token: Token) -> None:
        self._store.prepare()
        # A launch of this token that is under way holds the lock: after it, either machines are there or none comes.
        with files.locked(self._store.lock, _LOCK_WAIT_S):
            self._store.withdraw(_key(pool, token))

    async def start(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        raise Refused(_NO_STANDBY)

    async def stop(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        raise Refused(_NO_STANDBY)

    async def terminate(self, pool: Pool, ids: Sequence[InstanceId]) -> None:
        await self._in_thread(self._terminate, pool, frozenset(ids))

    def _terminate(self, pool: Pool, ids: frozenset[InstanceId]) -> None:
        self._store.prepare()
        chosen = [one for one in scan(self._store.records) if one.tags.instance in ids and _owned_by(one.tags, pool)]
        now = self._clock.now()
        endings: list[processes.Ending] = []
        stamps: dict[str, Stamp] = {}
        for machine in chosen:
            stamp = self._store.stamp_of(machine.tags.instance)
            if stamp is None:
                stamp = stamps[machine.tags.instance] = Stamp(now, _grace_s(pool, machine.tags))
                endings.append(self._ending(machine.mark, machine.tags, stamp.grace_s))
            elif now - stamp.at > stamp.grace_s + _LATE_S:  # whoever should have ended it was ended itself
                endings.append(self._ending(machine.mark, machine.tags, 0.0))
        if endings:
            processes.end(endings)  # before the stamps: a stamp without it would be waited for in vain
            for instance, stamp in stamps.items():
                self._store.stamp(instance, stamp)
            self._forget_snapshot()

    async def precheck(self, pool: Pool, ids: Sequence[InstanceId]) -> dict[InstanceId, str]:
        return {}

    def check_offer(self, offer: Offer) -> list[str]:
        try:
            settings = wanted.read(offer.request)
            wanted.program(settings, wanted.environment(settings, dict.fromkeys(wanted.PLACEHOLDERS, "")))
        except Refused as error:
            return [f"offer {offer.name}: {error}"]
        return []

    async def aclose(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)


def _owned_by(tags: Tags, pool: Pool) -> bool:
    """Both names must be there and equal: an empty name owns nothing."""
    return bool(tags.pool) and (tags.installation, tags.pool) == (pool.installation, pool.name)


def _key(pool: Pool, token: Token) -> str:
    return f"{pool.name}-{token}"


def _instance(pool: Pool, token: Token, index: int) -> str:
    return f"{_key(pool, token)}-{index}"


def _withdrawn(token: Token) -> str:
    return f"launch {token} was withdrawn; it starts nothing any more"


def _grace_s(pool: Pool, tags: Tags) -> float:
    """The grace of the offer as it is today; the default for an offer that is no longer there."""
    offer = pool.offer(tags.offer)
    try:
        return wanted.read(offer.request).grace if offer else _DEFAULT_GRACE_S
    except Refused:
        return _DEFAULT_GRACE_S


if TYPE_CHECKING:
    _adapter: type[Compute] = LocalProcessCompute
