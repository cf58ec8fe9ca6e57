"""Hosts that exist already, behind Envoy and behind HAProxy: 1 to 2 to 1 under load, the daemon killed on the way.

The daemon starts and stops what is there through a script, as it would through ssh; each host is a stand-in server on a
loopback address of its own, all on one port, as real hosts have it.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from autoscaler.demo.children import MARK, marked, sweep
from autoscaler.domain.decision import Launch
from providers.compute.static_hosts.state import State
from tests.support.own_hosts import calls, end_hosts, own_hosts, running, tool
from tests.support.real_world import RealWorld, Shape, steady
from tests.support.streaming import free_ports

pytestmark = pytest.mark.e2e

#: About 2 requests are inside at all times, and about 8 while the wave lasts: one replica is to have 4 of them.
BASE_PER_S, WAVE_PER_S = 1.5, 5.0
LENGTH_S, WAVE_S = 120, 22
SHAPE = Shape(low=1, high=2, load_s=3.0)


class OwnHosts(RealWorld):
    """The world of the other tests, with hosts that were there before."""

    def __init__(self, root: Path, balancer: str, short: str) -> None:
        self.short = short  # a socket's path must be
        self.balancer = balancer
        self.machines = root / "machines"
        self.machines.mkdir()
        super().__init__(root, SHAPE)

    @override
    def config(self) -> dict[str, Any]:
        written = super().config()
        (pool,) = written["pools"]
        (command,) = (offer["command"] for offer in pool["offers"])
        server = command[command.index("--port") - 3 :]  # less the witness: the script keeps its own record
        server += ["--host", "{address}"]
        (port,) = free_ports(1)
        pool["offers"] = [
            {
                "compute": "static_hosts",
                "name": "own",
                "hosts": [{"name": one.name, "address": one.address, "ports": [port]} for one in own_hosts(3)],
                "start": [*tool(self.machines, "start", "{tag}"), *server],
                "stop": list(tool(self.machines, "stop")),
                # JSON with a tag, or the lines that `systemctl show` prints.
                "status": list(tool(self.machines, "status" if self.balancer == "envoy" else "show")),
                "pass_env": [MARK],
            }
        ]
        if self.balancer == "haproxy":
            listen = f"127.0.0.1:{self.here.listen_port}"
            pool["balancers"] = [{"kind": "haproxy", "embedded": True, "listen": listen, "directory": self.short}]
        return written


@contextmanager
def own_hosts_world(root: Path, balancer: str) -> Iterator[OwnHosts]:
    with TemporaryDirectory(prefix="own-") as short:
        world = OwnHosts(root, balancer, short)
        try:
            yield world
        finally:
            for child in world.children:
                child.stop(10.0)
            end_hosts(world.machines)
            left = sweep(root)
    assert left == 0, f"{left} processes would not end"
    assert marked(root) == []


@pytest.mark.timeout(150)
@pytest.mark.parametrize("balancer", ["envoy", "haproxy"])
def test_one_two_one_under_load_with_a_kill_in_the_middle(tmp_path: Path, balancer: str) -> None:
    with own_hosts_world(tmp_path, balancer) as world:
        first = world.daemon()
        world.until_serving(1, 40.0)
        base = world.load(steady(BASE_PER_S, LENGTH_S), "base")
        wave = world.load(steady(WAVE_PER_S, WAVE_S), "wave")
        out_s = world.until(lambda: len(running(world.machines)) == 2, 20.0, "a second host is started")
        os.kill(first.pid, signal.SIGKILL)  # while its model loads
        world.until(lambda: first.exit_code is not None, 5.0, "the daemon dies")
        last = world.daemon()
        ready_s = world.until_serving(2, 30.0)
        world.until(lambda: wave.exit_code is not None, WAVE_S + 20.0, "the wave ends")
        in_s = world.until_serving(1, 40.0)
        time.sleep(2.0)  # more requests for the one that stays
        base.stop(5.0)
        nobody_noticed(world)
        nothing_is_left_over(world)
        assert last.stop(20.0) == 0
        print(f"second host started {out_s:.1f} s, serving {ready_s:.1f} s later, gone {in_s:.1f} s after the wave")


def nobody_noticed(world: OwnHosts) -> None:
    outcomes = Counter(one.outcome for name in ("base", "wave") for one in world.records(name))
    print(f"requests: {dict(outcomes)}")
    assert outcomes["ok"] > 100
    # Those that the test itself broke off when it ended a load client are no failures.
    assert set(outcomes) <= {"ok", "stopped"}
    counts = world.stats()
    assert sum(one.received_before_ready for one in counts) == 0
    assert sum(one.aborted_on_exit for one in counts) == 0
    assert sum(one.completed > 0 for one in counts) == len(counts) == 2


def nothing_is_left_over(world: OwnHosts) -> None:
    started, stopped = calls(world.machines, "start"), calls(world.machines, "stop")
    assert sorted(started) == ["h1", "h2"]  # each once, in spite of the kill, and h3 never
    (stays,) = running(world.machines)
    assert set(stopped) == {"h1", "h2"} - {stays}
    state = msgspec.json.decode((world.here.state / "static_hosts" / "state.json").read_bytes(), type=State)
    assert {name for name, claim in state.claims.items() if claim.stop_at is None} == {stays}
    ordered = [action for record in world.ledger() for action in record.decision.plan if isinstance(action, Launch)]
    assert len({action.token for action in ordered}) == 2
