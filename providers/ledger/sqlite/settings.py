"""What a user may set about the SQLite ledger, and the file that its url names.

Does: hold the settings and read the path out of the url. Does not: touch the file.
Invariant: a path comes out only of a url that names a file; anything else is a ConfigError with the forms allowed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import ConfigError

_PREFIX = "sqlite:///"
_FORMS = "sqlite:///relative/file.db or sqlite:////absolute/file.db, without options"
_HOUR = 3600.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the ledger is and how long it remembers.

    `url`: `sqlite:///relative/file.db` or `sqlite:////absolute/file.db`. `full_records_for`: full decision records,
    seconds; `summaries_for`: their summaries and outcomes, seconds. `busy_timeout`: how long to wait for a lock of
    another process, seconds. `max_mib`: size that the file may reach, MiB; 0 is no limit but the disk's.
    """

    url: str = "sqlite:///state/autoscaler.db"
    full_records_for: Duration = Duration(48 * _HOUR)
    summaries_for: Duration = Duration(35 * 24 * _HOUR)
    busy_timeout: Duration = Duration(5.0)
    max_mib: int = 0

    def __post_init__(self) -> None:
        mistakes = [
            f"ledger.{name}: found {value}, allowed: {allowed}"
            for name, value, allowed, fine in (
                ("full_records_for", self.full_records_for, "0 or more seconds", self.full_records_for >= 0),
                (
                    "summaries_for",
                    self.summaries_for,
                    "at least full_records_for",
                    self.summaries_for >= self.full_records_for,
                ),
                ("busy_timeout", self.busy_timeout, "0 to 60 seconds", 0 <= self.busy_timeout <= 60),
                ("max_mib", self.max_mib, "0 (no limit) or more", self.max_mib >= 0),
            )
            if not fine
        ]
        if mistakes:
            raise ConfigError(mistakes)


def file_of(settings: Settings) -> Path:
    """The file that the url names; raises ConfigError when it names none."""
    name = settings.url.removeprefix(_PREFIX)
    if not settings.url.startswith(_PREFIX) or not name or name.endswith("/") or "?" in name or name == ":memory:":
        secret = "@" in settings.url or "?" in settings.url  # in the address of another database: a password
        found = "an address with more than a path in it" if secret else repr(settings.url)
        raise ConfigError([f"ledger.url: found {found}, allowed: {_FORMS}"])
    return Path(name)
