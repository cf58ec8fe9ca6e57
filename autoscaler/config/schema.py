"""The sections of the file as frozen values, and what they become: Config.

Does: name every setting that is not a provider's own, with its default. Does not: read files or build adapters.
Invariant: a setting is written here once; docs/config.md and the checks are made from it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from typing_extensions import override

from autoscaler.config.validate import Refusal
from autoscaler.domain.base import Duration
from autoscaler.domain.pool import DrainRule, Mode, Pace, Pool, ReadyRule

#: Names travel in tags, labels, file names and URLs.
NAME_PATTERN = r"^[a-z0-9](?:[a-z0-9._\-]{0,61}[a-z0-9])?$"
NAME_WORDS = "up to 63 of a-z, 0-9, dot, dash and underscore, a letter or digit first and last"
Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN, description=NAME_WORDS)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Units = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Usd = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Mapping = dict[str, Any]


class Secret:
    """A secret that does not show itself: not in repr, not in JSON, not in a hash."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The secret itself, for the one place that compares or sends it."""
        return self._value

    @override
    def __repr__(self) -> str:
        return "Secret(...)"


class LogFormat(StrEnum):
    """How log records are written."""

    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """The least level that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """What is logged: one record a tick and pool at `info`."""

    format: LogFormat = LogFormat.JSON
    level: LogLevel = LogLevel.INFO


class AdminSection(msgspec.Struct, frozen=True, kw_only=True):
    """The admin API: `listen` is HOST:PORT. Without a token it takes no directives."""

    listen: str = "127.0.0.1:9095"
    token_file: str | None = None


class CapacitySection(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in units. `fallback`: the size to rise to when telemetry stays blind."""

    min: Units
    max: AtLeastOne
    fallback: Units | None = None

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise Refusal("min", f"which is more than max {self.max}", f"0 to {self.max}")
        if self.fallback is not None and not self.min <= self.fallback <= self.max:
            raise Refusal("fallback", "which is outside the bounds", f"min {self.min} to max {self.max}")


class BudgetSection(msgspec.Struct, frozen=True, kw_only=True):
    """The most that the pool's machines may cost together, US dollars an hour."""

    usd_per_hour: Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class OfferSection(msgspec.Struct, frozen=True, kw_only=True):
    """A way to get machines: these settings, and those of the compute kind beside them."""

    compute: str
    name: Name | None = None
    zones: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("local",)
    market: str = "on_demand"
    usd_per_hour: Usd = 0.0
    capacity: AtLeastOne = 1
    ports: tuple[Port, ...] = ()


class ReadySection(msgspec.Struct, frozen=True, kw_only=True):
    """When a replica is ready: these settings, and those of the probe kind beside them."""

    kind: str = "http"
    passes: Annotated[int, msgspec.Meta(ge=1, le=100)] = ReadyRule().passes
    give_up_after: Duration = ReadyRule().give_up_after
    port: Port | None = None

    def __post_init__(self) -> None:
        if self.give_up_after <= 0:
            raise Refusal("give_up_after", "which gives a model no time to load", "more than 0 s")


class BalancerSection(msgspec.Struct, frozen=True, kw_only=True):
    """A balancer binding: these settings, and those of the balancer kind beside them."""

    kind: str
    name: Name | None = None


class TelemetrySection(msgspec.Struct, frozen=True, kw_only=True):
    """Where signals come from: the kind, and its settings beside it."""

    kind: str


class PolicySection(msgspec.Struct, frozen=True, kw_only=True):
    """One opinion: the kind, and its settings beside it. `of`: the policies below a `compose`."""

    kind: str


class PoolSection(msgspec.Struct, frozen=True, kw_only=True):
    """One pool. Sections that a provider completes are mappings here and are checked with the provider's Settings."""

    name: Name
    capacity: CapacitySection
    offers: Annotated[tuple[Mapping, ...], msgspec.Meta(min_length=1)]
    policies: Annotated[tuple[Mapping, ...], msgspec.Meta(min_length=1)]
    mode: Mode = Mode.ACT
    budget: BudgetSection | None = None
    ready_when: Mapping = {}
    balancers: tuple[Mapping, ...] = ()
    telemetry: Mapping | None = None
    pace: Pace = Pace()
    drain: DrainRule = DrainRule()


class FileSection(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. Paths are relative to the file's own folder."""

    installation: Name
    pools: Annotated[tuple[Mapping, ...], msgspec.Meta(min_length=1)]
    ledger: str | Mapping | None = None
    state_dir: str = "state"
    admin: AdminSection = AdminSection()
    log: Log = Log()


# --- what the sections become ---


class Admin(msgspec.Struct, frozen=True, kw_only=True):
    """Where the admin API listens, and the token that its directives need."""

    host: str
    port: int
    token: Secret | None = None

    @property
    def url(self) -> str:
        """Its address for a client on this machine."""
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A provider or policy that the user chose: its kind, its checked Settings, and where it stands in the file."""

    kind: str
    settings: msgspec.Struct
    path: str
    name: str = ""
    children: tuple[Choice, ...] = ()


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A pool and the choices behind it. `pool` has no balancer traits yet: the adapters state them (wiring).

    `computes` maps Offer.compute to a choice. `config_hash`: stable text that changes when any setting of it does.
    """

    pool: Pool
    computes: dict[str, Choice]
    probe: Choice
    balancers: tuple[Choice, ...]
    telemetry: Choice | None
    policies: tuple[Choice, ...]
    config_hash: str
    path: str


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A complete and consistent configuration."""

    source: str
    installation: str
    state_dir: str
    ledger: Choice
    admin: Admin
    log: Log
    pools: tuple[PoolConfig, ...]
