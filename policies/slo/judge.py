"""Which way of looking ahead serves best, with the headroom that its own errors ask for.

For each way, what came is compared with what the pool would have had: the most that the way expected in the minutes
that were old enough to have become capacity (a lead ago) and young enough for the pool to still hold it (its
stabilisation window). Its errors, weighted by work, give its headroom: a way that foresees well needs little, one that
cannot foresee needs much and becomes a floor. A way's loss in a minute is what it would have bought, and 1 / (1 -
level) times what it would have lacked; the way with the least loss is used. `nothing` with its headroom is a fixed
size, so that traffic that nobody foresees gets a floor and no pretence.

Source: the newsvendor's or pinball loss, of which the quantile is the least; prediction with expert advice, follow the
leader (Cesa-Bianchi and Lugosi 2006). Does not: know how a way came to expect what it does.
Invariant: what is bought is at least nothing; with no history the way is `recent` and the headroom is the belief's.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from policies._headroom import BELIEF, PLACES, add, quantile
from policies._history import WAYS

COUNT: Final = len(WAYS)
RECENT: Final = WAYS.index("recent")
#: Numbers a way: scale of its table, fading loss, that of `recent` in the same minutes, minutes, headroom.
SUMS: Final = 5
_SCALE, _LOSS, _REFERENCE, _MINUTES, _HEADROOM = range(SUMS)
#: A little load is nothing: added to both sides of a ratio, units.
_SMALL: Final = 0.25
_KEEP: Final = 0.5 ** (1.0 / 1440.0)
#: Minutes of judgement before a way may be used, and how much less it must lose to take over.
_JUDGED: Final = 240.0
_BETTER: Final = 0.98
#: The least weight of a minute: an idle one counts too.
_LEAST_WEIGHT: Final = 0.05


class Judge:
    """The tables, unpacked: PLACES of errors and SUMS a way, and the way in use."""

    def __init__(self, errors: "array[float]", sums: "array[float]", chosen: int) -> None:
        self.errors = errors
        self.sums = sums
        self.chosen = chosen

    def take(self, had: Sequence[float], came: float, level: float) -> None:
        """A minute: what each way would have had, and the work that came."""
        sums, short = self.sums, 1.0 / (1.0 - level)
        reference = self._loss(RECENT, had[RECENT], came, short)
        for way in range(COUNT):
            base = SUMS * way
            loss = self._loss(way, had[way], came, short)
            ratio = (came + _SMALL) / (had[way] + _SMALL)
            sums[base + _SCALE] = add(self.errors, PLACES * way, sums[base + _SCALE], ratio, max(came, _LEAST_WEIGHT))
            sums[base + _LOSS] = sums[base + _LOSS] * _KEEP + loss
            sums[base + _REFERENCE] = sums[base + _REFERENCE] * _KEEP + reference
            sums[base + _MINUTES] += 1.0

    def weigh(self, level: float) -> None:
        """Work out headrooms anew, and take the way that loses least."""
        sums = self.sums
        for way in range(COUNT):
            base = SUMS * way
            sums[base + _HEADROOM] = quantile(self.errors, PLACES * way, sums[base + _MINUTES], level)
        best, lowest = self.chosen, self._share(self.chosen) * _BETTER
        for way in range(COUNT):
            if sums[SUMS * way + _MINUTES] >= _JUDGED and self._share(way) < lowest:
                best, lowest = way, self._share(way)
        self.chosen = best

    def bought(self, way: int, expected: float) -> float:
        """Work for which there must be capacity when that way expects so much."""
        return max(0.0, (expected + _SMALL) * (self.sums[SUMS * way + _HEADROOM] or BELIEF) - _SMALL)

    def _loss(self, way: int, had: float, came: float, short: float) -> float:
        bought = self.bought(way, had)
        return bought + short * max(0.0, came - bought)

    def _share(self, way: int) -> float:
        """Its loss in those of `recent`."""
        reference = self.sums[SUMS * way + _REFERENCE]
        return self.sums[SUMS * way + _LOSS] / reference if reference > 0 else 1.0
