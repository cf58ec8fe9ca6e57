"""What a simulated world is like: its hardware, its cloud, its balancer, its telemetry, and what goes wrong when.

Does: hold the numbers, with defaults from published figures, and check them. Does not: simulate.
Invariant: a value that exists is consistent; every duration is in seconds and at least 0.

Cold start: a machine is shown after `launch`, runs after `boot`, and serves after `load`. Published: a new GPU machine
with its image cached 130 to 260 s in all, 350 to 530 s without (AWS on SageMaker, 2026); a pod on a ready node 80 to
300 s (vLLM, Llama 8B, L40S; Tensorfuse 2025). The default sums to 180 s in the median.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec
import numpy as np

from autoscaler.domain.faults import ConfigError
from autoscaler.lab.fleet import STRATEGIES
from autoscaler.lab.hardware import DEFAULT_PROFILE, Hardware, profile

_Z95 = 1.6448536269514722


def _check(what: object, names: tuple[str, ...], most: float = math.inf) -> None:
    """Raise ValueError unless each named field is a number from 0 to `most`."""
    for name in names:
        value = getattr(what, name)
        if value is not None and not 0 <= value <= most:
            allowed = "from 0 on" if most == math.inf else f"from 0 to {most:g}"
            raise ValueError(f"{name}: found {value}, allowed is a number {allowed}")


class Delay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A time that something takes: log-normal by median and 95th percentile, or always `p50_s`."""

    p50_s: float
    p95_s: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError with what is wrong."""
        _check(self, ("p50_s", "p95_s"))
        if self.p95_s is not None and not (self.p50_s > 0 and self.p95_s >= self.p50_s):
            raise ValueError(
                f"p95_s: found {self.p95_s:g}, allowed is at least p50_s ({self.p50_s:g}), which is above 0"
            )

    def draw(self, rng: np.random.Generator) -> float:
        """One time, seconds."""
        if self.p95_s is None:
            return self.p50_s
        sigma = math.log(self.p95_s / self.p50_s) / _Z95
        return self.p50_s * math.exp(sigma * float(rng.standard_normal()))


class CloudSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How machines come and go.

    `launch`, `boot`, `load`: see the module. `quota`: machines at most. `load_fails`: share of loads that never end.
    `slow_loads`: share of loads that take `slow_factor` times as long. `spot_per_h`: interruptions an hour of a machine
    whose offer's market is spot, told `notice_s` ahead. `crashes_per_h`: deaths an hour of any machine, untold.
    `slow_machines`: share of machines that work `slow_machine_factor` times as fast as they should.
    `ending_s`: how long a terminated machine is still shown as stopping. `listed_s`: how long an ended machine is still
    listed after that, as EC2 does for a while.
    """

    launch: Delay = Delay(p50_s=15.0, p95_s=40.0)
    boot: Delay = Delay(p50_s=45.0, p95_s=75.0)
    load: Delay = Delay(p50_s=120.0, p95_s=200.0)
    quota: int | None = None
    load_fails: float = 0.0
    slow_loads: float = 0.0
    slow_factor: float = 3.0
    spot_per_h: float = 0.0
    notice_s: float = 120.0
    crashes_per_h: float = 0.0
    slow_machines: float = 0.0
    slow_machine_factor: float = 0.5
    ending_s: float = 30.0
    listed_s: float = 120.0

    def __post_init__(self) -> None:
        """Raise ValueError with what is wrong."""
        _check(self, ("quota", "spot_per_h", "notice_s", "crashes_per_h", "ending_s", "listed_s", "slow_factor"))
        _check(self, ("load_fails", "slow_loads", "slow_machines"), 1.0)
        if not 0 < self.slow_machine_factor < math.inf:
            raise ValueError(f"slow_machine_factor: found {self.slow_machine_factor}, allowed is a number above 0")


def cold_start(total_s: float, *, spread: float = 1.4) -> CloudSettings:
    """A cloud whose machines serve some `total_s` seconds after the order.

    A tenth until the machine is shown, a quarter more until it runs, the rest for the model; each the median of its
    part, whose p95 is `spread` (from 1 on) times as long.
    """
    parts = (0.10 * total_s, 0.25 * total_s, 0.65 * total_s)
    launch, boot, load = (Delay(p50_s=part, p95_s=part * spread if spread > 1 and part > 0 else None) for part in parts)
    return CloudSettings(launch=launch, boot=boot, load=load)


class FrontSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The balancer. `lag_s`: until a change is true. `patience_s`: how long a request is held when nobody takes any.

    `clients`: senders that source hashing tells apart; few of them send most (u squared: a tenth sends a third).
    """

    strategy: str = "least_connections"
    lag_s: float = 1.0
    patience_s: float = 60.0
    clients: int = 200

    def __post_init__(self) -> None:
        """Raise ValueError with what is wrong."""
        _check(self, ("lag_s", "patience_s"))
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy: found {self.strategy!r}, allowed is one of {', '.join(STRATEGIES)}")
        if self.clients < 1:
            raise ValueError(f"clients: found {self.clients}, allowed is 1 or more")


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Load as it is scraped. `window_s`: of rates and quantiles. `delay_s`: age of what is read.

    `gateway`: request and input token rates and held requests are counted at the balancer, so load is seen with nothing
    in service; otherwise the replicas alone tell it, as a scraper of model servers has it.
    """

    window_s: float = 30.0
    delay_s: float = 0.0
    gateway: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError with what is wrong."""
        _check(self, ("delay_s",))
        if not 0 < self.window_s < math.inf:
            raise ValueError(f"window_s: found {self.window_s}, allowed is a number above 0")


class TroubleKind(StrEnum):
    """What may go wrong for a while; `where` and `share` mean what is said here."""

    NO_CAPACITY = "no_capacity"  # where: a zone, offer or offer/zone without machines, empty for all
    THROTTLED = "throttled"  # share of the calls to the cloud that are told to slow down
    CLOUD_DARK = "cloud_dark"  # where: a zone that does not answer, empty for the whole cloud
    LOADS_FAIL = "loads_fail"  # share of the machines ordered meanwhile whose model never loads
    LOADS_SLOW = "loads_slow"  # share times `factor` as long
    SPOT_STORM = "spot_storm"  # share of the spot machines are told to go at its start
    CRASH = "crash"  # share of the machines die at its start
    SLOW = "slow"  # share of the machines work `factor` times as fast from its start to its end
    TELEMETRY_GAP = "telemetry_gap"  # no sample at all
    TELEMETRY_PARTIAL = "telemetry_partial"  # share of the replicas do not answer
    TELEMETRY_ZERO = "telemetry_zero"  # a lie that agrees with itself: every value is 0 and no counter moves
    TELEMETRY_FROZEN = "telemetry_frozen"  # a lie: the last values, told as fresh
    FRONT_DARK = "front_dark"  # the balancer does not answer
    FRONT_LAG = "front_lag"  # its changes take `factor` times as long


class Trouble(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One trouble from `at_s` for `for_s` seconds of the workload."""

    kind: TroubleKind
    at_s: float
    for_s: float = 0.0
    where: str = ""
    share: float = 1.0
    factor: float = 3.0

    def __post_init__(self) -> None:
        """Raise ValueError with what is wrong."""
        _check(self, ("at_s", "for_s"))
        _check(self, ("share",), 1.0)
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor: found {self.factor}, allowed is a number above 0")


def _standard() -> dict[str, Hardware]:
    return {"": profile(DEFAULT_PROFILE)}


class WorldSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole world.

    `hardware`: by offer name, "" for all others. `start`: units in service at second 0 (None: the pool's minimum).
    `tail_s`: how long requests may still finish after the workload, without further decisions.
    """

    hardware: dict[str, Hardware] = msgspec.field(default_factory=_standard)
    cloud: CloudSettings = CloudSettings()
    front: FrontSettings = FrontSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    troubles: tuple[Trouble, ...] = ()
    start: int | None = None
    tail_s: float = 600.0

    def __post_init__(self) -> None:
        """Raise ValueError with what is wrong."""
        _check(self, ("start", "tail_s"))
        if not self.hardware:
            raise ValueError('hardware: found none, allowed is one by offer name, or one named ""')

    def hardware_of(self, offer: str) -> Hardware:
        """What a machine of that offer is. Raises ConfigError when none fits."""
        found = self.hardware.get(offer) or self.hardware.get("")
        if found is None:
            raise ConfigError([f'hardware: none for offer {offer!r}; allowed: one by its name, or one named ""'])
        return found
