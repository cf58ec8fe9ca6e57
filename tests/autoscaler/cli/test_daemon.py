"""The daemon and the commands that speak with it, or with its ledger when it is gone."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

TOKEN = "hunter2-hunter2-hunter2"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def until(true: Callable[[], Any], shop: Any) -> Any:
    """Wait for something that will come; if it does not, the daemon's last words are told."""
    end = time.monotonic() + 60.0
    while not (found := true()):
        assert time.monotonic() < end, (shop.folder / "log").read_text()[-2000:]
        time.sleep(0.1)
    return found


def pools(shop: Any, **environment: str) -> list[dict[str, Any]]:
    done = shop("status", "--json", **environment)
    if done.code:
        return []
    found: dict[str, Any] = json.loads(done.out)
    return found["pools"] if found["live"] and found["pools"][0]["at"] else []


def stop(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(60)


def two_machines(shop: Any) -> dict[str, Any]:
    journal = str(shop.journal)
    offers = [{"compute": "acme", "region": "n", "ports": [8000], "machines": 2, "journal": journal}]
    pool: dict[str, Any] = shop.pool(offers=offers, capacity={"min": 2, "max": 4})
    return pool


def test_the_life_of_a_daemon(shop: Any, daemon: Any) -> None:
    shop.write(two_machines(shop), log={"level": "warning"})
    process = daemon(AUTOSCALER_ADMIN_TOKEN=TOKEN)
    (pool,) = until(lambda: pools(shop), shop)
    assert pool["name"] == "llama"

    text = shop("status")
    assert text.code == 0
    assert text.out.startswith("POOL ")
    assert text.err == ""
    explained = shop("explain", "llama")
    assert explained.code == 0
    assert "m0:8000" in explained.out
    assert "(min 2, max 4)" in explained.out

    done = shop("scale", "llama", "--at-least", "3", "--for", "2h", AUTOSCALER_ADMIN_TOKEN=TOKEN)
    assert "told to the daemon" in done.out
    until(lambda: "launch 1" in shop.told(), shop)
    done = shop("pause", "llama", "--direction", "in", "--json")  # no token here: the ledger's row is shared
    assert json.loads(done.out)["directives"]["pause"] == "in"
    until(lambda: "paused: in" in shop("explain").out, shop)
    wrong = shop("resume", "llama", AUTOSCALER_ADMIN_TOKEN=TOKEN[::-1])
    assert wrong.code == 3
    assert "token" in wrong.err
    assert TOKEN[::-1] not in wrong.err

    again = shop("run")
    assert again.code == 3
    assert f"held by process {process.pid}" in again.err
    done = shop("check", "--online")
    assert "ok: admin address: the daemon answers" in done.out

    assert shop("ledger", "backup", "copy.db").code == 0
    assert shop("ledger", "restore", "copy.db").code == 3, "a daemon holds it"
    assert stop(process) == 0
    assert TOKEN not in (shop.folder / "log").read_text()

    gone = shop("status")
    assert gone.code == 0
    assert "from the ledger" in gone.err
    assert shop("explain", "--json").code == 0
    assert shop("ledger", "restore", "copy.db").code == 0
    assert shop("ledger", "backup", "copy.db").code != 0, "a backup is never overwritten"


def test_directives_by_the_ledger_alone(shop: Any, daemon: Any) -> None:
    shop.write(two_machines(shop))
    process = daemon()
    until(lambda: pools(shop), shop)
    until(lambda: "m1:8000" in shop("explain").out, shop)
    assert stop(process) == 0
    known = shop("drain", "m9:8000")
    assert known.code == 2
    assert "did you mean" in known.err
    for command in (["drain", "m1:8000"], ["replace", "m0:8000"], ["protect", "m0:8000"], ["resume", "llama"]):
        assert shop(*command).code == 0, command
    done = json.loads(shop("scale", "llama", "--at-least", "3", "--json").out)
    directives = done["directives"]
    assert directives["drain"] == ["m1:8000"]
    assert directives["replace"] == ["m0:8000"]
    assert directives["protect"] == ["m0"]
    assert directives["at_least"]["units"] == 3
    done = json.loads(shop("protect", "m0", "--off", "--json").out)
    assert done["directives"]["protect"] == []
    assert json.loads(shop("scale", "llama", "--at-least", "0", "--json").out)["directives"]["at_least"] is None
    retired = shop("retire", "m0", "--yes")
    assert retired.code == 0
    assert "drains from llama (m0:8000)" in retired.out


def test_a_reload_takes_a_good_file_and_refuses_a_bad_one(shop: Any, daemon: Any) -> None:
    shop.write(two_machines(shop))
    process = daemon()
    until(lambda: pools(shop), shop)
    shop.write({**two_machines(shop), "capacity": {"min": 5, "max": 3}})
    process.send_signal(signal.SIGHUP)
    log = shop.folder / "log"
    until(lambda: "reload refused" in log.read_text(), shop)
    assert "which is more than max 3" in log.read_text()
    shop.write({**two_machines(shop), "capacity": {"min": 3, "max": 7}})
    process.send_signal(signal.SIGHUP)
    until(lambda: "max 7" in shop("explain").out, shop)
    assert stop(process) == 0


def test_adopt_and_retire_of_machines_that_no_pool_knows(shop: Any) -> None:
    journal = str(shop.journal)
    offers = [{"compute": "acme", "region": "n", "ports": [1], "foreign": 2, "machines": 1, "journal": journal}]
    shop.write(shop.pool(offers=offers))
    assert shop("adopt", "llama", "f0").code == 1, "nobody said yes"
    assert shop.told() == []
    assert shop("adopt", "llama", "f0", "--yes").code == 0
    assert shop("adopt", "llama", "m0", "-y").out == "m0: belongs to llama already\n"
    unknown = shop("adopt", "llama", "f7", "-y")
    assert unknown.code == 2
    assert "f0, f1" in unknown.err
    assert shop("retire", "f1", "-y").code == 2, "the pool of its tags must be named"
    assert shop("retire", "f1", "-y", "--tagged", "llama").code == 2
    wrong = shop("retire", "f1", "-y", "--tagged", "older")
    assert wrong.code == 3, "what a compute leaves alone is not told as ended"
    assert "f1 was left alone" in wrong.err
    assert shop("retire", "f1", "-y", "--tagged", "old").code == 0
    assert shop.told() == ["adopt llama f0", "terminate old f1"]


def test_a_file_that_was_broken_hides_no_daemon(shop: Any, daemon: Any) -> None:
    shop.write(two_machines(shop))
    process = daemon()
    until(lambda: pools(shop), shop)
    shop.write({**two_machines(shop), "capacity": {"min": 5, "max": 3}, "labels": {"team": "a"}})
    for command in (["status"], ["explain"], ["explain", "llama"]):
        text = shop(*command)
        assert text.code == 0, text
        assert "the config file is refused: pools[0].capacity.min: found 5" in text.err
        assert "llama" in text.out
        found = json.loads(shop(*command, "--json").out)
        assert found["live"] is True
        assert found["config_mistakes"][0].startswith("pools[0].capacity.min")
    wrong = shop("explain", "llamas")
    assert wrong.code == 2
    assert "allowed: llama" in wrong.err
    assert stop(process) == 0
    gone = shop("status")
    assert gone.code == 2
    assert "capacity.min" in gone.err
