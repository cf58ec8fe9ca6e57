"""What the environment may say: AUTOSCALER_LEDGER, AUTOSCALER_LOG__LEVEL and so on, above the file; and the token.

Does: read the environment with pydantic-settings and lay it over the file's mapping. Does not: read the file.
Invariant: the environment wins over the file, setting by setting; the admin token comes from here or a mounted file.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from autoscaler.domain.faults import ConfigError

PREFIX: Final = "AUTOSCALER_"


class _Admin(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    listen: str | None = None
    token_file: str | None = None


class _Log(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    format: str | None = None
    level: str | None = None


_SECTIONS: Final[dict[str, type[BaseModel]]] = {"admin": _Admin, "log": _Log}


class Environment(BaseSettings):
    """The settings that an environment variable can set; `__` goes one section deeper."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True, extra="ignore", hide_input_in_errors=True
    )
    installation: str | None = None
    ledger: str | None = None
    state_dir: str | None = None
    admin: _Admin | None = None
    log: _Log | None = None
    admin_token: SecretStr | None = None

    @property
    def token(self) -> str | None:
        """AUTOSCALER_ADMIN_TOKEN, or None."""
        return self.admin_token.get_secret_value() if self.admin_token else None

    def over(self, mapping: dict[str, Any]) -> dict[str, Any]:
        """The file's mapping with what the environment says laid over it."""
        said = self.model_dump(exclude_none=True, exclude={"admin_token"})
        merged = dict(mapping)
        for key, value in said.items():
            below = merged.get(key)
            merged[key] = {**below, **value} if isinstance(value, dict) and isinstance(below, dict) else value
        return merged


def variables() -> list[str]:
    """Every variable that is read, for the documentation."""
    names = []
    for name in Environment.model_fields:
        nested: type[BaseModel] | None = _SECTIONS.get(name)
        inner = [f"{name}__{each}" for each in nested.model_fields] if nested else [name]
        names += [f"{PREFIX}{each}".upper() for each in inner]
    return names


def read_environment() -> Environment:
    """The environment of this process; raises ConfigError naming the variable, never its value."""
    known = ", ".join(variables())
    try:
        return Environment()
    except ValidationError as error:
        places = ["__".join(str(part) for part in each["loc"]).upper() for each in error.errors(include_input=False)]
        mistakes = [f"environment {PREFIX}{place}: unknown or wrong; allowed: {known}" for place in places]
        raise ConfigError(mistakes) from None
    except SettingsError:
        raise ConfigError([f"environment: {PREFIX}ADMIN and {PREFIX}LOG hold no section; allowed: {known}"]) from None
