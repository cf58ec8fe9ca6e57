"""A model that never loads costs ever rarer trials and says so; one that loads gets no request, whatever it says."""

import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from autoscaler.domain.decision import Launch, Record, Terminate
from autoscaler.domain.lifecycle import Phase
from tests.support.real_world import POOL, RealWorld, Shape, real_world, steady

pytestmark = pytest.mark.e2e

GIVE_UP_S, BACKOFF_S, BREAKER_S = 3.0, 3.0, 15.0
#: Machines after which the breaker trips.
TRIES = 3


def never(looks: str) -> Shape:
    return Shape(
        server=["--fail", "never-load", "--while-loading", looks],
        policies=[{"kind": "fixed", "size": 1}],
        ready={"give_up_after": f"{GIVE_UP_S:g}s"},
        pace={"backoff_first": f"{BACKOFF_S:g}s", "backoff_max": f"{BREAKER_S:g}s", "breaker_after": TRIES},
    )


def explained(world: RealWorld) -> str:
    command = [*world.here.daemon_command[:-3], "explain", POOL, "--config", str(world.here.config)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.timeout(150)
def test_a_model_that_never_loads_is_tried_ever_more_rarely(tmp_path: Path) -> None:
    """Once refusing, as vLLM does while it loads, and once claiming to be fine, at the same time."""
    folders = [tmp_path / looks for looks in ("refuse", "lie")]
    for folder in folders:
        folder.mkdir()
    with real_world(folders[0], never("refuse")) as refuses, real_world(folders[1], never("lie")) as lies:
        worlds = [refuses, lies]
        daemons = [world.daemon() for world in worlds]
        told = [explained_at_the_breaker(world) for world in worlds]
        for world in worlds:
            until_starts(world, TRIES + 1)
        for daemon in daemons:
            assert daemon.stop(20.0) == 0
        for world in worlds:
            tried_ever_more_rarely(world)
            assert world.hosts() == {}
            assert f"breaker open: {TRIES} machines in a row" in explained(world)  # from the ledger
    for words, why in zip(told, ("GET /health: connection refused", "POST /v1/completions: HTTP 503"), strict=True):
        cause = f"no model loaded within {GIVE_UP_S:g} s: {why}"
        assert f"breaker open: {TRIES} machines in a row never got ready ({cause}" in words, words
        assert f"breaker open after {TRIES} failed loads, none worked; one trial in" in words, words


def until_starts(world: RealWorld, count: int) -> None:
    world.until(lambda: len(world.starts()) >= count, 60.0, f"{count} machines were started")


def explained_at_the_breaker(world: RealWorld) -> str:
    """What `explain` says while the breaker holds the next trial back."""
    world.until(lambda: "breaker open after" in (world.pool() or {}).get("sentence", ""), 60.0, "the breaker trips")
    return explained(world)


def tried_ever_more_rarely(world: RealWorld) -> None:
    at = [start.at for start in world.starts()]
    gaps = [later - earlier for earlier, later in pairwise(at)]
    print(f"started after {', '.join(f'{gap:.1f} s' for gap in gaps)}")
    waits = [GIVE_UP_S + BACKOFF_S, GIVE_UP_S + 2 * BACKOFF_S, GIVE_UP_S + BREAKER_S]
    assert all(gap > wait - 0.5 for gap, wait in zip(gaps, waits, strict=False)), gaps
    assert all(later > earlier for earlier, later in pairwise(gaps)), gaps
    records = world.ledger()
    open_ticks = sum(launched_nothing_before_its_time(record) for record in records)
    assert open_ticks >= 5
    ends = {one.instance for record in records for one in record.decision.plan if isinstance(one, Terminate)}
    assert len(ends) == TRIES
    seen = {replica.phase for record in records for replica in record.decision.replicas}
    assert seen.isdisjoint({Phase.READY, Phase.IN_SERVICE})


def launched_nothing_before_its_time(record: Record) -> bool:
    """Whether the breaker was open and waiting in this tick; then nothing new may be launched."""
    breaker = record.memory_before.breakers.get("stand-in")
    if breaker is None or not breaker.tripped or record.at >= breaker.retry_at:
        return False
    assert not any(isinstance(action, Launch) for action in record.decision.plan), record.decision.sentence
    return True


@pytest.mark.timeout(90)
@pytest.mark.parametrize("looks", ["refuse", "503", "lie"])
def test_a_replica_that_loads_gets_no_request(looks: str, tmp_path: Path) -> None:
    shape = Shape(high=3, load_s=3.0, server=["--while-loading", looks])
    with real_world(tmp_path, shape) as world:
        world.daemon()
        world.until_serving(1)
        load = world.load(steady(8.0, 60.0))  # about 12 inside, and one replica is to have 4
        grown_s = world.until_serving(3, 45.0)
        load.stop(5.0)
        counts, proxy = world.stats(), world.envoy()
        outcomes = Counter(record.outcome for record in world.records())
        loading = [
            record
            for record in world.ledger()
            if record.decision.capacity.in_service and Phase.LOADING in {one.phase for one in record.decision.replicas}
        ]
    print(
        f"{looks}: grown in {grown_s:.1f} s, {len(loading)} ticks with one loading beside one that serves, {outcomes}"
    )
    assert len(loading) >= 2
    assert set(outcomes) <= {"ok", "stopped"}
    assert outcomes["ok"] >= 10
    assert len(counts) == 3
    assert all(one.received > 0 and one.received_before_ready == one.refused == 0 for one in counts)
    assert proxy.connect_failed == proxy.answered_5xx == proxy.retried == 0
