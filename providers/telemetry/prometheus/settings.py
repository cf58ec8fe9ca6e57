"""What a user writes under `telemetry: {kind: prometheus}`, and the mistakes that can be found without the network.

Does: hold and check. Does not: read secrets or files.
Invariant: no secret stands here, only the name of the variable or file that holds it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from autoscaler.domain.base import Duration
from autoscaler.domain.load import Kind, Signal
from autoscaler.domain.replica import Endpoint
from providers._shared.gpus import Gpus
from providers._shared.presets import PRESETS, mistake_in_preset, mistakes_in_ports

_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_MATCHER: Final = r'\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"\s*'
_SELECTOR: Final = re.compile(rf"{_MATCHER}(?:,{_MATCHER})*,?\s*")
_LATENCY: Final = frozenset({Signal.TTFT_S_P95, Signal.E2E_S_P95})
#: Signals that are shares of the whole, 0..1.
SHARES: Final = frozenset({Signal.GPU_UTILIZATION, Signal.KV_CACHE_USE})


class Coverage(StrEnum):
    """Whose absence a query's value may hide: `up` counts the replicas that are scraped, `none` is about no replica."""

    UP = "up"
    NONE = "none"


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which series are a replica's: those whose `label` has `value`, among those that `selector` lets through.

    `value` may hold {host}, {port}, {machine} (the compute's id) and {replica} (machine:port).
    `selector`: matchers of PromQL on target labels, as in `job="vllm"`; empty: all targets of the server.
    """

    label: str = "instance"
    value: str = "{host}:{port}"
    selector: str = ""

    def of(self, endpoint: Endpoint, port: int) -> str:
        """The label's value for this replica, whose metrics are at `port`."""
        return self.value.format(
            host=endpoint.host, port=port, machine=endpoint.instance, replica=endpoint.replica
        )  # fmt: skip

    def mistakes(self, field: str) -> Iterator[str]:
        """What cannot be."""
        if not _LABEL.fullmatch(self.label):
            yield f"{field}.label: found {self.label!r}, allowed is the name of a label"
        try:
            self.value.format(host="", port=0, machine="", replica="")
        except (LookupError, ValueError, AttributeError):
            allowed = "text with {host}, {port}, {machine} or {replica} in it"
            yield f"{field}.value: found {self.value!r}, allowed is {allowed}"
        if self.selector and not _SELECTOR.fullmatch(self.selector):
            yield f'{field}.selector: found {self.selector!r}, allowed are matchers as in job="vllm",zone=~"a|b"'


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signal in the user's own PromQL. Its result is one value, or one for each replica (with `replicas.label`).

    `kind`: what the value is; values by replica are added up (total), averaged (mean) or the largest is taken (max).
    `coverage`: `up`: the value is as good as the share of the pool's replicas whose `up` is 1; `none`: it is about no
    replica (a queue in a gateway), and then `age_of`, a selector whose newest sample dates the value, is needed.
    `samples`: PromQL for how many observations a quantile is made of, needed for one. `window`: over which the
    expression takes rates.
    """

    promql: str
    kind: Kind
    coverage: Coverage = Coverage.UP
    age_of: str = ""
    samples: str = ""
    window: Duration = Duration(0.0)

    def mistakes(self, signal: Signal, field: str) -> Iterator[str]:
        """What cannot be."""
        if not self.promql.strip():
            yield f"{field}.promql: found an empty text, allowed is an expression of PromQL"
        kinds: tuple[Kind, ...]
        if signal in _LATENCY:
            kinds = (Kind.QUANTILE, Kind.MAX)
        elif signal in SHARES:
            kinds = (Kind.MEAN, Kind.MAX)
        else:
            kinds = (Kind.TOTAL, Kind.MEAN, Kind.MAX)
        if self.kind not in kinds:
            yield f"{field}.kind: found {self.kind}, allowed for {signal} is one of {', '.join(kinds)}"
        if self.kind is Kind.QUANTILE and not self.samples:
            yield f"{field}.samples: found none, a quantile needs PromQL that counts its observations"
        if self.coverage is Coverage.NONE and not self.age_of:
            yield f"{field}.age_of: found none, coverage none needs a selector whose newest sample dates the value"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to read load from a Prometheus server, or from what answers like one. Durations in seconds.

    `preset`: the model server, whose series are known; `queries`: signals in your own PromQL, which go before it.
    `replicas`: how a replica's series are recognised; `metrics_port`: {port} there, when its metrics are not where the
    preset says. `gpu`: the same for a GPU exporter, when the GPUs are not in the replicas' own metrics; all GPUs that
    it matches count for the replica, and `gpus` says how they become one number. `window`: over which rates and
    quantiles are taken, and how far back is read: at least two scrapes. `missing_after`: a replica whose newest sample
    is older is not covered. `timeout`: for one answer, whatever the server does. `reuse`: an answer serves every pool
    that asks the same of this server within this time; the same pool never gets it twice.
    `token_env`, `token_file`: who holds a bearer token. `username` with `password_env` or `password_file`: basic
    authentication. `headers`: a header's name to the environment variable that holds its value. `tenant`: sent as
    X-Scope-OrgID. `ca_file`: whom to trust instead of the system's authorities; `cert_file` with `key_file`: who we
    are. Files are named by absolute paths, and are read anew when they change; one with a secret in it that everyone
    may read is refused, and so is any that others can write.
    """

    url: str
    preset: str | None = None
    queries: dict[Signal, Query] = {}
    replicas: Match = Match()
    gpu: Match | None = None
    gpus: Gpus = Gpus.MEAN
    metrics_port: int | None = None
    window: Duration = Duration(60.0)
    missing_after: Duration = Duration(45.0)
    timeout: Duration = Duration(5.0)
    reuse: Duration = Duration(5.0)
    token_env: str | None = None
    token_file: str | None = None
    username: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    headers: dict[str, str] = {}
    tenant: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError with all mistakes."""
        mistakes = [*_url(self.url), *_preset(self), *_times(self), *_access(self)]
        mistakes += mistakes_in_ports({"metrics_port": self.metrics_port})
        mistakes += self.replicas.mistakes("replicas")
        mistakes += self.gpu.mistakes("gpu") if self.gpu is not None else ()
        for signal, query in self.queries.items():
            mistakes += query.mistakes(signal, f"queries.{signal}")
        if mistakes:
            raise ValueError("; ".join(mistakes))


def _url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0
    except ValueError:
        yield "url: found what is no address, allowed is http:// or https:// with a host"
        return
    if parts.username is not None or parts.password is not None:
        yield "url: found a user or password in it, allowed: username and password_env or password_file"
    elif wrong or parts.query or parts.fragment:
        yield f"url: found {url!r}, allowed is http:// or https:// with a host, a port and a path, as http://host:9090"


def _preset(settings: Settings) -> Iterator[str]:
    if settings.preset is None:
        if not settings.queries:
            yield "preset: found none and no queries, needed is one of the two"
        return
    preset = PRESETS.get(settings.preset)
    if preset is None:
        yield mistake_in_preset(settings.preset)
    elif preset.metrics_path is None:
        with_metrics = ", ".join(name for name, one in PRESETS.items() if one.metrics_path)
        yield f"preset: {settings.preset} has no metrics, allowed is one of {with_metrics}"


def _times(settings: Settings) -> Iterator[str]:
    for field in ("window", "missing_after", "timeout"):
        value = getattr(settings, field)
        if not 0 < value < math.inf:
            yield f"{field}: found {value:g} s, allowed is more than 0 s"
    if not 0 <= settings.reuse <= 60:
        yield f"reuse: found {settings.reuse:g} s, allowed is 0 s to 60 s"


def _access(settings: Settings) -> Iterator[str]:
    bearer = [field for field in ("token_env", "token_file") if getattr(settings, field)]
    passwords = [field for field in ("password_env", "password_file") if getattr(settings, field)]
    if len(bearer) > 1 or len(passwords) > 1 or (bearer and settings.username):
        yield "token_env: found several ways to say who we are, allowed is one token or one username with its password"
    if (settings.username is None) is bool(passwords):
        yield "username: found without its other half, allowed is username with password_env or password_file"
    if (settings.cert_file is None) is not (settings.key_file is None):
        yield "cert_file: found without its other half, allowed is cert_file with key_file"
    for field in ("token_file", "password_file", "ca_file", "cert_file", "key_file"):
        path = getattr(settings, field)
        if path is not None and not Path(path).is_absolute():
            yield f"{field}: found {path!r}, allowed is an absolute path"
