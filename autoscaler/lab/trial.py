"""What is tried: the pool, policies and pace of a config file, in a world, on a workload, with a seed.

The config is the daemon's own file. Its sections `ledger`, `admin` and `log` are left alone, and so is the environment:
a check in CI has neither the daemon's token nor its database. Policies of other packages run in this process, without
the worker and its deadline: the lab runs what its user chose, and a run calls them many thousand times.

Does: read a Trial, check it as the daemon would and then against the world, and run it. Does not: judge or draw.
Invariant: equal files, options and seed, equal Trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from autoscaler.config.environment import Environment
from autoscaler.config.load import from_mapping
from autoscaler.config.mistakes import close_match
from autoscaler.config.read import read_mapping
from autoscaler.config.schema import PoolConfig
from autoscaler.config.sections import build_policy
from autoscaler.domain.faults import ConfigError
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Mode, Pool
from autoscaler.lab.fast import Options, simulate
from autoscaler.lab.fleet import STRATEGIES
from autoscaler.lab.result import Result
from autoscaler.lab.scorecard import Slo
from autoscaler.lab.settings import WorldSettings
from autoscaler.lab.traces import read_workload
from autoscaler.lab.workload import Workload
from autoscaler.lab.world_file import WorldFile
from autoscaler.ports.policy import Policy

#: Sections of the config that say nothing of a pool.
_NOT_OURS: Final = frozenset({"ledger", "admin", "log", "state_dir"})
#: The column of a workload that a signal is made of.
_MADE_OF: Final = {
    Signal.INPUT_TOKEN_RATE: frozenset({"input_tokens"}),
    Signal.TOKEN_RATE: frozenset({"output_tokens"}),
    Signal.KV_CACHE_USE: frozenset({"input_tokens", "output_tokens"}),
}


class Chosen(NamedTuple):
    """One pool of a config: its mapping in the file, where that stands, and what it became."""

    path: Path
    document: Mapping[str, Any]
    place: int
    config: PoolConfig

    @property
    def mapping(self) -> Mapping[str, Any]:
        """The pool as it is written."""
        found: Mapping[str, Any] = self.document["pools"][self.place]
        return found

    def changed(self, mapping: Mapping[str, Any]) -> Chosen:
        """The same with another mapping of the pool. Raises ConfigError."""
        pools = list(self.document["pools"])
        pools[self.place] = mapping
        return _chosen(self.path, {**self.document, "pools": pools}, str(mapping.get("name")))


def read_pool(path: Path, name: str | None, policies: Path | None = None) -> Chosen:
    """The pool of that name, or the only one; with the `policies` of another file in place of its own.

    Raises ConfigError with every mistake of the file.
    """
    chosen = _chosen(path, read_mapping(path), name)
    if policies is None:
        return chosen
    document = read_mapping(policies)
    others = sorted(set(document) - {"policies"})
    if others or not isinstance(document.get("policies"), list):
        found = f"found {others[0][:60]!r}" if others else "found no list of policies"
        raise ConfigError([f"{policies}: {found}; allowed: the one key 'policies', a list as in a pool"])
    try:
        return chosen.changed({**chosen.mapping, "policies": document["policies"]})
    except ConfigError as error:
        prefix = f"pools[{chosen.place}].policies"
        told = [mistake.replace(f"{path}: {prefix}", f"{policies}: policies", 1) for mistake in error.mistakes]
        raise ConfigError(told) from None


def _chosen(path: Path, mapping: Mapping[str, Any], name: str | None) -> Chosen:
    document = {key: value for key, value in mapping.items() if key not in _NOT_OURS}
    try:
        config = from_mapping(document, path, Environment.model_construct())
    except ConfigError as error:
        raise ConfigError([f"{path}: {mistake}" for mistake in error.mistakes]) from None
    names = [one.pool.name for one in config.pools]
    if name is None and len(names) == 1:
        return Chosen(path, document, 0, config.pools[0])
    for index, one in enumerate(config.pools):
        if one.pool.name == name:
            return Chosen(path, document, index, one)
    found = "nothing" if name is None else f"{name[:60]!r}{close_match(name, names)}"
    raise ConfigError([f"pool: found {found}; allowed: {', '.join(names)}"])


class Trial(NamedTuple):
    """A pool and its policies in a world, ready to run. `label`: what a table calls it."""

    label: str
    pool: Pool
    policies: tuple[Policy, ...]
    settings: WorldSettings
    slo: Slo
    seed: int = 0

    def check(self, workload: Workload) -> None:
        """Raise ConfigError when a policy reads what this workload cannot tell."""
        mistakes = []
        for policy in self.policies:
            for signal in sorted(policy.signals()):
                if blank := sorted(workload.unknown & _MADE_OF.get(signal, frozenset())):
                    lacks = f"{policy.name} reads {signal}, and {' and '.join(blank)} are blank in every line"
                    mistakes.append(f"{workload.name}: {lacks}; allowed: a workload with them, or another signal")
        if mistakes:
            raise ConfigError(mistakes)

    def run(self, workload: Workload, progress: Callable[[float, float], None] | None = None) -> Result:
        """Simulate. Ctrl-C ends it early, and the Result says so. Raises ConfigError for what does not fit."""
        self.check(workload)
        return simulate(self.pool, self.policies, workload, self.settings, self.seed, Options(progress=progress))


def make_trial(chosen: Chosen, world: WorldFile, seed: int = 0, label: str | None = None) -> Trial:
    """A Trial of this pool in this world. Raises ConfigError: hardware of an offer that is not there, and the like."""
    pool = chosen.config.pool
    offers = [one.name for one in pool.offers]
    for name in world.hardware:
        if name not in {*offers, "*"}:
            known = ", ".join([*offers, "*"])
            raise ConfigError([f"hardware: found {name[:60]!r}, no offer of {pool.name}; allowed: {known}"])
    strategy = next((str(getattr(one.settings, "strategy", None)) for one in chosen.config.balancers), None)
    return Trial(
        label=label or ", ".join(one.kind for one in chosen.config.policies),
        pool=msgspec.structs.replace(pool, mode=Mode.ACT),
        policies=tuple(build_policy(one) for one in chosen.config.policies),
        settings=world.settings(strategy if strategy in STRATEGIES else None),
        slo=world.slo,
        seed=seed,
    )


def load_workload(path: Path, world: WorldFile, seed: int, until: float = 1.0) -> Workload:
    """The workload of a file as the world file wants it, its first `until` (a share). Raises ConfigError."""
    found = read_workload(path, world.drawing(seed))
    return found if until >= 1.0 else found.between(0.0, until * found.duration_s)
