"""What a load was: the last minutes, hours and the day by their peaks, and the season of an hour, a day and a week.

The load has any unit that adds up. A minute counts with one number, its peak. Seasons are tables over the time since
the first minute, so no time zone is needed; the day that is an hour longer or shorter costs them that day.

    recent        the higher of two fading means, of 3 and of 15 minutes
    trend         recent, drawn on along the line between the two, as Holt's method does
    peak_...      the highest of the last half hour, two hours, day
    hour, day...  the most of that season's table within the lead, and at least recent; `scaled`: times the present
                  level over the level that the table had at this time, within a third and three
    nothing       0: no expectation

Source: Holt and Winters (level, trend, season), drawn as tables; ASG's and Dynamo's predictors know a season too.
Does: take in a minute, and say what each way of looking ahead expects. Does not: weigh them, or take headroom.
Invariant: bounded; equal minutes give equal tables; no expectation is negative.
"""

from array import array
from collections.abc import Sequence
from typing import Final

#: Entries of the rings of peaks: a minute, ten minutes, an hour each.
_RINGS: Final = ((30, 1), (12, 10), (24, 60))
RING_COUNT: Final = 66
#: Seasons: seconds of a period, and of an entry of its table.
_SEASONS: Final = ((3600.0, 60.0), (86400.0, 600.0), (604800.0, 1800.0))
_SIZES: Final = (60, 144, 336)
SEASON_COUNT: Final = 540
#: A season takes up at least this share of what a period brings anew; at first the mean of the periods.
_NEW: Final = 0.4
_FAST, _SLOW, _LEVEL = 1.0 / 3.0, 1.0 / 15.0, 1.0 / 30.0
_MOST_SCALED: Final = 3.0
#: A table may scale from the level that it had at this time on.
NUMBER_COUNT: Final = 7

#: Ways of looking ahead, in the order of `ahead`.
WAYS: Final = (
    "nothing", "recent", "trend", "peak_30m", "peak_2h", "peak_day", "hour", "day", "day_scaled", "week", "week_scaled",
)  # fmt: skip
#: Of the last five ways: which season, and whether scaled.
_SEASONAL: Final = ((0, True), (1, False), (1, True), (2, False), (2, True))


class History:
    """The tables, unpacked; `numbers`: minutes taken in, three fading means, and what each season had for now."""

    def __init__(self, numbers: Sequence[float], rings: "array[float]", seasons: "array[float]") -> None:
        self.numbers = list(numbers) if len(numbers) == NUMBER_COUNT else [0.0] * NUMBER_COUNT
        self.rings = rings
        self.seasons = seasons

    @property
    def fast(self) -> float:
        """Mean of about 3 minutes."""
        return self.numbers[1]

    @property
    def level(self) -> float:
        """Mean of about half an hour."""
        return self.numbers[3]

    def take(self, age_s: float, peak: float) -> None:
        """A minute that began `age_s` after the first."""
        numbers, rings = self.numbers, self.rings
        count = int(numbers[0])
        for place, share in ((1, _FAST), (2, _SLOW), (3, _LEVEL)):
            numbers[place] += max(share, 1.0 / (count + 1)) * (peak - numbers[place])
        begin = 0
        for size, every in _RINGS:
            place = begin + (count // every) % size
            rings[place] = max(rings[place], peak) if count % every else peak
            begin += size
        begin = 0
        for season, ((period, width), size) in enumerate(zip(_SEASONS, _SIZES, strict=True)):
            place = begin + int(age_s % period / width)
            expected = self.seasons[place]
            numbers[4 + season] += _LEVEL * (expected - numbers[4 + season])
            first_round = age_s < period
            if first_round and (count == 0 or int((age_s - 60.0) / width) != int(age_s / width)):
                self.seasons[place] = peak
            else:
                share = max(_NEW, period / (age_s + period)) * 2.0 / (1.0 + width / 60.0)
                self.seasons[place] += min(1.0, share) * (peak - expected)
            begin += size
        numbers[0] = float(count + 1)

    def ahead(self, age_s: float, lead_s: float) -> list[float]:
        """What each of WAYS expects as the most within `lead_s` from a minute that began `age_s` after the first."""
        fast, slow = self.numbers[1], self.numbers[2]
        recent = max(fast, slow)
        trend = max(recent, fast + (fast - slow) / 720.0 * lead_s)
        half, two = max(self.rings[:30]), max(self.rings[30:42])
        found = [0.0, recent, trend, half, max(half, two), max(half, two, *self.rings[42:])]
        found += [max(recent, self._seasonal(season, scaled, age_s, lead_s)) for season, scaled in _SEASONAL]
        return found

    def _seasonal(self, season: int, scaled: bool, age_s: float, lead_s: float) -> float:  # noqa: FBT001 - from a table
        """The most of a season's table within the lead; 0 before it has been seen once."""
        period, width = _SEASONS[season]
        if age_s < period:
            return 0.0
        size, begin = _SIZES[season], sum(_SIZES[:season])
        first = int((age_s + 60.0) / width)
        last = min(int((age_s + 60.0 + lead_s) / width), first + size - 1)
        most = max(self.seasons[begin + place % size] for place in range(first, last + 1))
        had = self.numbers[4 + season]
        if not scaled or had <= 0:
            return most
        return most * min(_MOST_SCALED, max(1.0 / _MOST_SCALED, self.level / had))
