"""Copies of the ledger: what belongs with it and is not in it is told, by name."""

import json
from typing import Any

HOSTS = {
    "compute": "static_hosts",
    "hosts": [{"name": "gpu-1", "address": "127.0.0.11", "ports": [8000]}],
    "start": ["/bin/true"],
    "stop": ["/bin/true"],
}


def test_a_backup_and_a_restore_name_the_file_in_which_hosts_are_claimed(shop: Any) -> None:
    shop.write(shop.pool(offers=[HOSTS]))
    assert shop("pause", "llama").code == 0  # there is a ledger now
    claims = shop.folder / "state" / "static_hosts" / "state.json"
    assert json.loads(shop("ledger", "backup", "none.db", "--json").out)["not_in_it"] == [], "nothing is claimed yet"
    claims.parent.mkdir()
    claims.write_text("{}")
    done = shop("ledger", "backup", "copy.db")
    assert done.code == 0
    assert done.err == f"not in it: {claims}, which belongs with it: copy it too\n"
    assert json.loads(shop("ledger", "backup", "again.db", "--json").out)["not_in_it"] == [str(claims)]
    claims.unlink()  # as on a new machine
    done = shop("ledger", "restore", "copy.db")
    assert done.code == 0
    assert done.err == f"not in it: {claims}, which belongs with it: put its own copy back too\n"
    assert json.loads(shop("ledger", "restore", "again.db", "--json").out)["not_in_it"] == [str(claims)]


def test_pools_without_such_a_file_have_nothing_to_tell(shop: Any) -> None:
    shop.write()
    assert shop("pause", "llama").code == 0
    for command in ("backup", "restore"):
        done = shop("ledger", command, "copy.db")
        assert (done.code, done.err) == (0, "")
