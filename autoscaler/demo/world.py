"""The demo's world: one folder with a config of the product's own format, in which the scene's times are scaled.

Does: choose free ports, write the config, and say which commands run in it. Does not: start anything.
Invariant: the policies and the pace are the product's defaults; only times (and what is counted a second) are scaled.

What is scaled and what is not: whatever the pool decides by (tick, cooldown, stabilisation, deadlines, objective,
rates) is divided by the time scale. How quickly a dead process is noticed is a matter of this machine, and is not.
"""

import secrets
import socket
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from autoscaler.config.durations import format_duration, parse_duration
from autoscaler.config.load import load
from autoscaler.config.read import parse_mapping, read_text
from autoscaler.demo.scene import Scene
from autoscaler.domain.faults import ConfigError
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import DrainRule, Pace, ReadyRule

POOL = "demo"
BalancerKind = Literal["envoy", "haproxy"]
PROXY_CLUSTER = "replicas"
_SCRAPE_WINDOW_S = 30.0  # the default of providers.telemetry.scrape: two ticks
_RATES = {Signal.REQUEST_RATE, Signal.TOKEN_RATE, Signal.INPUT_TOKEN_RATE}
_LATENCIES = {Signal.TTFT_S_P95, Signal.E2E_S_P95, "latency_p95"}
_MARKS = ("target", "at_least", "below", "above", "objective")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Where everything of one run lies. Ports are on loopback.

    `installation` is a name that no other run has: machines are known by their installation and pool, and two demos
    on one machine must not adopt each other's replicas.
    """

    root: Path
    installation: str
    admin_port: int
    listen_port: int
    proxy_admin_port: int
    balancer: BalancerKind = "envoy"

    @property
    def config(self) -> Path:
        """The config of the daemon."""
        return self.root / "autoscaler.yaml"

    @property
    def state(self) -> Path:
        """Where the daemon keeps its state."""
        return self.root / "state"

    @property
    def stats(self) -> Path:
        """Where the replicas leave their own counts."""
        return self.root / "stats"

    @property
    def requests(self) -> Path:
        """The load client's records."""
        return self.root / "requests.jsonl"

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        return f"http://127.0.0.1:{self.listen_port}"

    @property
    def daemon_command(self) -> list[str]:
        """The daemon, as a user would run it."""
        return [sys.executable, "-m", "autoscaler.cli.main", "run", "--config", str(self.config)]


def make(root: Path, balancer: BalancerKind = "envoy") -> World:
    """The folders of a new world, and three ports that are free now. Raises OSError."""
    with ExitStack() as held:
        ports = []
        for _ in range(3):
            taken = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            taken.bind(("127.0.0.1", 0))
            ports.append(int(taken.getsockname()[1]))
    installation = f"demo-{secrets.token_hex(6)}"
    world = World(
        root=root,
        installation=installation,
        admin_port=ports[0],
        listen_port=ports[1],
        proxy_admin_port=ports[2],
        balancer=balancer,
    )
    for folder in (world.state, world.stats):
        folder.mkdir(mode=0o700)
    return world


def default_policies(scene: Scene) -> list[dict[str, Any]]:
    """The policies of the README with their default values, in trace time."""
    return [
        {"kind": "target_tracking", "signal": "queue_length", "target": 4},
        {"kind": "target_tracking", "signal": "gpu_utilization", "target": 0.75},
        {"kind": "latency_slo", "signal": "ttft_s_p95", "objective": format_duration(scene.ttft_objective_s)},
    ]


def read_policies(path: Path) -> list[object]:
    """The policies of a file: a list, or a mapping with `policies` as a config has. Raises ConfigError."""
    found = parse_mapping(_as_mapping(read_text(path, "a YAML file with policies")), str(path))
    policies = found.get("policies")
    if not isinstance(policies, list) or not policies or len(found) != 1:
        raise ConfigError([f"{path}: allowed: a list of policies, or a mapping with policies alone"])
    return policies


def _as_mapping(text: str) -> str:
    """A bare list is taken for the value of `policies`."""
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return f"policies:\n{textwrap.indent(text, ' ')}" if first.startswith(("-", "[")) else text


def check(world: World, policy_file: Path | None) -> None:
    """Check the written config as the daemon will. Raises ConfigError, in the words of the user's own file."""
    try:
        load(world.config)
    except ConfigError as error:
        if policy_file is None:
            raise
        prefix = "pools[0].policies"
        told = [mistake.replace(prefix, f"{policy_file}: policies", 1) for mistake in error.mistakes]
        raise ConfigError(told) from None


def config(world: World, scene: Scene, policies: Sequence[object], seed: int) -> dict[str, Any]:
    """The daemon's config, as the file will say it."""
    command = scene.server_command(port="{port}", stats_dir=world.stats, seed=seed)
    return {
        "installation": world.installation,
        "ledger": f"sqlite:///{world.state / 'autoscaler.db'}",
        "state_dir": str(world.state),
        "admin": {"listen": f"127.0.0.1:{world.admin_port}"},
        "pools": [
            {
                "name": POOL,
                "capacity": {"min": scene.replicas_min, "max": scene.replicas_max},
                "offers": [{"compute": "local_process", "name": "stand-in", "command": command, "port_range": "auto"}],
                "ready_when": {
                    "preset": "vllm",
                    "generate": True,
                    "passes": ReadyRule().passes,
                    "give_up_after": _scaled(scene, ReadyRule().give_up_after),
                },
                "balancers": [_balancer(world)],
                "telemetry": {
                    "kind": "scrape",
                    "preset": "vllm",
                    "timeout": "1s",
                    "window": _scaled(scene, _SCRAPE_WINDOW_S),
                },
                "policies": [scaled_policy(policy, scene.time_scale) for policy in policies],
                "pace": _pace(scene),
                "drain": {"deadline": _scaled(scene, DrainRule().deadline)},
            }
        ],
    }


def write(world: World, scene: Scene, policies: Sequence[object], seed: int) -> None:
    """Write the config. Raises OSError."""
    text = yaml.safe_dump(config(world, scene, policies, seed), sort_keys=False, width=120)
    world.config.write_text(text, encoding="utf-8")


def scaled_policy(policy: object, scale: float) -> object:
    """A policy of trace time in wall time: a latency is shorter, a rate is higher; all else stays.

    What is no mapping, or no number, is left as it is: the config's own check then says what is wrong with it.
    """
    if not isinstance(policy, Mapping):
        return policy
    signal = policy.get("signal")
    factor = scale if signal in _RATES else 1.0 / scale if signal in _LATENCIES else 1.0
    made: dict[str, Any] = {}
    for key, value in policy.items():
        if key in _MARKS and isinstance(value, int | float) and not isinstance(value, bool):
            made[key] = value * factor
        elif key == "objective" and isinstance(value, str):
            made[key] = _shorter(value, scale)
        elif key in {"steps", "scale_in"}:
            made[key] = _inner(value, signal, scale)
        elif isinstance(value, list):
            made[key] = [scaled_policy(each, scale) for each in value]
        else:
            made[key] = value
    return made


def _inner(value: object, signal: object, scale: float) -> object:
    """Thresholds that stand below a policy's signal."""
    if isinstance(value, list):
        return [_inner(each, signal, scale) for each in value]
    if not isinstance(value, Mapping):
        return value
    inner = scaled_policy({**value, "signal": signal}, scale)
    return {key: each for key, each in inner.items() if key != "signal"} if isinstance(inner, dict) else value


def _shorter(text: str, scale: float) -> str:
    try:
        return format_duration(parse_duration(text) / scale)
    except ValueError:
        return text


def _scaled(scene: Scene, seconds: float) -> str:
    return format_duration(scene.wall_s(seconds))


def _pace(scene: Scene) -> dict[str, Any]:
    """The default pace, in wall time; what is about processes of this machine keeps its own time."""
    pace = Pace()
    divided = (
        "tick",
        "stale_after",
        "fallback_after",
        "launch_deadline",
        "no_capacity_memory",
        "orphan_grace",
        "backoff_first",
        "backoff_max",
        "min_age",
    )
    out, into = pace.scale_out, pace.scale_in
    return {
        **{name: _scaled(scene, getattr(pace, name)) for name in divided},
        "scale_out": {"cooldown": _scaled(scene, out.cooldown)},
        "scale_in": {
            "cooldown": _scaled(scene, into.cooldown),
            "stabilization": _scaled(scene, into.stabilization),
        },
    }


def _balancer(world: World) -> dict[str, Any]:
    if world.balancer == "haproxy":
        return {
            "kind": "haproxy",
            "embedded": True,
            "listen": f"127.0.0.1:{world.listen_port}",
            "backend": PROXY_CLUSTER,
        }
    return {
        "kind": "envoy",
        "listen": f"127.0.0.1:{world.listen_port}",
        "admin": f"127.0.0.1:{world.proxy_admin_port}",
        "cluster": PROXY_CLUSTER,
    }
