"""The daemon is killed twenty times while its pool grows and shrinks: nobody notices but its own log.

One world: the balancer, replicas and load go on; only the daemon dies, by SIGKILL, at named points and any moment.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from autoscaler.demo.children import Child
from autoscaler.domain.decision import Launch, Record
from tests.support.real_world import AROUND, RealWorld, Shape, in_both_worlds, real_world, steady

pytestmark = pytest.mark.e2e

#: Points on the way of every size change, in both directions; each kills once.
RARE = [f"{when}_{what}" for what in ("launch", "admit", "drain", "evict", "terminate") for when in ("before", "after")]
SAVES = ["before_save", "after_save"]
KILLS = 20
#: A daemon that is back within three of them goes on with its clocks; on a busy machine its start takes seconds.
TICK_S = 3.0
COOLDOWN_IN_S = 4.0
SHAPE = Shape(
    high=5,
    tick=TICK_S,
    pace={"scale_out": {"cooldown": "2s"}, "scale_in": {"cooldown": f"{COOLDOWN_IN_S:g}s", "stabilization": "4s"}},
)
#: The load goes up for twelve seconds and down for twelve, over and over: about 6 requests inside, then about 18.
HALF_PERIOD_S = 12
LENGTH_S = 300


def seed() -> int:
    return int(os.environ.get("E2E_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


def waves() -> list[tuple[float, int, int]]:
    return [
        arrival
        for begin in range(0, LENGTH_S, 2 * HALF_PERIOD_S)
        for arrival in steady(8.0, HALF_PERIOD_S, begin_s=float(begin))
    ]


class Killer:
    """Starts the daemon and kills it, over and over; remembers where and when."""

    def __init__(self, world: RealWorld, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.log = world.root / "kills.log"
        self.rare = list(RARE)
        self.saves = list(SAVES)
        self.at_random = KILLS - len(RARE) - len(SAVES)
        self.killed_at: list[float] = []
        self.after_s: list[float] = []

    def run(self) -> None:
        turns: list[Callable[[], None]] = [self.at_a_save] * len(self.saves) + [self.at_some_moment] * self.at_random
        self.chance.shuffle(turns)
        while self.rare or turns:
            if turns:
                turns.pop()()
            if self.rare:
                self.at_a_point(self.rare, 1)

    def at_a_save(self) -> None:
        self.at_a_point(self.saves, self.chance.randint(1, 3))

    def at_a_point(self, points: list[str], passes: int) -> None:
        """Let it run until it passes one of the points."""
        daemon = self.world.crashing_daemon(points, passes, self.log)
        self.world.until(lambda: daemon.exit_code is not None, 60.0, f"the daemon passes one of {', '.join(points)}")
        self.note(daemon)
        points.remove(self.named()[-1])

    def at_some_moment(self) -> None:
        """Kill it from outside, at any moment of its start or of its first ticks."""
        daemon = self.world.daemon()
        wait_s = self.chance.uniform(0.2, 4.0)
        time.sleep(wait_s)
        os.kill(daemon.pid, signal.SIGKILL)
        self.world.until(lambda: daemon.exit_code is not None, 5.0, "the daemon dies")
        self.note(daemon)
        self.after_s.append(round(wait_s, 2))

    def note(self, daemon: Child) -> None:
        assert daemon.exit_code == -signal.SIGKILL, daemon.last_words()
        self.killed_at.append(time.time())

    def named(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").split()


@pytest.mark.timeout(340)
@in_both_worlds
def test_twenty_kills_change_nothing(around: str, tmp_path: Path) -> None:
    number = seed()
    print(f"seed {number} (E2E_SEED={number} repeats it)")
    with real_world(tmp_path, replace(SHAPE, **AROUND[around])) as world:
        first = world.daemon()
        world.until_serving(1)
        base = world.load(steady(4.0, LENGTH_S), "base")
        waving = world.load(waves(), "waves")
        killer = Killer(world, random.Random(number))
        first.stop(10.0)
        killer.run()
        print(f"killed at {killer.named()} and after {killer.after_s} s")
        last = world.daemon()
        waving.stop(5.0)
        # About 6 requests are inside and one replica is to have 4 of them.
        settled_s = world.until_serving(2, 60.0)
        base.stop(5.0)
        nobody_noticed(world)
        nothing_is_left_over(world)
        assert last.stop(20.0) == 0
        records = world.ledger()
        launched_once(world, records)
        memory_went_on(records, killer.killed_at)
        print(f"settled {settled_s:.1f} s after the last start")
    assert len(killer.killed_at) == KILLS
    assert sorted(killer.named()) == sorted([*RARE, *SAVES])


def nobody_noticed(world: RealWorld) -> None:
    outcomes = Counter(one.outcome for name in ("base", "waves") for one in world.records(name))
    print(f"requests: {dict(outcomes)}")
    assert outcomes["ok"] > 200  # enough for "none failed" to mean something; a quiet machine is through sooner
    # Those that the test itself broke off when it ended a load client are no failures.
    assert set(outcomes) <= {"ok", "stopped"}
    proxy, counts = world.proxied(), world.stats()
    print(proxy)
    assert sum(one.received_before_ready for one in counts) == 0
    assert proxy == (0, 0, 0)
    assert sum(one.aborted_on_exit for one in counts) == 0


def nothing_is_left_over(world: RealWorld) -> None:
    pool = world.pool()
    assert pool is not None
    known = sorted(one["id"].rpartition(":")[0] for one in pool["replicas"])
    alive = {process.pid: process.environ()["AUTOSCALER_TAG_INSTANCE"] for process in world.replicas()}
    assert sorted(alive.values()) == known
    assert len(known) == 2
    assert sorted(world.hosts()) == sorted(int(one["id"].rpartition(":")[2]) for one in pool["replicas"])
    started = {start.pid for start in world.starts()}
    assert alive.keys() <= started


def launched_once(world: RealWorld, records: list[Record]) -> None:
    """By the replicas' own word: each machine of each token was started once, and each start was ordered."""
    starts = Counter(start.instance for start in world.starts())
    assert max(starts.values()) == 1, starts.most_common(3)
    assert len(world.stats()) == len(starts)
    ordered = {
        f"demo-{action.token}-{index}"
        for record in records
        for action in record.decision.plan
        if isinstance(action, Launch)
        for index in range(action.count)
    }
    assert starts.keys() <= ordered
    print(f"started {len(starts)}, ordered {len(ordered)}")
    assert len(starts) >= 5


def memory_went_on(records: list[Record], killed_at: list[float]) -> None:
    """What each daemon saved is what the next one began with; its clocks too, unless it was away for long."""
    pairs = list(pairwise(records))
    assert len(pairs) > KILLS
    carried = lost = 0
    for before, after in pairs:
        saved, now = before.decision.memory, after.decision.memory
        assert after.sequence == before.sequence + 1
        assert after.memory_before == saved
        restarted = any(before.at < at < after.at for at in killed_at)
        if after.at - before.at <= 3 * TICK_S:
            assert now.history_since == saved.history_since
            carried += restarted
        else:
            assert now.history_since == after.at
            lost += restarted
        for name in ("last_out_at", "last_in_at"):
            was, then = getattr(saved, name), getattr(now, name)
            assert then in {was, after.at}, name
    ins = list(dict.fromkeys(one.decision.memory.last_in_at for one in records if one.decision.memory.last_in_at))
    outs = list(dict.fromkeys(one.decision.memory.last_out_at for one in records if one.decision.memory.last_out_at))
    print(f"clocks carried on over {carried} restarts, begun anew over {lost}; {len(outs)} out, {len(ins)} in")
    assert carried >= 3
    assert len(outs) >= 2
    assert len(ins) >= 2
    spans = [later - earlier for earlier, later in pairwise(ins)]
    assert min(spans) >= COOLDOWN_IN_S
    crossed = [1 for earlier, later in pairwise(ins) if any(earlier < at < later for at in killed_at)]
    assert crossed, "no cooldown of a scale-in was ever crossed by a kill"
