"""The play itself: the daemon comes up, the load is replayed, the pool becomes small again; watched all the while.

Does: start the two processes, follow them in three stages, each with an end in time, and keep what was seen.
Does not: prepare the world, end what the daemon started, or judge.
Invariant: a process that ends when it should not ends the play at once, with its last words.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from autoscaler.demo.children import Child
from autoscaler.demo.records import Progress, progress_path, read_progress
from autoscaler.demo.scene import Scene
from autoscaler.demo.summary import DaemonSample, size_changes
from autoscaler.demo.view import Frame, Screen, clock
from autoscaler.demo.watch import ProxyCounts, Watch
from autoscaler.demo.workload import Half
from autoscaler.demo.world import World
from autoscaler.domain.pool import Pace

_LOOK_EVERY_S = 0.2
_UP_WITHIN_S = 60.0
_SLACK_S = 30.0
_SILENT_FOR_S = 15.0
_STOP_WITHIN_S = 25.0
_BEFORE_AND_AFTER_S = 0.6  # wall seconds of calm that the picture shows at its ends


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why in words for a user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What is played. *Units*: trace seconds. `ends_s`: when the last request of the slice arrives."""

    scene: Scene
    trace: Path | None
    half: Half | None
    length_s: float | None
    ends_s: float
    requests: int
    name: str
    policies: tuple[object, ...]
    policy_file: Path | None
    seed: int

    @property
    def settling_s(self) -> float:
        """How long the pool may take from its largest size to its smallest, after the last burst."""
        scene, pace = self.scene, Pace().scale_in
        return pace.stabilization + (scene.replicas_max - scene.replicas_min) * pace.cooldown


@dataclass(slots=True)
class Played:
    """What was seen."""

    samples: list[DaemonSample] = field(default_factory=list)
    proxy: ProxyCounts = field(default_factory=ProxyCounts)
    back: bool = False


class _Stage:
    """Looks, frames and news, the same in every stage."""

    def __init__(self, play: Play, world: World, screen: Screen, watch: Watch) -> None:
        self.play, self.world, self.screen, self.watch = play, world, screen, watch
        self.played = Played()
        self.began = time.monotonic()
        self.silent_since = self.began
        self.load_began: float | None = None
        self.changes = 0

    def follow(self, name: str, ended: Callable[[], bool], within_s: float, left_after_s: float) -> bool:
        """Look until it has ended (true) or the time is over (false). *Units*: wall seconds."""
        until = time.monotonic() + within_s
        while True:
            looked = time.monotonic()
            self.look(name, max(0.0, until - looked) if name != "starting" else 0.0, left_after_s)
            if ended():
                return True
            if looked >= until:
                return False
            time.sleep(max(0.0, looked + _LOOK_EVERY_S - time.monotonic()))

    def look(self, name: str, left_s: float, left_after_s: float) -> None:
        """One look at the daemon and the load client."""
        now = time.monotonic()
        sample = self.watch.look()
        if sample is not None:
            self.silent_since = now
            self.played.samples.append(sample)
            self._tell_changes()
        elif now - self.silent_since > _SILENT_FOR_S and self.played.samples:
            raise DemoError(f"the daemon has not answered for {_SILENT_FOR_S:g} s")
        last = self.played.samples[-1] if self.played.samples else None
        progress = self._progress() or Progress(at=0.0, elapsed_s=0.0, scheduled=self.play.requests)
        scale = self.play.scene.time_scale
        p95 = None if progress.done else progress.ttft_s_p95
        if last is not None and last.ttft_s_p95 is not None:
            p95 = last.ttft_s_p95 * scale
        frame = Frame(
            stage=name,
            wall_s=now - self.began,
            trace_s=self.trace_s(now),
            trace_length_s=self.play.ends_s,
            left_wall_s=left_s + left_after_s,
            requests_per_s=0.0 if progress.done else progress.requests_per_s,
            in_flight=progress.in_flight,
            sent=progress.sent,
            ok=progress.ok,
            failed=progress.failed,
            cut=progress.cut,
            phases=last.phases if last else {},
            desired=last.desired if last else 0.0,
            ttft_s_p95=p95,
            trust=last.trust if last else "",
            sentence=last.sentence if last else "the daemon is starting",
        )
        self.screen.show(frame)

    def trace_s(self, now: float) -> float:
        """Trace seconds since the load began."""
        return 0.0 if self.load_began is None else (now - self.load_began) * self.play.scene.time_scale

    def _progress(self) -> Progress | None:
        try:
            return read_progress(self.world.requests)
        except (OSError, msgspec.DecodeError):
            return None

    def _tell_changes(self) -> None:
        if self.load_began is None:
            return
        changes = size_changes(self.played.samples)
        for change in changes[self.changes :]:
            style = "yellow" if change.after > change.before else "green"
            at = clock(self.trace_s(time.monotonic()))
            self.screen.tell(f"{at}  {change.before} -> {change.after}  {change.why}", style)
        self.changes = len(changes)


def play(what: Play, world: World, screen: Screen) -> Played:
    """Play it to its end. Raises DemoError, OSError; what was started must be ended by the caller in any case."""
    scene = what.scene
    daemon = Child(world.daemon_command, world=world.root, log=world.root / "daemon.log")
    with Watch(world, scene.time_scale) as watch:
        stage = _Stage(what, world, screen, watch)
        _start(stage, daemon)
        command = scene.load_command(
            url=world.url, out=world.requests, half=what.half, trace=what.trace, length_s=what.length_s
        )
        load = Child(command, world=world.root, log=world.root / "load.log")
        stage.load_began = time.monotonic()
        _replay(stage, daemon, load)
        _settle(stage, daemon)
        stage.played.proxy = watch.proxy()
    daemon.stop(_STOP_WITHIN_S)
    return stage.played


def _start(stage: _Stage, daemon: Child) -> None:
    def up() -> bool:
        _running(daemon, "the daemon")
        samples = stage.played.samples
        return bool(samples) and samples[-1].phases.get("in_service", 0) >= stage.play.scene.replicas_min

    left_s = stage.play.scene.wall_s(stage.play.ends_s + stage.play.settling_s)
    if not stage.follow("starting", up, _UP_WITHIN_S, left_s):
        said = stage.played.samples[-1].sentence if stage.played.samples else "it never answered"
        raise DemoError(
            "\n".join([f"no replica was in service within {_UP_WITHIN_S:g} s: {said}", *daemon.last_words()])
        )
    # What came before is the start of Python processes, and no part of the run that is measured.
    del stage.played.samples[:-1]
    stage.changes = 0
    stage.follow("starting", lambda: False, _BEFORE_AND_AFTER_S, left_s)


def _replay(stage: _Stage, daemon: Child, load: Child) -> None:
    play = stage.play

    def over() -> bool:
        _running(daemon, "the daemon")
        return load.exit_code is not None

    within_s = play.scene.wall_s(play.ends_s) + _SLACK_S
    # A request may take its whole timeout after the last arrival.
    if not stage.follow("replaying", over, within_s, play.scene.wall_s(play.settling_s) - _SLACK_S):
        load.stop(_STOP_WITHIN_S)
    if load.exit_code:
        raise DemoError("\n".join(["the load client ended early", *load.last_words()]))
    if not progress_path(stage.world.requests).exists():
        raise DemoError("\n".join(["the load client wrote nothing", *load.last_words()]))


def _settle(stage: _Stage, daemon: Child) -> None:
    least = stage.play.scene.replicas_min

    def small() -> bool:
        _running(daemon, "the daemon")
        there = {phase: count for phase, count in stage.played.samples[-1].phases.items() if count and phase != "gone"}
        return there == {"in_service": least}

    within_s = stage.play.scene.wall_s(stage.play.settling_s)
    back = stage.follow("scaling in", small, within_s, 0.0) or stage.follow("scaling in", small, _SLACK_S, 0.0)
    stage.played.back = back
    stage.follow("scaling in", lambda: False, _BEFORE_AND_AFTER_S, 0.0)


def _running(child: Child, name: str) -> None:
    if child.exit_code is not None:
        raise DemoError("\n".join([f"{name} ended early, with exit code {child.exit_code}", *child.last_words()]))
