"""The journal: one `decision` record a tick and pool, and the events of the daemon itself.

Does: set structlog up (JSON lines or console) and choose the fields. Does not: keep anything (the ledger does).
Invariant: only named fields of decisions and faults are written; settings, headers and tokens of users never are.
"""

import sys
from collections.abc import Sequence
from typing import Any, TextIO

import msgspec
import structlog

from autoscaler.domain.base import PoolName
from autoscaler.domain.decision import Decision, Launch, Outcome, OutcomeStatus, Reason


class Journal:
    """Structured log of the daemon. A launch is logged with its token, which the machines carry as a tag."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._told: dict[PoolName, frozenset[str]] = {}

    def decision(self, decision: Decision, *, saved: bool, note: str = "") -> None:
        """One record of one tick: the sentence, and its numbers as fields. `note`: why the plan is not carried out."""
        capacity = decision.capacity
        fields: dict[str, Any] = {
            "pool": decision.pool,
            "sequence": decision.sequence,
            "sentence": decision.sentence,
            "reason": decision.reason.code,
            "wanted": decision.wanted,
            "target": decision.target,
            "held": capacity.held,
            "in_service": capacity.in_service,
            "trust": decision.trust.level.value,
            "saved": saved,
        }
        if note:
            fields["note"] = note
        if decision.plan:
            fields["plan"] = [action.key for action in decision.plan]
            fields["tokens"] = [action.token for action in decision.plan if isinstance(action, Launch)]
        if decision.blocks:
            fields["blocks"] = [reason.code for reason in decision.blocks]
        self._log.info("decision", **fields)
        self._alarm(decision.pool, decision.alarms)

    def _alarm(self, pool: PoolName, alarms: Sequence[Reason]) -> None:
        """Tell an alarm when it begins; while it lasts, the API and the decision's record show it."""
        standing = {f"{alarm.code} {sorted(alarm.facts.items())}": alarm for alarm in alarms}
        told = self._told.get(pool, frozenset())
        for key, alarm in standing.items():
            if key not in told:
                self._log.warning("alarm", pool=pool, code=alarm.code, facts=alarm.facts)
        self._told[pool] = frozenset(standing)

    def outcome(self, pool: PoolName, outcome: Outcome) -> None:
        """One action that did not go as asked; what went well is seen in the next decision."""
        if outcome.status in (OutcomeStatus.FAULT, OutcomeStatus.DROPPED):
            kind = outcome.fault.kind.value if outcome.fault else ""
            detail = outcome.fault.detail if outcome.fault else outcome.detail
            self._log.warning(
                "outcome", pool=pool, action=outcome.action.key, status=outcome.status.value, fault=kind, detail=detail
            )

    def event(self, event: str, **fields: Any) -> None:
        """Something that the daemon did or saw."""
        self._log.info(event, **fields)

    def trouble(self, event: str, **fields: Any) -> None:
        """Something that a person may want to look at."""
        self._log.warning(event, **fields)

    def crash(self, event: str, **fields: Any) -> None:
        """An error of ours, with its traceback."""
        self._log.error(event, exc_info=True, **fields)


def _line(record: Any, **_: Any) -> str:
    """One record as a line of JSON; of a thousand pools this is a good part of a tick, so it is msgspec's."""
    return msgspec.json.encode(record, enc_hook=str).decode()


def open_journal(style: str = "json", stream: TextIO | None = None, *, level: str = "info") -> Journal:
    """A journal on `stream` (standard error when None), from `level` on.

    `style`: "json", one object a line, or "console". `level`: "debug", "info", "warning" or "error".
    """
    render: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_line)]
        if style == "json"
        # Not its default, which shows the values of local variables: a token may be among them.
        else [structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)]
    )
    return Journal(
        structlog.wrap_logger(
            structlog.PrintLogger(stream or sys.stderr),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                *render,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(level),
        )
    )
