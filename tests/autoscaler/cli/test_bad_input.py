"""Bad configs and a world that cannot be used: a line and an exit code, never a traceback, nothing left behind."""

import json
import os
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

READING = [["check"], ["plan"], ["status"], ["explain"], ["run"], ["pause", "llama"], ["ledger", "backup", "x.db"]]
SECRET = "hunter2-hunter2-hunter2"


@pytest.mark.parametrize("command", READING, ids=lambda command: command[0])
def test_every_command_tells_all_mistakes(shop: Any, command: list[str]) -> None:
    shop.write(shop.pool(capacity={"min": 5, "max": 3}, mode="x"), admin={"listen": "x", "token": SECRET})
    done = shop.process(*command) if command[0] in {"check", "run"} else shop(*command)
    assert done.code == 2
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("error: ") for line in lines)
    assert "error: pools[0].capacity.min: found 5, which is more than max 3; allowed: 0 to 3" in lines
    assert SECRET not in done.err
    assert not (shop.folder / "state").exists()


def test_check_as_json_tells_them_too(shop: Any) -> None:
    import json

    shop.write(shop.pool(mode="x"), admin={"token": SECRET})
    done = shop("check", "--json")
    assert done.code == 2
    assert len(json.loads(done.out)["mistakes"]) == 2
    assert SECRET not in done.out + done.err


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\xff\xfe", "not UTF-8"), (b"a: 1\na: 2", "twice"), (b"- a", "a list"), (b"", "nothing"), (b"\ta: 1", "tab")],
)
def test_a_file_that_is_no_config(shop: Any, content: bytes, said: str) -> None:
    (shop.folder / "autoscaler.yaml").write_bytes(content)
    done = shop("check")
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_a_file_that_cannot_be_read(shop: Any) -> None:
    assert shop("check").code == 2
    assert shop("check", "--config", str(shop.folder)).code == 2
    path = shop.write()
    path.chmod(0o666)
    assert "everyone may write" in shop("run").err
    path.chmod(0)
    if os.geteuid() != 0:  # root reads everything
        assert "Permission denied" in shop("check").err


def test_the_port_is_in_use(shop: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        shop.write(admin={"listen": f"127.0.0.1:{port}"})
        done = shop.process("run")
    assert done.code == 3
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert str(port) in line
    assert shop.told() == []


def make_ledger(shop: Any) -> Path:
    """A ledger with a row in it."""
    shop.write()
    assert shop("pause", "llama").code == 0
    return Path(shop.folder / "state" / "autoscaler.db")


def test_a_ledger_of_a_newer_schema(shop: Any) -> None:
    file = make_ledger(shop)
    with sqlite3.connect(file) as raw:
        raw.execute("UPDATE meta SET schema = 999")
    raw.close()
    before = file.read_bytes()
    for command in READING[1:6]:
        done = shop(*command)
        assert done.code == 3, command
        assert [line for line in done.err.splitlines() if line.startswith("error: ")], done.err
    done = shop.process("run")
    assert (done.code, "schema" in done.err) == (3, True)
    assert file.read_bytes() == before


def test_a_ledger_that_is_no_database(shop: Any) -> None:
    file = make_ledger(shop)
    for left in file.parent.glob("autoscaler.db-*"):
        left.unlink()
    file.write_bytes(b"no database" * 1000)
    done = shop("run")
    assert done.code == 3
    assert "error: ledger" in done.err


def test_a_ledger_that_another_daemon_holds(shop: Any) -> None:
    shop.write()
    (shop.folder / "state").mkdir()
    hold = (
        "from providers.ledger import sqlite; import sys\n"
        f"held = sqlite.hold(sqlite.Settings(url='sqlite:///{shop.folder}/state/autoscaler.db'))\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    import subprocess
    import sys

    with subprocess.Popen(
        [sys.executable, "-c", hold], env=shop.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        if holder.stdout is None or holder.stdin is None:
            pytest.fail("no pipes")
        assert holder.stdout.readline() == "held\n"
        done = shop("run")
        holder.stdin.close()
    assert done.code == 3
    assert f"held by process {holder.pid}" in done.err


def test_a_state_folder_that_cannot_be_made(shop: Any) -> None:
    (shop.folder / "state").write_text("a file")
    shop.write()
    done = shop("run")
    assert done.code == 2
    assert "state_dir" in done.err


def test_a_kind_that_cannot_be_built(shop: Any) -> None:
    shop.write(
        shop.pool(offers=[{"compute": "acme", "region": "n", "image": "unbuildable"}]),
        shop.pool("other", balancers=[{"kind": "acme", "target": "t", "strategy": "guess"}]),
    )
    done = shop("check")
    assert done.code == 2
    first, second = done.err.splitlines()
    assert first == "error: pools[0].offers[0]: acme cannot be built: no such image; allowed: see its settings"
    assert second.startswith("error: pools[1].balancers[0].strategy: found 'guess', which acme lacks; allowed: round_")


def test_control_characters_do_not_reach_the_terminal(shop: Any) -> None:
    shop.write(
        shop.pool(offers=[{"compute": "acme", "region": "n", "ports": [1], "image": "old"}], labels={"\x1b[31m": 3})
    )
    done = shop("check")
    assert done.code == 2
    assert "\x1b" not in done.err + done.out


def test_an_error_is_a_document_where_one_was_asked_for(shop: Any) -> None:
    shop.write(shop.pool(capacity={"min": 5, "max": 3}))
    for command in (["plan"], ["status"], ["explain"], ["drain", "m:1"], ["scale", "llama", "--at-least", "1"]):
        done = shop(*command, "--json")
        assert done.code == 2
        told = json.loads(done.out)
        assert told["exit_code"] == 2
        assert told["errors"] == [line.removeprefix("error: ") for line in done.err.splitlines()]
        assert told["error"].startswith("pools[0].capacity.min: found 5")
    shop.write()
    unknown = shop("status", "--json")
    assert unknown.code == 3
    assert "no daemon answers" in json.loads(unknown.out)["error"]
    assert shop("status").out == ""


def test_plan_tells_what_is_wrong_with_an_offer(shop: Any) -> None:
    offers = [{"compute": "local_process", "command": ["/nowhere/server", "{port}"]}]
    shop.write(shop.pool(offers=offers))
    text = shop("plan", "--window", "0s")
    assert text.code == 0
    assert "command '/nowhere/server': it is not there" in text.out
    (planned,) = json.loads(shop("plan", "--window", "0s", "--json").out)
    assert "is not there" in planned["offers"][0]
    launches = [action for action in planned["plan"] if action["type"] == "launch"]
    assert launches
    assert all("request" not in action for action in launches), "commands and their environment are not shown"
