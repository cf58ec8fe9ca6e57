"""Names of servers in HAProxy: whose they are, and which replica each is.

A name is `autoscaler.INSTALLATION.POOL.REPLICA`, in which all but letters, digits, `-` and `:` stands as `_xx`, the
byte in hexadecimal; so the three parts are found again, and none can imitate another's.

Does: make and read names. Does not: look at any HAProxy.
Invariant: `replica(server(r)) == r`, and every other name reads as nobody's of ours.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from autoscaler.domain.base import ReplicaId

_PREFIX: Final = "autoscaler"
_PLAIN: Final = re.compile(r"[A-Za-z0-9:-]")
_ESCAPED: Final = re.compile(r"(?:[A-Za-z0-9:-]|_[0-9a-f]{2})+")


class Names(NamedTuple):
    """The names of one pool of one installation. `owner`: what all of them begin with."""

    owner: str

    @classmethod
    def of(cls, installation: str, pool: str) -> Names:
        """The names of this pool."""
        return cls(f"{_PREFIX}.{_escape(installation)}.{_escape(pool)}")

    def server(self, replica: ReplicaId) -> str:
        """What the server of a replica is called."""
        return f"{self.owner}.{_escape(replica)}"

    def replica(self, server: str) -> ReplicaId | None:
        """Whose server it is; None for one that we did not name."""
        begin, _, rest = server.rpartition(".")
        if begin != self.owner or not _ESCAPED.fullmatch(rest):
            return None
        found = re.sub(rb"_([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), rest.encode()).decode(errors="replace")
        return ReplicaId(found) if _escape(found) == rest else None


def _escape(text: str) -> str:
    return "".join(one if _PLAIN.fullmatch(one) else "".join(f"_{byte:02x}" for byte in one.encode()) for one in text)
