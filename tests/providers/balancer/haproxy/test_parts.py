"""HAProxy's names, settings, servers file and answers: what is read back, and what is refused in words."""

import asyncio
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.domain.base import Duration, ReplicaId
from autoscaler.domain.faults import Refused, Unreachable
from providers.balancer import haproxy
from providers.balancer.haproxy import Settings, kept, reading
from providers.balancer.haproxy.kept import Line
from providers.balancer.haproxy.names import Names
from providers.balancer.haproxy.runtime import NoSocket, NotAnswering, Runtime
from tests.support.streaming import free_ports

# --- names ---

TEXTS = st.text(min_size=1, max_size=20)


@given(installation=TEXTS, pool=TEXTS, replica=TEXTS)
def test_a_name_is_read_back_and_holds_only_what_haproxy_takes(installation: str, pool: str, replica: str) -> None:
    names = Names.of(installation, pool)
    server = names.server(ReplicaId(replica))
    assert names.replica(server) == replica
    assert all(one.isascii() and (one.isalnum() or one in "-_.:") for one in server)


@given(one=st.tuples(TEXTS, TEXTS), other=st.tuples(TEXTS, TEXTS), replica=TEXTS)
def test_no_name_is_two_pools(one: tuple[str, str], other: tuple[str, str], replica: str) -> None:
    found = Names.of(*other).replica(Names.of(*one).server(ReplicaId(replica)))
    assert (found is None) == (one != other)


@pytest.mark.parametrize(
    "server",
    [
        "gpu1",
        "autoscaler",
        "autoscaler.t.p",
        "autoscaler.t.p.",
        "autoscaler.t.p.a.b",
        "autoscaler.t.p.a_2",
        "xautoscaler.t.p.a",
    ],
)
def test_what_we_did_not_name_is_nobodys(server: str) -> None:
    assert Names.of("t", "p").replica(server) is None


# --- settings ---


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"socket": "admin.sock"},
            "socket: found 'admin.sock', allowed: an absolute path like /run/haproxy/admin.sock",
        ),
        ({"socket": "127.0.0.1:9999", "embedded": True}, "allowed with embedded: true: a path"),
        ({"backend": "a b"}, "backend: found 'a b'"),
        ({"backend": "a;shutdown"}, "backend: found 'a;shutdown'"),
        ({"server_options": "check; del server x"}, "server_options: found 'check;'"),
        ({"server_options": "check weight 5"}, "server_options: found 'weight'"),
        ({"server_options": "cookie a"}, "server_options: found 'cookie'"),
        ({"unit_weight": 0}, "unit_weight: found 0, allowed: 1 to 256"),
        ({"timeout": 0.0}, "more than 0 s"),
        ({"strategy": "random"}, "random"),
        ({"hash_header": "x"}, "hash_header: has no effect with strategy least_connections"),
        ({"hash_header": "x) y", "strategy": "source_hash"}, "allowed: the name of a header"),
        ({"servers_file": "pools/p.cfg"}, "servers_file: found 'pools/p.cfg', allowed: an absolute path"),
        ({"servers_file": "/p.cfg", "embedded": True}, "servers_file: has no effect with embedded: true"),
        ({"listen": "localhost:80"}, "listen: found 'localhost:80', allowed: IP address and port"),
        ({"threads": 0}, "threads: found 0"),
        ({"lisen": "127.0.0.1:80"}, "lisen"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(change, Settings)
    assert told in str(error.value)


def test_two_bindings_may_not_fill_the_same_backend() -> None:
    one, other = Settings(backend="a"), Settings(backend="a", strategy="round_robin", unit_weight=1)
    assert haproxy.target(one) == haproxy.target(other) == "/run/haproxy/admin.sock backend a"
    assert haproxy.target(one) != haproxy.target(Settings(backend="b"))


# --- the servers file ---

FILE = "backend b\n  # autoscaler begin o\n  # autoscaler end o\nlisten x\n  # t\u00e4st\n"


def test_only_what_is_between_the_marks_changes(tmp_path: Path) -> None:
    path = tmp_path / "p.cfg"
    path.write_text(FILE)
    path.chmod(0o604)
    lines = {
        "autoscaler.t.p.b": Line(host="::1", port=2, weight=7),
        "autoscaler.t.p.a": Line(host="127.0.0.1", port=1, weight=16),
    }
    kept.change(path, "o", "check inter 1s", lines)
    assert path.read_text() == FILE.replace(
        "begin o\n",
        "begin o\n    server autoscaler.t.p.a 127.0.0.1:1 weight 16 check inter 1s\n"
        "    server autoscaler.t.p.b [::1]:2 weight 7 check inter 1s\n",
    )
    assert kept.read(path, "o") == lines
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    kept.change(path, "o", "", {})
    assert path.read_text() == FILE
    assert sorted(one.name for one in tmp_path.iterdir()) == [".p.cfg.autoscaler.lock", "p.cfg"]


def test_what_is_the_same_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "p.cfg"
    path.write_text(FILE)
    before = path.stat()
    kept.change(path, "o", "", {})
    assert path.stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    "text",
    [
        "backend b\n",
        "# autoscaler begin o\n",
        "# autoscaler end o\n# autoscaler begin o\n",
        FILE + FILE,
        FILE.replace("begin o", "begin other"),
    ],
)
def test_a_file_without_the_two_marks_is_refused_and_kept(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.cfg"
    path.write_text(text)
    with pytest.raises(
        Refused, match=r"p\.cfg needs the lines '# autoscaler begin o' and '# autoscaler end o' once each"
    ):
        kept.change(path, "o", "", {})
    assert path.read_text() == text


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"servers_file: there is no .*p\.cfg; see docs/haproxy\.md"):
        kept.check(tmp_path / "p.cfg", "o")


# --- answers ---

Reply = Callable[[str], bytes | None]


@asynccontextmanager
async def speaking(reply: Reply) -> AsyncGenerator[Runtime]:
    """Something that answers each command as it is told; on None it says nothing and keeps the connection."""
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = reply((await reader.readline()).decode().strip())
        if said is None:
            await over.wait()
        else:
            writer.write(said)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield Runtime(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", Duration(0.5))
    finally:
        over.set()
        server.close()


async def test_an_answer_that_does_not_come_is_bounded_in_time() -> None:
    async with speaking(lambda _: None) as runtime:
        with pytest.raises(Unreachable, match=r"did not answer within 0\.5 s"):
            await runtime.ask("show info")


async def test_an_endless_answer_is_bounded_in_size() -> None:
    async with speaking(lambda _: b"x" * 9_000_000) as runtime:
        with pytest.raises(Unreachable, match="sends more than 8 MiB"):
            await runtime.ask("show info")


@pytest.mark.parametrize("said", [b"", b"half a li", b"# pxname,svname,\nb,one,1\n"])
async def test_an_answer_that_breaks_off_is_no_answer(said: bytes) -> None:
    async with speaking(lambda _: said) as runtime:
        with pytest.raises(Unreachable, match="broke off its answer"):
            await runtime.ask("show stat")


async def test_a_port_where_nobody_listens_and_a_socket_that_is_not_there(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with pytest.raises(NotAnswering, match="nobody answers at"):
        await Runtime(f"127.0.0.1:{port}", Duration(1)).ask("show info")
    with pytest.raises(NoSocket, match=r"there is no socket .*x\.sock: HAProxy does not run"):
        await Runtime(str(tmp_path / "x.sock"), Duration(1)).ask("show info")


async def test_another_program_is_no_haproxy() -> None:
    async with speaking(lambda _: b"HTTP/1.1 400 Bad Request\n\n") as runtime:
        with pytest.raises(Refused, match=r"is not the runtime API of an HAProxy \('HTTP/1.1 400 Bad Request'\)"):
            await reading.info(runtime)


@pytest.mark.parametrize(
    ("version", "old"), [("2.4.22", True), ("1.8.30", True), ("2.6.12-1+deb12u4", False), ("3.1", False)]
)
def test_an_old_version_is_known(version: str, old: bool) -> None:
    assert reading.Info(version=version, pid=1, uptime_s=1).old is old


STATES = "1\n# srv_name srv_addr srv_port srv_uweight srv_admin_state\n{}\n\n"


@pytest.mark.parametrize(
    ("states", "stat_", "told"),
    [
        ("1\n\n", "", "does not understand"),
        (STATES.format("a 127.0.0.1 1 16"), "", "a line of `show servers state b`"),
        (STATES.format("a 127.0.0.1 1 16 0"), "# pxname,svname,scur\nb,a\n\n", "a line of `show stat b`"),
        (STATES.format("a 127.0.0.1 1 16 0"), "# pxname,svname,scur\nb,a,1\n\n", "no statistics of backend b"),
        (STATES.format("a 127.0.0.1 1 16 0"), "# pxname,svname,scur\nb,a,1\nb,BACKEND,1\n\n", "a server of backend b"),
    ],
)
async def test_tables_that_make_no_sense_are_never_a_shorter_list(states: str, stat_: str, told: str) -> None:
    async with speaking(lambda asked: (states if "state" in asked else stat_).encode()) as runtime:
        with pytest.raises(Unreachable) as error:
            await reading.backend(runtime, "b")
    assert told in str(error.value)
