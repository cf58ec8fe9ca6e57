"""Small decision records, and arbitrary ones, for tests of ledgers."""

import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from autoscaler.domain.base import Duration, InstanceId, Instant, PoolName, Token, replica_id
from autoscaler.domain.decision import (
    Calendar,
    Capacity,
    Decision,
    Launch,
    Observation,
    Outcome,
    OutcomeStatus,
    Reason,
    Record,
)
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.load import Trust, TrustVerdict
from autoscaler.domain.memory import Intent, Memory
from autoscaler.domain.pool import Placement
from autoscaler.domain.replica import Replica

POOL = PoolName("llama")
START = Instant(1_700_000_000.0)


class HandClock:
    """A clock that moves only when told."""

    def __init__(self, at: Instant = START) -> None:
        self.at = at

    def now(self) -> Instant:
        return self.at

    async def sleep(self, wait: Duration) -> None:
        self.at = Instant(self.at + wait)


def a_memory(sequence: int = 1, *, epoch: str = "e1", replicas: int = 2, carry: str = "") -> Memory:
    """Memory after `sequence` decisions, of a pool with some replicas."""
    return Memory(
        epoch=epoch,
        sequence=sequence,
        last_at=Instant(START + sequence),
        intents={
            replica_id(InstanceId(f"i-{number}"), 8000): Intent(
                phase=Phase.IN_SERVICE,
                since=START,
                launched_at=START,
                offer="gpu",
                zone="a",
                units=1.0,
                boot=f"boot-{number}",
            )
            for number in range(replicas)
        },
        carries={"p": carry},
    )


def a_replica(number: int) -> Replica:
    """A replica in service."""
    instance = InstanceId(f"i-{number}")
    return Replica(
        id=replica_id(instance, 8000),
        instance=instance,
        phase=Phase.IN_SERVICE,
        since=START,
        offer="gpu",
        zone="a",
        units=1.0,
        host=f"10.0.0.{number}",
        port=8000,
        launched_at=START,
        admitted_in=("web",),
        running=number,
        waiting=0,
    )


def a_launch(sequence: int = 1) -> Launch:
    """An order for one machine."""
    placement = Placement(offer="gpu", zone="a")
    return Launch(token=Token(f"e1-{sequence}-0"), placement=placement, count=1, total_after=3, request="{}")


def an_outcome(sequence: int = 1, *, at: Instant = START) -> Outcome:
    """A launch that was accepted."""
    return Outcome(action=a_launch(sequence), status=OutcomeStatus.ACCEPTED, at=at, ids=(InstanceId("i-9"),))


def a_record(memory: Memory, *, pool: PoolName = POOL, at: Instant | None = None, detail: str = "") -> Record:
    """The record of the tick that led to `memory`."""
    when = Instant(START + memory.sequence) if at is None else at
    decision = Decision(
        pool=pool,
        at=when,
        sequence=memory.sequence,
        trust=TrustVerdict(level=Trust.TRUST, why="fresh"),
        opinions=(),
        capacity=Capacity(in_service=2.0, taking=2.0, on_the_way=1.0, existing=3.0),
        wanted=3,
        target=3,
        reason=Reason(code="recommended", facts={"queue": 8, "per_unit": 4.0}),
        blocks=(),
        alarms=(),
        plan=(a_launch(memory.sequence),),
        replicas=tuple(a_replica(number) for number in range(len(memory.intents))),
        sentence=f"Tick {memory.sequence} wants 3. {detail}",
        memory=memory,
    )
    return Record(
        pool=pool,
        at=when,
        sequence=memory.sequence,
        observation=Observation(now=when),
        memory_before=msgspec.structs.replace(memory, sequence=memory.sequence - 1),
        calendar=Calendar(utc="2023-11-14T22:13:20Z"),
        decision=decision,
    )


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)  # a lone surrogate has no form in UTF-8
_SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    str: _TEXT,
    int: st.integers(-(2**53), 2**53),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
}


def any_of(kind: Any) -> st.SearchStrategy[Any]:
    """Arbitrary values of a domain type: structs, their fields, unions and containers of at most two items."""
    if isinstance(kind, NewType):
        return any_of(kind.__supertype__)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        return st.one_of([any_of(argument) for argument in arguments])
    if origin is tuple:
        return st.lists(any_of(arguments[0]), max_size=2).map(tuple)
    if origin is frozenset:
        return st.frozensets(any_of(arguments[0]), max_size=2)
    if origin in {dict, Mapping}:
        return st.dictionaries(any_of(arguments[0]), any_of(arguments[1]), max_size=2)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    if issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return st.builds(kind, **{name: any_of(hints[name]) for name in kind.__struct_fields__})
    raise TypeError(f"no arbitrary {kind}")
