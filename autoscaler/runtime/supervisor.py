"""The supervisor: one task a pool, kept alive; signals; reload; an end without loose ends.

Does: start, restart and stop pools, renew the lease, exchange parts on reload, serve the admin API. Does not: look into
a pool's decisions.
Invariant: the one broad `except` of the program is here: an error of ours in one pool is counted and logged with its
traceback, the pool starts again after a growing wait, and no other pool notices.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from autoscaler.domain.base import Duration, PoolName
from autoscaler.domain.faults import ConfigError, InvariantBroken, PortFault
from autoscaler.engine.decide import decide as real_decide
from autoscaler.ports.clock import Clock
from autoscaler.ports.lease import Lease
from autoscaler.ports.ledger import Ledger
from autoscaler.runtime import notify
from autoscaler.runtime.api import Api, ApiSettings
from autoscaler.runtime.clock import SystemClock
from autoscaler.runtime.decorate import Dresser
from autoscaler.runtime.gate import Gate, NullLease
from autoscaler.runtime.journal import Journal, open_journal
from autoscaler.runtime.loop import PoolLoop
from autoscaler.runtime.metrics import Metrics
from autoscaler.runtime.parts import Checkpoint, Decide, PoolParts, Services

_BACKOFF_FIRST_S = 1.0
_BACKOFF_MAX_S = 60.0
#: A pool that ran this long (seconds) before it crashed starts again with the first wait.
_HEALTHY_S = 300.0

Reload = Callable[[], Sequence[PoolParts]]
Tell = Callable[[str], str]


def no_checkpoint(name: str) -> None:
    """The checkpoint of a daemon that nobody means to kill."""


def tell_nobody(_state: str) -> str:
    """The service manager of a daemon that has none."""
    return ""


class Options(NamedTuple):
    """How to run. `stop_within`: seconds that calls in flight get at the end; `lease_every`: seconds between renewals.

    `reload`: reads the config again and builds parts; raises ConfigError with every mistake. `api`: None serves none.
    `tell`: how the service manager hears that the daemon is ready or ends; returns why it could not.
    """

    clock: Clock | None = None
    lease: Lease | None = None
    reload: Reload | None = None
    api: ApiSettings | None = None
    journal: Journal | None = None
    decide: Decide = real_decide
    checkpoint: Checkpoint = no_checkpoint
    stop_within: Duration = Duration(20.0)
    lease_every: Duration = Duration(5.0)
    handle_signals: bool = True
    tell: Tell = tell_nobody


async def run(parts: Sequence[PoolParts], ledger: Ledger, options: Options | None = None) -> None:
    """Run until SIGTERM or SIGINT, then close everything that was handed over, the ledger too.

    Raises Unreachable before any pool starts when the API's port is taken.
    """
    supervisor = Supervisor(ledger, options or Options())
    try:
        await supervisor.open(parts)
        await supervisor.serve()
    finally:
        await supervisor.close()


class Supervisor:
    """All pools of one process. Use `run`, or in order: open, serve, close."""

    def __init__(self, ledger: Ledger, options: Options) -> None:
        clock = options.clock or SystemClock()
        self.options = options
        self.services = Services(
            ledger=ledger,
            clock=clock,
            gate=Gate(clock),
            decide=options.decide,
            journal=options.journal or open_journal(),
            metrics=Metrics(),
            checkpoint=options.checkpoint,
        )
        self._dresser = Dresser(self.services.metrics, clock)
        self.services.metrics.watch(lambda: [loop.seen() for loop in self.loops.values()], clock.now)
        self.loops: dict[PoolName, PoolLoop] = {}
        self._lease: Lease = options.lease or NullLease()
        self._tasks: dict[PoolName, asyncio.Task[None]] = {}
        self._extra: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._adapters: list[PoolParts] = []
        self._api: Api | None = None

    async def open(self, parts: Sequence[PoolParts]) -> None:
        """Take the API's port, get the lease, start the pools; nothing is started when the port is taken."""
        parts = [self._dresser.dress(one) for one in parts]
        self._adapters = list(parts)
        if self.options.api is not None:
            self._api = Api(self.options.api, self.loops, self.services)
            self._api.bind()
        if self.options.handle_signals:
            self._handle_signals()
        await self._renew()
        for pool_parts in parts:
            self._start(pool_parts)
        self.services.journal.event("started", pools=len(parts))
        self._tell(notify.READY)

    async def serve(self) -> None:
        """Run until `stop`."""
        self._spawn(self._keep_lease())
        if self._api is not None:
            self._api.start()
        await self._stop.wait()

    def stop(self) -> None:
        """End: no action starts any more, calls in flight are waited for."""
        if not self._stop.is_set():
            self._tell(notify.STOPPING)
        self.services.gate.close()
        for loop in self.loops.values():
            loop.stop()
        self._stop.set()

    def _tell(self, state: str) -> None:
        if trouble := self.options.tell(state):
            self.services.journal.trouble("service manager", why=trouble)

    async def close(self) -> None:
        """Stop what runs and release adapters, lease and ledger."""
        self.stop()
        within = self.options.stop_within
        clock, begun = self.services.clock, self.services.clock.now()
        running = set(self._tasks.values())
        if running:
            _, late = await asyncio.wait(running, timeout=within)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        left = Duration(max(0.0, within - (clock.now() - begun)))
        await asyncio.gather(*(loop.executor.finish(left) for loop in self.loops.values()))
        for task in self._extra:
            task.cancel()
        await asyncio.gather(*self._extra, return_exceptions=True)
        if self._api is not None:
            await self._api.close()
        await _close_adapters(self._adapters, keep=())
        await self._lease.aclose()
        await self.services.ledger.aclose()
        self._unhandle_signals()
        self.services.journal.event("stopped")

    # --- pools ---

    def _start(self, parts: PoolParts) -> None:
        loop = PoolLoop(parts, self.services)
        self.loops[parts.pool.name] = loop
        self._tasks[parts.pool.name] = asyncio.create_task(self._keep(loop), name=f"pool {parts.pool.name}")

    async def _keep(self, loop: PoolLoop) -> None:
        """Run one pool, and again after a crash, until it is stopped."""
        clock, name = self.services.clock, loop.parts.pool.name
        wait = _BACKOFF_FIRST_S
        while True:
            started = clock.now()
            try:
                await _run_pool(loop)
                return
            except Exception as error:  # noqa: BLE001 - the one broad except: counted, logged, contained in this pool
                loop.recover(repr(error))
                self.services.metrics.crashed(name)
                self.services.journal.crash("pool crashed", pool=name, again_in_s=wait)
            if clock.now() - started > _HEALTHY_S:
                wait = _BACKOFF_FIRST_S
            if await _set_within(self._stop, wait):
                return
            wait = min(_BACKOFF_MAX_S, wait * 2.0)

    # --- lease ---

    async def _renew(self) -> None:
        deadline = Duration(max(1.0, self.options.lease_every))
        if trouble := await self.services.gate.renew(self._lease, deadline=deadline):
            self.services.journal.trouble("lease", why=trouble)

    async def _keep_lease(self) -> None:
        while not await _set_within(self._stop, self.options.lease_every):
            await self._renew()

    # --- signals and reload ---

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        loop.add_signal_handler(signal.SIGINT, self.stop)
        if self.options.reload is not None:
            loop.add_signal_handler(signal.SIGHUP, lambda: self._spawn(self.reload()))

    def _unhandle_signals(self) -> None:
        if self.options.handle_signals:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    async def reload(self) -> None:
        """Read the config again; mistakes are told and the old one stays. Clocks are in memory and go on."""
        async with self._reloading:
            await self._reload()

    async def _reload(self) -> None:
        journal = self.services.journal
        if self.options.reload is None:
            raise InvariantBroken("reload without a way to read the config")
        try:
            fresh = [self._dresser.dress(one) for one in self.options.reload()]
        except ConfigError as error:
            journal.trouble("reload refused: the old config stays", mistakes=error.mistakes)
            return
        except PortFault as fault:
            journal.trouble("reload refused: the old config stays", mistakes=[str(fault)])
            return
        refused = [parts.pool.name for parts in fresh if self._identity_changed(parts)]
        for name in refused:
            journal.trouble("reload refused for a pool: its identity changed; restart, or `migrate`", pool=name)
        taken = {parts.pool.name: parts for parts in fresh if parts.pool.name not in refused}
        for name, parts in taken.items():
            if name in self.loops:
                self.loops[name].exchange(parts)
            else:
                self._start(parts)
        gone = [name for name in self.loops if name not in taken and name not in refused]
        for name in gone:
            await self._leave(name)
        active = [*taken.values(), *(self.loops[name].parts for name in refused)]
        old, self._adapters = [*self._adapters, *fresh], active
        journal.event("reloaded", pools=len(active), refused=len(refused), removed=len(gone))
        await self._retire(old, active)

    def _identity_changed(self, parts: PoolParts) -> bool:
        loop = self.loops.get(parts.pool.name)
        if loop is None:
            return False
        old = loop.parts.pool
        return (old.installation, old.identity) != (parts.pool.installation, parts.pool.identity)

    async def _leave(self, name: PoolName) -> None:
        """A pool that the config no longer has: stop looking after it; its machines stay as they are."""
        loop = self.loops.pop(name)
        loop.stop()
        await asyncio.wait({self._tasks.pop(name)}, timeout=self.options.stop_within)
        await loop.executor.finish(self.options.stop_within)
        self.services.journal.event("pool removed from the config; its machines stay", pool=name)

    async def _retire(self, old: Sequence[PoolParts], active: Sequence[PoolParts]) -> None:
        """Close adapters that nobody uses any more, once every pool has begun a tick with its new ones."""
        for parts in active:
            loop = self.loops.get(parts.pool.name)
            while loop is not None and loop.parts is not parts and not self._stop.is_set():
                await _set_within(self._stop, 0.05)
        await _set_within(self._stop, min(5.0, self.options.stop_within))  # looks in flight end by their own deadline
        await _close_adapters(old, keep=active)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._extra.add(task)
        task.add_done_callback(self._extra_ended)

    def _extra_ended(self, task: asyncio.Task[None]) -> None:
        self._extra.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.services.journal.trouble("task ended with an error", error=repr(error))


async def _run_pool(loop: PoolLoop) -> None:
    """A pool's loop with its prober beside it; the first error of either ends both and is raised."""
    ticks = asyncio.create_task(loop.run())
    looks = asyncio.create_task(loop.prober.run())
    try:
        done, _ = await asyncio.wait({ticks, looks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        ticks.cancel()
        looks.cancel()
        await asyncio.gather(ticks, looks, return_exceptions=True)


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _close_adapters(old: Sequence[PoolParts], *, keep: Sequence[PoolParts]) -> None:
    """Close every adapter of `old` that `keep` does not use, each once."""
    kept = {id(adapter) for parts in keep for adapter in parts.adapters()}
    unused = {id(adapter): adapter for parts in old for adapter in parts.adapters() if id(adapter) not in kept}
    await asyncio.gather(*(adapter.aclose() for adapter in unused.values()), return_exceptions=True)
    working = {id(policy) for parts in keep for policy in parts.policies}
    for policy in {id(policy): policy for parts in old for policy in parts.policies}.values():
        end: Callable[[], None] | None = getattr(policy, "close", None)  # one in a worker process has it
        if end is not None and id(policy) not in working:
            end()
