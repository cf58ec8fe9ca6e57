"""Who is compared: each policy's one main setting as a ladder of rungs, from much capacity to little.

Does: name them, and turn a rung into policies. Does not: run or choose.
Invariant: a higher rung asks for less capacity; `slo` at rung 0 is as it ships, with the objective told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from autoscaler.config.sections import build_policy, read_policy
from autoscaler.domain.decision import Calendar, Recommendation, Situation
from autoscaler.domain.faults import ConfigError
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Pool
from autoscaler.lab.study.traffic import Traffic
from autoscaler.lab.yardsticks import BEARS, Clairvoyant, work_s
from autoscaler.ports.policy import Policy

FIXED, SLO, CLAIRVOYANT = "fixed", "slo", "clairvoyant"
#: Units at most, of every pool.
MAX_UNITS: Final = 60
#: Between two rungs, the setting changes by this factor.
STEP: Final = 1.5
#: The same for `slo` and `clairvoyant`, whose hours at the goal matter most.
_STEP_FINE: Final = 1.2
#: A cold start's high quantile over its median, as the world draws it.
_LEAD: Final = 1.2
#: A unit's rate and its requests inside at rung 0 are those at this share of its time busy.
_BUSY: Final = 0.5


class Contender(NamedTuple):
    """`setting`: what the ladder changes. `judged`: halves (0, 1) that the search of its rungs looks at.

    `runs_most`: rungs tried at most.
    """

    name: str
    setting: str
    rungs: tuple[int, int] = (-8, 8)
    judged: tuple[int, ...] = (0, 1)
    runs_most: int = 6

    @property
    def tuned(self) -> bool:
        """Whether its setting is chosen on the first half."""
        return 0 in self.judged


CONTENDERS: Final = (
    Contender(FIXED, "size", rungs=(-MAX_UNITS, -1), runs_most=9),
    Contender(CLAIRVOYANT, "share of time busy", rungs=(-14, 4), judged=(1,), runs_most=9),
    Contender(SLO, "its wish, times", rungs=(-5, 5), judged=(1,), runs_most=3),
    Contender("tracking queue", "target"),
    Contender("tracking running", "target"),
    Contender("forecast", "target"),
    Contender("request_rate", "per_replica"),
    Contender("concurrency", "target"),
)
BY_NAME: Final = {one.name: one for one in CONTENDERS}


def setting_of(name: str, rung: int, traffic: Traffic) -> float:
    """The value of the setting at a rung."""
    if name == FIXED:
        return float(-rung)
    if name == SLO:
        return float(f"{_STEP_FINE**-rung:.4g}")
    hardware, workload = traffic.source.hardware, traffic.workload
    each_s = float(work_s(workload, hardware).mean())
    base = {
        CLAIRVOYANT: BEARS,
        "tracking queue": 1.0,
        "tracking running": _BUSY * hardware.max_batch / 2.0,
        "request_rate": _BUSY / each_s,
        "concurrency": _BUSY * hardware.max_batch,
        "forecast": _BUSY * hardware.max_batch / 2.0,
    }[name]
    step = _STEP_FINE if name == CLAIRVOYANT else STEP
    return float(f"{base * step**rung:.4g}")


def policies_of(name: str, rung: int, traffic: Traffic, cold_s: float) -> list[Policy]:
    """The policies of a contender at a rung. Raises ConfigError when one is not installed."""
    value = setting_of(name, rung, traffic)
    if name == CLAIRVOYANT:
        return [Clairvoyant(traffic.workload, traffic.source.hardware, _LEAD * cold_s, value)]
    if name == SLO:
        shipped = built({"kind": "slo", "objective": traffic.source.ttft_s})
        return [shipped if rung == 0 else Times(shipped, value)]
    running: dict[str, Any] = {"kind": "target_tracking", "signal": "running", "target": value}
    mappings: dict[str, list[dict[str, Any]]] = {
        FIXED: [{"kind": "fixed", "size": value}],
        "tracking queue": [{**running, "signal": "queue_length"}],
        "tracking running": [running],
        "request_rate": [{"kind": "request_rate", "per_replica": value}],
        "concurrency": [{"kind": "concurrency", "target": value}],
        "forecast": [running, {**running, "kind": "forecast"}],
    }
    return [built(one) for one in mappings[name]]


class Times:
    """A policy that wants `factor` times what another one wants: a dial for `slo`, which has none of its own."""

    def __init__(self, policy: Policy, factor: float) -> None:
        self.name = policy.name
        self._policy = policy
        self._factor = factor

    def signals(self) -> frozenset[Signal]:
        """The other's."""
        return self._policy.signals()

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        """The other's, times the factor."""
        found = self._policy.recommend(pool, situation, carry, calendar)
        if found.target is None:
            return found
        return msgspec.structs.replace(found, target=found.target * self._factor)


def built(mapping: Mapping[str, Any]) -> Policy:
    """A policy as a config would have it. Raises ConfigError."""
    section = read_policy(mapping, "study")
    if section.mistakes or section.choice is None:
        raise ConfigError(section.mistakes)
    return build_policy(section.choice)
