"""plan, check, status, explain: they show, and change nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

LOOKING = [["plan", "--window", "0.3s"], ["check"], ["check", "--online"], ["status"], ["explain"]]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "site" not in path.parts and path.name != "journal"
    }


def test_plan_says_what_it_would_do_and_does_nothing(shop: Any) -> None:
    shop.write(shop.pool(capacity={"min": 3, "max": 9}), shop.pool("other", mode="advise"))
    before = files(shop.folder)
    done = shop("plan", "--window", "0.3s", "--json")
    assert done.code == 0, done.err
    first, second = json.loads(done.out)
    assert (first["pool"], second["pool"]) == ("llama", "other")
    assert first["target"] == 3
    assert [action["type"] for action in first["plan"]] == ["launch"]
    assert "would do" in first["sentence"]
    assert shop.told() == []
    assert files(shop.folder) == before
    text = shop("plan", "--window", "0.3s", "--pool", "llama")
    assert "llama: " in text.out
    assert "launch" in text.out
    assert "other" not in text.out


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_looking_leaves_no_trace(shop: Any, command: list[str]) -> None:
    shop.write()
    before = files(shop.folder)
    shop(*command)
    shop(*command, "--json")
    assert files(shop.folder) == before
    assert shop.told() == []


def test_plan_tells_what_it_could_not_read(shop: Any) -> None:
    shop.write(shop.pool(offers=[{"compute": "acme", "region": "n", "ports": [1], "down": True}]))
    done = shop("plan", "--window", "0.3s", "--json")
    assert done.code == 0
    (pool,) = json.loads(done.out)
    assert pool["faults"] == ["compute:acme:n: acme does not answer"]
    assert pool["plan"] == []


def test_check_is_1_for_an_error_and_for_a_warning_only_when_strict(shop: Any) -> None:
    shop.write(shop.pool(capacity={"min": 0, "max": 3}))
    assert shop("check").code == 0
    done = shop("check", "--strict")
    assert done.code == 1
    assert "warning: pools[0].capacity.min: " in done.out
    shop.write(shop.pool(offers=[{"compute": "acme", "region": "n", "ports": [1], "image": "old"}]))
    done = shop("check", "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert found["ok"] is False
    assert {"severity": "error", "path": "pools[0].offers[0]", "what": "the image is old"}.items() <= next(
        each for each in found["findings"] if each["severity"] == "error"
    ).items()


def test_check_online_reaches_everything(shop: Any) -> None:
    shop.write()
    done = shop("check", "--online", "--json")
    assert done.code == 0, done.out
    reached = json.loads(done.out)["reached"]
    assert [each["what"] for each in reached] == [
        "ledger", "admin address", "llama compute acme:north", "llama balancer acme", "llama telemetry",
    ]  # fmt: skip
    shop.write(shop.pool(offers=[{"compute": "acme", "region": "n", "ports": [1], "down": True}]))
    done = shop("check", "--online")
    assert done.code == 3
    assert "failed: llama compute acme:n: acme does not answer" in done.out
    assert "ok: ledger: " in done.out


def test_nothing_is_known(shop: Any) -> None:
    shop.write()
    for command in ("status", "explain"):
        done = shop(command)
        assert done.code == 3
        assert f"no daemon answers at http://127.0.0.1:{shop.port}" in done.err
        assert "no record of llama" in done.err
