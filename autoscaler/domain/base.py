"""The few primitive words: instants, durations, names.

Does: give instants and durations different types, so that mypy refuses to mix them, and name the strings that travel.
Does not: read any clock.
Invariant: an Instant is seconds since the Unix epoch, a Duration is seconds; both are plain floats at run time.
"""

from typing import NewType

Instant = NewType("Instant", float)
Duration = NewType("Duration", float)

PoolName = NewType("PoolName", str)
InstanceId = NewType("InstanceId", str)
ReplicaId = NewType("ReplicaId", str)
Token = NewType("Token", str)

#: An instant before all others: "never yet".
NEVER = Instant(float("-1e18"))


def elapsed(then: Instant, now: Instant) -> Duration:
    """Time from `then` to `now`, in seconds; negative when `then` lies ahead."""
    return Duration(now - then)


def after(at: Instant, wait: Duration) -> Instant:
    """The instant `wait` seconds after `at`."""
    return Instant(at + wait)


def replica_id(instance: InstanceId, port: int) -> ReplicaId:
    """A replica is (instance, port); the text form is `instance:port`, the port after the last colon."""
    return ReplicaId(f"{instance}:{port}")


def instance_of(replica: ReplicaId) -> InstanceId:
    """The machine on which a replica runs."""
    return InstanceId(replica.rpartition(":")[0])
