"""What a user writes under `telemetry: {kind: cloudwatch}`, and the mistakes that can be found without the network.

Does: hold and check, and say how old a reading of CloudWatch is at best. Does not: know which metrics exist.
Invariant: a share of the whole (GPU utilisation) is asked for each replica, so that one that is missing shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from autoscaler.domain.base import Duration
from autoscaler.domain.load import Kind, Signal
from autoscaler.domain.replica import Endpoint

_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-\d{1,2}")
_GROUP: Final = re.compile(r"(?:arn:[^:]+:elasticloadbalancing:[^:]+:\d+:)?(targetgroup/[^/]+/[0-9a-f]+)")
_BALANCER: Final = re.compile(r"(?:arn:[^:]+:elasticloadbalancing:[^:]+:\d+:loadbalancer/)?(app/[^/]+/[0-9a-f]+)")
_STAT: Final = re.compile(r"Average|Sum|Minimum|Maximum|SampleCount|p\d{1,2}(\.\d+)?|p100")
_SHARES: Final = frozenset({Signal.GPU_UTILIZATION, Signal.KV_CACHE_USE})
_LATENCIES: Final = frozenset({Signal.TTFT_S_P95, Signal.E2E_S_P95})
#: Signals that are counted for each second.
RATES: Final = frozenset({Signal.REQUEST_RATE, Signal.TOKEN_RATE, Signal.INPUT_TOKEN_RATE})
#: How long a load balancer's or an agent's sample usually takes to CloudWatch beyond `settle`, seconds.
_ON_THE_WAY: Final = Duration(60.0)


class Metric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One metric as one signal. `dimensions` may hold {machine}, {host} and {port}: then each replica is asked for.

    `stat`: as CloudWatch names it; a Sum of a rate signal is divided by the period. `kind`: how the replicas' values
    become one; for a metric about no replica, what it is. `scale`: what a value is multiplied by (0.01 for percent).
    """

    namespace: str
    name: str
    dimensions: dict[str, str] = {}
    stat: str = "Average"
    kind: Kind = Kind.MEAN
    scale: float = 1.0

    @property
    def by_replica(self) -> bool:
        """Whether it is asked for each replica."""
        return any("{" in value for value in self.dimensions.values())

    def of(self, endpoint: Endpoint) -> dict[str, str]:
        """The dimensions for one replica."""
        words = {"machine": endpoint.instance, "host": endpoint.host, "port": endpoint.port}
        return {key: value.format(**words) for key, value in self.dimensions.items()}

    def mistakes(self, signal: Signal, field: str) -> Iterator[str]:
        """What cannot be."""
        for name in ("namespace", "name"):
            if not getattr(self, name):
                yield f"{field}.{name}: found nothing, allowed is a name as CloudWatch shows it"
        if not _STAT.fullmatch(self.stat):
            yield f"{field}.stat: found {self.stat!r}, allowed: Average, Sum, Minimum, Maximum, SampleCount, p95"
        if (self.kind is Kind.QUANTILE) != self.stat.startswith("p"):
            yield f"{field}.kind: found {self.kind} with {self.stat}, allowed: quantile exactly with percentiles"
        if signal in _LATENCIES and self.kind not in {Kind.QUANTILE, Kind.MAX}:
            yield f"{field}.kind: found {self.kind}, allowed for {signal}: quantile, max"
        if self.kind is Kind.QUANTILE and self.by_replica:
            yield f"{field}.dimensions: quantiles of replicas have no quantile, allowed: one metric of the whole pool"
        if signal in _SHARES and not self.by_replica:
            yield (
                f"{field}.dimensions: found no {{machine}}, needed: a mean of an unknown number of replicas cannot "
                "show that one is missing"
            )
        try:
            self.of(Endpoint(replica="", instance="", host="", port=0))  # type: ignore[arg-type]
        except (LookupError, ValueError, AttributeError):
            yield f"{field}.dimensions: allowed in braces: {{machine}}, {{host}}, {{port}}"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to read load from CloudWatch. Durations in seconds.

    `target_group` and `load_balancer` (ARNs): give request_rate and e2e_s_p95 of an Application Load Balancer; the
    latter up to the response's headers, which for a stream is its beginning. `per_target`: request_rate for each
    target. `metrics`: signals of your own, which go before these. `period`: over which CloudWatch sums up, a multiple
    of 60. `settle`: how long ago a period must have ended: its late parts must have come. `reuse`: for how long an
    answer serves; each metric of each call is paid for. `profile`: of the AWS configuration files.

    What CloudWatch shows is minutes old: pace.stale_after must be 3 min or more.
    """

    region: str
    target_group: str = ""
    load_balancer: str = ""
    per_target: bool = False
    metrics: dict[Signal, Metric] = {}
    period: Duration = Duration(60.0)
    settle: Duration = Duration(60.0)
    reuse: Duration = Duration(20.0)
    profile: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError with all mistakes."""
        mistakes = [*_places(self), *_times(self)]
        for signal, metric in self.metrics.items():
            mistakes += metric.mistakes(signal, f"metrics.{signal}")
        if mistakes:
            raise ValueError("; ".join(mistakes))

    @property
    def delay(self) -> Duration:
        """How old a good reading may be, seconds: it ages for a period, and then until the next one is there."""
        return Duration(self.settle + self.period + _ON_THE_WAY)

    def group_dimensions(self, *, alone: bool) -> Mapping[str, str]:
        """Of the target group's metrics; `alone`: without the load balancer."""
        group, balancer = _GROUP.fullmatch(self.target_group), _BALANCER.fullmatch(self.load_balancer)
        found = {"TargetGroup": group[1] if group else ""}
        return found if alone or not balancer else {**found, "LoadBalancer": balancer[1]}


def _places(settings: Settings) -> Iterator[str]:
    if not _REGION.fullmatch(settings.region):
        yield f"region: found {settings.region!r}, allowed: a region's name, such as eu-west-1"
    if not settings.target_group and not settings.metrics:
        yield "target_group: found none and no metrics, needed is one of the two"
    if bool(settings.target_group) != bool(settings.load_balancer):
        yield "load_balancer: found without its other half, allowed: target_group with load_balancer"
    if settings.target_group and not _GROUP.fullmatch(settings.target_group):
        yield f"target_group: found {settings.target_group!r}, allowed: its ARN"
    if settings.load_balancer and not _BALANCER.fullmatch(settings.load_balancer):
        yield (
            f"load_balancer: found {settings.load_balancer!r}, allowed: the ARN of an Application Load Balancer; "
            "a network one counts no requests"
        )


def _times(settings: Settings) -> Iterator[str]:
    if settings.period not in {60.0, 120.0, 180.0, 240.0, 300.0}:
        yield f"period: found {settings.period:g} s, allowed: 60, 120, 180, 240 or 300 s"
    if not 0 <= settings.settle <= 600:
        yield f"settle: found {settings.settle:g} s, allowed: 0 to 600 s"
    if not 0 <= settings.reuse <= 60:
        yield f"reuse: found {settings.reuse:g} s, allowed: 0 to 60 s"
