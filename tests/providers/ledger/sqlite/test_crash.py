"""A writer that is killed at any moment leaves memory and its record agreeing, and nothing lost that was answered."""

import asyncio
import os
import random
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from autoscaler.domain.base import PoolName
from autoscaler.ports.ledger import Ledger
from providers.ledger.sqlite import Settings

Opener = Callable[..., Ledger]
ROOT = Path(__file__).parents[4]
KILLS = 10
POOLS = [PoolName(f"pool-{number}") for number in range(5)]
WRITER = """
import asyncio, sys
from autoscaler.ports.build import Context
from providers.ledger import sqlite
from tests.support.ledger import HandClock, a_memory, a_record

async def run(ledger, pool):
    memory, version = await ledger.load(pool)
    while True:
        memory = a_memory(memory.sequence + 1, carry="x" * 3000)
        version = await ledger.save(pool, version, memory, a_record(memory, pool=pool))
        print(pool, version, flush=True)

async def main():
    context = Context(installation="test", state_dir="", clock=HandClock())
    ledger = sqlite.build(sqlite.Settings(url=sys.argv[1]), context)
    await asyncio.gather(*(run(ledger, pool) for pool in sys.argv[2:]))

asyncio.run(main())
"""


def kill_a_writer(url: str, after: float) -> dict[str, int]:
    """Start a writer, kill it `after` seconds past its first answer; the last version answered for each pool."""
    command = [sys.executable, "-c", WRITER, url, *POOLS]
    answered: dict[str, int] = {}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        timer = None
        for line in writer.stdout:
            if timer is None:
                timer = threading.Timer(after, writer.kill)
                timer.start()
            if line.endswith("\n"):
                pool, version = line.split()
                answered[pool] = int(version)
    return answered


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_memory_and_its_record_agree_after_each_kill(opened: Opener, settings: Settings) -> None:
    seed = int(os.environ.get("CRASH_SEED", secrets.randbits(32)))
    print(f"CRASH_SEED={seed}")
    moments = random.Random(seed)
    grown = 0
    for _ in range(KILLS):
        answered = await asyncio.to_thread(kill_a_writer, settings.url, moments.uniform(0.0, 0.12))
        ledger = opened()
        for pool in POOLS:
            memory, version = await ledger.load(pool)
            assert version >= answered.get(pool, 0)
            assert memory.sequence == version
            record = await ledger.record(pool)
            assert (record and record.decision.memory) == (memory if version else None)
            (short,) = await ledger.summaries(pool, record.at, 1) if record else [None]
            assert (short.sequence if short else 0) == version
            grown = max(grown, version)
        await ledger.aclose()
    assert grown >= KILLS  # the writers did write
