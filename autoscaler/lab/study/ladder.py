"""Which rungs of a ladder to try: until one holds the goal and the next one does not, in each half that matters.

Does: choose the next rung. Does not: run anything.
Invariant: a rung is tried once; it ends after `runs_most` rungs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from autoscaler.lab.study.contenders import FIXED, SLO, Contender

#: Rungs skipped while nothing brackets the goal, and how close a bracket is in each half: for the setting that is
#: chosen on the first half, as close as can be; for interpolation on the second, two rungs.
_STRIDE: Final = 2
_GAPS: Final = (1, 2)
_STRIDE_FIXED: Final = 6
_GAPS_FIXED: Final = (1, 1)

Attainments = tuple[float, float]


def climb(contender: Contender, start: int | None, goal: float, attain: Callable[[int], Attainments]) -> None:
    """Try rungs from `start` on, or from the ladder's middle when nothing is known: then with wider strides.

    `attain`: runs one and gives its attainment in the first and the second half.
    """
    stride = 1 if start is not None or contender.name == SLO else _STRIDE
    if contender.name == FIXED:
        stride = _STRIDE_FIXED
    seen: dict[int, Attainments] = {}
    for half in contender.judged:
        rung: int | None = (start or 0) if not seen else following(contender, half, goal, seen, stride)
        while rung is not None and len(seen) < contender.runs_most:
            seen[rung] = attain(rung)
            rung = following(contender, half, goal, seen, stride)


def following(
    contender: Contender, half: int, goal: float, seen: Mapping[int, Attainments], stride: int = 1
) -> int | None:
    """The next rung to try for one half, None when it is bracketed or the ladder ends."""
    gap = (_GAPS_FIXED if contender.name == FIXED else _GAPS)[half] if contender.tuned else 1
    least, most = contender.rungs
    holding = [rung for rung, shares in seen.items() if shares[half] >= goal]
    if not holding:
        lowest = min(seen)
        return max(least, lowest - stride) if lowest > least else None
    best = max(holding)
    above = [rung for rung in seen if rung > best]
    if not above:
        return min(most, best + stride) if best < most else None
    return (best + min(above)) // 2 if min(above) - best > gap else None
