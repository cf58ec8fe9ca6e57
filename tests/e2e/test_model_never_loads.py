"""A model that never loads costs ever rarer trials and says so; one that loads gets no request, whatever it says."""

import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from autoscaler.domain.decision import Launch, Record, Terminate
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import Breaker
from tests.support.real_world import (
    AROUND,
    POOL,
    RealWorld,
    Shape,
    in_both_worlds,
    real_world,
    steady,
)

pytestmark = pytest.mark.e2e

GIVE_UP_S, BACKOFF_S, BREAKER_S = 3.0, 3.0, 15.0
#: Machines after which the breaker trips.
TRIES = 3


def never(looks: str, around: str) -> Shape:
    return Shape(
        **AROUND[around],
        server=["--fail", "never-load", "--while-loading", looks],
        policies=[{"kind": "fixed", "size": 1}],
        ready={"give_up_after": f"{GIVE_UP_S:g}s"},
        pace={"backoff_first": f"{BACKOFF_S:g}s", "backoff_max": f"{BREAKER_S:g}s", "breaker_after": TRIES},
    )


def explained(world: RealWorld) -> str:
    command = [*world.here.daemon_command[:-3], "explain", POOL, "--config", str(world.here.config)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.timeout(150)
@in_both_worlds
def test_a_model_that_never_loads_is_tried_ever_more_rarely(around: str, tmp_path: Path) -> None:
    """Once refusing, as vLLM does while it loads, and once claiming to be fine, at the same time."""
    looks = ("refuse", "lie")
    folders = [tmp_path / look for look in looks]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(len(looks)) as both:
        told = list(both.map(tried, folders, [never(look, around) for look in looks]))
    for words, why in zip(told, ("GET /health: connection refused", "POST /v1/completions: HTTP 503"), strict=True):
        cause = f"no model loaded within {GIVE_UP_S:g} s: {why}"
        assert f"breaker open: {TRIES} machines in a row never got ready ({cause}" in words, words
        assert f"breaker open after {TRIES} failed loads, none worked; one trial in" in words, words


def tried(folder: Path, shape: Shape) -> str:
    """Play until one more machine is tried than trips the breaker; what `explain` says while it holds that back."""
    with real_world(folder, shape) as world:
        daemon = world.daemon()
        world.until(lambda: "breaker open after" in (world.pool() or {}).get("sentence", ""), 60.0, "the breaker trips")
        words = explained(world)
        world.until(lambda: len(world.starts()) > TRIES, 60.0, f"{TRIES + 1} machines were started")
        assert daemon.stop(20.0) == 0
        tried_ever_more_rarely(world)
        assert world.hosts() == {}
        assert f"breaker open: {TRIES} machines in a row" in explained(world)  # from the ledger
    return words


def tried_ever_more_rarely(world: RealWorld) -> None:
    """By the daemon's clock to the moment; by the replicas' own word none was started but those that it decided on."""
    records, starts = world.ledger(), world.starts()
    launched = [one.at for one in records for action in one.decision.plan if isinstance(action, Launch)]
    gaps = [later - earlier for earlier, later in pairwise(launched)]
    print(f"launched after {', '.join(f'{gap:.1f} s' for gap in gaps)}")
    assert len(launched) == len(starts) == TRIES + 1
    assert all(start.at >= at for start, at in zip(starts, launched, strict=True))
    waits = [BACKOFF_S, 2 * BACKOFF_S, BREAKER_S]
    assert decided_waits(records)[:TRIES] == pytest.approx(waits)
    assert all(gap >= GIVE_UP_S + wait for gap, wait in zip(gaps, waits, strict=True)), gaps
    open_ticks = sum(launched_nothing_before_its_time(record) for record in records)
    assert open_ticks >= 5
    ends = {one.instance for record in records for one in record.decision.plan if isinstance(one, Terminate)}
    # A slow machine may see the last one fail too before the daemon has stopped.
    assert ends - {starts[TRIES].instance} == {start.instance for start in starts[:TRIES]}
    seen = {replica.phase for record in records for replica in record.decision.replicas}
    assert seen.isdisjoint({Phase.READY, Phase.IN_SERVICE})


def decided_waits(records: list[Record]) -> list[float]:
    """After each machine that failed: how long the daemon decided to try none, in seconds."""
    waits = []
    for record in records:
        before = record.memory_before.breakers.get("stand-in", Breaker())
        after = record.decision.memory.breakers.get("stand-in", Breaker())
        if after.failures > before.failures:
            waits.append(after.retry_at - record.at)
    return waits


def launched_nothing_before_its_time(record: Record) -> bool:
    """Whether the breaker was open and waiting in this tick; then nothing new may be launched."""
    breaker = record.memory_before.breakers.get("stand-in")
    if breaker is None or not breaker.tripped or record.at >= breaker.retry_at:
        return False
    assert not any(isinstance(action, Launch) for action in record.decision.plan), record.decision.sentence
    return True


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("looks", "around"),
    [(looks, "envoy+scrape") for looks in ("refuse", "503", "lie")]
    + [pytest.param("lie", "haproxy+prometheus", marks=pytest.mark.slow)],
)
def test_a_replica_that_loads_gets_no_request(looks: str, around: str, tmp_path: Path) -> None:
    shape = Shape(high=3, load_s=5.0, server=["--while-loading", looks], **AROUND[around])
    with real_world(tmp_path, shape) as world:
        world.daemon()
        world.until_serving(1)
        load = world.load(steady(8.0, 60.0))  # about 12 inside, and one replica is to have 4
        grown_s = world.until_serving(3, 45.0)
        world.until(lambda: all(host.active for host in world.hosts().values()), 20.0, "each has a request")
        load.stop(5.0)
        counts, proxy = world.stats(), world.proxied()
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
    assert proxy == (0, 0, 0)
