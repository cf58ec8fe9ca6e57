"""A replica that dies, hangs or stalls under load leaves the balancer and is replaced; a busy one is left alone.

Who failed is told by witnesses that know nothing of each other: the client's records, the replicas' own counts,
and the balancer's counters. The times are bounds of what the pool's settings promise, with room for a busy machine.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.demo.records import RequestRecord
from autoscaler.demo.replica_stats import ReplicaStats
from autoscaler.domain.decision import Admit, Reweigh
from autoscaler.domain.lifecycle import Phase
from tests.support.real_world import AROUND, RealWorld, Shape, in_both_worlds, real_world, steady

pytestmark = pytest.mark.e2e

#: About 12 requests are inside at any time, 4 in each of the three replicas.
THREE = Shape(high=4, policies=[{"kind": "fixed", "size": 3}])
RATE = 8.0
#: `unhealthy_after` of the world; a hang is known after twice that.
UNHEALTHY_S = 3.0
#: A tick, a look and a machine that has other work.
SLACK_S = 8.0
#: Starting a Python process, loading for a second, two passes, and a tick.
REPLACED_S = 25.0
TICK_S = 4.0


def lost(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    return [one for one in records if one.outcome in {"failed", "cut"}]


def a_busy_port(world: RealWorld) -> int:
    world.until(lambda: all(host.active >= 2 for host in world.hosts().values()), 20.0, "all replicas are busy")
    return max(world.hosts().values(), key=lambda host: (host.active, host.port)).port


def is_out(world: RealWorld, port: int) -> bool:
    """Whether the balancer gives it no request any more by the daemon's word, not for a judgement of its own."""
    host = world.hosts().get(port)
    return host is None or "drain" in host.health


def replaced(world: RealWorld, port: int) -> bool:
    return world.replica_of(port) is None and world.phases() == {"in_service": 3}


def others_lost_nothing(world: RealWorld, port: int) -> ReplicaStats:
    """The replicas' own word; returns the counts of the one that failed."""
    for one in world.stats():
        if one.port != port:
            assert one.aborted_on_exit == one.broken_off == one.refused == one.received_before_ready == 0
    return next(one for one in world.stats() if one.port == port)


@pytest.mark.timeout(120)
@in_both_worlds
def test_a_replica_that_is_killed_costs_what_was_inside_it(around: str, tmp_path: Path) -> None:
    """The daemon looks three times a tick: with a long one the balancer has time to send more there before it knows."""
    with real_world(tmp_path, replace(THREE, tick=TICK_S, **AROUND[around])) as world:
        world.daemon()
        world.until_serving(3, 40.0)
        load = world.load(steady(RATE, 90.0))
        port = a_busy_port(world)
        victim = next(
            one for one in world.starts() if one.pid in {stats.pid for stats in world.stats() if stats.port == port}
        )
        # Stopped first, so that what is inside can be counted while nothing moves.
        os.kill(victim.pid, signal.SIGSTOP)
        time.sleep(0.05)
        inside = world.hosts()[port].active
        killed_at = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        out_s = world.until(lambda: is_out(world, port), SLACK_S, "out of the balancer")
        replaced_s = out_s + world.until(lambda: replaced(world, port), REPLACED_S, "replaced")
        time.sleep(2.0)
        load.stop(5.0)
        records, proxy = world.records(), world.proxied()
        failures = lost(records)
        before = [one for one in failures if one.sent_at <= killed_at]
        after = [one for one in failures if one.sent_at > killed_at]
        print(
            f"{inside} inside; lost {len(before)} of those, {len(after)} sent later, {proxy.connect_failed} connect "
            f"failures; out after {out_s:.1f} s, replaced after {replaced_s:.1f} s; {Counter(one.why for one in after)}"
        )
        others_lost_nothing(world, port)
        assert len(world.starts()) == 4
    assert inside >= 2
    assert abs(len(before) - inside) <= 1  # one may have come or gone between the count and the kill
    assert len(after) <= 1
    assert proxy.connect_failed <= 1


@pytest.mark.timeout(120)
@in_both_worlds
@pytest.mark.parametrize(("fault", "known_s"), [("hang", UNHEALTHY_S), ("stall", 2 * UNHEALTHY_S)])
def test_a_replica_that_answers_nothing_more_is_replaced(
    fault: str, known_s: float, around: str, tmp_path: Path
) -> None:
    with real_world(tmp_path, replace(THREE, **AROUND[around])) as world:
        world.daemon()
        world.until_serving(3, 40.0)
        load = world.load(steady(RATE, 90.0))
        port = a_busy_port(world)
        world.control(port, fault)
        out_s = world.until(lambda: is_out(world, port), known_s + SLACK_S, "out of the balancer")
        replaced_s = out_s + world.until(lambda: replaced(world, port), REPLACED_S, "replaced")
        world.until(lambda: len(world.replicas()) == 3, 15.0, "the old machine has ended")
        time.sleep(2.0)
        load.stop(5.0)
        records = world.records()
        failures = lost(records)
        failed = others_lost_nothing(world, port)
        cut_total = world.ledger()[-1].decision.memory.cut_total
        print(
            f"{fault}: {len(failures)} lost; out after {out_s:.1f} s, replaced after {replaced_s:.1f} s; "
            f"the daemon counted {cut_total}; the replica {failed}"
        )
    assert out_s >= known_s / 2  # a moment's silence is no reason
    inside = failed.received - failed.completed
    assert inside >= 2
    assert len(failures) == inside
    assert cut_total == inside


@pytest.mark.timeout(90)
@in_both_worlds
def test_a_saturated_replica_is_never_evicted(around: str, tmp_path: Path) -> None:
    shape = Shape(
        high=1,
        tick=0.4,
        server=["--max-num-seqs", "4"],
        pace={"unhealthy_after": "1s"},
        policies=[{"kind": "target_tracking", "signal": "queue_length", "target": 4}],
    )
    with real_world(tmp_path, replace(shape, **AROUND[around])) as world:
        world.daemon()
        world.until_serving(1)
        began = time.time()
        load = world.load(steady(14.0, 60.0))  # it can do 3 a second
        time.sleep(18.0)
        load.stop(5.0)
        ended = time.time()
        assert world.phases() == {"in_service": 1}
        seen = [one for one in world.ledger() if began <= one.at <= ended]
        counts = world.stats()
        failures = lost(world.records())
        assert len(world.starts()) == 1
    full = [one for one in seen if (one.decision.replicas[0].waiting or 0) >= 20]
    print(f"{len(seen)} ticks, {len(full)} with 20 or more waiting, {counts[0].received} requests")
    assert len(full) >= 30
    for one in seen:
        assert [replica.phase for replica in one.decision.replicas] == [Phase.IN_SERVICE], one.decision.sentence
        assert all(isinstance(action, Admit | Reweigh) for action in one.decision.plan), one.decision.sentence
    assert failures == []


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_replica_without_a_thread_for_looks_stays_unless_that_lasts(tmp_path: Path) -> None:
    """As llama.cpp's server under more clients than threads: it generates, and answers neither health nor metrics."""
    patience_s, silence_s, silences = 8.0, 4.0, 3
    shape = replace(THREE, pace={"unhealthy_after": f"{patience_s:g}s"}, drain={"lost_deadline": "10s"})
    with real_world(tmp_path, shape) as world:
        world.daemon()
        world.until_serving(3)
        load = world.load(steady(RATE, 120.0))
        port = a_busy_port(world)
        began = time.time()
        for _ in range(silences):
            world.control(port, "mute")
            time.sleep(silence_s)
            world.control(port, None)
            time.sleep(2.0)  # some looks are answered
        ended = time.time()
        seen = [one for one in world.ledger() if began <= one.at <= ended]
        world.control(port, "mute")
        out_s = world.until(lambda: is_out(world, port), patience_s + SLACK_S, "out of the balancer")
        world.until(lambda: replaced(world, port), REPLACED_S, "replaced")
        load.stop(5.0)
        failures = lost(world.records())
        failed = others_lost_nothing(world, port)
    unheard = [one for one in seen if not all(record.last.alive for record in one.observation.probes.values())]
    print(f"{len(seen)} ticks, {len(unheard)} of them amid a silence; out after {out_s:.1f} s of one; {failed}")
    assert len(unheard) >= silences
    for one in seen:
        assert {replica.phase for replica in one.decision.replicas} == {Phase.IN_SERVICE}, one.decision.sentence
        assert all(isinstance(action, Admit | Reweigh) for action in one.decision.plan), one.decision.sentence
    assert out_s >= patience_s / 2  # a moment's silence is no reason
    # It drains for `lost_deadline`, by the balancer's count, so what is inside ends.
    assert failures == []
    assert failed.received == failed.completed
