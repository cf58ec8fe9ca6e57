"""The prober of one pool: looks at every running replica, beside the ticks.

Does: keep one record a replica and boot (the rules are in probe_rules), and wake the loop when one becomes ready or
begins to fail. Does not: decide what follows from a record.
How often: a replica that loads or fails every min(1 s, tick / 3), and half of that once a first pass needs confirming;
one that serves every tick / 3. At most `BOUND` looks at once; a slow look is never doubled. One that passes its
deadline is ended by the prober's own round, since a timer each would cost as much as all else about a look.
Invariant: a record is about the replica's present boot; a replica that is no longer watched has no record.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from autoscaler.domain.base import Duration, Instant, ReplicaId
from autoscaler.domain.faults import PortFault
from autoscaler.domain.pool import Pool
from autoscaler.domain.replica import Endpoint, ProbeRecord, ProbeVerdict
from autoscaler.ports.clock import Clock
from autoscaler.ports.probe import Probe
from autoscaler.runtime.probe_rules import Look, Rules, Track, follow, heard, needs_generation, rules_of

#: Looks of one pool at one time.
BOUND = 16
#: Backstops, in seconds: a probe has shorter timeouts of its own (5 s and 20 s by default) and tells more when they
#: pass than "no answer" does.
SHALLOW_S = 6.0
GENERATE_S = 25.0


class Target(NamedTuple):
    """A replica to watch. `boot`: the compute's name of its boot; `admitted`: some balancer shows it."""

    endpoint: Endpoint
    boot: str
    admitted: bool


class _Watched:
    __slots__ = ("busy", "due", "late", "patience", "target", "told", "track", "until")

    def __init__(self, target: Target, due: Instant) -> None:
        self.target = target
        self.due = due
        self.busy = False
        self.patience = 0.0  # seconds for the look in flight
        self.until = 0.0  # when they pass, by the loop's clock: a wall clock may be set
        self.late = False  # they have passed, and the look was ended for it
        self.told = False
        self.track: Track | None = None


class Prober:
    """Watches the endpoints of one pool. `wake` is called with why when a tick should come early."""

    def __init__(self, pool: Pool, probe: Probe, clock: Clock, wake: Callable[[str], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._watched: dict[ReplicaId, _Watched] = {}
        self._checks: dict[asyncio.Task[None], _Watched] = {}
        self._changed = asyncio.Event()
        self.configure(pool, probe)

    def configure(self, pool: Pool, probe: Probe) -> None:
        """Go on with this pool's numbers and this probe; records stay."""
        self._probe = probe
        self._rules: Rules = rules_of(pool)
        self._calm = float(pool.pace.tick) / 3.0
        self._fast = min(1.0, self._calm)
        self._shallow_deadline = max(SHALLOW_S, self._calm)
        self._generate_deadline = max(GENERATE_S, float(pool.pace.tick))

    def watch(self, targets: Iterable[Target]) -> None:
        """Watch exactly these from now on; a new boot of the compute forgets what was known."""
        now = self._clock.now()
        watched: dict[ReplicaId, _Watched] = {}
        for target in targets:
            replica = target.endpoint.replica
            known = self._watched.get(replica)
            if known is None or known.target.boot != target.boot:
                known = _Watched(target, now)
                self._changed.set()
            else:
                known.target = target
            watched[replica] = known
        self._watched = watched

    def records(self) -> dict[ReplicaId, ProbeRecord]:
        """What is known of each watched replica, as of now."""
        return {name: one.track.record for name, one in self._watched.items() if one.track is not None}

    def record(self, replica: ReplicaId) -> ProbeRecord | None:
        """What is known of one replica, as of now."""
        one = self._watched.get(replica)
        return one.track.record if one is not None and one.track is not None else None

    def answered(self, replicas: Iterable[ReplicaId], at: Instant) -> None:
        """These gave an answer to somebody else (a scrape) at `at`: they are not silent."""
        for replica in replicas:
            one = self._watched.get(replica)
            if one is not None and one.track is not None:
                one.track = heard(one.track, at)

    async def run(self) -> None:
        """Look until cancelled; cancels its looks when it ends."""
        try:
            while True:
                self._changed.clear()
                self._finish()
                wait = self._start_due()
                try:
                    async with asyncio.timeout(wait):
                        await self._changed.wait()
                except TimeoutError:
                    continue
        finally:
            for check in self._checks:
                check.cancel()
            await asyncio.gather(*self._checks, return_exceptions=True)
            self._checks.clear()

    def _finish(self) -> None:
        """Forget looks that ended; an error of ours in one ends the prober (the supervisor starts it again)."""
        for check in [check for check in self._checks if check.done()]:
            self._checks.pop(check, None)
            check.result()

    def _start_due(self) -> float | None:
        """End the looks that are late, start those that are due; seconds until the next of either, None for never."""
        now = self._clock.now()
        soonest = self._end_late()  # a look that starts now is due again, and seen here, before its deadline
        for one in self._watched.values():
            if one.due <= now and not one.busy:
                if len(self._checks) >= BOUND:
                    continue  # the end of any look comes back here
                self._start(one, now)
            wait = max(one.due - now, self._fast / 4.0)
            soonest = wait if soonest is None else min(soonest, wait)
        return soonest

    def _end_late(self) -> float | None:
        """End the looks that passed their deadline; seconds until the next deadline, None when nothing is in flight."""
        now = asyncio.get_running_loop().time()
        soonest: float | None = None
        for check, one in self._checks.items():
            if one.until <= now and not one.late:
                one.late = True
                check.cancel()
            elif not one.late:
                soonest = one.until - now if soonest is None else min(soonest, one.until - now)
        return soonest

    def _start(self, one: _Watched, now: Instant) -> None:
        generate = needs_generation(one.track, one.target.boot, admitted=one.target.admitted, rules=self._rules)
        one.patience = self._generate_deadline if generate else self._shallow_deadline
        one.busy, one.late, one.until = True, False, asyncio.get_running_loop().time() + one.patience
        one.due = Instant(now + self._interval(one))
        check = asyncio.create_task(self._look(one, now, generate=generate))
        self._checks[check] = one
        check.add_done_callback(self._ended)

    def _ended(self, check: asyncio.Task[None]) -> None:
        # Most looks just go; the prober is woken for one that failed, or when others wait for a free place.
        full = len(self._checks) >= BOUND
        if check.cancelled() or check.exception() is None:
            self._checks.pop(check, None)
        else:
            full = True
        if full:
            self._changed.set()

    def _interval(self, one: _Watched) -> float:
        if one.track is None:
            return self._fast
        record = one.track.record
        if record.failing_since is not None or one.track.silent_since is not None:
            return self._fast
        if record.loaded_at is None:
            return self._fast / 2.0 if record.passes else self._fast
        return self._calm

    async def _look(self, one: _Watched, started_at: Instant, *, generate: bool) -> None:
        target = one.target
        verdict = await self._verdict(one, generate=generate)
        one.busy = False
        before = one.track
        look = Look(
            replica=target.endpoint.replica,
            verdict=verdict,
            started_at=started_at,
            at=self._clock.now(),
            compute_boot=target.boot,
            generated=generate,
            admitted=target.admitted,
        )
        one.track = follow(before, look, self._rules)
        due = Instant(look.started_at + self._interval(one))
        if due < one.due:
            one.due = due
            self._changed.set()
        else:
            one.due = due
        if self._watched.get(look.replica) is one:
            self._tell(one, before, one.track)

    async def _verdict(self, one: _Watched, *, generate: bool) -> ProbeVerdict:
        try:
            return await self._probe.check(one.target.endpoint, generate=generate)
        except asyncio.CancelledError:
            if not one.late:
                raise  # the prober itself ends
            detail = f"no answer within {one.patience:g} s"
        except TimeoutError:
            detail = f"no answer within {one.patience:g} s"
        except PortFault as fault:
            detail = str(fault)
        return ProbeVerdict(alive=False, loaded=False, certain=False, detail=detail)

    def _tell(self, one: _Watched, before: Track | None, after: Track) -> None:
        """Wake the loop when a replica passed, began to fail, or has failed for as long as is allowed."""
        was, now = (before.record if before else None), after.record
        name = one.target.endpoint.replica
        if now.loaded_at is not None and (was is None or was.loaded_at is None) and not one.target.admitted:
            self._wake(f"{name} is ready")
        if now.failing_since is None:
            one.told = False
            return
        if not one.target.admitted:
            return
        if was is None or was.failing_since is None:
            self._wake(f"{name} fails its check")
        elif not one.told and now.last_at - now.failing_since >= self._rules.unhealthy_after:
            one.told = True
            self._wake(f"{name} goes on failing")

    @property
    def looking(self) -> int:
        """Looks in flight."""
        return len(self._checks)

    @property
    def calm_interval(self) -> Duration:
        """Seconds between looks at a replica that serves."""
        return Duration(self._calm)
