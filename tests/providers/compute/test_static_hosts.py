"""static_hosts against real commands: a script that starts and stops real processes, fails, hangs and tells lies."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from autoscaler.domain.base import Duration, InstanceId, Instant, PoolName, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import NoCapacity, Refused, Unreachable
from autoscaler.domain.memory import OpenLaunch
from autoscaler.domain.pool import Bounds, Offer, Placement, Pool
from autoscaler.domain.replica import ComputeView, Instance, InstanceState, LaunchStatus
from autoscaler.ports.build import Context
from providers.compute.static_hosts import Settings, StaticHosts, build
from providers.compute.static_hosts.state import Book, State
from tests.support.own_hosts import calls, end_hosts, host_settings, own_hosts, running, tool
from tests.support.streaming import WallClock

pytestmark = pytest.mark.e2e

CLOCK = WallClock()
TOKEN = Token("e1-p-1-0")


class Site:
    """A folder of hosts, and a pool over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = host_settings(folder, stop_again=Duration(0.0), deadline=Duration(5.0))
        self.made: list[StaticHosts] = []
        self.hosts = self.restart()

    def set(self, **changes: Any) -> None:
        self.settings = msgspec.structs.replace(self.settings, **changes)

    def restart(self) -> StaticHosts:
        """Another daemon on the same state."""
        context = Context(installation="inst", state_dir=str(self.folder / "state"), clock=CLOCK)
        self.hosts = build(self.settings, context)
        self.made.append(self.hosts)
        return self.hosts

    def pool(self, tick: float = 2.0) -> Pool:
        offer = Offer(name="own", compute="c", request=msgspec.json.encode(self.settings).decode())
        pool = Pool(installation="inst", name=PoolName("p"), bounds=Bounds(min=0, max=9), offers=(offer,))
        return msgspec.structs.replace(pool, pace=msgspec.structs.replace(pool.pace, tick=Duration(tick)))

    def order(self, count: int = 1, token: Token = TOKEN) -> Launch:
        place = Placement(offer="own", zone="local")
        request = self.pool().offers[0].request
        return Launch(token=token, placement=place, count=count, total_after=count, request=request)

    async def launch(self, count: int = 1, token: Token = TOKEN) -> tuple[InstanceId, ...]:
        return (await self.hosts.launch(self.pool(), self.order(count, token))).ids

    async def look(self, opened: tuple[OpenLaunch, ...] = (), tick: float = 2.0) -> ComputeView:
        return await self.hosts.observe(self.pool(tick), opened, CLOCK.now())

    async def one(self) -> Instance:
        (found,) = (await self.look()).instances
        return found

    async def end(self, *ids: InstanceId) -> None:
        await self.hosts.terminate(self.pool(), ids)

    def fault(self, what: str, verb: str, host: str, text: str = "") -> Path:
        path = self.folder / f"{what}-{verb}-{host}"
        path.write_text(text, encoding="utf-8")
        return path

    def by_hand(self, verb: str, host: str) -> None:
        """Somebody else at the same host."""
        command = [word.replace("{name}", host) for word in tool(self.folder, verb)]
        subprocess.run(command, check=True, timeout=10.0)

    def opened(self, count: int = 1) -> tuple[OpenLaunch, ...]:
        order = self.order(count)
        return (
            OpenLaunch(
                token=TOKEN, placement=order.placement, count=count, units=count, total_after=count,
                request=order.request, at=CLOCK.now(), expires_at=Instant(CLOCK.now() + 300),
            ),
        )  # fmt: skip

    async def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + 10.0
        while not true():
            assert time.monotonic() < end, "it did not happen"
            await asyncio.sleep(0.05)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    one = Site(tmp_path)
    try:
        yield one
    finally:
        for hosts in one.made:
            await hosts.aclose()
        end_hosts(tmp_path)


# --- launching, and crashing on the way ---


class _Killed(BaseException):
    """The daemon dies here."""


@pytest.mark.parametrize("after_write", [False, True])
@pytest.mark.parametrize("step", range(5))
async def test_a_crash_at_any_step_of_a_launch_starts_each_host_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, step: int, after_write: bool
) -> None:
    changes = iter(range(100))
    real = Book.change

    def dying(book: Book, work: Callable[[State], Any]) -> Any:
        number = next(changes)
        if number == step and not after_write:
            raise _Killed
        answer = real(book, work)
        if number == step:
            raise _Killed
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(Book, "change", dying)
        died = False
        try:
            await site.launch(2)
        except _Killed:
            died = True
    assert died == (step < 4)  # a claim, a start a host, a close: the crash was reached wherever there is a step
    site.restart()
    ids = await site.launch(2)
    assert sorted(ids) == [f"h1.{TOKEN}", f"h2.{TOKEN}"]
    assert running(site.folder) == {"h1", "h2"}
    assert sorted(one.id for one in (await site.look()).instances) == sorted(ids)
    assert await site.launch(2) == ids
    assert len(calls(site.folder, "start")) == 2


async def test_a_daemon_that_is_killed_while_its_start_command_runs_goes_on_with_the_same_host(site: Site) -> None:
    late = site.fault("hang", "start", "h1")
    site.set(deadline=Duration(20.0))
    program = (
        "import asyncio, sys, msgspec\n"
        "from autoscaler.domain.decision import Launch\n"
        "from autoscaler.domain.pool import Pool\n"
        "from autoscaler.ports.build import Context\n"
        "from providers.compute.static_hosts import build\n"
        "from tests.support.streaming import WallClock\n"
        "pool, order = (msgspec.json.decode(text, type=t) for text, t in zip(sys.argv[2:], (Pool, Launch)))\n"
        "hosts = build(None, Context(installation='inst', state_dir=sys.argv[1], clock=WallClock()))\n"
        "asyncio.run(hosts.launch(pool, order))\n"
    )
    words = [str(site.folder / "state"), *(msgspec.json.encode(one).decode() for one in (site.pool(), site.order()))]
    daemon = subprocess.Popen([sys.executable, "-c", program, *words], cwd=Path(__file__).parents[3])
    await site.until(lambda: calls(site.folder, "start") == ["h1"])
    command = psutil.Process(daemon.pid).children(recursive=True)
    daemon.kill()
    daemon.wait()
    for process in command:  # what would end with its ssh; here nobody else would end it
        process.kill()
    late.unlink()
    assert (await site.look(site.opened())).instances == ()  # half made: the launch is still open
    assert [one.id for one in (await site.look()).instances] == [f"h1.{TOKEN}"]  # and nobody's loss when it is not
    assert await site.launch() == (f"h1.{TOKEN}",)
    assert running(site.folder) == {"h1"}


async def test_a_start_that_fails_gives_the_host_back_and_the_next_one_is_taken(site: Site) -> None:
    site.fault("fail", "start", "h1", "first words\nIPMI says no\n")
    assert await site.launch() == (f"h2.{TOKEN}",)
    assert [one.id for one in (await site.look()).instances] == [f"h2.{TOKEN}"]


async def test_when_no_host_can_be_started_there_is_no_capacity_and_the_reasons_are_told(site: Site) -> None:
    site.set(hosts=own_hosts(2))
    site.fault("fail", "start", "h1", "first words\nIPMI says no\n")
    site.fault("fail", "status", "h2", "no route to host\n")
    with pytest.raises(NoCapacity, match=r"zone local: .*h2: status ended with exit 7: no route.*h1: .*IPMI says no"):
        await site.launch()
    assert (await site.look()).instances == ()


async def test_fewer_hosts_than_asked_for_is_an_answer_and_the_last_host_stays_last(site: Site) -> None:
    site.set(hosts=own_hosts(2))
    state = await site.hosts.launch(site.pool(), site.order(3))
    assert (state.status, len(state.ids)) == (LaunchStatus.DONE, 2)
    assert state.fault is not None
    with pytest.raises(NoCapacity, match="no free host in zone local"):
        await site.launch(1, Token("e1-p-2-0"))
    await site.end(*state.ids[:1])
    await site.until(lambda: running(site.folder) == {"h2"})
    assert len(await site.launch(1, Token("e1-p-2-0"))) == 1
    await site.end(*(one.id for one in (await site.look()).instances if one.token == "e1-p-2-0"))
    await site.until(lambda: running(site.folder) == {"h2"})
    again = await site.hosts.launch(site.pool(), site.order(3))
    assert again.ids == state.ids  # its account is closed: a host that is free again is not its
    assert running(site.folder) == {"h2"}


async def test_a_host_that_boots_slowly_is_told_to_start_once_however_many_ask(site: Site) -> None:
    count = site.folder / "count"
    site.set(start=("/bin/sh", "-c", f"sleep 0.3; echo x >> {count}"), hosts=own_hosts(1))  # its status stays stopped
    first, other = site.hosts, site.restart()
    states = await asyncio.gather(*(one.launch(site.pool(), site.order()) for one in (first, other) * 2))
    assert {state.ids for state in states} == {(f"h1.{TOKEN}",)}
    assert count.read_text(encoding="ascii") == "x\n"


async def test_a_start_that_may_have_worked_is_a_machine_until_its_host_says_otherwise(site: Site) -> None:
    """The start fails, and then the host cannot be asked: giving it up could leave a GPU running for good."""
    site.set(status=("/bin/sh", "-c", f"[ ! -e {site.folder}/asked ] || exit 9; touch {site.folder}/asked; echo off"))
    site.set(hosts=own_hosts(1))
    site.fault("fail", "start", "h1", "connection lost\n")
    assert await site.launch() == (f"h1.{TOKEN}",)
    found = await site.one()
    assert found.state is InstanceState.PENDING
    assert "connection lost" in found.detail


async def test_a_command_that_hangs_is_killed_with_its_group_at_its_deadline(site: Site) -> None:
    site.set(deadline=Duration(0.5))
    site.fault("hang", "start", "h1")
    begun = time.monotonic()
    assert await site.launch() == (f"h1.{TOKEN}",)
    assert time.monotonic() - begun < 5.0
    assert "killed after 0.5 s" in (await site.one()).detail
    group = int((site.folder / "hanging").read_text(encoding="ascii"))
    await site.until(lambda: not alive_in(group))


def alive_in(group: int) -> list[int]:
    """Processes of a group that are no zombies."""
    found = [one for one in psutil.process_iter(["status"]) if one.info["status"] != psutil.STATUS_ZOMBIE]
    return [one.pid for one in found if group_of(one.pid) == group]


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


async def test_a_server_left_in_the_background_neither_holds_the_call_nor_ends_with_it(site: Site) -> None:
    script = f"sleep 300 & echo $! > {site.folder}/h1.pid"  # it keeps our pipes open
    site.set(hosts=own_hosts(1), start=("/bin/sh", "-c", script))
    begun = time.monotonic()
    await site.launch()
    assert time.monotonic() - begun < 4.0
    assert running(site.folder) == {"h1"}
    os.kill(int((site.folder / "h1.pid").read_text()), signal.SIGKILL)


async def test_a_command_that_prints_without_end_is_bounded(site: Site) -> None:
    site.set(status=("/bin/sh", "-c", "yes running"), status_deadline=Duration(0.5), hosts=own_hosts(1))
    with pytest.raises(NoCapacity, match=r"status was killed after 0\.5 s"):
        await site.launch()


# --- what is somebody else's ---


async def test_a_host_that_somebody_else_started_is_reported_and_never_used_nor_stopped(site: Site) -> None:
    site.by_hand("start", "h1")
    assert await site.launch() == (f"h2.{TOKEN}",)
    view = await site.look()
    assert [(one.id, one.state) for one in view.foreign] == [("h1", InstanceState.RUNNING)]
    await site.end(InstanceId("h1"), InstanceId(f"h1.{TOKEN}"))
    assert calls(site.folder, "stop") == []
    assert running(site.folder) == {"h1", "h2"}


async def test_a_running_host_is_adopted_and_then_ended_like_any_other(site: Site) -> None:
    site.by_hand("start", "h1")
    with pytest.raises(Refused, match="h9 is not in a list of hosts of pool p"):
        await site.hosts.adopt(site.pool(), [InstanceId("h9")])
    await site.hosts.adopt(site.pool(), [InstanceId("h1")])
    await site.hosts.adopt(site.pool(), [InstanceId("h1")])
    found = await site.one()
    assert (found.address, found.offer, found.state) == ("127.0.0.11", "own", InstanceState.RUNNING)
    assert (await site.look()).foreign == ()
    assert calls(site.folder, "start") == ["h1"]  # ours started nothing
    await site.end(found.id)
    await site.until(lambda: running(site.folder) == set())
    assert (await site.look()).instances == ()


async def test_a_host_that_was_started_anew_by_others_while_it_was_to_stop_is_left_alone(site: Site) -> None:
    (name,) = await site.launch()
    await site.look()
    silent = site.fault("fail", "status", "h1", "busy\n")
    await site.end(name)  # accepted; whether it has stopped was not to be learned
    await site.until(lambda: running(site.folder) == set())
    assert (await site.one()).state is InstanceState.STOPPING
    site.by_hand("start", "h1")
    before = calls(site.folder, "stop")
    await site.end(name)  # nor is a host that is silent told again: it may be another's by now
    silent.unlink()
    for _ in range(3):
        await site.end(name)
    assert calls(site.folder, "stop") == before
    site.restart()  # an idle host is asked once a minute; a new daemon asks at once
    view = await site.look()
    assert view.instances == ()
    assert [one.id for one in view.foreign] == ["h1"]


async def test_a_host_whose_tag_names_another_owner_is_not_stopped(site: Site) -> None:
    (name,) = await site.launch()
    (site.folder / "h1.tag").write_text("other/pool/t/own/1.0\n", encoding="utf-8")
    assert [one.id for one in (await site.look()).foreign] == ["h1"]
    await site.end(name)
    assert calls(site.folder, "stop") == []
    assert running(site.folder) == {"h1"}


# --- what cannot be known ---


async def test_a_host_that_cannot_be_asked_is_shown_as_last_known_and_never_as_gone(site: Site) -> None:
    (name,) = await site.launch()
    known = await site.one()
    site.fault("fail", "status", "h1", "no route to host\n")
    unknown = await site.one()
    assert (unknown.id, unknown.state, unknown.boot) == (name, InstanceState.RUNNING, known.boot)
    assert "no route to host" in unknown.detail
    site.restart()
    after = await site.one()
    assert (after.id, after.state, after.boot) == (name, InstanceState.RUNNING, "")


async def test_hosts_that_hang_do_not_blind_a_pool(site: Site) -> None:
    await site.launch(2)
    await site.look()
    site.fault("hang", "status", "h1")
    begun = time.monotonic()
    view = await site.look(tick=1.0)
    assert time.monotonic() - begun < 2.0  # what observing may take at least
    assert [one.state for one in view.instances] == [InstanceState.RUNNING] * 2
    assert [bool(one.detail) for one in view.instances] == [True, False]


async def test_a_host_that_stopped_by_itself_is_shown_as_stopped_and_a_restart_is_another_boot(site: Site) -> None:
    await site.launch()
    first = await site.one()
    site.by_hand("stop", "h1")
    await site.until(lambda: running(site.folder) == set())
    assert (await site.one()).state is InstanceState.STOPPED
    site.by_hand("start", "h1")
    second = await site.one()
    assert (second.id, second.state) == (first.id, InstanceState.RUNNING)
    assert second.boot != first.boot


async def test_a_host_that_boots_slowly_is_pending_and_one_that_never_comes_up_is_stopped(site: Site) -> None:
    site.set(start=("/bin/true",))  # accepted, with no effect
    await site.launch()
    assert (await site.one()).state is InstanceState.PENDING
    site.set(boot_within=Duration(0.0))
    assert (await site.one()).state is InstanceState.STOPPED


async def test_a_list_that_cannot_be_read_hides_no_machine_and_darkens_its_zone(site: Site) -> None:
    path = site.folder / "hosts"
    path.touch(mode=0o644)
    path.write_text("h1 address=127.0.0.11\nh2 address=127.0.0.12\n", encoding="utf-8")
    site.set(hosts=(), hosts_file=str(path))
    (name,) = await site.launch()
    path.write_text("h1 address=127.0.0.11 oops\n", encoding="utf-8")
    site.restart()
    view = await site.look()
    assert [one.id for one in view.instances] == [name]
    assert view.unreachable_zones == ("local",)
    with pytest.raises(Unreachable, match=r"hosts_file .*host 'h1': found 'oops', allowed: key=value"):
        await site.launch(1, Token("e1-p-2-0"))


async def test_a_host_that_left_the_list_is_kept_until_it_is_ended(site: Site) -> None:
    (name,) = await site.launch()
    site.set(hosts=own_hosts(4)[1:])
    assert (await site.one()).id == name
    await site.end(name)
    await site.until(lambda: running(site.folder) == set())
    assert (await site.look()).instances == ()


async def test_a_dead_host_that_was_to_stop_is_let_go_when_a_person_takes_it_off_the_list(site: Site) -> None:
    (name,) = await site.launch()
    await site.look()
    site.fault("fail", "status", "h1", "no route to host\n")
    site.fault("fail", "stop", "h1", "no route to host\n")
    for _ in range(2):
        with pytest.raises(Unreachable, match="stop ended with exit 7: no route to host"):
            await site.end(name)
    assert (await site.one()).state is InstanceState.STOPPING
    site.set(hosts=own_hosts(4)[1:])
    with pytest.raises(Unreachable):
        await site.end(name)
    assert (await site.look()).instances == ()


async def test_stop_is_asked_for_until_the_host_has_stopped(site: Site) -> None:
    stubborn = ("/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    site.set(start=tool(site.folder, "start", "{tag}", *stubborn), hosts=own_hosts(1))
    (name,) = await site.launch()
    await asyncio.sleep(0.2)
    for _ in range(3):
        await site.end(name)
    assert calls(site.folder, "stop") == ["h1"] * 3
    assert (await site.one()).state is InstanceState.STOPPING
    site.set(stop_again=Duration(60.0))
    await site.end(name)
    assert calls(site.folder, "stop") == ["h1"] * 3
    end_hosts(site.folder)
    await site.until(lambda: running(site.folder) == set())
    await site.end(name)
    assert calls(site.folder, "stop") == ["h1"] * 3
    assert (await site.look()).instances == ()


async def test_without_a_status_command_a_host_is_what_it_was_told_to_be(site: Site) -> None:
    site.set(status=(), hosts=own_hosts(2))
    (name,) = await site.launch()
    found = await site.one()
    assert (found.state, found.detail) == (InstanceState.RUNNING, "")
    assert found.boot.startswith("start-")
    await site.end(name)
    assert (await site.look()).instances == ()
    site.fault("fail", "start", "h1", "no\n")
    site.fault("fail", "stop", "h1", "no\n")
    assert await site.launch(2, Token("e1-p-2-0")) == ("h1.e1-p-2-0", "h2.e1-p-2-0")


# --- the state file ---


async def test_a_lost_file_is_made_good_by_the_tags_on_the_hosts(site: Site) -> None:
    ids = await site.launch(2)
    before = (await site.look()).instances
    (site.folder / "state" / "static_hosts" / "state.json").unlink()
    site.restart()
    view = await site.look(site.opened(2))
    assert [(one.id, one.boot, one.address) for one in view.instances] == [
        (one.id, one.boot, one.address) for one in before
    ]
    assert max(abs(one.launched_at - old.launched_at) for one, old in zip(view.instances, before, strict=True)) < 0.002
    assert sorted(view.launches[TOKEN].ids) == sorted(ids)
    assert view.foreign == ()
    assert sorted(await site.launch(2)) == sorted(ids)
    assert len(calls(site.folder, "start")) == 2
    (site.folder / "state" / "static_hosts" / "state.json").unlink()
    site.restart()
    await site.end(*ids)
    await site.until(lambda: running(site.folder) == set())


async def test_a_file_that_cannot_be_read_is_a_fault_and_not_an_empty_pool(site: Site) -> None:
    await site.launch()
    (site.folder / "state" / "static_hosts" / "state.json").write_text("{", encoding="utf-8")
    for call in (site.look(), site.launch(), site.end(InstanceId("x"))):
        with pytest.raises(Refused, match=r"state\.json says who has which host and cannot be read"):
            await call


# --- what commands are given ---


async def test_commands_get_none_of_our_secrets(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTOSCALER_ADMIN_TOKEN", "PGPASSWORD", "CREDENTIALS_DIRECTORY", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, f"planted-{name}")
    seen = site.folder / "environment"
    site.set(start=("/bin/sh", "-c", f"env > {seen}"), pass_env=("SSH_AUTH_SOCK",), hosts=own_hosts(1))
    await site.launch()
    text = seen.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if "planted" in line] == ["SSH_AUTH_SOCK=planted-SSH_AUTH_SOCK"]
    assert "\nPATH=" in f"\n{text}"


async def test_placeholders_are_filled_in_and_other_braces_stay(site: Site) -> None:
    seen = site.folder / "words"
    host = msgspec.structs.replace(own_hosts(1)[0], ports=(8000, 8001), vars={"ipmi": "10.1.0.11"})
    words = ("{name}", "{address}", "{port}", "{zone}", "{ipmi}", "{instance}", "{tag}", "{print}", '{"a": 1}')
    site.set(hosts=(host,), start=("/bin/sh", "-c", f'printf "%s\\n" "$@" > {seen}', "sh", *words))
    await site.launch()
    *told, tag, word, text = seen.read_text(encoding="utf-8").splitlines()
    assert told == ["h1", "127.0.0.11", "8000", "local", "10.1.0.11", f"h1.{TOKEN}"]
    assert tag.startswith(f"inst/p/{TOKEN}/own/")
    assert (word, text) == ("{print}", '{"a": 1}')
    assert (await site.one()).ports == (8000, 8001)


@pytest.fixture
def clean_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("clean_umask")
@pytest.mark.parametrize("kind", ["writable", "pipe", "missing", "huge"])
async def test_a_list_that_is_not_to_be_trusted_is_refused(site: Site, kind: str) -> None:
    path = site.folder / "hosts"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind != "missing":
        path.write_text("h1\n" * (400_000 if kind == "huge" else 1), encoding="utf-8")
    if kind == "writable":
        path.chmod(0o666)
    site.set(hosts=(), hosts_file=str(path))
    with pytest.raises((Refused, Unreachable), match="hosts_file"):
        await site.launch()
    assert running(site.folder) == set()


async def test_a_command_may_print_the_list(site: Site) -> None:
    listed = '[{"name": "h3", "address": "127.0.0.13", "zone": "local"}]'
    site.set(hosts=(), hosts_command=("/bin/echo", listed))
    assert await site.launch() == (f"h3.{TOKEN}",)
    site.set(hosts_command=("/bin/sh", "-c", "echo unauthorized >&2; exit 3"))
    with pytest.raises(Unreachable, match="hosts_command ended with exit 3: unauthorized"):
        await site.launch(1, Token("e1-p-2-0"))


def test_settings_travel_as_json() -> None:
    settings = host_settings(Path("/x"))
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings
