"""A size by the clock: windows opened and closed by cron lines, in a time zone.

    wanted = largest `size` of the windows that are open, else `otherwise`

A window is open from each time that `start` fires until `stop` next does; where both fire at once, it is open. Lines
are read in `timezone` as Debian's cron reads them (through cronsim): on the day that an hour is skipped, a line inside
it fires right after it; on the day that an hour comes twice, a line at a fixed time fires once. So 08:00 to 18:00 is
that by the wall clock all year, 9 or 11 hours long on those days if the change lies inside.

Units: capacity. Source: KEDA's cron trigger (start and stop lines, a time zone), MIG's schedules (largest of several).
Assumes nothing of the load: beside other policies it is a floor, since the highest target holds; alone it is the size.
Does not: start machines ahead of a window: set `start` as early as a cold start takes.
Invariant: the target depends on the calendar only.

Reason codes (facts): `scheduled` (size, start, open), `unscheduled` (size), `no_calendar`.
"""

from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from autoscaler.domain.decision import Calendar, Reason, Recommendation, Situation
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Pool

#: Any moment will do to try whether a line can fire at all.
_SOME_DAY: Final = datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC"))


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`start`, `stop`: cron lines of five fields, or six with seconds first. `size`: units while it is open."""

    start: str
    stop: str
    size: float

    def __post_init__(self) -> None:
        for field, line in (("start", self.start), ("stop", self.stop)):
            try:
                fires = next(CronSim(line, _SOME_DAY), None)
            except CronSimError as error:
                raise ValueError(f"{field}: found {line!r}, needed is a cron line: {error}") from error
            if fires is None:
                raise ValueError(f"{field}: found {line!r}, which never fires")
        if not 0 <= self.size < float("inf"):
            raise ValueError(f"size: found {self.size:g}, allowed is a number from 0")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`timezone`: an IANA name. `otherwise`: units while no window is open."""

    windows: tuple[Window, ...]
    timezone: str = "UTC"
    otherwise: float = 0.0

    def __post_init__(self) -> None:
        if not self.windows:
            raise ValueError("windows: found none, needed is at least one {start, stop, size}")
        if not 0 <= self.otherwise < float("inf"):
            raise ValueError(f"otherwise: found {self.otherwise:g}, allowed is a number from 0")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"timezone: found {self.timezone!r}, needed is a name such as Europe/Berlin") from error


class Schedule:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._zone = ZoneInfo(settings.timezone)
        self.name = "schedule"

    def signals(self) -> frozenset[Signal]:
        return frozenset()

    def recommend(self, pool: Pool, situation: Situation, carry: str, calendar: Calendar) -> Recommendation:
        if not calendar.utc:
            return Recommendation(target=None, reason=Reason(code="no_calendar"))
        # Lines are asked for what lies before this instant; a second later, so that this one counts too. Added in UTC:
        # sums of wall clock times forget which of an hour's two passes they are in.
        until = (datetime.fromisoformat(calendar.utc) + timedelta(seconds=1)).astimezone(self._zone)
        is_open = [window for window in self._settings.windows if _is_open(window, until)]
        if not is_open:
            size = self._settings.otherwise
            return Recommendation(target=size, reason=Reason(code="unscheduled", facts={"size": size}))
        largest = max(is_open, key=lambda window: window.size)
        facts: dict[str, str | float | int] = {
            "size": largest.size,
            "start": largest.start,
            "open": len(is_open),
        }
        return Recommendation(target=largest.size, reason=Reason(code="scheduled", facts=facts))


def _is_open(window: Window, until: datetime) -> bool:
    """Whether it started since it last stopped."""
    return _last_fired(window.start, until) >= _last_fired(window.stop, until)


def _last_fired(line: str, until: datetime) -> float:
    """When the line last fired, in seconds since the epoch; two wall clock times do not tell which came first."""
    return next(CronSim(line, until, reverse=True)).timestamp()


def build(settings: Settings) -> Schedule:
    """The policy of these settings."""
    return Schedule(settings)
