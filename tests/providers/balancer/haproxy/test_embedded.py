"""An HAProxy that we start: found again, started anew when it dies, and what is told when it cannot be."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import aiohttp
import msgspec
import psutil
import pytest

from autoscaler.domain.base import PoolName
from autoscaler.domain.faults import Refused, Unreachable
from autoscaler.domain.replica import Member, Traffic
from autoscaler.ports.build import Context
from providers._shared.processes import read_record, start_of
from providers.balancer import haproxy
from providers.balancer.haproxy import HaproxyBalancer, Settings
from providers.balancer.haproxy.configuration import configuration
from providers.balancer.haproxy.process import binary
from providers.balancer.haproxy.settings import STRATEGIES, Address, Layout, Strategy, short_folder
from tests.support.streaming import Seen, WallClock, ask, ask_many, backends, free_ports


def an_adapter(settings: Settings, folder: Path, *, looking: bool = False) -> HaproxyBalancer:
    context = Context(
        installation="t", state_dir=str(folder), clock=WallClock(), pool=PoolName("p"), name="main", looking=looking
    )
    return haproxy.build(settings, context)


class Ours:
    """An HAProxy of this test and what belongs to it."""

    def __init__(self, folder: Path, **options: object) -> None:
        (listen,) = free_ports(1)
        fixed = {"embedded": True, "listen": f"127.0.0.1:{listen}", "strategy": "round_robin"}
        self.settings = msgspec.convert({**fixed, **options}, Settings)
        self.folder = folder
        self.balancer = an_adapter(self.settings, folder)
        self.url = f"http://{self.settings.listen}"
        self.layout = Layout.of(self.settings, str(folder), "main")

    def pid(self) -> int:
        record = read_record(self.layout.record)
        assert record is not None
        return record.pid

    async def end(self) -> None:
        await haproxy.stop(self.settings, str(self.folder), "main")


@pytest.fixture
def short() -> Iterator[Path]:
    """A UNIX socket's path is short, pytest's is not."""
    with tempfile.TemporaryDirectory(prefix="hap-") as folder:
        yield Path(folder)


@pytest.fixture
async def ours(short: Path) -> AsyncGenerator[Ours]:
    one = Ours(short)
    yield one
    await one.end()


@pytest.mark.e2e
async def test_one_that_runs_is_adopted_and_outlives_the_adapter(ours: Ours) -> None:
    await ours.balancer.members()
    pid = ours.pid()
    assert os.getsid(pid) == pid
    await ours.balancer.aclose()
    second = an_adapter(ours.settings, ours.folder)
    await second.check_start()
    await second.members()
    assert ours.pid() == pid


@pytest.mark.e2e
async def test_two_who_find_none_start_one(ours: Ours) -> None:
    await asyncio.gather(ours.balancer.members(), an_adapter(ours.settings, ours.folder).members())
    config = str(ours.layout.config)
    assert len([one for one in psutil.process_iter(["cmdline"]) if config in (one.info["cmdline"] or [])]) == 1


@pytest.mark.e2e
async def test_one_that_dies_comes_back_with_the_same_members_and_nobody_who_drained(ours: Ours) -> None:
    async with backends(3, chunks=1) as made:
        await ours.balancer.admit([one.endpoint(200) for one in made])
        await ours.balancer.drain([made[2].endpoint()])
        before = (await ours.balancer.members()).members
        os.kill(ours.pid(), signal.SIGKILL)
        after: tuple[Member, ...] = ()
        end = time.monotonic() + 10
        while not after:
            assert time.monotonic() < end
            try:
                after = (await ours.balancer.members()).members
            except Unreachable:
                await asyncio.sleep(0.02)
        assert after == before[:2]
        assert [one.active for one in after] == [0, 0]
        assert (await ask_many(ours.url, 6)).by_backend == {"b0": 3, "b1": 3}


@pytest.mark.e2e
@pytest.mark.parametrize("strategy", ["round_robin", "least_connections"])
async def test_a_dead_one_draws_one_request_and_comes_back_when_it_listens(strategy: Strategy, short: Path) -> None:
    never_down_by_checks = Settings().server_options.replace("fall 2", "fall 1000")
    ours = Ours(short, strategy=strategy, server_options=never_down_by_checks)
    try:
        async with backends(2, chunks=1) as (lives, dies):
            await ours.balancer.admit([lives.endpoint(), dies.endpoint()])
            await dies.stop()
            assert (await ask_many(ours.url, 20, at_once=1)).statuses == {200: 19, 503: 1}
            out = {one.endpoint: one.reason for one in (await ours.balancer.members()).members if one.reason}
            assert list(out) == [dies.endpoint().address]
            await dies.start()
            async with asyncio.timeout(10):
                while any(one.traffic is not Traffic.YES for one in (await ours.balancer.members()).members):
                    await asyncio.sleep(0.05)
            assert set((await ask_many(ours.url, 4)).by_backend) == {"b0", "b1"}
    finally:
        await ours.end()


@pytest.mark.e2e
async def test_other_settings_and_somebody_elses_are_refused_in_words(ours: Ours, tmp_path: Path) -> None:
    await ours.balancer.members()
    changed = an_adapter(msgspec.structs.replace(ours.settings, strategy="least_connections"), ours.folder)
    with pytest.raises(Refused, match="runs with strategy round_robin, the settings say strategy least_connections"):
        await changed.members()
    settings = msgspec.structs.replace(ours.settings, socket=ours.layout.socket, directory=str(tmp_path))
    elsewhere = an_adapter(settings, tmp_path)
    for call in (elsewhere.members, elsewhere.check_start):
        with pytest.raises(Refused, match="an HAProxy answers that was not started from"):
            await call()


@pytest.mark.e2e
async def test_an_option_for_servers_may_change_while_it_runs(ours: Ours) -> None:
    async with backends(1, chunks=1) as (one,):
        await ours.balancer.members()
        changed = an_adapter(msgspec.structs.replace(ours.settings, server_options="maxconn 7"), ours.folder)
        await changed.admit([one.endpoint()])
        assert "maxconn 7\n" in ours.layout.config.read_text()
        assert (await ask_many(ours.url, 3)).complete == 3


@pytest.mark.e2e
async def test_a_port_in_use_is_told(ours: Ours) -> None:
    with socket.socket() as taken:
        taken.bind(Address.read(ours.settings.listen))
        taken.listen()
        for call in (ours.balancer.check_start, ours.balancer.members):
            with pytest.raises(Refused, match=r"listen .*: Address already in use; choose another port"):
                await call()
    assert not ours.layout.record.exists()


@pytest.mark.e2e
async def test_what_haproxy_says_before_it_ends_is_told(ours: Ours) -> None:
    program = ours.folder / "no-haproxy"
    program.write_text("#!/bin/sh\necho '[ALERT] (1) : config : cannot do that' >&2\nexit 1\n")
    program.chmod(0o755)
    ended = an_adapter(msgspec.structs.replace(ours.settings, binary=str(program)), ours.folder)
    with pytest.raises(Refused, match=r"HAProxy ended at once: \[ALERT\] \(1\) : config : cannot do that"):
        await ended.members()


async def test_none_installed_is_told_and_nothing_is_written(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("providers.balancer.haproxy.process._ELSEWHERE", "/nowhere")
    ours = Ours(short)
    for call in (ours.balancer.check_start, ours.balancer.members):
        with pytest.raises(
            Refused, match="HAProxy is not installed: install the package `haproxy` of your system, or set"
        ):
            await call()
    with pytest.raises(Refused, match="binary: /nowhere/haproxy is not there or may not be executed"):
        await Ours(short, binary="/nowhere/haproxy").balancer.check_start()
    assert list(short.iterdir()) == []


@pytest.mark.e2e
async def test_a_state_folder_with_a_long_path_has_its_socket_in_a_short_one_of_this_user(tmp_path: Path) -> None:
    one = Ours(tmp_path / ("x" * 80))
    try:
        assert (await one.balancer.members()).members == ()
        made = Path(one.layout.socket)
        assert made.parent == short_folder()
        assert (made.parent.stat().st_mode & 0o777, made.parent.stat().st_uid) == (0o700, os.getuid())
        other = Ours(tmp_path / ("x" * 79))
        assert other.layout.socket != one.layout.socket
    finally:
        await one.end()
    assert not made.exists()
    with pytest.raises(Refused, match=r"socket: .* is too long for a UNIX socket \(90 bytes\)"):
        Ours(tmp_path, socket=f"/{'x' * 90}")


async def test_a_short_folder_that_others_can_reach_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    for module in ("process", "settings"):
        monkeypatch.setattr(f"providers.balancer.haproxy.{module}.short_folder", lambda: shared)
    one = Ours(tmp_path / ("x" * 80))
    for call in (one.balancer.check_start, one.balancer.members):
        with pytest.raises(Refused, match="shared is not a folder of this user alone: set `socket`"):
            await call()


@pytest.mark.e2e
async def test_who_only_looks_starts_none(short: Path) -> None:
    """As `plan`, `check` and a pool in advise mode do; they see the one that runs."""
    ours = Ours(short)
    looking = an_adapter(ours.settings, short, looking=True)
    with pytest.raises(Unreachable, match="there is no socket"):
        await looking.members()
    assert list(short.iterdir()) == []
    try:
        await ours.balancer.admit([])
        assert (await looking.members()).members == ()
    finally:
        await ours.end()


@pytest.mark.e2e
async def test_stop_ends_only_what_the_record_proves_to_be_ours(ours: Ours) -> None:
    await ours.balancer.members()
    pid = ours.pid()
    good = ours.layout.record.read_bytes()
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        ours.layout.record.write_bytes(good.replace(b'"pid": %d' % pid, b'"pid": %d' % other.pid))
        assert await haproxy.stop(ours.settings, str(ours.folder), "main") is False
        assert other.poll() is None
        ours.layout.record.write_bytes(good)
        assert await haproxy.stop(ours.settings, str(ours.folder), "main") is True
        assert start_of(pid) == ""
    finally:
        other.kill()
        other.wait()


@pytest.mark.e2e
async def test_its_socket_is_for_its_own_user(ours: Ours) -> None:
    await ours.balancer.members()
    assert Path(ours.layout.socket).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_haproxy_accepts_what_it_is_started_with(strategy: Strategy, short: Path) -> None:
    odd = short / 'it\'s a "folder"'
    odd.mkdir()
    options = {"hash_header": "x-session"} if strategy == "source_hash" else {}
    one = Ours(odd, strategy=strategy, **options)
    path = short / "h.cfg"
    path.write_text(configuration(one.settings, one.layout, "autoscaler.t.p"))
    done = subprocess.run([binary(Settings()), "-c", "-f", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_no_strategy_sends_to_members_that_drain(strategy: Strategy, short: Path) -> None:
    one = Ours(short, strategy=strategy)
    try:
        async with backends(3, chunks=1) as made:
            await one.balancer.admit([backend.endpoint() for backend in made])
            await one.balancer.drain([backend.endpoint() for backend in made[1:]])
            assert (await ask_many(one.url, 10)).by_backend == {"b0": 10}
            await one.balancer.drain([made[0].endpoint()])
            assert (await ask_many(one.url, 10)).statuses == {503: 10}
            assert [member.traffic for member in (await one.balancer.members()).members] == [Traffic.NO] * 3
    finally:
        await one.end()


@pytest.mark.e2e
@pytest.mark.parametrize("strategy", ["round_robin", "weighted", "source_hash"])
async def test_each_strategy_honours_weights_by_requests(strategy: Strategy, short: Path) -> None:
    one = Ours(short, strategy=strategy, **({"hash_header": "x-session"} if strategy == "source_hash" else {}))
    try:
        async with backends(2, chunks=1, every_s=0.0) as (small, large):
            await one.balancer.admit([small.endpoint(100), large.endpoint(300)])
            async with aiohttp.ClientSession() as session:
                for number in range(200):
                    await ask(session, one.url, Seen(), str(number))
            assert large.received + small.received == 200
            assert 120 <= large.received <= 178  # three of four, where hashes or chance decide
    finally:
        await one.end()


@pytest.mark.e2e
async def test_least_connections_honours_weights_by_what_is_inside(short: Path) -> None:
    one = Ours(short, strategy="least_connections")
    try:
        async with backends(2, chunks=100, every_s=0.02) as (small, large):
            await one.balancer.admit([small.endpoint(100), large.endpoint(300)])
            async with aiohttp.ClientSession() as session:
                tasks = []
                for count in range(1, 9):
                    tasks.append(asyncio.create_task(ask(session, one.url, Seen())))
                    while small.received + large.received < count:
                        await asyncio.sleep(0.005)
                assert (small.active, large.active) == (2, 6)
                assert [member.active for member in (await one.balancer.members()).members] == [2, 6]
                await asyncio.gather(*tasks)
    finally:
        await one.end()
