"""`autoscaler replay` over what a real daemon has recorded, and what it says of a difference."""

import json
import time
from typing import Any

import msgspec
import pytest
import yaml

from autoscaler.domain.base import PoolName
from autoscaler.domain.decision import Reason
from autoscaler.lab.replay import _changes
from tests.autoscaler.cli.test_daemon import pools, stop, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def replayed(shop: Any, *arguments: str) -> tuple[int, dict[str, Any]]:
    ran = shop("replay", "--json", *arguments)
    return ran.code, json.loads(ran.out)


def test_what_a_daemon_decided_is_decided_again(shop: Any, daemon: Any) -> None:
    path = shop.write(shop.pool(capacity={"min": 1, "max": 4}), log={"level": "warning"})
    process = daemon()
    until(lambda: pools(shop), shop)
    time.sleep(3.0)  # some fifteen ticks
    assert stop(process) == 0
    before = sorted((one.name, one.stat().st_mtime_ns) for one in (shop.folder / "state").iterdir())

    code, same = replayed(shop)
    assert (code, same["changed"], same["config_changed_since"]) == (0, 0, False)
    assert same["records"] >= 5
    assert shop("replay").out.endswith(")\n")
    assert "0 of " in shop("replay").out

    (shop.folder / "mine.yaml").write_text(yaml.safe_dump({"policies": [{"kind": "fixed", "size": 3}]}))
    code, other = replayed(shop, "--policies", "mine.yaml")
    assert code == 0  # a difference that was asked for is no failure
    assert other["changed"] == other["records"]
    last = other["decisions"][-1]
    assert any(line.startswith("0:fixed: not asked -> 3") for line in last["changes"])
    assert any(line.startswith("wanted: ") for line in last["changes"])
    shown = shop("replay", "--policies", "mine.yaml").out
    assert "0:fixed: not asked -> 3 (fixed at 3)" in shown
    assert "decisions change" in shown.splitlines()[-1]

    config = yaml.safe_load(path.read_text())
    config["pools"][0]["capacity"]["min"] = 2
    (shop.folder / "edited.yaml").write_text(yaml.safe_dump(config))
    code, edited = replayed(shop, "--against", "edited.yaml", "--since", "1s")
    assert code == 0
    assert 0 < edited["records"] <= same["records"]
    assert any(line.startswith("target: 1") for line in edited["decisions"][-1]["changes"])

    path.write_text((shop.folder / "edited.yaml").read_text())
    code, changed = replayed(shop)
    assert (code, changed["config_changed_since"]) == (1, True)
    assert sorted((one.name, one.stat().st_mtime_ns) for one in (shop.folder / "state").iterdir()) == before


def test_a_ledger_without_records(shop: Any) -> None:
    shop.write()
    ran = shop("replay")
    assert (ran.code, ran.out) == (3, "")
    assert "no full record of llama" in ran.err
    assert not (shop.folder / "state").exists()


def test_first_things_first(shop: Any, daemon: Any) -> None:
    shop.write(log={"level": "warning"})
    process = daemon()
    until(lambda: pools(shop), shop)
    stop(process)
    import asyncio

    from autoscaler import wiring
    from autoscaler.cli.options import loaded
    from autoscaler.runtime.clock import SystemClock

    async def newest() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(shop.site)
            patch.chdir(shop.folder)
            from autoscaler.config import modules

            modules._entries.cache_clear()
            ledger = wiring.build_ledger(loaded(shop.folder / "autoscaler.yaml"), SystemClock(), read_only=True)
        try:
            return await ledger.record(PoolName("llama"))
        finally:
            await ledger.aclose()
            modules._entries.cache_clear()

    decision = asyncio.run(newest()).decision
    assert list(_changes(decision, decision)) == []
    moved = msgspec.structs.replace(
        decision, wanted=9, target=9, blocks=(*decision.blocks, Reason(code="fixed", facts={"size": 9})), plan=()
    )
    assert [line.partition(":")[0] for line in _changes(decision, moved)][:3] == ["wanted", "target", "blocks"]
    forgot = msgspec.structs.replace(decision, memory=msgspec.structs.replace(decision.memory, cut_total=5))
    assert list(_changes(decision, forgot)) == ["only what it remembers for the next tick"]
    assert list(_changes(decision, msgspec.structs.replace(decision, sentence="x"))) == ["only its words or numbers"]
