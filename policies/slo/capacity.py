"""How much work a unit bears before the objective breaks, learned from the pool.

Every tick is counted under the load that a unit had in it (work a second, see work.py), as good or as bad. A load is
bearable while the share of bad ticks there is not far above the lowest share that is seen at any load: what is bad at
every load (prompts whose own reading takes longer than the objective) is not cured by more units.
The answer is the highest bearable load below the first that is not, and one step above what has been tried: a step is
8 %, so it climbs slowly, with proof, and falls at once when ticks there turn bad. Ticks fade by half in half a day.

Source: a first guess of 0.85 of a unit's time, above Knative's and Clusterman's set points of 0.7, since headroom for
what is not foreseen is taken apart; widening a region known to be safe from its edge, as safe optimisation does
(SafeOpt, Sui et al. 2015). Does: one table. Does not: know why a tick was bad.
Invariant: the answer lies between the table's first load and MOST.
"""

import math
from array import array
from typing import Final

#: Loads of the table: from FIRST, each a step higher.
PLACES: Final = 32
FIRST: Final = 0.2
STEP: Final = 1.08
#: What is believed before anything was tried.
GUESS: Final = 0.85
#: Share of bad ticks above the unavoidable ones that is too much.
TOO_MANY: Final = 0.3
#: Counts fade by half in this many minutes.
_HALF_MIN: Final = 720.0
#: Ticks that make a load tried, and bad ones beyond TOO_MANY that make it unbearable.
_TRIED: Final = 20.0
_SURE: Final = 2.0
#: Less than this share of bad ticks at every load is chance, of traffic in bursts; more lies in the requests.
_INTRINSIC: Final = 0.5
#: Costs may be wrong by a constant, so loads above 1 are possible.
MOST: Final = 2.0
_LOG_STEP: Final = math.log(STEP)


def place_of(load: float) -> int:
    """The place of a load in the table."""
    if load <= FIRST:
        return 0
    return min(PLACES - 1, math.ceil(math.log(load / FIRST) / _LOG_STEP))


def edge_of(place: int) -> float:
    """The highest load of a place."""
    return float(FIRST * STEP**place)


def fade(counts: "array[float]", minutes: float) -> None:
    """Let what was counted lose weight."""
    keep = 0.5 ** (minutes / _HALF_MIN)
    for place in range(2 * PLACES):
        counts[place] *= keep


def bearable(counts: "array[float]") -> tuple[float, float]:
    """Work a second that a unit bears, and the share of ticks that is bad at any load. Good ticks first, then bad."""
    good, bad = counts[:PLACES], counts[PLACES:]
    unavoidable = _unavoidable(good, bad)
    limit = unavoidable + TOO_MANY
    highest = place_of(GUESS) - 1
    for place in range(PLACES):
        # A neighbour's ticks count too: a single place may hold few.
        wrong = bad[place] + (bad[place - 1] if place else 0.0)
        seen = wrong + good[place] + (good[place - 1] if place else 0.0)
        if bad[place] > 0 and wrong - limit * seen > _SURE:
            return min(MOST, edge_of(max(0, place - 1))), unavoidable
        if place > highest and good[place] + bad[place] >= _TRIED:
            highest = place
    return min(MOST, edge_of(min(PLACES - 1, highest + 1))), unavoidable


def _unavoidable(good: "array[float]", bad: "array[float]") -> float:
    """The lowest share of bad ticks over any four neighbouring places with enough ticks, if that is large; else 0."""
    shares = [
        wrong / seen
        for place in range(0, PLACES - 3, 2)
        for wrong in (sum(bad[place : place + 4]),)
        for seen in (wrong + sum(good[place : place + 4]),)
        if seen >= 2 * _TRIED
    ]
    lowest = min(shares, default=0.0)
    return lowest if lowest >= _INTRINSIC else 0.0
