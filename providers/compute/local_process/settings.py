"""What a user writes for an offer of local processes, and what can be wrong with it.

Does: check, and fill in the placeholders. Does not: start anything.
Invariant: only the three named placeholders are filled in; every other brace stays as it was written.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from typing import Final

import msgspec

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import Refused

_RANGE: Final = re.compile(r"(\d{1,5})-(\d{1,5})")
PLACEHOLDERS: Final = ("{port}", "{instance}", "{state_dir}")
#: Variables of the daemon itself (its secrets among them) that no replica inherits.
_OURS: Final = "AUTOSCALER_"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to start a replica on this machine.

    `command`: program and arguments; `{port}`, `{instance}` and `{state_dir}` are filled in, also in the values of
    `env`, which is added to the daemon's environment (less AUTOSCALER_*). `port_range`: "first-last" or "auto" (any
    free port). `address`: where the replica listens. `grace`: seconds between SIGTERM and SIGKILL.
    """

    command: tuple[str, ...]
    env: dict[str, str] = {}
    port_range: str = "20000-29999"
    address: str = "127.0.0.1"
    grace: Duration = Duration(10.0)

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ValueError("command: found nothing, allowed: a program and its arguments")
        if not any("{port}" in text for text in (*self.command, *self.env.values())):
            raise ValueError("command: no {port} in it nor in env, so the replica cannot know where to listen")
        if self.grace < 0:
            raise ValueError(f"grace: found {self.grace:g} s, allowed: 0 s or more")
        self.ports()

    def ports(self) -> range | None:
        """The ports to choose from; None for any free one. Raises ValueError."""
        if self.port_range == "auto":
            return None
        found = _RANGE.fullmatch(self.port_range)
        first, last = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= first <= last <= 65535:
            raise ValueError(f'port_range: found {self.port_range!r}, allowed: "auto" or "first-last" within 1-65535')
        return range(first, last + 1)


def read(request: str) -> Settings:
    """Read an offer's frozen request. Raises Refused with what is wrong."""
    try:
        return msgspec.json.decode(request, type=Settings)
    except msgspec.DecodeError as error:  # also what __post_init__ says
        raise Refused(f"the offer's request is not one of local_process: {error}") from error


def fill(text: str, values: Mapping[str, str]) -> str:
    """Fill in the placeholders."""
    return re.sub("|".join(map(re.escape, PLACEHOLDERS)), lambda found: values[found[0]], text)


def environment(settings: Settings, values: Mapping[str, str]) -> dict[str, str]:
    """What a replica finds in its environment, less the tags."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    added = {name: fill(value, values) for name, value in settings.env.items()}
    # Programs that set their process title (vLLM does) would overwrite the environment that holds our tags.
    return {**inherited, "SPT_NOENV": "1", **added}


def program(settings: Settings, env: Mapping[str, str]) -> str:
    """Find the program. Raises Refused when it is not there or may not be executed."""
    name = settings.command[0]
    found = shutil.which(name, path=env.get("PATH", os.defpath))
    if found is None:
        looked = "it" if "/" in name else f"a program of that name in PATH ({env.get('PATH', os.defpath)})"
        raise Refused(f"command {name!r}: {looked} is not there or may not be executed")
    return os.path.abspath(found)  # noqa: PTH100 - a link must stay: a venv's python knows its home by it
