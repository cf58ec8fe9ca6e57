"""Which troubles are on at an instant.

Does: answer by kind and time. Does not: cause anything.
Invariant: a trouble is on from `at_s` up to but not including `at_s + for_s`.
"""

from __future__ import annotations

from autoscaler.lab.settings import Trouble, TroubleKind

_NOWHERE: frozenset[str] = frozenset()


class Troubles:
    """All troubles of a run."""

    def __init__(self, troubles: tuple[Trouble, ...]) -> None:
        self.all = troubles
        self._by_kind: dict[TroubleKind, list[Trouble]] = {}
        for one in troubles:
            self._by_kind.setdefault(one.kind, []).append(one)

    def now(self, kind: TroubleKind, now_s: float) -> Trouble | None:
        """The first trouble of this kind that is on."""
        if kind not in self._by_kind:
            return None
        return next((one for one in self._by_kind[kind] if one.at_s <= now_s < one.at_s + one.for_s), None)

    def places(self, kind: TroubleKind, now_s: float) -> frozenset[str]:
        """Where troubles of this kind are on; "" is everywhere."""
        if kind not in self._by_kind:
            return _NOWHERE
        return frozenset(one.where for one in self._by_kind[kind] if one.at_s <= now_s < one.at_s + one.for_s)
