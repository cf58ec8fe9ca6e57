"""What requests cost a replica: seconds of one unit of capacity for each token, learned from the pool.

A replica works in steps (continuous batching): a step takes alpha + beta x (sequences in it) + (prompt tokens in it) /
p. In a second in which it is never idle, and with N sequences inside, out/N steps are made for `out` tokens, so

    1 = alpha x out / N  +  beta x out  +  prompt / p          (seconds of a busy second)

an equation in three unknowns that every five minutes of telemetry give once. It is solved by least squares with a
memory of about a day and a weak pull towards a middling GPU, which counts in the first hour. From it, tokens cost

    prompt: 1 / p          output: alpha / batch + beta        seconds of a unit each

where `batch` is how many sequences fit: what was inside a unit while others had to wait, else a middling 128.

Source: itl = alpha + beta x batch (llm-d's workload variant autoscaler, DynamoLLM), the two phases of Splitwise and of
Dynamo's planner. Assumes: units alike and evenly loaded. A constant error in the costs does no harm: capacity.py learns
how much of such work a unit bears. Does not: see cached prefixes; what is not computed is not counted by servers
either.
Invariant: costs are positive and bounded.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

#: The middling GPU among published ones: seconds a step, seconds a sequence in it, seconds a prompt token.
_MIDDLING: Final = (0.010, 0.00015, 0.00006)
#: How far a cost may be from the middling one.
_LOW, _HIGH = 0.05, 20.0
#: What the pull towards the middling GPU weighs, beside rows of which each weighs the square of its share of the time.
_PULL: Final = 0.05
#: A row is five minutes; its weight halves in a day.
_KEEP: Final = 0.5 ** (1.0 / 288.0)
_BATCH: Final = 128.0
_SWEEPS: Final = 25
#: Sequences in a unit below which a row says too little.
_LEAST_INSIDE: Final = 0.25


class Row(msgspec.Struct, array_like=True):
    """Sums over ticks: tokens and requests a second and sequences of all units together, and units.

    `busy`: the share of its time that a unit was busy. `inside_prompt`, `inside_output`: tokens a second of a busy
    unit, each tick weighted by the sequences in a unit: what those that are inside see, in bursts and between them.
    """

    ticks: int = 0
    prompt: float = 0.0
    output: float = 0.0
    requests: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    units: float = 0.0
    busy: float = 0.0
    inside: float = 0.0
    inside_prompt: float = 0.0
    inside_output: float = 0.0

    def add(self, other: "Row") -> None:
        """Add what another has summed."""
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))

    def add_busy(self, prompt: float, output: float, inside: float) -> None:
        """Add what a busy unit does. `inside`: sequences in it; `prompt`, `output`: tokens a second of it."""
        busy = 1.0 - math.exp(-inside)  # with arrivals at random
        if busy <= 0:
            return
        self.busy += busy
        self.inside += inside
        self.inside_prompt += inside * prompt / busy
        self.inside_output += inside * output / busy


class Costs(msgspec.Struct, frozen=True, array_like=True):
    """`normal`: upper triangle of the normal matrix, `moment`: its right side. `share`: each cost in middling ones.

    `batch`: sequences that fit into a unit.
    """

    normal: tuple[float, ...] = (0.0,) * 6
    moment: tuple[float, ...] = (0.0,) * 3
    share: tuple[float, ...] = (1.0, 1.0, 1.0)
    batch: float = _BATCH

    @property
    def prompt(self) -> float:
        """Unit-seconds a prompt token."""
        return self.share[2] * _MIDDLING[2]

    @property
    def output(self) -> float:
        """Unit-seconds an output token."""
        return self.share[0] * _MIDDLING[0] / self.batch + self.share[1] * _MIDDLING[1]


def learn(costs: Costs, row: Row) -> Costs:
    """The costs after one more row."""
    inside = row.inside / row.ticks if row.ticks > 0 else 0.0
    if inside < _LEAST_INSIDE or row.inside_prompt + row.inside_output <= 0:
        return costs
    prompt, output = row.inside_prompt / row.inside, row.inside_output / row.inside
    weight = (row.busy / row.ticks) ** 2  # a row that is mostly idle says little
    x = (_MIDDLING[0] * row.output * row.ticks / (row.units * row.inside), _MIDDLING[1] * output, _MIDDLING[2] * prompt)
    pairs = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
    normal = tuple(_KEEP * old + weight * x[i] * x[j] for old, (i, j) in zip(costs.normal, pairs, strict=True))
    moment = tuple(_KEEP * old + weight * one for old, one in zip(costs.moment, x, strict=True))
    batch = costs.batch
    if row.waiting > 0.5 * row.running >= 0.5 * row.units:
        batch += 0.2 * (row.running / row.units - batch)
    return Costs(normal, moment, _solved(normal, moment, costs.share), max(2.0, batch))


def _solved(normal: Sequence[float], moment: Sequence[float], begin: Sequence[float]) -> tuple[float, ...]:
    """Least squares with a pull to 1 and bounds, by going round the three unknowns from where they were."""
    a00, a01, a02, a11, a12, a22 = normal
    x, y, z = begin
    for _ in range(_SWEEPS):
        x = min(_HIGH, max(_LOW, (moment[0] + _PULL - a01 * y - a02 * z) / (a00 + _PULL)))
        y = min(_HIGH, max(_LOW, (moment[1] + _PULL - a01 * x - a12 * z) / (a11 + _PULL)))
        z = min(_HIGH, max(_LOW, (moment[2] + _PULL - a02 * x - a12 * y) / (a22 + _PULL)))
    return (x, y, z)
