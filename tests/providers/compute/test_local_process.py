"""Local processes: who counts, what survives whom, and how an end comes about."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from textwrap import dedent

import msgspec
import psutil
import pytest

from autoscaler.domain.base import NEVER, Duration, InstanceId, PoolName, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import NoCapacity, Refused, Unreachable
from autoscaler.domain.pool import Bounds, Offer, Placement, Pool
from autoscaler.domain.replica import Instance, InstanceState
from autoscaler.ports.build import Context
from providers._shared import processes
from providers.compute import local_process
from providers.compute.local_process import LocalProcessCompute, Settings
from providers.compute.local_process.scan import Tags, scan
from providers.compute.local_process.store import Stamp, Store
from tests.support.streaming import WallClock, free_ports

SLEEP = "import time; time.sleep(300)"
CLOCK = WallClock()


class Here:
    """The installation of the present test: tests that run at the same time share this machine."""

    name = ""


@pytest.fixture(autouse=True)
def _own_installation() -> None:
    Here.name = uuid.uuid4().hex


def a_pool(settings: Settings, name: str = "p", installation: str = "") -> Pool:
    request = msgspec.json.encode(settings).decode()
    offer = Offer(name="offer", compute="c", request=request)
    return Pool(
        installation=installation or Here.name, name=PoolName(name), bounds=Bounds(min=0, max=9), offers=(offer,)
    )


def running(code: str, *, grace: float = 1.0, **options: str) -> Settings:
    return Settings(command=(sys.executable, "-c", code, "{port}"), grace=Duration(grace), **options)  # type: ignore[arg-type]


def an_order(pool: Pool, token: str = "e-1-0", count: int = 1) -> Launch:
    offer = pool.offers[0]
    placement = Placement(offer=offer.name, zone="local")
    return Launch(token=Token(token), placement=placement, count=count, total_after=count, request=offer.request)


@pytest.fixture
async def compute(tmp_path: Path, _own_installation: None) -> AsyncGenerator[LocalProcessCompute]:
    context = Context(installation=Here.name, state_dir=str(tmp_path), clock=CLOCK)
    one = local_process.build(running(SLEEP), context)
    yield one
    await one.aclose()
    for machine in scan(tmp_path / "local_process" / "records"):
        if str(tmp_path) in machine_log(machine.mark.pid):
            os.killpg(machine.mark.pid, signal.SIGKILL)
            await until(lambda gone=machine.mark: not processes.is_alive(gone))  # type: ignore[misc]


def machine_log(pid: int) -> str:
    """Where a process writes: tells this test's processes from all others."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/fd/1").readlink())
    return ""


async def seen(compute: LocalProcessCompute, pool: Pool) -> list[Instance]:
    return list((await compute.observe(pool, (), CLOCK.now())).instances)


async def until(wanted: Callable[[], bool], within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not wanted():
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.02)


def pid_of(instance: Instance) -> int:
    return int(instance.boot.partition(":")[0])


def log_of(folder: Path, instance: Instance) -> str:
    return (folder / "logs" / f"{instance.id}.log").read_text()


async def launched(compute: LocalProcessCompute, pool: Pool, token: str = "e-1-0") -> Instance:
    state = await compute.launch(pool, an_order(pool, token))
    (one,) = [instance for instance in await seen(compute, pool) if instance.id in state.ids]
    return one


async def test_a_replica_leads_its_own_session_and_is_no_child_of_ours(compute: LocalProcessCompute) -> None:
    one = await launched(compute, a_pool(running(SLEEP)))
    assert os.getsid(pid_of(one)) == pid_of(one) != os.getsid(0)
    assert pid_of(one) not in {child.pid for child in psutil.Process().children(recursive=True)}


async def test_placeholders_are_filled_in_and_other_braces_stay(compute: LocalProcessCompute, tmp_path: Path) -> None:
    code = "import os, sys, time; print(sys.argv[1:], os.environ['WHERE'], flush=True); time.sleep(300)"
    command = (sys.executable, "-c", code, "{port}", "{instance}", '{"a": 1}', "{state_dir}/x")
    one = await launched(compute, a_pool(Settings(command=command, env={"WHERE": "at {port}"})))
    await until(lambda: log_of(tmp_path, one) != "")
    port = one.ports[0]
    expected = [str(port), one.id, '{"a": 1}', f"{tmp_path}/x"]
    assert log_of(tmp_path, one).strip() == f"{expected} at {port}"


async def test_no_variable_of_the_daemon_itself_is_inherited(
    compute: LocalProcessCompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOSCALER_ADMIN_TOKEN", "secret")
    monkeypatch.setenv("OTHERS", "stay")
    one = await launched(compute, a_pool(running(SLEEP)))
    env = psutil.Process(pid_of(one)).environ()
    assert "AUTOSCALER_ADMIN_TOKEN" not in env
    assert (env["OTHERS"], env["SPT_NOENV"]) == ("stay", "1")


@pytest.mark.parametrize("survivors", ["the launcher answers nothing", "the launcher dies after its answer"])
async def test_a_launcher_that_is_killed_leaves_one_replica(
    compute: LocalProcessCompute, tmp_path: Path, survivors: str
) -> None:
    """A helper process launches and is killed; whoever comes next finds the same replica by its tags."""
    pool = a_pool(running(SLEEP))
    helper = a_launcher(pool, an_order(pool, count=2), tmp_path, suicide=survivors == "the launcher answers nothing")
    with helper:
        assert helper.stdout is not None
        answer = helper.stdout.readline()  # empty when it killed itself before answering
        helper.kill()
    assert bool(answer) == (survivors == "the launcher dies after its answer")
    before = await seen(compute, pool)
    assert len(before) == 2
    state = await compute.launch(pool, an_order(pool, count=2))
    assert await seen(compute, pool) == before
    assert sorted(state.ids) == [one.id for one in before]


async def test_a_launcher_that_is_killed_in_the_middle_of_a_start_leaves_one_replica(
    compute: LocalProcessCompute, tmp_path: Path
) -> None:
    """The next launch of the token waits for the start that goes on without its launcher."""
    pool = a_pool(running(SLEEP))
    store = Store(str(tmp_path))
    store.prepare()
    fifo = store.log("p-e-1-0-0")
    os.mkfifo(fifo)  # opening the log blocks until somebody reads it: a start that takes long
    with a_launcher(pool, an_order(pool), tmp_path, suicide=False) as helper:
        await until(lambda: len(psutil.Process(helper.pid).children(recursive=True)) == 2, 20)
        helper.kill()
    launching = asyncio.create_task(compute.launch(pool, an_order(pool)))
    await asyncio.sleep(0.5)
    assert not launching.done()
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    state = await launching
    (one,) = await seen(compute, pool)
    assert state.ids == (one.id,)
    await compute.terminate(pool, state.ids)
    await until(lambda: processes.start_of(pid_of(one)) == "")
    os.close(reader)


def a_launcher(pool: Pool, order: Launch, folder: Path, *, suicide: bool) -> "subprocess.Popen[bytes]":
    """Start a process that launches, says so and waits; `suicide`: it is killed between the start and the answer."""
    script = dedent(f"""
        import asyncio, sys
        import msgspec
        from autoscaler.domain.decision import Launch
        from autoscaler.domain.pool import Pool
        from autoscaler.ports.build import Context
        from providers._shared import processes
        from providers.compute import local_process
        from tests.support.streaming import WallClock

        if {suicide}:
            import os
            really = processes.start
            def start(commands, locks=()):
                really(commands, locks)
                os.kill(os.getpid(), 9)
            processes.start = start

        async def main():
            context = Context(installation={Here.name!r}, state_dir={str(folder)!r}, clock=WallClock())
            compute = local_process.LocalProcessCompute(context)
            pool = msgspec.json.decode(sys.argv[1], type=Pool)
            print((await compute.launch(pool, msgspec.json.decode(sys.argv[2], type=Launch))).ids, flush=True)
            await asyncio.sleep(300)

        asyncio.run(main())
    """)
    arguments = [msgspec.json.encode(value).decode() for value in (pool, order)]
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )


async def test_whoever_starts_holds_the_lock_until_the_command_runs(tmp_path: Path) -> None:
    """A lock that is handed down keeps others out although the one who took it let go."""
    fifo = tmp_path / "slow"
    os.mkfifo(fifo)  # opening the log blocks until somebody reads it: a start that takes long
    from providers._shared.files import locked

    command = processes.Command(
        path=sys.executable,
        argv=["python", "-c", SLEEP],
        env={},
        log=str(fifo),
        record=str(tmp_path / "record.json"),
    )
    taken = asyncio.Event()

    def start() -> list[object]:
        with locked(tmp_path / "lock", 1.0) as lock:
            job = asyncio.run_coroutine_threadsafe(_set(taken), loop)
            job.result()
            return list(processes.start([command], [lock]))

    loop = asyncio.get_running_loop()
    starting = asyncio.create_task(asyncio.to_thread(start))
    await taken.wait()
    with pytest.raises(Unreachable, match="another process holds"), locked(tmp_path / "lock", 0.2):
        pass
    reader = await asyncio.to_thread(fifo.open, "rb")
    (mark,) = await starting
    assert isinstance(mark, processes.Mark)
    with locked(tmp_path / "lock", 1.0):
        assert processes.is_alive(mark)
    os.killpg(mark.pid, signal.SIGKILL)
    reader.close()


async def _set(event: asyncio.Event) -> None:
    event.set()


async def test_children_inherit_the_tags_and_are_not_taken_for_replicas(
    compute: LocalProcessCompute, tmp_path: Path
) -> None:
    code = dedent("""
        import subprocess, sys, time
        for own in (False, True):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=own)
        print("ready", flush=True)
        time.sleep(300)
    """)
    pool = a_pool(running(code))
    one = await launched(compute, pool)
    await until(lambda: "ready" in log_of(tmp_path, one))
    children = psutil.Process(pid_of(one)).children()
    assert len(children) == 2
    assert await seen(compute, pool) == [one]
    await compute.terminate(pool, [one.id])
    await until(lambda: not any(child.is_running() for child in children))  # also the one in a session of its own


async def test_a_process_of_the_same_name_or_with_tags_written_by_hand_is_never_touched(
    compute: LocalProcessCompute,
) -> None:
    pool = a_pool(running(SLEEP))
    one = await launched(compute, pool)
    tags = {key: value for key, value in psutil.Process(pid_of(one)).environ().items() if "AUTOSCALER_TAG" in key}
    command = psutil.Process(pid_of(one)).cmdline()
    others = [
        subprocess.Popen(command, start_new_session=True, env={**os.environ, **env})
        for env in ({}, tags, {**tags, "AUTOSCALER_TAG_LEADER": ""})
    ]
    try:
        assert await seen(compute, pool) == [one]
        await compute.terminate(pool, [one.id])
        await until(lambda: processes.start_of(pid_of(one)) == "")
        assert [other.poll() for other in (others[0], others[2])] == [None, None]
    finally:
        for other in others:
            other.kill()
            other.wait()


async def test_a_number_given_to_another_process_is_not_taken_for_the_replica(
    compute: LocalProcessCompute, tmp_path: Path
) -> None:
    """The record names a live process whose start is another one: as after the number was used again."""
    pool = a_pool(running(SLEEP))
    one = await launched(compute, pool)
    store = Store(str(tmp_path))
    record = processes.read_record(store.record(one.id))
    assert record is not None
    other = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    try:
        os.killpg(pid_of(one), signal.SIGKILL)
        await until(lambda: processes.start_of(pid_of(one)) == "")
        stale = msgspec.structs.replace(record, pid=other.pid)
        store.record(one.id).write_bytes(msgspec.json.encode(stale))
        assert await seen(compute, pool) == []
        await compute.terminate(pool, [one.id])
        await asyncio.sleep(0.3)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


async def test_inherited_tags_under_a_number_that_was_used_again_are_not_taken_for_the_replica(
    compute: LocalProcessCompute,
) -> None:
    """A child outlives the replica and later gets its number: the number is right, the start is another one."""
    pool = a_pool(running(SLEEP))
    one = await launched(compute, pool)
    env = {key: value for key, value in psutil.Process(pid_of(one)).environ().items() if "AUTOSCALER_TAG" in key}
    started = one.boot.partition(":")[2]
    code = dedent(f"""
        import os, sys
        os.environ["AUTOSCALER_TAG_LEADER"] = f"{{os.getpid()}}:{started}"
        os.execve(sys.executable, [sys.executable, "-c", {SLEEP!r}], os.environ)
    """)
    other = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={**os.environ, **env})
    try:
        await until(
            lambda: psutil.Process(other.pid).environ().get("AUTOSCALER_TAG_LEADER") == f"{other.pid}:{started}"
        )
        assert await seen(compute, pool) == [one]
    finally:
        other.kill()
        other.wait()


async def test_a_replica_that_hides_its_environment_is_known_by_its_record(compute: LocalProcessCompute) -> None:
    code = f"import os, sys; os.execve(sys.executable, [sys.executable, '-c', {SLEEP!r}], {{}})"
    pool = a_pool(running(code))
    one = await launched(compute, pool)
    await until(lambda: not psutil.Process(pid_of(one)).environ())
    assert await seen(compute, pool) == [one]
    assert (await compute.launch(pool, an_order(pool))).ids == (one.id,)
    await compute.terminate(pool, [one.id])
    await until(lambda: processes.start_of(pid_of(one)) == "")


async def test_a_replica_is_found_when_all_files_are_lost(compute: LocalProcessCompute, tmp_path: Path) -> None:
    pool = a_pool(running(SLEEP))
    one = await launched(compute, pool)
    for path in (tmp_path / "local_process" / "records").iterdir():
        path.unlink()
    assert await seen(compute, pool) == [one]
    assert (await compute.launch(pool, an_order(pool))).ids == (one.id,)
    assert await seen(compute, pool) == [one]


async def test_a_replica_that_ended_is_gone_and_not_started_again(compute: LocalProcessCompute) -> None:
    pool = a_pool(running("pass"))
    state = await compute.launch(pool, an_order(pool))
    end = time.monotonic() + 10
    while await seen(compute, pool):
        assert time.monotonic() < end
        await asyncio.sleep(0.02)
    assert await compute.launch(pool, an_order(pool)) == state
    assert await seen(compute, pool) == []


async def test_a_zombie_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    await until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert processes.start_of(child.pid) == ""
    child.wait()


async def test_what_a_crashed_replica_left_behind_ends_at_the_next_launch(
    compute: LocalProcessCompute, tmp_path: Path
) -> None:
    """The API server dies, its worker lives on and holds the GPU: the next replica must not find it taken."""
    code = dedent("""
        import subprocess, sys, time
        print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]).pid, flush=True)
        time.sleep(300)
    """)
    pool = a_pool(running(code))
    one = await launched(compute, pool)
    await until(lambda: log_of(tmp_path, one).endswith("\n"))
    worker = psutil.Process(int(log_of(tmp_path, one)))
    os.kill(pid_of(one), signal.SIGKILL)
    await until(lambda: processes.start_of(pid_of(one)) == "")
    assert await seen(compute, pool) == []
    await launched(compute, pool, token="e-2-0")
    await until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


IGNORES = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"


async def test_who_ignores_sigterm_is_killed_after_the_grace_although_nobody_waits(
    compute: LocalProcessCompute, tmp_path: Path
) -> None:
    pool = a_pool(running(IGNORES, grace=0.5))
    one = await launched(compute, pool)
    await until(lambda: "deaf" in log_of(tmp_path, one))
    begun = time.monotonic()
    await compute.terminate(pool, [one.id])
    (shown,) = await seen(compute, pool)
    assert shown.state is InstanceState.STOPPING
    await compute.aclose()  # nobody looks any more
    await until(lambda: processes.start_of(pid_of(one)) == "")
    assert time.monotonic() - begun >= 0.5


async def test_an_end_that_somebody_killed_is_taken_up_again(compute: LocalProcessCompute, tmp_path: Path) -> None:
    pool = a_pool(running(IGNORES, grace=300.0))
    one = await launched(compute, pool)
    await until(lambda: "deaf" in log_of(tmp_path, one))
    store = Store(str(tmp_path))
    stamp = Stamp(CLOCK.now() - 1000, 300.0)
    store.stamp(one.id, stamp)  # asked long ago, and the process that should have ended it is gone
    await compute.terminate(pool, [one.id])
    await until(lambda: processes.start_of(pid_of(one)) == "")


async def test_there_is_no_standby(compute: LocalProcessCompute) -> None:
    for call in (compute.start, compute.stop):
        with pytest.raises(Refused, match="no standby"):
            await call(a_pool(running(SLEEP)), [InstanceId("x")])


async def test_ports_are_those_that_are_free_and_run_out_as_a_lack_of_capacity(compute: LocalProcessCompute) -> None:
    (port,) = free_ports(1)
    pool = a_pool(running(SLEEP, port_range=f"{port}-{port}"))
    one = await launched(compute, pool)
    assert one.ports == (port,)
    with pytest.raises(NoCapacity, match=f"ports {port}-{port}: 0 free, 1 needed"):
        await compute.launch(pool, an_order(pool, "e-2-0"))
    assert await seen(compute, pool) == [one]


async def test_a_port_just_given_up_is_not_the_next_one(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.prepare()
    allowed = range(23000, 23010)
    first = store.free_ports(1, allowed, set(), "127.0.0.1")
    second = store.free_ports(2, allowed, set(), "127.0.0.1")
    assert not set(first) & set(second)
    rest = [store.free_ports(1, allowed, set(), "127.0.0.1")[0] for _ in range(10)]
    assert first[0] in rest  # it goes round


async def test_any_free_port_will_do(compute: LocalProcessCompute) -> None:
    one = await launched(compute, a_pool(running(SLEEP, port_range="auto")))
    assert one.ports[0] > 0


async def test_a_program_that_may_not_be_executed_is_refused(compute: LocalProcessCompute, tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text("no shebang")
    pool = a_pool(Settings(command=(str(program), "{port}")))
    with pytest.raises(Refused, match=r"server': it is not there or may not be executed"):
        await compute.launch(pool, an_order(pool))
    program.chmod(0o755)
    with pytest.raises(Refused, match=r"could not be started: Exec format error"):
        await compute.launch(pool, an_order(pool))
    assert await seen(compute, pool) == []
    program.write_text(f"#!{sys.executable}\n{SLEEP}\n")
    assert len((await compute.launch(pool, an_order(pool))).ids) == 1  # the mistake mended, the same token works


async def test_a_folder_for_state_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    context = Context(installation="test", state_dir=str(tmp_path / "file" / "below"), clock=CLOCK)
    compute = local_process.build(running(SLEEP), context)
    pool = a_pool(running(SLEEP))
    with pytest.raises(Refused, match="cannot make a folder for state: Not a directory"):
        await compute.launch(pool, an_order(pool))
    await compute.aclose()


async def test_pools_that_look_at_the_same_time_share_one_scan(
    compute: LocalProcessCompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = []

    def counted(records: Path) -> object:
        scans.append(records)
        return scan(records)

    monkeypatch.setattr(local_process.adapter, "scan", counted)
    since = CLOCK.now()
    pools = [a_pool(running(SLEEP), name=f"p{number}") for number in range(20)]
    views = await asyncio.gather(*(compute.observe(pool, (), since) for pool in pools))
    assert (len(scans), len({view.as_of for view in views})) == (1, 1)
    await compute.observe(pools[0], (), CLOCK.now())
    await compute.observe(pools[0], (), NEVER)
    assert len(scans) == 2


async def test_another_installation_with_the_same_pool_and_token_is_in_nobodys_way(
    compute: LocalProcessCompute, tmp_path: Path
) -> None:
    mine, theirs = a_pool(running(SLEEP)), a_pool(running(SLEEP), installation=f"{Here.name}-2")
    other_folder = tmp_path / "other"
    other = local_process.build(
        running(SLEEP), Context(installation=theirs.installation, state_dir=str(other_folder), clock=CLOCK)
    )
    one, another = await launched(compute, mine), await launched(other, theirs)
    assert one.id == another.id
    assert one.ports != another.ports
    await compute.terminate(mine, [one.id])
    await until(lambda: processes.start_of(pid_of(one)) == "")
    assert await seen(other, theirs) == [another]
    await other.terminate(theirs, [another.id])
    await until(lambda: processes.start_of(pid_of(another)) == "")
    await other.aclose()


async def test_a_pool_that_no_config_knows_is_reported_after_a_minute(
    compute: LocalProcessCompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, unknown = a_pool(running(SLEEP), name="known"), a_pool(running(SLEEP), name="unknown")
    one = await launched(compute, known)
    state = await compute.launch(unknown, an_order(unknown))
    mine = {one.id, *state.ids}
    view = await compute.observe(known, (), CLOCK.now())
    assert not mine & {other.id for other in view.foreign}
    monkeypatch.setattr(local_process.adapter, "_UNKNOWN_AFTER", Duration(0.0))
    view = await compute.observe(known, (), CLOCK.now())
    (stranger,) = [other for other in view.foreign if other.id in mine]
    assert (stranger.id, stranger.detail) == (state.ids[0], f"installation {Here.name}, pool unknown")


async def test_logs_are_bounded(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.prepare()
    for number in range(150):
        store.log(f"old-{number}").touch()
    store.tidy(["old-0"])
    assert len(list(store.logs.iterdir())) in {100, 101}
    assert store.log("old-0").exists()
    with store.log("old-0").open("ab") as log:
        log.truncate(17 * 2**20)
        log.write(b"last words")
        log.flush()
        store.bound_logs(["old-0"])
        log.write(b"more")
    assert store.log("old-0").read_bytes() == b"more"
    kept = store.log("old-0").with_name("old-0.log.1").read_bytes()
    assert (len(kept), kept[-10:]) == (2**20, b"last words")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"command": []}, "command: found nothing"),
        ({"command": ["serve", "--port", "{prot}"]}, "no {port} in it"),
        ({"command": ["serve", "{port}"], "port_range": "9000"}, "port_range: found '9000', allowed:"),
        ({"command": ["serve", "{port}"], "port_range": "9-1"}, "port_range: found '9-1'"),
        ({"command": ["serve", "{port}"], "port_range": "1-99999"}, "within 1-65535"),
        ({"command": ["serve", "{port}"], "grace": -1.0}, "grace: found -1 s"),
        ({"command": ["serve", "{port}"], "colour": "red"}, "colour"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(change, Settings)
    assert told in str(error.value)


def test_tags_travel_through_an_environment_and_half_of_them_are_none() -> None:
    tags = Tags(
        installation="i",
        pool="p",
        token="e-1-0",
        index=0,
        instance="p-e-1-0-0",
        offer="o",
        zone="z",
        address="127.0.0.1",
        port=1,
        launched_at=2.5,
    )
    env = tags.to_env()
    assert Tags.from_env(env) == tags
    assert all(Tags.from_env({k: v for k, v in env.items() if k != name}) is None for name in env)
    assert Tags.from_env({**env, "AUTOSCALER_TAG_PORT": "x"}) is None
