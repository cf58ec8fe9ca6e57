"""A real PostgreSQL server (Debian's) on a Unix socket of its own, started as a user that is not root.

Does: make a cluster in a folder, start it, give its address, end it. Does not: judge.
Invariant: nothing of it runs after its `with` has ended; it listens on no port of the network.
"""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest


def _binary(name: str) -> str:
    """Debian keeps them by version; without it the test is skipped, which in CI is a failure."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    found = str(places[0]) if places else shutil.which(name)
    if found is None:
        pytest.skip("postgresql is not installed: make debian")
    return found


@contextlib.contextmanager
def a_postgres() -> Iterator[str]:
    """The address of an empty database of a server that runs for as long as the `with`."""
    initdb, pg_ctl = _binary("initdb"), _binary("pg_ctl")
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # a socket's path must be short
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    other = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    if other:
        os.chown(folder, user.pw_uid, user.pw_gid)
    data = folder / "data"
    options = f"-k {folder} -c listen_addresses= -c fsync=off"

    def run(*command: str) -> None:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
            **other,  # type: ignore[call-overload]
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        run(initdb, "-D", str(data), "-U", "lab", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
        run(pg_ctl, "-D", str(data), "-w", "-t", "50", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://lab@/postgres?host={quote(str(folder))}"
        finally:
            run(pg_ctl, "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
