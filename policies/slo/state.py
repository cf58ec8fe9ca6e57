"""What the policy carries from tick to tick: about 12 KiB of JSON, its tables packed.

Does: name it, and take a fading mean of what was missed. Does not: decide.
Invariant: bounded; a carry of another version is as none.
"""

from typing import Final

import msgspec

from policies._lead import Lead
from policies.slo.capacity import GUESS
from policies.slo.judge import RECENT
from policies.slo.work import Costs, Row

VERSION: Final = 1
_KEEP: Final = 0.5 ** (1.0 / 2880.0)
#: Minutes of middling traffic that the first belief of what is missed weighs.
_BELIEF_MIN: Final = 120.0


class Minute(msgspec.Struct, array_like=True):
    """A minute in the making. `peak`: the most work of a tick. `seen`: places in the table of loads, bad ones above."""

    began: float = 0.0
    peak: float = 0.0
    row: Row = msgspec.field(default_factory=Row)
    seen: tuple[int, ...] = ()


class Missed(msgspec.Struct, array_like=True):
    """Requests served and those that missed the objective, a minute's mean rate each, fading by half in two days."""

    minutes: float = 0.0
    served: float = 0.0
    missed: float = 0.0

    def add(self, requests: float, share: float) -> None:
        """A minute with so many requests a second, of which this share missed."""
        self.minutes = self.minutes * _KEEP + 1.0
        self.served = self.served * _KEEP + requests
        self.missed = self.missed * _KEEP + requests * share

    def share(self, believed: float) -> float:
        """The share that missed; `believed`: before there is enough to tell."""
        belief = _BELIEF_MIN * (self.served / self.minutes if self.minutes > 0 else 1.0)
        total = self.served + belief
        return (self.missed + believed * belief) / total if total > 0 else believed


class Hold(msgspec.Struct, array_like=True):
    """Work that is held after an abrupt fall, and until when; `until` below 0: there was none."""

    until: float = -1.0
    work: float = 0.0


class Tables(msgspec.Struct):
    """What is touched once a minute: fading means of history.py, and packed arrays."""

    numbers: tuple[float, ...] = ()
    rings: str = ""
    seasons: str = ""
    errors: str = ""
    sums: str = ""
    pending: str = ""
    loads: str = ""


class State(msgspec.Struct):
    """All of it.

    `origin`, `at`: first and last tick. `running`, `waiting`, `output`: fading means; `slow`:
    tokens take longer than their objective. `settled`: since when units are the same.
    `borne`: work a unit in the last ticks. `prompt_mean`, `output_mean`: tokens of a request. `expected`: work for
    which there must be capacity, `bears`: work that a unit bears, `unavoidable`: share of ticks bad at any load,
    `level`: share of work that headroom covers. `tables`: `Tables`, left encoded but for one tick in a minute.
    """

    v: int = VERSION
    origin: float = 0.0
    at: float = -1.0
    running: float = 0.0
    waiting: float = 0.0
    output: float = 0.0
    slow: bool = False
    units: float = 0.0
    settled: float = 0.0
    borne: tuple[float, ...] = ()
    lead: Lead = Lead()
    costs: Costs = Costs()
    prompt_mean: float = 0.0
    output_mean: float = 0.0
    minute: Minute = msgspec.field(default_factory=Minute)
    row: Row = msgspec.field(default_factory=Row)
    minutes: int = 0
    tables: msgspec.Raw = msgspec.Raw(b"{}")
    chosen: int = RECENT
    missed: Missed = msgspec.field(default_factory=Missed)
    hold: Hold = msgspec.field(default_factory=Hold)
    expected: float = 0.0
    bears: float = GUESS
    unavoidable: float = 0.0
    level: float = 0.95
