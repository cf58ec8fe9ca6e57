"""One pool of the file: its sections checked together and turned into a domain Pool with its choices.

Does: default names, ports, requests, identity, hash, and the checks that need two settings of one pool.
Does not: compare pools (load does). Invariant: every mistake of the pool is found in one pass, whichever came first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from autoscaler.config.mistakes import at
from autoscaler.config.modules import Group
from autoscaler.config.schema import (
    BalancerSection,
    Choice,
    OfferSection,
    PoolConfig,
    PoolSection,
    ReadySection,
    TelemetrySection,
)
from autoscaler.config.sections import Form, Section, build_policy, read_policy, read_section, scope_of, target_of
from autoscaler.config.validate import validate
from autoscaler.domain.base import PoolName
from autoscaler.domain.faults import ConfigError, InvariantBroken
from autoscaler.domain.pool import Bounds, Offer, Pool, ReadyRule

OFFER = Form(Group.COMPUTE, OfferSection, key="compute")
READY = Form(Group.PROBE, ReadySection)
BALANCER = Form(Group.BALANCER, BalancerSection)
TELEMETRY = Form(Group.TELEMETRY, TelemetrySection)


class _Parts(NamedTuple):
    """All sections of one pool as checked, good or bad."""

    pool: PoolSection | None
    offers: list[Section]
    ready: Section
    balancers: list[Section]
    telemetry: Section | None
    policies: list[Section]

    def mistakes(self) -> list[str]:
        """Those of every section."""
        sections = [*self.offers, self.ready, *self.balancers, *self.policies]
        sections += [self.telemetry] if self.telemetry else []
        return [mistake for section in sections for mistake in section.mistakes]


def read_pool(mapping: object, path: str, installation: str) -> tuple[PoolConfig | None, list[str]]:
    """Check one pool of the file; raises nothing for bad input."""
    section, mistakes = validate(PoolSection, mapping, path)
    if not isinstance(mapping, Mapping):
        return None, mistakes
    ready, telemetry = mapping.get("ready_when", {}), mapping.get("telemetry")
    parts = _Parts(
        pool=section,
        offers=[read_section(OFFER, each, here) for each, here in _listed(mapping, "offers", path)],
        ready=read_section(READY, ready, at(path, "ready_when"))
        if isinstance(ready, Mapping)
        else Section(None, None, []),
        balancers=[read_section(BALANCER, each, here) for each, here in _listed(mapping, "balancers", path)],
        telemetry=read_section(TELEMETRY, telemetry, at(path, "telemetry")) if isinstance(telemetry, Mapping) else None,
        policies=[read_policy(each, here) for each, here in _listed(mapping, "policies", path)],
    )
    mistakes += parts.mistakes()
    mistakes += [*_names(parts, path), *_without_effect(parts, path), *_paces(parts, path), *_opinions(parts, path)]
    if mistakes or section is None:
        return None, mistakes
    try:
        return _made(parts, section, path, installation), []
    except ConfigError as error:
        return None, error.mistakes
    except InvariantBroken as error:
        return None, [f"{path}: {error}; allowed: a consistent pool"]


def _listed(mapping: Mapping[str, Any], key: str, path: str) -> list[tuple[Any, str]]:
    """The mappings of a list, each with its path; what is no mapping is reported by the pool's own section."""
    found = mapping.get(key)
    if not isinstance(found, list):
        return []
    return [(each, at(at(path, key), index)) for index, each in enumerate(found) if isinstance(each, Mapping)]


def _default_name(section: Section, key: str) -> str:
    """The name when none is given: the kind, with the market where that is not on demand."""
    common = section.common
    kind = str(getattr(common, key))
    market = str(getattr(common, "market", "on_demand"))
    return common.name or (kind if market == "on_demand" else f"{kind}-{market}")


def _names(parts: _Parts, path: str) -> list[str]:
    """Two offers, or two balancers, of one name."""
    mistakes = []
    for key, sections, kind in (("offers", parts.offers, "compute"), ("balancers", parts.balancers, "kind")):
        seen: dict[str, str] = {}
        for index, section in enumerate(sections):
            if section.common is None:
                continue
            name, here = _default_name(section, kind), at(at(path, key), index)
            if name in seen:
                mistakes.append(f"{here}.name: found '{name}', as {seen[name]} has; allowed: a name of its own")
            seen.setdefault(name, here)
    return mistakes


def _without_effect(parts: _Parts, path: str) -> list[str]:
    """Settings that nothing would read, given the others."""
    mistakes = []
    offers = [section.common for section in parts.offers if section.common is not None]
    section = parts.pool
    if section and section.budget and offers and all(offer.usd_per_hour == 0 for offer in offers):
        mistakes.append(
            f"{path}.budget: has no effect while no offer has a price; allowed: usd_per_hour in each offer, or none"
        )
    ready = parts.ready.common
    if ready and ready.port is not None and offers and all(offer.ports for offer in offers):
        mistakes.append(f"{path}.ready_when.port: has no effect, every offer has ports; allowed: one of the two")
    kinds = {choice.kind for policy in parts.policies if (choice := policy.choice)}
    if section and section.capacity.fallback is not None and parts.telemetry is None and kinds:
        mistakes.append(
            f"{path}.capacity.fallback: has no effect without telemetry; allowed: with telemetry, or left out"
        )
    return mistakes


def _paces(parts: _Parts, path: str) -> list[str]:
    """Bounds of the pace that the domain leaves open."""
    if parts.pool is None:
        return []
    pace, mistakes = parts.pool.pace, []
    if pace.backoff_first > pace.backoff_max:
        mistakes.append(
            f"{path}.pace.backoff_first: found {pace.backoff_first:g} s, which is more than backoff_max "
            f"{pace.backoff_max:g} s; allowed: 0 s to {pace.backoff_max:g} s"
        )
    return mistakes


def _opinions(parts: _Parts, path: str) -> list[str]:
    """Policies that cannot be built, share a name (their memories would mix), or read signals that nothing samples."""
    mistakes, seen, reads = [], dict[str, str](), set[str]()
    for choice in (section.choice for section in parts.policies):
        if choice is None:
            continue
        try:
            policy = build_policy(choice)
        except ConfigError as error:
            mistakes += error.mistakes
            continue
        if policy.name in seen:
            mistakes.append(f"{choice.path}: is '{policy.name}' again, as {seen[policy.name]}; allowed: one of each")
        seen.setdefault(policy.name, choice.path)
        reads |= {str(signal) for signal in policy.signals()}
    if reads and parts.telemetry is None and parts.pool is not None and parts.pool.telemetry is None:
        words = ", ".join(sorted(reads))
        mistakes.append(f"{path}.telemetry: missing, and the policies read {words}; allowed: a mapping with kind")
    return mistakes


def _made(parts: _Parts, section: PoolSection, path: str, installation: str) -> PoolConfig:
    computes: dict[str, Choice] = {}
    offers = []
    for each in parts.offers:
        choice = _chosen(each)
        scope = scope_of(choice, Group.COMPUTE)
        key = f"{choice.kind}:{scope}" if scope else choice.kind
        computes.setdefault(key, choice)
        offers.append(_offer(each, key, parts.ready.common))
    balancers = tuple(
        msgspec.structs.replace(_chosen(each), name=_default_name(each, "kind")) for each in parts.balancers
    )
    ready = parts.ready.common
    pool = Pool(
        installation=installation,
        name=PoolName(section.name),
        bounds=Bounds(min=section.capacity.min, max=section.capacity.max, fallback=section.capacity.fallback),
        offers=tuple(offers),
        mode=section.mode,
        budget_usd_per_h=section.budget.usd_per_hour if section.budget else None,
        ready=ReadyRule(passes=ready.passes, give_up_after=ready.give_up_after),
        pace=section.pace,
        drain=section.drain,
        identity=_identity(installation, section.name, computes, balancers),
    )
    made = PoolConfig(
        pool=pool,
        computes=computes,
        probe=_chosen(parts.ready),
        balancers=balancers,
        telemetry=_chosen(parts.telemetry) if parts.telemetry else None,
        policies=tuple(_chosen(each) for each in parts.policies),
        config_hash="",
        path=path,
    )
    return msgspec.structs.replace(made, config_hash=hash_of(made))


def _chosen(section: Section) -> Choice:
    if section.choice is None:  # callers have returned on any mistake before
        raise InvariantBroken("a section without mistakes has no choice")
    return section.choice


def _offer(section: Section, compute: str, ready: ReadySection) -> Offer:
    common: OfferSection = section.common
    return Offer(
        name=_default_name(section, "compute"),
        compute=compute,
        zones=common.zones,
        usd_per_h=common.usd_per_hour,
        capacity=common.capacity,
        ports=common.ports or ((ready.port,) if ready.port else ()),
        market=common.market,
        request=msgspec.json.encode(_chosen(section).settings, order="deterministic").decode(),
    )


def _identity(installation: str, name: str, computes: dict[str, Choice], balancers: tuple[Choice, ...]) -> str:
    """What must not change under a running pool, as text that says itself which part changed."""
    parts = {
        "installation": installation,
        "pool": name,
        "computes": sorted(computes),
        "balancers": sorted(f"{each.kind} {target_of(each, Group.BALANCER)}" for each in balancers),
    }
    return msgspec.json.encode(parts, order="deterministic").decode()


def hash_of(pool: PoolConfig) -> str:
    """Sixteen hexadecimal digits over every setting of the pool; where it stands in the file does not count."""

    def plain(choice: Choice | None) -> object:
        if choice is None:
            return None
        children = [plain(child) for child in choice.children]
        return [choice.kind, choice.name, msgspec.to_builtins(choice.settings), children]

    whole = [
        msgspec.to_builtins(pool.pool),
        plain(pool.probe),
        [plain(each) for each in pool.balancers],
        plain(pool.telemetry),
        [plain(each) for each in pool.policies],
    ]
    return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()[:16]
