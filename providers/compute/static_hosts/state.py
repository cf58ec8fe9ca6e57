"""Who has which host: one small file under state_dir, changed in one step under a lock.

Why a file and not only a mark on the host: a host that is claimed must be known before its start command is run, also
when nothing runs on it yet and when it cannot be reached. Where a status command prints the `{tag}` that the start was
given, a lost file is made good from the hosts themselves.

Does: hold claims and what each token got. Does not: run commands or judge a status.
Invariant: a host has at most one claim, written before anything is started on it and kept until it is known to be
stopped; an unreadable file is a fault, never an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from autoscaler.domain.base import InstanceId, Token
from autoscaler.domain.faults import Refused
from autoscaler.domain.pool import Pool
from providers._shared import files
from providers.compute.static_hosts.settings import Host

T = TypeVar("T")

_LOCK_WAIT_S: Final = 10.0
#: A command of another daemon or of the command line may hold a host for as long as a command may last, and a look.
_HOST_WAIT_S: Final = 35.0
#: Launches expire within minutes: enough that no open one is forgotten.
_TOKENS_MAX: Final = 1000


class Stage(StrEnum):
    """How far a launch has come on one host."""

    STARTING = "starting"  # claimed; its start command may or may not have been run
    STARTED = "started"  # its start was accepted, or may have had an effect: a machine from now on


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One host in use. `request`: the offer's settings at its launch, for when the config has lost the offer.

    `at`: when it was launched, seconds since 1970. `stop_at`: when its end was asked for. `stop_boot`: the boot that
    was to end, if known. `stop_accepted`: a stop command said that it did its work.
    """

    installation: str
    pool: str
    token: str
    offer: str
    host: Host
    request: str
    at: float
    stage: Stage = Stage.STARTING
    detail: str = ""
    stop_at: float | None = None
    stop_boot: str = ""
    stop_accepted: bool = False

    @property
    def instance(self) -> InstanceId:
        """One use of one host: the next use of it is another machine."""
        return InstanceId(f"{self.host.name}.{self.token}")

    @property
    def tag(self) -> str:
        """Who has the host and since when, as one word that a host can keep."""
        return "/".join((self.installation, self.pool, self.token, self.offer, f"{self.at:.3f}"))

    def of(self, pool: Pool) -> bool:
        """Whether it is this pool's; an empty name owns nothing."""
        return bool(self.pool) and (self.installation, self.pool) == (pool.installation, pool.name)


def from_tag(tag: str, host: Host, request: str) -> Claim | None:
    """The claim that a tag tells of; None for a text that is no tag."""
    parts = tag.split("/")
    try:
        installation, pool, token, offer, at = parts
        since = float(at)
    except ValueError:
        return None
    if not (installation and pool and token and 0 <= since < 1e11):
        return None
    return Claim(
        installation=installation, pool=pool, token=token, offer=offer, host=host, request=request, at=since,
        stage=Stage.STARTED,
    )  # fmt: skip


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a token got. `final`: no further host will be started for it."""

    ids: tuple[InstanceId, ...] = ()
    final: bool = False
    withdrawn: bool = False


class State(msgspec.Struct, kw_only=True):
    """Claims by the host's name, and tokens by `key_of`, oldest first."""

    version: int = 1
    claims: dict[str, Claim] = {}
    tokens: dict[str, Given] = {}

    def of_token(self, pool: Pool, token: Token) -> Iterator[Claim]:
        """The hosts that a token has now and that nobody asked to end."""
        for claim in self.claims.values():
            if claim.of(pool) and claim.token == token and claim.stop_at is None:
                yield claim

    def claim_of(self, claim: Claim) -> Claim | None:
        """The claim as it is now; None when it has ended, or its host has another one."""
        found = self.claims.get(claim.host.name)
        return found if found is not None and found.instance == claim.instance and _same_owner(found, claim) else None

    def give(self, key: str, given: Given) -> None:
        """Note what a token got; the oldest tokens are forgotten."""
        self.tokens.pop(key, None)
        self.tokens[key] = given
        for old in list(self.tokens)[:-_TOKENS_MAX]:
            del self.tokens[old]


def _same_owner(one: Claim, other: Claim) -> bool:
    return (one.installation, one.pool) == (other.installation, other.pool)


def key_of(pool: Pool, token: Token) -> str:
    """A token with its owner: another installation may use the same one."""
    return f"{pool.installation}/{pool.name}/{token}"


def file_of(state_dir: str) -> Path:
    """Where all of it is kept."""
    return Path(state_dir).resolve() / "static_hosts" / "state.json"


class Book:
    """The file. All methods block and raise Refused or Unreachable when the disk will not."""

    def __init__(self, state_dir: str) -> None:
        self._file = file_of(state_dir)
        self._base = self._file.parent

    def load(self) -> State:
        """What is known; nothing when there is no file yet."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=State)
        except FileNotFoundError:
            return State()
        except OSError as error:
            raise files.fault_of(error, "cannot read who has which host") from error
        except msgspec.DecodeError as error:
            raise Refused(f"{self._file} says who has which host and cannot be read: {error}; restore it") from error

    def change(self, work: Callable[[State], T]) -> T:
        """Let `work` change the state, and keep what it made of it unless it raises."""
        files.make_folder(self._base)
        with files.locked(self._base / "lock", _LOCK_WAIT_S):
            state = self.load()
            answer = work(state)
            files.write(self._file, msgspec.json.format(msgspec.json.encode(state), indent=1))
            return answer

    def host(self, name: str) -> AbstractContextManager[int]:
        """Hold one host: no two commands that change it run at the same time. Raises Unreachable when it stays held."""
        locks = files.make_folder(self._base / "hosts")
        return files.locked(locks / f"{name}.lock", _HOST_WAIT_S)
