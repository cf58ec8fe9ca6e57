"""The life of a replica: its phases and the table of allowed moves.

Does: name the phases and say, edge by edge, when each move happens. Does not: decide a move (engine.reconcile does).
Invariant: a move that is not in MOVES is a bug and raises InvariantBroken; staying in a phase is always allowed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """Where a replica stands, from asked-for to gone."""

    REQUESTED = "requested"  # asked of the compute, no machine seen yet
    BOOTING = "booting"  # a machine exists, it is not running or has no address yet
    LOADING = "loading"  # the machine runs, the model-loaded check has not passed in this boot
    READY = "ready"  # the check passed in this boot; not in every balancer
    IN_SERVICE = "in_service"  # admitted in every balancer
    DRAINING = "draining"  # leaving: no new requests, running ones finish
    TERMINATING = "terminating"  # the end is saved and will be asked for until the machine is gone
    GONE = "gone"  # the machine no longer exists; forgotten at the next tick
    LOST = "lost"  # failed or taken without our asking: out of traffic, to be replaced
    STANDBY = "standby"  # stopped, weights on disk, costs little, can be started


P = Phase
MOVES: Final[dict[tuple[Phase, Phase], str]] = {
    (P.REQUESTED, P.BOOTING): "the compute shows a machine that carries the launch's token",
    (P.REQUESTED, P.LOADING): "the machine was already running when it was first seen",
    (P.REQUESTED, P.READY): "the machine was already running and had passed its checks when first seen",
    (P.REQUESTED, P.IN_SERVICE): "a machine with its members, adopted or seen again after it was taken for gone",
    (P.REQUESTED, P.DRAINING): "first seen with a notice or an operator's word on it, or seen again while it left",
    (P.REQUESTED, P.TERMINATING): "seen again after it was taken for gone: its end is saved and not undone",
    (P.REQUESTED, P.LOST): "the machine stopped or failed before it was first seen running",
    (P.REQUESTED, P.GONE): "the launch was refused, withdrawn, or expired with no machine",
    (P.BOOTING, P.LOADING): "the machine runs and has an address",
    (P.BOOTING, P.READY): "machine up and model loaded between two looks",
    (P.BOOTING, P.IN_SERVICE): "its address was away for a look, or no balancer has to show it",
    (P.BOOTING, P.DRAINING): "an operator or a notice takes it away before it ever served",
    (P.BOOTING, P.TERMINATING): "no longer needed, or not up by its deadline",
    (P.BOOTING, P.LOST): "stopped by someone else or by itself before it ran",
    (P.BOOTING, P.GONE): "the machine vanished, or its unregistered removal was already complete",
    (P.BOOTING, P.STANDBY): "found stopped where standby is in use",
    (P.LOADING, P.READY): "the model-loaded check passed often enough in this boot",
    (P.LOADING, P.IN_SERVICE): "passed, and already a member of every balancer (adopted after a restart)",
    (P.LOADING, P.BOOTING): "the machine restarts",
    (P.LOADING, P.DRAINING): "leaves while it is still a member of a balancer, or by an operator's word",
    (P.LOADING, P.TERMINATING): "no longer needed, or the model did not load by its deadline",
    (P.LOADING, P.LOST): "the server process ended, or the machine stopped",
    (P.LOADING, P.GONE): "the machine vanished",
    (P.READY, P.IN_SERVICE): "every balancer shows it as admitted",
    (P.READY, P.LOADING): "a new boot was seen: what was known of the earlier one is forgotten",
    (P.READY, P.BOOTING): "the machine restarts",
    (P.READY, P.DRAINING): "chosen to leave before or between its times in traffic",
    (P.READY, P.LOST): "the check fails",
    (P.READY, P.GONE): "the machine vanished",
    (P.IN_SERVICE, P.READY): "someone else took it out of a balancer; it will be admitted again",
    (P.IN_SERVICE, P.LOADING): "a new boot was seen: out of traffic until its check passes again",
    (P.IN_SERVICE, P.BOOTING): "the machine restarts",
    (P.IN_SERVICE, P.DRAINING): "chosen to leave: scale-in, replacement, notice, or an operator's word",
    (P.IN_SERVICE, P.LOST): "the check fails or makes no progress; it leaves the balancers at once",
    (P.IN_SERVICE, P.GONE): "the machine vanished",
    (P.DRAINING, P.IN_SERVICE): "recalled: load returned before it was empty",
    (P.DRAINING, P.READY): "recalled after it had left a balancer",
    (P.DRAINING, P.TERMINATING): "empty twice after settling, or its deadline passed",
    (P.DRAINING, P.STANDBY): "empty, and stopped instead of terminated",
    (P.DRAINING, P.GONE): "the machine vanished while it drained",
    (P.TERMINATING, P.GONE): "the compute no longer shows the machine",
    (P.LOST, P.IN_SERVICE): "it passed again before any balancer was told to drop it",
    (P.LOST, P.LOADING): "it answers again: passes are counted anew in this boot",
    (P.LOST, P.READY): "it passed its checks again before it was replaced",
    (P.LOST, P.BOOTING): "someone started the machine again",
    (P.LOST, P.DRAINING): "did not recover in time: leaves for good, then its machine is replaced",
    (P.LOST, P.TERMINATING): "replaced: left every balancer and empty, or its short deadline passed",
    (P.LOST, P.GONE): "the machine vanished",
    (P.STANDBY, P.BOOTING): "started",
    (P.STANDBY, P.LOADING): "started and up between two looks",
    (P.STANDBY, P.TERMINATING): "no longer wanted even as a reserve",
    (P.STANDBY, P.GONE): "the machine vanished",
}

#: Phases that serve or will serve without another decision: what the pool "holds".
HELD: Final = frozenset({P.REQUESTED, P.BOOTING, P.LOADING, P.READY, P.IN_SERVICE})
#: Phases whose capacity is still on its way.
ON_THE_WAY: Final = frozenset({P.REQUESTED, P.BOOTING, P.LOADING, P.READY})


def allowed(before: Phase, now: Phase) -> bool:
    """Whether a replica may go from `before` to `now` between two ticks."""
    return before is now or (before, now) in MOVES
