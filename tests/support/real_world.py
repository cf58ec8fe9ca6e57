"""One real world on this machine: the daemon, a real balancer, real stand-ins, a load client, maybe a real Prometheus.

Does: write the config, start and kill processes, and read what each part says of itself. Does not: judge; tests do.
Invariant: every process of a world carries its mark; `closed` ends them all, and says which would not end.

Witnesses, each independent of the daemon: `starts` (a line that each replica writes before it becomes a server), the
stand-ins' own counts, the load client's records, the balancer's counters, and the operating system's list of processes.
"""

import asyncio
import csv
import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import psutil
import pytest
import yaml

from autoscaler import wiring
from autoscaler.config.load import load
from autoscaler.demo import world as demo
from autoscaler.demo.children import Child, marked, sweep
from autoscaler.demo.records import RequestRecord
from autoscaler.demo.replica_stats import ReplicaStats, read_stats
from autoscaler.domain.base import PoolName
from autoscaler.domain.decision import Record
from autoscaler.runtime.clock import SystemClock
from providers.balancer import haproxy
from providers.balancer.envoy import EnvoyStats, Settings, stats
from providers.balancer.haproxy.settings import Layout
from tests.support.haproxy import stat_rows
from tests.support.real_prometheus import RealPrometheus

POOL = demo.POOL
_POLL_S = 0.1
_CRASHING = Path(__file__).with_name("crashing_daemon.py")
#: Writes its instance, its number and the time before it becomes the server: who was ever started, and when.
_WITNESS = 'echo "$1 $$ $(date +%s.%N)" >> "$2"; shift 2; exec "$@"'


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the pool looks like. Times in seconds of the wall clock; a token takes about `2 x 15 ms`."""

    low: int = 1
    high: int = 4
    load_s: float = 1.0
    server: Sequence[str] = ()
    slowness: float = 2.0
    tick: float = 1.0
    policies: Sequence[dict[str, Any]] = ({"kind": "target_tracking", "signal": "running", "target": 4},)
    pace: dict[str, Any] = field(default_factory=dict)
    ready: dict[str, Any] = field(default_factory=dict)
    drain: dict[str, Any] = field(default_factory=dict)
    balancer: demo.BalancerKind = "envoy"
    telemetry: Literal["scrape", "prometheus"] = "scrape"


#: What stands around the daemon: all of it made by the daemon, or as on hosts of one's own.
AROUND: dict[str, dict[str, Any]] = {
    "envoy+scrape": {},
    "haproxy+prometheus": {"balancer": "haproxy", "telemetry": "prometheus"},
}
in_both_worlds = pytest.mark.parametrize(
    "around", ["envoy+scrape", pytest.param("haproxy+prometheus", marks=pytest.mark.slow)]
)


class Start(NamedTuple):
    """A replica that was started, by its own word."""

    instance: str
    pid: int
    at: float


class Host(NamedTuple):
    """A member as the balancer has it now. `health`: empty when it gets requests."""

    port: int
    active: int
    health: str


class Proxied(NamedTuple):
    """What the balancer counted that is nobody's fault but ours. `unserved`: requests for which it had no replica."""

    connect_failed: int
    unserved: int
    retried: int


class RealWorld:
    """See the module."""

    def __init__(self, root: Path, shape: Shape) -> None:
        self.here = demo.make(root)
        self.root = root
        self.shape = shape
        self.starts_log = root / "starts.log"
        self.installation = f"e2e-{os.getpid()}-{root.name}"
        self.children: list[Child] = []
        self.here.config.write_text(yaml.safe_dump(self.config(), sort_keys=False, width=120), encoding="utf-8")

    @cached_property
    def prometheus(self) -> RealPrometheus:
        """The server that telemetry is read from, where the shape says so."""
        return RealPrometheus(self.root / "prometheus", {})

    def config(self) -> dict[str, Any]:
        shape, here = self.shape, self.here
        command = [sys.executable, "-m", "autoscaler.demo.model_server", "--port", "{port}", "--control"]
        command += ["--time-scale", f"{1.0 / shape.slowness:g}", "--load-s", f"{shape.load_s / shape.slowness:g}"]
        command += ["--stats-dir", str(here.stats), *shape.server]
        return {
            "installation": self.installation,
            "ledger": f"sqlite:///{here.state / 'autoscaler.db'}",
            "state_dir": str(here.state),
            "admin": {"listen": f"127.0.0.1:{here.admin_port}"},
            "pools": [
                {
                    "name": POOL,
                    "capacity": {"min": shape.low, "max": shape.high},
                    "offers": [
                        {
                            "compute": "local_process",
                            "name": "stand-in",
                            "command": self.witnessed(command),
                            "port_range": "auto",
                        }
                    ],
                    "ready_when": {"preset": "vllm", "timeout": "1s", "give_up_after": "20s", **shape.ready},
                    "balancers": [self._balancer()],
                    "telemetry": self._telemetry(),
                    "policies": list(shape.policies),
                    "pace": self._pace(),
                    "drain": {"deadline": "30s", "lost_deadline": "1s", **shape.drain},
                }
            ],
        }

    def witnessed(self, command: Sequence[str]) -> list[str]:
        """A replica's command that leaves its trace in `starts` first."""
        return ["/bin/sh", "-c", _WITNESS, "sh", "{instance}", str(self.starts_log), *command]

    def _balancer(self) -> dict[str, Any]:
        listen = f"127.0.0.1:{self.here.listen_port}"
        if self.shape.balancer == "haproxy":
            return {"kind": "haproxy", "embedded": True, "listen": listen}
        return {"kind": "envoy", "listen": listen, "admin": f"127.0.0.1:{self.here.proxy_admin_port}"}

    def _telemetry(self) -> dict[str, Any]:
        common = {"kind": self.shape.telemetry, "preset": "vllm", "timeout": "1s"}
        if self.shape.telemetry == "prometheus":
            return {**common, "url": self.prometheus.url, "missing_after": "4s", "window": "8s"}
        return {**common, "window": f"{2 * self.shape.tick:g}s"}

    def _pace(self) -> dict[str, Any]:
        return {
            "tick": f"{self.shape.tick:g}s",
            "stale_after": "5s",
            "unhealthy_after": "3s",
            "replace_after": "2s",
            "min_age": "0s",
            "scale_out": {"cooldown": "1s"},
            "scale_in": {"cooldown": "3s", "stabilization": "3s"},
            **self.shape.pace,
        }

    # --- processes ---

    def environment(self) -> dict[str, str]:
        """What a command of this world finds around it."""
        return {name: value for name, value in os.environ.items() if not name.startswith("AUTOSCALER_")}

    def daemon(self) -> Child:
        """The daemon as a user runs it."""
        return self.child(self.here.daemon_command, "daemon")

    def crashing_daemon(self, points: Sequence[str], passes: int, log: Path) -> Child:
        """The same daemon, which kills itself at one of the points."""
        words = [str(self.here.config), str(log), ",".join(points), str(passes)]
        return self.child([sys.executable, str(_CRASHING), *words], "daemon")

    def child(self, command: Sequence[str], name: str) -> Child:
        """Any process of this world, its output in NAME.log."""
        child = Child(command, world=self.root, log=self.root / f"{name}.log")
        self.children.append(child)
        return child

    def load(self, arrivals: Sequence[tuple[float, int, int]], name: str = "requests") -> Child:
        """The load client over these arrivals: (at_s, input tokens, output tokens)."""
        trace = self.root / f"{name}.csv"
        with trace.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(("arrival_s", "input_tokens", "output_tokens"))
            rows.writerows(arrivals)
        command = [sys.executable, "-m", "autoscaler.demo.load", "--url", self.here.url]
        return self.child([*command, "--trace", str(trace), "--out", str(self.root / f"{name}.jsonl")], name)

    def replicas(self) -> list[psutil.Process]:
        """Every living process with this world's owner tags: the replicas, whoever started them."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                tags = process.environ()
                ours = tags.get("AUTOSCALER_TAG_INSTALLATION") == self.installation
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    # --- what the parts say ---

    def pool(self) -> dict[str, Any] | None:
        """The pool as the daemon tells it, or nothing while it does not answer."""
        found: dict[str, Any] | None = self._get(self.here.admin_port, f"/v1/pools/{POOL}")
        return found

    def phases(self) -> dict[str, int]:
        """How many replicas are in which phase; nothing while the daemon does not answer."""
        pool = self.pool()
        phases = pool["phases"] if pool is not None and pool["at"] is not None else {}
        return {phase: count for phase, count in phases.items() if count and phase != "gone"}

    def replica_of(self, port: int) -> dict[str, Any] | None:
        """A replica of the pool by its port."""
        pool = self.pool() or {}
        return next((one for one in pool.get("replicas", []) if one["id"].endswith(f":{port}")), None)

    def hosts(self) -> dict[int, Host]:
        """The balancer's members by port."""
        if self.shape.balancer == "haproxy":
            return self._haproxy_hosts()
        answer = self._get(self.here.proxy_admin_port, "/clusters?format=json") or {}
        found = {}
        for cluster in answer.get("cluster_statuses", []):
            for host in cluster.get("host_statuses", []):
                gauges = {one["name"]: int(one.get("value", 0)) for one in host.get("stats", [])}
                health = host.get("health_status") or {}
                port = int(host["address"]["socket_address"]["port_value"])
                trouble = [name for name, value in health.items() if value is True]
                trouble.append(str(health.get("eds_health_status", "HEALTHY")).lower().replace("healthy", ""))
                found[port] = Host(port, gauges.get("rq_active", 0), " ".join(trouble))
        return found

    def envoy(self) -> EnvoyStats:
        """Envoy's counters."""
        here = self.here
        listen, admin = f"127.0.0.1:{here.listen_port}", f"127.0.0.1:{here.proxy_admin_port}"
        return asyncio.run(stats(Settings(listen=listen, admin=admin)))

    def proxied(self) -> Proxied:
        """The balancer's counters, whichever it is."""
        if self.shape.balancer == "envoy":
            one = self.envoy()
            return Proxied(one.connect_failed, one.none_healthy, one.retried)
        (whole,) = [row for row in stat_rows(self._haproxy_socket()) if row["svname"] == "BACKEND"]
        # Replicas of a test that counts these answer no 5xx, so each is HAProxy's own.
        return Proxied(int(whole["econ"]), int(whole["hrsp_5xx"]), int(whole["wretr"]) + int(whole["wredis"]))

    def _haproxy_socket(self) -> Path:
        settings = haproxy.Settings(embedded=True)
        return Path(Layout.of(settings, str(self.here.state / "pools" / POOL), "haproxy").socket)

    def _haproxy_hosts(self) -> dict[int, Host]:
        found = {}
        with suppress(OSError):
            for row in stat_rows(self._haproxy_socket()):
                if row["svname"] != "BACKEND" and not row["status"].startswith("MAINT"):
                    up = row["status"].startswith("UP")
                    port = int(row["addr"].rpartition(":")[2])
                    found[port] = Host(port, int(row["scur"]), "" if up else row["status"].lower())
        return found

    def counter(self, name: str) -> int:
        """Any counter of Envoy's cluster."""
        answer = self._get(self.here.proxy_admin_port, "/stats?format=json&type=Counters") or {}
        full = f"cluster.replicas.{name}"
        return next((int(one["value"]) for one in answer.get("stats", []) if one.get("name") == full), 0)

    def starts(self) -> list[Start]:
        """Every replica that was ever started, oldest first."""
        if not self.starts_log.exists():
            return []
        rows = [line.split() for line in self.starts_log.read_text(encoding="utf-8").splitlines()]
        return [Start(instance, int(pid), float(at)) for instance, pid, at in rows]

    def stats(self) -> list[ReplicaStats]:
        """The replicas' own counts."""
        return read_stats(self.here.stats)

    def records(self, name: str = "requests") -> list[RequestRecord]:
        """What became of each request, in the order in which they ended."""
        path = self.root / f"{name}.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [msgspec.json.decode(line, type=RequestRecord) for line in lines]

    def ledger(self) -> list[Record]:
        """Every decision record of the pool, oldest first."""
        return asyncio.run(self._ledger())

    async def _ledger(self) -> list[Record]:
        ledger = wiring.build_ledger(load(self.here.config), SystemClock(), read_only=True)
        try:
            pool = PoolName(POOL)
            last = await ledger.record(pool)
            numbers = range(1, last.sequence + 1) if last is not None else range(0)
            found = [await ledger.record(pool, number) for number in numbers]
            return [record for record in found if record is not None]
        finally:
            await ledger.aclose()

    def control(self, port: int, fault: str | None) -> None:
        """Tell a stand-in to show a fault."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
        with suppress_close(connection):
            connection.request("POST", "/control", json.dumps({"fail": fault}))
            assert connection.getresponse().status == 200

    def _get(self, port: int, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
        with suppress_close(connection), suppress(OSError, http.client.HTTPException, ValueError):
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            return json.loads(body) if answer.status == 200 else None
        return None

    # --- waiting ---

    def until(self, true: Callable[[], Any], within_s: float, what: str) -> float:
        """Wait for something; returns the seconds it took. An end in time is a failure that says what there is."""
        began = time.monotonic()
        while time.monotonic() - began < within_s:
            if true():
                return time.monotonic() - began
            time.sleep(_POLL_S)
        pool = self.pool() or {}
        tail = (self.root / "daemon.log").read_text(errors="replace").splitlines()[-5:]
        raise AssertionError(
            "\n".join([f"not within {within_s:g} s: {what}", str(pool.get("phases")), str(pool.get("sentence")), *tail])
        )

    def until_serving(self, count: int, within_s: float = 60.0) -> float:
        """Wait until exactly so many replicas serve and nothing else is there."""
        return self.until(lambda: self.phases() == {"in_service": count}, within_s, f"{count} in service, no other")


AnyWorld = TypeVar("AnyWorld", bound=RealWorld)


@contextmanager
def suppress_close(connection: http.client.HTTPConnection) -> Iterator[None]:
    """Close a connection whatever happens."""
    try:
        yield
    finally:
        connection.close()


@contextmanager
def real_world(root: Path, shape: Shape | None = None) -> Iterator[RealWorld]:
    """A world, and the end of all of it."""
    world = RealWorld(root, shape or Shape())
    with watched(world), ended(world):
        yield world


@contextmanager
def watched(world: RealWorld) -> Iterator[None]:
    """Its Prometheus, if it has one, and service discovery for it: the balancer's members become its targets."""
    if world.shape.telemetry != "prometheus":
        yield
        return
    over = threading.Event()

    def find() -> None:
        shown: list[int] = []
        while not over.wait(0.3):
            members = sorted(world.hosts())
            if members != shown:
                world.prometheus.show([f"127.0.0.1:{port}" for port in members])
                shown = members

    finder = threading.Thread(target=find)
    try:
        world.prometheus.start()
        finder.start()
        yield
    finally:
        over.set()
        if finder.ident is not None:
            finder.join()
        world.prometheus.kill()


@contextmanager
def ended(world: AnyWorld) -> Iterator[AnyWorld]:
    """Any world, and its end: nothing of it runs afterwards, and this is asserted."""
    root = world.root
    try:
        yield world
    finally:
        for child in world.children:
            child.stop(10.0)
        left = sweep(root)
    assert left == 0, f"{left} processes would not end"
    assert marked(root) == []
    assert world.replicas() == [], "a process with our owner tags, without the mark of the world"


def steady(
    per_s: float, seconds: float, *, begin_s: float = 0.0, tokens: tuple[int, int] = (16, 50)
) -> list[tuple[float, int, int]]:
    """Arrivals at a steady rate."""
    return [(begin_s + index / per_s, *tokens) for index in range(int(per_s * seconds))]
