"""Who we are to a Prometheus server: secrets from the environment or from mounted files, never from the config.

Does: find them at build, and read files again at each use, since mounted tokens are rotated. Does not: send them.
Invariant: a secret is in no message and no repr, and none is taken from a file that others could have read or written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from autoscaler.domain.faults import ConfigError
from autoscaler.ports.trusted import mistake_in
from providers._shared.http_client import headers_from_environment
from providers.telemetry.prometheus.settings import Settings

_LIMIT: Final = 64 * 1024


class SecretGone(Exception):
    """A file that held a secret can no longer be read, or no longer be trusted."""


class _Held:
    """A secret and where it comes from."""

    def __init__(self, field: str, variable: str | None, file: str | None) -> None:
        self._field = field
        self._file = None if file is None else Path(file)
        self._value = os.environ.get(variable, "") if variable else ""
        self.mistake = ""
        if variable and not self._value:
            self.mistake = f"{field}_env: the environment variable {variable} is not set"
        if self._file is not None:
            try:
                self.read()
            except SecretGone as gone:
                self.mistake = str(gone)

    def read(self) -> str:
        """The secret as it is now, or an empty text where none was asked for. Raises SecretGone."""
        if self._file is not None:
            try:
                with self._file.open(encoding="utf-8") as file:
                    mistake = mistake_in(self._file, os.fstat(file.fileno()), secret=True)
                    read = "" if mistake else file.read(_LIMIT).strip()
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "not text"
                raise SecretGone(f"{self._field}_file: {self._file} cannot be read: {why}") from None
            if mistake:
                raise SecretGone(f"{self._field}_file: {self._file} {mistake}")
            if not read or not read.isprintable():
                raise SecretGone(f"{self._field}_file: {self._file} holds no single line of text")
            self._value = read
        return self._value

    @property
    def last(self) -> str:
        """As last read."""
        return self._value


def _unusable(path: Path, *, secret: bool) -> str:
    """Why a file that is read by its name, later, should not be; empty when nothing is wrong with it now."""
    try:
        with path.open("rb") as file:
            return mistake_in(path, os.fstat(file.fileno()), secret=secret)
    except OSError:
        return "cannot be read"


class Access:
    """What is sent with each query. Raises ConfigError for what is not there."""

    def __init__(self, settings: Settings) -> None:
        self._token = _Held("token", settings.token_env, settings.token_file)
        self._password = _Held("password", settings.password_env, settings.password_file)
        mistakes = [held.mistake for held in (self._token, self._password) if held.mistake]
        for field in ("ca_file", "cert_file", "key_file"):
            path = getattr(settings, field)
            if path is not None and (why := _unusable(Path(path), secret=field == "key_file")):
                mistakes.append(f"{field}: {path} {why}")
        self.headers: dict[str, str] = {}
        try:
            self.headers = headers_from_environment(settings.headers, None)
        except ConfigError as error:
            mistakes += error.mistakes
        if mistakes:
            raise ConfigError([f"telemetry.{mistake}" for mistake in mistakes])
        self._secret_headers = tuple(self.headers.values())
        if settings.tenant is not None:
            self.headers = {**self.headers, "X-Scope-OrgID": settings.tenant}
        self.username = settings.username
        self.ca_file = settings.ca_file
        self.cert_file = settings.cert_file
        self.key_file = settings.key_file

    def token(self) -> str | None:
        """The bearer token, if one is used. Raises SecretGone."""
        return self._token.read() or None

    def password(self) -> str | None:
        """The password, if one is used. Raises SecretGone."""
        return self._password.read() or None

    def known(self) -> list[str]:
        """Everything that no message may show."""
        return [one for one in (self._token.last, self._password.last, *self._secret_headers) if one]
