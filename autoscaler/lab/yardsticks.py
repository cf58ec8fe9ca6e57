"""What could have been: two yardsticks that know the future. No policy: nobody can run them, and no entry point does.

`Clairvoyant` sizes as the policy `slo` does: the most work within [now, now + lead + tick], over what a unit bears.
Where `slo` expects, learns and takes headroom, it reads the workload and the hardware. What is left is the price of not
knowing: a pool can hardly cost less under the same pace and cold start, though a rule that queues on purpose might.
`relaxed_units_h` drops even time: all work over what a unit can do, as if work could wait and units came in fractions.

Does: add up work, and look ahead. Does not: know drains, faults or what the pool really has.
Invariant: pure; equal workload and hardware, equal targets.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.base import Duration
from autoscaler.domain.decision import Calendar, Reason, Recommendation, Situation
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Pool
from autoscaler.lab.cloud import START
from autoscaler.lab.hardware import Hardware
from autoscaler.lab.workload import Workload

#: Share of its time that a unit may be busy, as `slo` believes at first.
BEARS: Final = 0.85
#: Work is looked at in windows as long as telemetry's.
GRAIN_S: Final = 30.0


def work_s(workload: Workload, hardware: Hardware) -> NDArray[np.float64]:
    """Seconds that each request keeps a unit busy that has a full batch: its prompt, and its share of each step."""
    prompt = workload.input_tokens.astype(np.float64)
    output = workload.output_tokens.astype(np.float64)
    held = float(np.mean(prompt + output))
    batch = max(1.0, min(float(hardware.max_batch), hardware.kv_tokens / held))
    token_s = hardware.alpha_s / batch + hardware.beta_s + hardware.kv_s * (prompt + output / 2.0)
    return (prompt / hardware.prefill_tokens_per_s + output * token_s) / hardware.speed


def relaxed_units_h(workload: Workload, hardware: Hardware) -> float:
    """Hours of units that the work alone takes: a bound that no policy reaches."""
    return float(work_s(workload, hardware).sum()) / 3600.0


class Clairvoyant:
    """A policy in the lab only. `lead_s`: from an order to traffic, a high quantile of what the world has."""

    def __init__(self, workload: Workload, hardware: Hardware, lead_s: float, bears: float = BEARS) -> None:
        self.name = "clairvoyant"
        self._lead_s = Duration(lead_s)
        self._bears = bears
        count = math.ceil(workload.duration_s / GRAIN_S) + 1
        place = np.minimum((workload.arrival_s / GRAIN_S).astype(np.int64), count - 1)
        self._work = np.bincount(place, weights=work_s(workload, hardware), minlength=count) / GRAIN_S

    def signals(self) -> frozenset[Signal]:
        """None: it does not look, it knows."""
        return frozenset()

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        """What the coming work needs."""
        del carry, calendar
        now_s = situation.now - START
        first = max(0, int(now_s / GRAIN_S))
        last = int((now_s + self._lead_s + pool.pace.tick) / GRAIN_S)
        most = float(self._work[first : last + 1].max(initial=0.0))
        return Recommendation(target=most / self._bears, reason=Reason(code="clairvoyant", facts={"work": most}))
