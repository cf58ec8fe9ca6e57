"""The composition root: a Config becomes adapters, policies and a ledger. The only place where all parts meet.

Does: build what the config names, share computes of one account, check what only adapters know. Does not: run anything.
Invariant: build() does no network I/O and imports only the kinds that the config names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from autoscaler.config import modules
from autoscaler.config.modules import Group
from autoscaler.config.schema import Choice, Config, PoolConfig
from autoscaler.config.sections import build_policy
from autoscaler.domain.base import PoolName
from autoscaler.domain.decision import Calendar, Recommendation, Situation
from autoscaler.domain.faults import AutoscalerError, ConfigError
from autoscaler.domain.load import LoadSample, Signal
from autoscaler.domain.pool import BalancerTraits, Mode, Pool
from autoscaler.ports.balancer import Balancer
from autoscaler.ports.build import Context
from autoscaler.ports.clock import Clock
from autoscaler.ports.compute import Compute
from autoscaler.ports.ledger import Ledger
from autoscaler.ports.policy import Policy
from autoscaler.ports.probe import Probe
from autoscaler.ports.telemetry import Telemetry
from autoscaler.runtime.foreign import WorkerPolicy
from autoscaler.runtime.parts import PoolParts

#: What somebody's build() may raise for settings that pass their own checks.
_BUILD_FAULTS = (
    AutoscalerError,
    ValueError,
    TypeError,
    ImportError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
)


class Wired(NamedTuple):
    """All that a daemon runs: its pools with their adapters, and the ledger."""

    pools: list[PoolParts]
    ledger: Ledger


class NoTelemetry:
    """Telemetry of a pool whose policies read no signal: it knows nothing, and says so."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def sample(self, signals: frozenset[Signal], replicas: object) -> LoadSample:
        """An empty sample: nothing was asked for. Raises nothing."""
        del signals, replicas
        return LoadSample(at=self._clock.now(), detail="the pool has no telemetry")

    async def aclose(self) -> None:
        """Nothing to release."""


class _Workshop:
    """Builds the parts of all pools; keeps the computes that pools share."""

    def __init__(self, config: Config, clock: Clock, *, read_only: bool = False) -> None:
        self._config = config
        self._clock = clock
        self._read_only = read_only
        self._advised = {one.pool.name for one in config.pools if one.pool.mode is Mode.ADVISE}
        self._computes: dict[str, Compute] = {}
        self.mistakes: list[str] = []

    def made(self, group: Group, choice: Choice, pool: str = "", name: str = "", function: str = "build") -> Any:
        """What the module's build() gives for this choice, or None with one more mistake."""
        context = Context(
            installation=self._config.installation,
            state_dir=self._state_dir(pool),
            clock=self._clock,
            pool=PoolName(pool),
            name=name,
            looking=self._read_only or pool in self._advised,
        )
        try:
            module: Any = modules.load(group, choice.kind, choice.path)
            return getattr(module, function)(choice.settings, context)
        except ConfigError as error:
            self.mistakes += error.mistakes
        except _BUILD_FAULTS as error:
            line = str(error).partition("\n")[0][:200] or type(error).__name__
            self.mistakes.append(f"{choice.path}: {choice.kind} cannot be built: {line}; allowed: see its settings")
        return None

    def _state_dir(self, pool: str) -> str:
        """A pool's own folder, since two pools may have bindings of one name; what pools share is above it."""
        return str(Path(self._config.state_dir) / "pools" / pool) if pool else self._config.state_dir

    def pool(self, config: PoolConfig) -> PoolParts | None:
        """The parts of one pool, or None with its mistakes told."""
        before = len(self.mistakes)
        name = config.pool.name
        for key, choice in config.computes.items():
            if key not in self._computes:
                self._computes[key] = self.made(Group.COMPUTE, choice, name=key)
        balancers: dict[str, Balancer] = {
            choice.name: self.made(Group.BALANCER, choice, name, choice.name) for choice in config.balancers
        }
        probe: Probe = self.made(Group.PROBE, config.probe, name)
        telemetry: Telemetry = (
            self.made(Group.TELEMETRY, config.telemetry, name) if config.telemetry else NoTelemetry(self._clock)
        )
        policies = tuple(self._policy(choice) for choice in config.policies)
        signals = self._signals(config, policies)
        if len(self.mistakes) > before:
            return None
        traits = tuple(self._traits(choice, balancers[choice.name]) for choice in config.balancers)
        return PoolParts(
            pool=msgspec.structs.replace(config.pool, balancers=traits),
            policies=policies,
            computes={key: self._computes[key] for key in config.computes},
            balancers=balancers,
            telemetry=telemetry,
            probe=probe,
            signals=signals,
            config_hash=config.config_hash,
        )

    def _signals(self, config: PoolConfig, policies: tuple[Policy, ...]) -> frozenset[Signal]:
        """What must be sampled; a policy in a worker process starts here, and may be broken."""
        named: set[Signal] = set()
        for choice, policy in zip(config.policies, policies, strict=True):
            try:
                named |= policy.signals()
            except AutoscalerError as error:
                self.mistakes.append(f"{choice.path}: {error}; allowed: a policy that answers")
        return frozenset(named)

    def _traits(self, choice: Choice, balancer: Balancer) -> BalancerTraits:
        traits = balancer.traits()
        wanted = getattr(choice.settings, "strategy", None)
        if wanted is not None and str(wanted) not in traits.strategies:
            self.mistakes.append(
                f"{choice.path}.strategy: found '{wanted}', which {choice.kind} lacks; "
                f"allowed: {', '.join(traits.strategies)}"
            )
        return traits

    def _policy(self, choice: Choice) -> Policy:
        """Ours run inline; one from another distribution runs in a worker process with a deadline."""
        policy = build_policy(choice)
        if modules.is_ours(Group.POLICY, choice.kind):
            return policy
        return _in_worker(choice, policy)


class NamedWorker:
    """A policy in a worker process under the name that it gives itself: of two of a kind, each keeps its own carry."""

    blocking = True

    def __init__(self, worker: WorkerPolicy, name: str) -> None:
        self._worker = worker
        self.name = name

    def signals(self) -> frozenset[Signal]:
        """The signals it names; raises PolicyBroken."""
        return self._worker.signals()

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        """Its opinion; raises PolicyBroken."""
        return self._worker.recommend(pool, situation, carry, calendar)

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


def _in_worker(choice: Choice, policy: Policy) -> Policy:
    return NamedWorker(WorkerPolicy(choice.kind, msgspec.json.encode(choice.settings).decode()), policy.name)


def build(config: Config, clock: Clock, *, read_only: bool = False) -> Wired:
    """Everything that `config` names; raises ConfigError with every mistake that only the modules can see.

    `read_only`: looking makes and starts nothing, and the ledger refuses writes (plan, check).
    """
    workshop = _Workshop(config, clock, read_only=read_only)
    pools = [workshop.pool(each) for each in config.pools]
    ledger = _ledger(workshop, config.ledger, read_only=read_only)
    if workshop.mistakes or ledger is None:
        raise ConfigError(list(dict.fromkeys(workshop.mistakes)))
    return Wired([parts for parts in pools if parts is not None], ledger)


def build_pools(config: Config, clock: Clock) -> list[PoolParts]:
    """The pools alone, for a reload: the ledger in use stays; raises ConfigError as `build`."""
    workshop = _Workshop(config, clock)
    pools = [workshop.pool(each) for each in config.pools]
    if workshop.mistakes:
        raise ConfigError(list(dict.fromkeys(workshop.mistakes)))
    return [parts for parts in pools if parts is not None]


def build_ledger(config: Config, clock: Clock, *, read_only: bool) -> Ledger:
    """The ledger alone, for commands that need no pool; raises ConfigError."""
    workshop = _Workshop(config, clock)
    ledger = _ledger(workshop, config.ledger, read_only=read_only)
    if ledger is None:
        raise ConfigError(workshop.mistakes)
    return ledger


def _ledger(workshop: _Workshop, choice: Choice, *, read_only: bool) -> Ledger | None:
    """A ledger kind may have a `reader` beside `build`; one without is opened as it is and only read from."""
    module = modules.load(Group.LEDGER, choice.kind, choice.path)
    function = "reader" if read_only and hasattr(module, "reader") else "build"
    ledger: Ledger | None = workshop.made(Group.LEDGER, choice, function=function)
    return ledger


def ledger_module(config: Config) -> Any:
    """The ledger's module, for what is no port: hold, backup, restore."""
    return modules.load(Group.LEDGER, config.ledger.kind, config.ledger.path)


def beside_ledger(config: Config) -> list[Path]:
    """The files that computes keep, there yet or not: they belong with the ledger and are in no backup of it."""
    kinds = {choice.kind: choice for pool in config.pools for choice in pool.computes.values()}
    loaded = [modules.load(Group.COMPUTE, choice.kind, choice.path) for choice in kinds.values()]
    named = [getattr(module, "beside_ledger", None) for module in loaded]
    return [name(config.state_dir) for name in named if name is not None]


async def close(wired: Wired) -> None:
    """Release every adapter once, then the ledger; machines and balancers stay as they are."""
    closed: set[int] = set()
    for parts in wired.pools:
        for adapter in parts.adapters():
            if id(adapter) not in closed:
                closed.add(id(adapter))
                await adapter.aclose()
        for policy in parts.policies:
            if isinstance(policy, NamedWorker):
                policy.close()
    await wired.ledger.aclose()
