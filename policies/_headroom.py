"""Headroom from one's own errors: how many times what was expected came, as a table whose quantile can be asked for.

What came over what was expected goes into a table of ratios, weighted, fading by half in a day. Its quantile is the
headroom that would have been enough for that share of the weight.

Source: quantiles of one's own residuals as in split conformal prediction (Vovk; Romano et al. 2019), weighted and
fading for drift (Barber et al. 2023). Assumes: errors to come are like those of the last days.
Does: one table, anywhere in an array. Does not: know what was expected, or of what.
Invariant: headroom lies within the table; more that came beyond what was expected never lowers it.
"""

import math
from array import array
from typing import Final

#: Ratios of a table: from 1/4 on, eight places to each doubling.
PLACES: Final = 72
_PER_DOUBLING: Final = 8.0
_FROM: Final = -2.0
#: Weights fade by half in this many minutes.
_KEEP: Final = 0.5 ** (1.0 / 1440.0)
_SCALE_MOST: Final = 1e6
#: What is believed before there are errors: this ratio, as heavily as three minutes, fading out over two hundred.
BELIEF: Final = 1.25
_BELIEF_WEIGHT: Final = 3.0
_BELIEF_MIN: Final = 200.0
#: So many minutes must lie beyond a quantile before it is asked for, down to this one.
_BEYOND_MIN: Final = 3.0
_LEAST_LEVEL: Final = 0.9


def place_of(ratio: float) -> int:
    """The place of a ratio in a table."""
    return min(PLACES - 1, max(0, int((math.log2(max(ratio, 1e-6)) - _FROM) * _PER_DOUBLING)))


def add(errors: "array[float]", begin: int, scale: float, ratio: float, weight: float) -> float:
    """One more error in the table at `begin`; returns the scale for the next.

    The table fades by letting new weights grow; it is scaled back before they grow too large for 32 bits.
    """
    scale = max(scale, 1.0) / _KEEP
    if scale > _SCALE_MOST:
        for place in range(begin, begin + PLACES):
            errors[place] /= scale
        scale = 1.0
    errors[begin + place_of(ratio)] += scale * weight
    return scale


def quantile(errors: "array[float]", begin: int, minutes: float, level: float) -> float:
    """The ratio beyond which a share of 1 - `level` of the weight lies. `minutes`: how many were added."""
    total = math.fsum(errors[begin : begin + PLACES])
    believed = 0.0
    if minutes < _BELIEF_MIN:
        believed = (total / minutes if minutes > 0 else 1.0) * _BELIEF_WEIGHT * (1.0 - minutes / _BELIEF_MIN)
    level = min(level, max(_LEAST_LEVEL, 1.0 - _BEYOND_MIN / max(1.0, minutes)))
    beyond = (1.0 - level) * (total + believed)
    belief = place_of(BELIEF)
    for place in range(PLACES - 1, -1, -1):
        weight = errors[begin + place] + (believed if place == belief else 0.0)
        if weight > beyond:
            return float(2.0 ** (_FROM + (place + 1.0 - beyond / weight) / _PER_DOUBLING))
        beyond -= weight
    return BELIEF
