"""The admin API against its own description: every default check of schemathesis, over real sockets.

A tool of its own process does the asking, so that what it imports and warns of is not this suite's affair.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from autoscaler.runtime.api import Api, ApiSettings
from autoscaler.runtime.loop import PoolLoop
from tests.support.memory_ledger import MemoryLedger
from tests.support.pool_world import PoolWorld, a_pool, services
from tests.support.virtual_time import VirtualClock

TOKEN = "a-token-for-tests"
#: Cases for each operation and phase: all of it takes some 20 s.
EXAMPLES = 8


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_the_api_does_what_it_says_of_itself(tmp_path: Path) -> None:
    clock = VirtualClock()
    world, ledger = PoolWorld(clock, a_pool("chat")), MemoryLedger()  # the description's own example of a name
    shared = services(clock, ledger)
    loop = PoolLoop(world.parts(), shared)
    api = Api(ApiSettings(port=0, token=TOKEN), {world.name: loop}, shared)
    base = f"http://127.0.0.1:{api.bind()}"
    api.start()
    try:
        await loop.tick()
        asked = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{base}/openapi.json"),
            *("--header", f"Authorization: Bearer {TOKEN}", "--max-examples", str(EXAMPLES)),
            *("--seed", "1", "--no-color", "--continue-on-failure", "--warnings", "off"),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await asked.communicate()
    finally:
        await api.close()
    text = said.decode(errors="replace")
    assert asked.returncode == 0, text
    assert ledger.said_by, "no directive came through: the checks saw refusals only"
