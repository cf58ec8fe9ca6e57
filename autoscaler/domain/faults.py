"""What can go wrong at a port, named by what the loop does next.

    AutoscalerError
    |-- ConfigError               the user's file or flags are wrong        -> exit 2
    |-- InvariantBroken           a bug of ours: stop this pool, tell       -> never caught by policy code
    `-- PortFault                 a port could not do as asked
        |-- Unreachable           no answer, or one that proves nothing     -> hold, look again
        |-- Throttled             slow down                                 -> wait `retry_after_s`, never a capacity
        mark
        |-- Conflict              the world moved meanwhile                 -> observe and plan again
        |-- NoCapacity            this placement has no machine             -> mark it, try the next placement
        |-- QuotaReached          our account's limit                       -> mark the offer for long, tell
        `-- Refused               will not work however often it is tried   -> stop and tell a person

Does: give ports exceptions to raise, and the engine a value (`Fault`) for each. Does not: know any vendor's code.
Invariant: the executor turns every PortFault into a Fault; the engine sees values only.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class AutoscalerError(Exception):
    """Root of all errors that this product raises on purpose."""


class ConfigError(AutoscalerError):
    """One or more mistakes in what the user wrote; each line says where, what was found, what is allowed."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class InvariantBroken(AutoscalerError):
    """The program contradicts itself: a bug of ours, never the user's."""


class FaultKind(StrEnum):
    """The kinds of fault, each with its own next step (see the tree above)."""

    UNREACHABLE = "unreachable"
    THROTTLED = "throttled"
    CONFLICT = "conflict"
    NO_CAPACITY = "no_capacity"
    QUOTA_REACHED = "quota_reached"
    REFUSED = "refused"


class Fault(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A fault as a value. `retry_after_s`: seconds the other side asked us to wait, 0 when it did not say."""

    kind: FaultKind
    detail: str
    retry_after_s: float = 0.0


class PortFault(AutoscalerError):
    """Base of what ports raise; `fault` is the same as a value."""

    kind: FaultKind

    def __init__(self, detail: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(detail)
        self.fault = Fault(kind=self.kind, detail=detail, retry_after_s=retry_after_s)


class Unreachable(PortFault):
    """No answer, or an answer that proves nothing: hold and look again."""

    kind = FaultKind.UNREACHABLE


class Throttled(PortFault):
    """Asked to slow down; says nothing about capacity."""

    kind = FaultKind.THROTTLED


class Conflict(PortFault):
    """The world changed between reading and writing: observe again."""

    kind = FaultKind.CONFLICT


class NoCapacity(PortFault):
    """The placement asked for has no machine just now."""

    kind = FaultKind.NO_CAPACITY


class QuotaReached(PortFault):
    """The account may have no more of this."""

    kind = FaultKind.QUOTA_REACHED


class Refused(PortFault):
    """Will fail the same way until a person changes something: bad template, no permission, not found."""

    kind = FaultKind.REFUSED
