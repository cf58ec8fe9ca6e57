"""Hosts, asked and told one by one through the user's commands.

Does: look at a host (and remember the answer for as long as the caller allows), start one, stop one; keep the claim in
step with what came of it. Does not: choose hosts, or show them as instances.
Invariant: a host is started only under a claim of ours, and told to stop only while that claim holds and the host does
not say that it has another owner or has been started anew since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Final, NamedTuple, TypeVar

from autoscaler.domain.base import Duration, InstanceId, Instant, after, elapsed
from autoscaler.domain.faults import PortFault, Unreachable
from autoscaler.ports.clock import Clock
from providers.compute.static_hosts import accounts
from providers.compute.static_hosts.commands import run, why
from providers.compute.static_hosts.settings import Host, Settings, environment, fill, read
from providers.compute.static_hosts.state import Book, Claim, Stage
from providers.compute.static_hosts.status import Power, Status, judge

T = TypeVar("T")
K = TypeVar("K")

#: Commands at a time: each is a process of its own that mostly waits for a network.
_HANDS: Final = 64
_FORGET_AFTER: Final = Duration(900.0)
NO_STATUS: Final = Status(Power.UNKNOWN, detail="there is no status command")
_ALIVE: Final = frozenset({Power.RUNNING, Power.STARTING})


class Look(NamedTuple):
    """An answer of a host, and when it was asked for."""

    at: Instant
    status: Status


class Failed(NamedTuple):
    """A host on which nothing was started, and why."""

    host: str
    why: str


def words(host: Host, claim: Claim | None, ports: Sequence[int]) -> dict[str, str]:
    """What is filled into commands. Without a claim nothing that names one is."""
    chosen = host.ports or tuple(ports)
    owner = {"instance": claim.instance, "tag": claim.tag} if claim is not None else {}
    port = {"port": str(chosen[0])} if chosen else {}
    return {**host.vars, "name": host.name, "address": host.reached_at, "zone": host.zone, **port, **owner}


class Machines:
    """All hosts of one adapter. Methods block; call them in a thread."""

    def __init__(self, book: Book, clock: Clock) -> None:
        self._book, self._clock = book, clock
        self._hands = ThreadPoolExecutor(_HANDS, thread_name_prefix="static_hosts_command")
        self._guard = threading.Lock()
        self._looks: dict[tuple[str, ...], Look] = {}
        self._stopped_at: dict[InstanceId, Instant] = {}
        #: Ports of offers by the offer's settings, for `{port}` where a host names none.
        self.ports: dict[Settings, tuple[int, ...]] = {}

    def close(self) -> None:
        """Begin nothing more; commands that run end by their deadlines."""
        self._hands.shutdown(wait=False, cancel_futures=True)

    # --- looking ---

    def look(self, settings: Settings, host: Host, not_older_than: Instant, patience: float = 1e9) -> Look:
        """The status of a host, asked for at `not_older_than` or later; UNKNOWN with the reason when it gave none."""
        if not settings.status:
            return Look(self._clock.now(), NO_STATUS)
        command = fill(settings.status, words(host, None, self.ports.get(settings, ())))
        with self._guard:
            known = self._looks.get(command)
        if known is not None and known.at >= not_older_than:
            return known
        at, deadline = self._clock.now(), min(settings.status_deadline, patience)
        try:
            found = Look(at, judge(run(command, environment(settings), deadline), deadline))
        except PortFault as fault:
            found = Look(at, Status(Power.UNKNOWN, detail=str(fault)))
        with self._guard:
            self._looks[command] = found
            for old in [key for key, one in self._looks.items() if elapsed(one.at, at) > _FORGET_AFTER]:
                del self._looks[old]
        return found

    def look_at_all(
        self, hosts: Iterable[tuple[Settings, Host, Instant]], patience: float = 1e9
    ) -> dict[tuple[Settings, str], Look]:
        """The same for many at once, by settings and name; `patience` bounds the whole, in seconds."""
        asked = {(settings, host.name): (settings, host, oldest) for settings, host, oldest in hosts}
        silent = Look(self._clock.now(), Status(Power.UNKNOWN, detail="no answer yet"))
        answers = self._each({key: self._looker(one, patience) for key, one in asked.items()}, patience + 0.2)
        return {key: answers.get(key, silent) for key in asked}

    def _looker(self, asked: tuple[Settings, Host, Instant], patience: float) -> Callable[[], Look]:
        settings, host, oldest = asked
        return lambda: self.look(settings, host, oldest, patience)

    def _each(self, work: dict[K, Callable[[], T]], within_s: float | None = None) -> dict[K, T]:
        """Do all of it at the same time; what is not done in time is left out."""
        futures: dict[K, Future[T]] = {key: self._hands.submit(one) for key, one in work.items()}
        done, late = wait_for(futures.values(), timeout=within_s)
        for future in late:
            future.cancel()
        return {key: future.result() for key, future in futures.items() if future in done}

    def _now(self, settings: Settings, claim: Claim) -> Status:
        return self.look(settings, claim.host, self._clock.now()).status

    # --- starting ---

    def start_all(self, claims: Sequence[Claim]) -> list[Failed]:
        """Start these hosts at the same time; returns those on which nothing runs, whose claims are given up."""
        answers = self._each({claim.instance: self._starter(claim) for claim in claims})
        return [failed for failed in answers.values() if failed is not None]

    def _starter(self, claim: Claim) -> Callable[[], Failed | None]:
        return lambda: self._start(claim)

    def _start(self, claim: Claim) -> Failed | None:
        settings = read(claim.request)
        with self._book.host(claim.host.name):
            now = self._book.load().claim_of(claim)
            if now is None:
                return Failed(claim.host.name, "it was given up meanwhile")
            if now.stage is Stage.STARTED:
                return None
            note, status = "", self._now(settings, claim)
            if taken_over(claim, status):
                self.end(claim)
                return Failed(claim.host.name, "somebody else has started it")
            if status.power not in _ALIVE:
                command = fill(settings.start, words(claim.host, claim, self.ports.get(settings, ())))
                answer = run(command, environment(settings), settings.deadline)
                if not answer.fine:
                    note = why("start", answer, settings.deadline)
                if note and not answer.late and self._nothing_runs(settings, claim):
                    self.end(claim)
                    return Failed(claim.host.name, note)
            self._book.change(lambda state: accounts.started(state, claim, note))
            return None

    def _nothing_runs(self, settings: Settings, claim: Claim) -> bool:
        """Whether a start that failed left nothing; where that cannot be known it may have, and is a machine."""
        if settings.status:
            return self._now(settings, claim).power is Power.STOPPED
        stop = fill(settings.stop, words(claim.host, claim, self.ports.get(settings, ())))
        return run(stop, environment(settings), settings.deadline).fine

    # --- stopping ---

    def stop_all(self, claims: Sequence[tuple[Settings, Claim]]) -> list[str]:
        """Ask these hosts to stop, at the same time; returns what went wrong, one line a host."""
        answers = self._each({claim.instance: self._stopper(settings, claim) for settings, claim in claims})
        return [f"{instance}: {trouble}" for instance, trouble in answers.items() if trouble]

    def _stopper(self, settings: Settings, claim: Claim) -> Callable[[], str]:
        return lambda: self._stop(settings, claim)

    def _stop(self, settings: Settings, claim: Claim) -> str:
        try:
            with self._book.host(claim.host.name):
                now = self._book.load().claim_of(claim)
                return self._stop_held(settings, now) if now is not None else ""
        except PortFault as fault:
            return str(fault)

    def _stop_held(self, settings: Settings, claim: Claim) -> str:
        status = self._now(settings, claim)
        if has_ended(claim, status):
            self.end(claim)
            return ""
        again = after(self._stopped_at.get(claim.instance, Instant(-1e18)), settings.stop_again)
        if claim.stop_accepted and (status.power is Power.UNKNOWN or self._clock.now() < again):
            return ""  # whoever it belongs to by now must not be stopped: first it has to say
        command = fill(settings.stop, words(claim.host, claim, self.ports.get(settings, ())))
        answer = run(command, environment(settings), settings.deadline)
        if answer.fine:
            self._stopped_at[claim.instance] = self._clock.now()
            self._book.change(lambda state: accounts.stop_accepted(state, claim))
        if (answer.fine and not settings.status) or has_ended(claim, self._now(settings, claim)):
            self.end(claim)
            return ""
        return "" if answer.fine else why("stop", answer, settings.deadline)

    def end(self, claim: Claim) -> None:
        """Give the host back: it is stopped, or somebody else's."""
        self._stopped_at.pop(claim.instance, None)
        self._book.change(lambda state: accounts.end(state, claim))


def has_ended(claim: Claim, status: Status) -> bool:
    """Whether a claim whose end was asked for holds no more: stopped, started anew by others, or taken by them."""
    if taken_over(claim, status):
        return True
    if claim.stop_at is None:
        return False
    anew = bool(status.boot) and bool(claim.stop_boot) and status.boot != claim.stop_boot
    return status.power is Power.STOPPED or (status.power in _ALIVE and anew)


def taken_over(claim: Claim, status: Status) -> bool:
    """Whether a host that runs says that it has another owner."""
    return status.power in _ALIVE and bool(status.tag) and status.tag != claim.tag


def unreachable(troubles: Sequence[str]) -> Unreachable:
    """Several hosts' troubles as one fault."""
    return Unreachable("; ".join(sorted(troubles))[:1000])
