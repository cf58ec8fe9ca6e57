"""`autoscaler demo`: the whole product on one machine, under recorded traffic, from one replica to many and back.

Does: make a world, start the daemon and then the load in it as a user would, show what happens until the pool is small
again, end everything, and write the verdict: a table, a picture, a JSON file. Does not: decide anything about the pool.
Invariant: whatever happens (a fault, Ctrl-C, the terminal closed), no process of this run is left when it returns.
"""

import contextlib
import math
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from rich.console import Console

from autoscaler.config import modules
from autoscaler.config.modules import Group
from autoscaler.demo import play, world
from autoscaler.demo.children import sweep
from autoscaler.demo.picture import PictureError, Run, draw
from autoscaler.demo.play import DemoError, Play, Played
from autoscaler.demo.profile import profile
from autoscaler.demo.records import read_records
from autoscaler.demo.replica_stats import read_stats
from autoscaler.demo.scene import DEFAULT, Scene
from autoscaler.demo.summary import Setting, Summary, document, summarise
from autoscaler.demo.view import LiveScreen, PlainScreen, Screen, summary_view
from autoscaler.demo.workload import Half, TraceError, cut, half, read_trace, shipped_trace
from autoscaler.domain.faults import ConfigError, Refused

_BAD_USAGE, _CANNOT, _INTERRUPTED = 2, 3, 130


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may choose.

    `duration`: wall seconds of traffic, all of it if none is given. `half`: of the trace's time; of the shipped trace
    the first if none is given, of another the whole. `out`: a folder for the picture, and the logs of a bad run.
    `balancer`: Envoy comes with the package; HAProxy must be installed.
    """

    duration: float | None = None
    trace: Path | None = None
    seed: int = 1
    policy: Path | None = None
    json_path: Path | None = None
    half: Half | None = None
    out: Path = Path("demo-out")
    balancer: world.BalancerKind = "envoy"


def main(options: Options) -> int:
    """Run the demo.

    Exit codes: 0 nothing failed and the pool came back; 1 not so; 2 bad usage; 3 something could not be started or
    written; 130 interrupted. A missed latency objective is shown, and is no failure.
    """
    console = Console()
    errors = Console(stderr=True)
    try:
        chosen = _choose(options)
        options.out.mkdir(parents=True, exist_ok=True)
        if options.json_path is not None:
            options.json_path.touch()
    except (ConfigError, TraceError, DemoError) as error:
        _say(errors, str(error))
        return _BAD_USAGE
    except OSError as error:
        _say(errors, f"{error.filename}: {error.strerror}")
        return _CANNOT
    try:
        with _interruptible():
            return _run(options, chosen, console)
    except KeyboardInterrupt:
        _say(errors, "interrupted: everything that was started has ended")
        return _INTERRUPTED
    except ConfigError as error:
        _say(errors, str(error))
        return _BAD_USAGE
    except DemoError as error:
        _say(errors, str(error))
        return _CANNOT
    except OSError as error:
        _say(errors, f"{error.filename or 'demo'}: {error.strerror or error}")
        return _CANNOT


def _choose(options: Options) -> Play:
    """Everything that can be wrong with what the user chose, before anything is started."""
    if options.duration is not None and not 0 < options.duration < math.inf:
        raise DemoError(f"--duration: found {options.duration:g}, allowed is above 0 s")
    scene = DEFAULT
    which = options.half or (None if options.trace else "first")
    arrivals = read_trace(options.trace or shipped_trace())
    if which is not None:
        arrivals = half(arrivals, which)
    length_s = None if options.duration is None else options.duration * scene.time_scale
    arrivals = cut(arrivals, 0.0, length_s or math.inf)
    policies = world.default_policies(scene) if options.policy is None else world.read_policies(options.policy)
    name = options.trace.name if options.trace else "azure2023_code"
    return Play(
        scene=scene,
        trace=options.trace,
        half=which,
        length_s=length_s,
        ends_s=arrivals[-1].at_s,
        requests=len(arrivals),
        name=name if which is None else f"{name}, {which} half",
        policies=tuple(policies),
        policy_file=options.policy,
        seed=options.seed,
    )


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal end the demo as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(options: Options, chosen: Play, console: Console) -> int:
    _check_balancer(options)
    root = Path(tempfile.mkdtemp(prefix="autoscaler-demo-"))
    kept = False
    try:
        here = world.make(root, options.balancer)
        world.write(here, chosen.scene, chosen.policies, chosen.seed)
        world.check(here, chosen.policy_file)
        try:
            with _screen(console, chosen, options.balancer) as screen:
                played = play.play(chosen, here, screen)
        finally:
            _end_all(root)
        code = _verdict(options, chosen, here, played, console)
        kept = code == 0
        return code
    finally:
        _end_all(root)
        if not kept:
            _keep_logs(root, options.out)
        shutil.rmtree(root, ignore_errors=True)


def _end_all(root: Path) -> None:
    """End what carries this run's mark; nothing may interrupt that."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        left = sweep(root)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if left:
        raise DemoError(f"{left} processes of this run would not end: {root} names them in its state folder")


def _check_balancer(options: Options) -> None:
    """What is not installed is told before anything is started."""
    if options.balancer == "haproxy":
        haproxy: Any = modules.load(Group.BALANCER, "haproxy", "--balancer")
        try:
            haproxy.binary(haproxy.Settings())
        except Refused as fault:
            raise DemoError(f"--balancer haproxy: {fault}") from fault


def _screen(console: Console, chosen: Play, balancer: str) -> Screen:
    scene = chosen.scene
    behind = "" if balancer == "envoy" else f", behind {balancer}"
    title = f"autoscaler demo: {chosen.name}, {scene.time_scale:g} times as fast, seed {chosen.seed}{behind}"
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveScreen(console, title, scene.ttft_objective_s, scene.replicas_max)
    return PlainScreen(console, title, scene.ttft_objective_s)


def _verdict(options: Options, chosen: Play, here: world.World, played: Played, console: Console) -> int:
    records, scene = read_records(here.requests), chosen.scene
    setting = Setting(
        trace=chosen.name,
        time_scale=scene.time_scale,
        seed=chosen.seed,
        ttft_objective_s=scene.ttft_objective_s,
        gpus_per_replica=profile(scene.profile).gpus,
    )
    summary = summarise(
        setting,
        records,
        read_stats(here.stats),
        played.samples,
        proxy_connect_failures=played.proxy.connect_failures,
        proxy_retries=played.proxy.retries,
    )
    console.print(summary_view(summary))
    _picture(
        options.out / "demo.png",
        Run(
            summary=summary,
            records=records,
            samples=played.samples,
            prefill_tokens_per_s=profile(scene.profile).prefill_tokens_per_s,
            subtitle=f"{chosen.name}; replicas: {scene.profile}",
        ),
        console,
    )
    if options.json_path is not None:
        options.json_path.write_bytes(msgspec.json.format(msgspec.json.encode(document(summary))) + b"\n")
        console.print(f"figures  {options.json_path}", highlight=False)
    return _code(summary, scene, console)


def _picture(path: Path, run: Run, console: Console) -> None:
    try:
        draw(run, path)
    except PictureError as error:
        console.print(f"picture  none: {error}", highlight=False)
    else:
        console.print(f"picture  {path}", highlight=False)


def _code(summary: Summary, scene: Scene, console: Console) -> int:
    """0 if no request was lost and the pool came back to its smallest size; else 1, and why."""
    wrong = [
        f"{count} requests {what}"
        for what, count in (
            ("failed", summary.failed),
            ("were cut", summary.cut),
            ("were sent before a replica was ready", summary.sent_before_ready),
            ("were retried", summary.retried),
        )
        if count
    ]
    if summary.replicas_end != scene.replicas_min:
        wrong.append(f"the pool ended at {summary.replicas_end} replicas, not {scene.replicas_min}")
    for line in wrong:
        console.print(line, style="bold red", highlight=False)
    return 1 if wrong else 0


def _keep_logs(root: Path, out: Path) -> None:
    """The logs of a run that went wrong, where the user can read them."""
    with contextlib.suppress(OSError):
        for log in root.glob("*.log"):
            shutil.copy(log, out / log.name)
        shutil.copytree(root / "state" / "logs", out / "replica-logs", dirs_exist_ok=True)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _flags() -> Any:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m autoscaler.demo.run")
    parser.add_argument("--half", choices=("first", "second"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duration", type=float)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--json", type=Path, dest="json_path")
    parser.add_argument("--balancer", choices=("envoy", "haproxy"), default="envoy")
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(Options(**vars(_flags()))))
