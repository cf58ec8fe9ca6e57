"""Real model servers in environments of their own: started for one test on free ports, ended with all they started.

Does: find the environments that `make models` makes, start servers, and watch one become ready. Does not: judge.
Invariant: after `serving`, no process that it started is left, whatever happened inside.
"""

import asyncio
import http.client
import os
import shutil
import subprocess
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from typing_extensions import override

from autoscaler.demo.children import Child, marked, sweep
from autoscaler.domain.replica import ProbeVerdict
from autoscaler.ports.build import Context
from providers.probe import http as probe
from providers.probe.http import HttpProbe
from providers.telemetry import scrape
from providers.telemetry.scrape import Scrape
from tests.support.raw_http import a_context, an_endpoint
from tests.support.streaming import WallClock, free_ports

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "integration" / "models"
_VENVS = ROOT / ".venv-models"
_POLL_S = 0.03


def venv_of(server: str) -> Path:
    """The environment of a server; skips the test where `make models` has not made it (in CI a skip is a failure)."""
    venv = _VENVS / server
    if not any(venv.glob(".locked-*")):
        pytest.skip(f"{server} is not installed: `make models`")
    return venv


def packages_of(venv: Path) -> Path:
    """Where its packages lie."""
    (found,) = venv.glob("lib/python3.*/site-packages")
    return found


@contextmanager
def serving(
    root: Path, command: Sequence[str], *, env: Mapping[str, str] | None = None, patience_s: float = 2.0
) -> Iterator[Child]:
    """A server, its output in root/server.log; SIGTERM, then SIGKILL after `patience_s`, for all that it started."""
    root.mkdir(exist_ok=True)
    child = Child(
        ["env", *(f"{name}={value}" for name, value in (env or {}).items()), *command],
        world=root,
        log=root / "server.log",
    )
    try:
        yield child
    finally:
        child.stop(patience_s)
        left = sweep(root)
    assert left == 0, f"{left} processes would not end"
    assert marked(root) == []


# -- llama.cpp -------------------------------------------------------------------------------------------


def gguf(path: Path, *, width: int = 64, layers: int = 2) -> Path:
    """A model file of random weights in the shape of a Llama."""
    python = venv_of("llama_cpp") / "bin" / "python"
    words = [str(python), str(MODELS / "make_gguf.py"), str(path), "--width", str(width), "--layers", str(layers)]
    subprocess.run(words, check=True, timeout=60)
    return path


def llama_command(model: Path, port: int | str) -> list[str]:
    """What starts llama.cpp's server with two slots; `port` may be a placeholder that someone else fills in."""
    python = venv_of("llama_cpp") / "bin" / "python"
    return [str(python), str(MODELS / "llama_server.py"), "--model", str(model), "--port", str(port), "--slots", "2"]


# -- Triton ----------------------------------------------------------------------------------------------


class TritonPorts(NamedTuple):
    """Where one Triton listens."""

    http: int
    grpc: int
    metrics: int


def triton_model(repository: Path, name: str, **parameters: str) -> None:
    """Put a model of the Python backend into a repository."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    shutil.copy(MODELS / "triton_model.py", folder / "1" / "model.py")
    told = "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n' for key, value in parameters.items()
    )
    tensors = "".join(
        f'{kind} [ {{ name: "{tensor}" data_type: TYPE_FP32 dims: [ 4 ] }} ]\n'
        for kind, tensor in (("input", "IN"), ("output", "OUT"))
    )
    (folder / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\nmax_batch_size: 8\n{tensors}{told}')


@contextmanager
def triton(root: Path, repository: Path, *words: str) -> Iterator[TritonPorts]:
    """A Triton over a repository of models."""
    venv = venv_of("triton")
    packages = packages_of(venv)
    server = packages / "pytriton" / "tritonserver"
    ports = TritonPorts(*free_ports(3))
    say = "import sys, sysconfig; print(sys.version_info[1], sysconfig.get_config_var('LIBDIR'))"
    asked = subprocess.run([venv / "bin" / "python", "-c", say], check=True, capture_output=True, text=True, timeout=20)
    minor, libraries = asked.stdout.split()
    # The wheel has a stub for each Python, of which the backend wants one beside it; the venv stays as it is.
    backend = root / "backends" / "python"
    backend.mkdir(parents=True)
    stub = server / "python_backend_stubs" / f"3.{minor}" / "triton_python_backend_stub"
    for file in (stub, *(server / "backends" / "python").iterdir()):
        (backend / file.name).symlink_to(file)
    command = [str(server / "bin" / "tritonserver"), f"--model-repository={repository}"]
    command += [f"--backend-directory={backend.parent}", "--exit-timeout-secs=3"]
    for kind, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        command += [f"--{kind}-address=127.0.0.1", f"--{kind}-port={port}"]
    env = {
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(packages),
        "LD_LIBRARY_PATH": f"{packages / 'nvidia_pytriton.libs'}:{libraries}",
    }
    # Memory that Triton shares with its models outlives it when it is killed.
    shared = f"triton-test-{os.getpid()}-{ports.http}"
    command.append(f"--backend-config=python,shm-region-prefix-name={shared}")
    try:
        with serving(root / "triton", [*command, *words], env=env, patience_s=10.0):
            yield ports
    finally:
        for left in Path("/dev/shm").glob(f"{shared}*"):
            left.unlink()


# -- TorchServe ------------------------------------------------------------------------------------------


class TorchServePorts(NamedTuple):
    """Where one TorchServe listens."""

    inference: int
    management: int
    metrics: int
    grpc_inference: int
    grpc_management: int


@contextmanager
def torchserve(root: Path, handler: Path, *, name: str = "dummy") -> Iterator[TorchServePorts]:
    """A TorchServe with one model and one worker."""
    venv = venv_of("torchserve")
    ports = TorchServePorts(*free_ports(5))
    store = root / "store"
    store.mkdir()
    archive = [str(venv / "bin" / "torch-model-archiver"), "--model-name", name, "--version", "1.0"]
    subprocess.run([*archive, "--handler", str(handler), "--export-path", str(store)], check=True, timeout=60, cwd=root)
    settings = {
        f"{kind}_address": f"http://127.0.0.1:{getattr(ports, kind)}" for kind in ("inference", "management", "metrics")
    }
    settings |= {
        "grpc_inference_port": str(ports.grpc_inference),
        "grpc_management_port": str(ports.grpc_management),
        "metrics_mode": "prometheus",
        "load_models": f"{name}.mar",
        "default_workers_per_model": "1",
        "job_queue_size": "100",
        "model_store": str(store),
    }
    config = root / "config.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [str(venv / "bin" / "torchserve"), "--start", "--foreground", "--ncs", "--disable-token-auth"]
    command += ["--ts-config", str(config), "--model-store", str(store)]
    env = {
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "LOG_LOCATION": str(root / "logs"),
        "METRICS_LOCATION": str(root / "logs"),
        "TEMP": str(root),
    }
    # The launcher passes no signal on to its Java: what is left of it is swept.
    with serving(root / "torchserve", command, env=env):
        yield ports


# -- Looking ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def probing(preset: str, **fields: Any) -> AsyncGenerator[HttpProbe]:
    """Our probe by its own settings."""
    one = probe.build(probe.Settings(preset=preset, **fields), a_context())
    try:
        yield one
    finally:
        await one.aclose()


@asynccontextmanager
async def scraping(preset: str, **fields: Any) -> AsyncGenerator[Scrape]:
    """Our telemetry by its own settings, on the machine's clock."""
    context = Context(installation="test", state_dir="unused", clock=WallClock())
    one = scrape.build(scrape.Settings(preset=preset, **fields), context)
    try:
        yield one
    finally:
        await one.aclose()


@asynccontextmanager
async def asking(port: int, path: str, body: dict[str, Any], clients: int) -> AsyncGenerator[list[int]]:
    """Clients that ask without a pause, until left; yields the statuses of the answers so far."""
    statuses: list[int] = []

    async def ask_on(session: aiohttp.ClientSession) -> None:
        while True:
            async with session.post(f"http://127.0.0.1:{port}{path}", json=body) as answer:
                await answer.read()
                statuses.append(answer.status)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = [asyncio.create_task(ask_on(session)) for _ in range(clients)]
        try:
            yield statuses
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [one for one in ended if not isinstance(one, asyncio.CancelledError)] == []


def status_of(port: int, path: str) -> int:
    """What the server itself says: the status of a GET, 0 where nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


class Look(NamedTuple):
    """Our verdict, and what the server's own liveness path said just before."""

    at: float
    live: int
    verdict: ProbeVerdict


@dataclass
class Looks:
    """Everything that was seen until the model was loaded, the last look being the first that says so."""

    all: list[Look] = field(default_factory=list)

    @property
    def loading(self) -> list[Look]:
        return [look for look in self.all if not look.verdict.loaded]

    @property
    def loading_while_live(self) -> list[Look]:
        """The looks at which a liveness check alone would have admitted it."""
        return [look for look in self.loading if look.live == 200]

    @override
    def __str__(self) -> str:
        first, last = self.all[0], self.all[-1]
        lied, said = len(self.loading_while_live), sorted({look.verdict.detail for look in self.loading})
        return f"{len(self.all)} looks in {last.at - first.at:.1f} s, {lied} not loaded while live said 200; {said}"


async def watch(one: HttpProbe, port: int, live: str, *, within_s: float, until_loaded: bool = True) -> Looks:
    """Look with a real generation, again and again, until loaded or (`until_loaded` false) until the time is over."""
    looks = Looks()
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        status = await asyncio.to_thread(status_of, port, live)
        verdict = await one.check(an_endpoint(port), generate=True)
        looks.all.append(Look(time.monotonic(), status, verdict))
        if verdict.loaded and until_loaded:
            return looks
        await asyncio.sleep(_POLL_S)
    assert not until_loaded, f"not loaded within {within_s:g} s: {looks}"
    return looks
