"""Values come back from the disk as they went there, or are refused."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.base import Instant, ReplicaId
from autoscaler.domain.decision import Outcome, Reason, Record
from autoscaler.domain.directives import AtLeast, Directives
from autoscaler.domain.faults import Refused
from autoscaler.domain.load import Kind, LoadSample, Reading, ReadingState, Signal
from autoscaler.domain.memory import SCHEMA_VERSION, Mark, Memory
from providers.ledger.sqlite import codec
from tests.support.ledger import a_memory, a_record, any_of

NOT_FINITE = [float("nan"), -float("nan"), float("inf"), -float("inf"), math.inf - math.inf]


@given(any_of(Memory))
def test_memory_comes_back_equal(memory: Memory) -> None:
    memory = msgspec.structs.replace(memory, schema=SCHEMA_VERSION)
    assert codec.decode_memory(codec.encode_memory(memory), "memory") == memory


@given(any_of(Directives))
def test_directives_come_back_equal(directives: Directives) -> None:
    assert codec.decode_directives(codec.encode_directives(directives), "directives") == directives


@given(any_of(Outcome))
def test_an_outcome_of_any_action_comes_back_equal(outcome: Outcome) -> None:
    assert codec.decode_outcome(codec.encode_outcome(outcome), "outcome") == outcome


@settings(max_examples=40)
@given(any_of(Record))
def test_a_record_comes_back_equal_and_so_does_its_json(record: Record) -> None:
    assert codec.decode_record(codec.encode_record(record), "record") == record
    assert msgspec.json.decode(msgspec.json.encode(record), type=Record) == record


@given(st.sampled_from(NOT_FINITE))
def test_a_number_that_is_not_finite_is_found_wherever_it_stands_in_memory(value: float) -> None:
    bad: dict[str, dict[str, Any]] = {
        "memory.marks.gpu/a.until": {"marks": {"gpu/a": Mark(until=Instant(value), why="none left")}},
        "memory.last_in_at": {"last_in_at": Instant(value)},
    }
    for place, change in bad.items():
        with pytest.raises(Refused, match=f"{place} = .*allowed: finite numbers"):
            codec.encode_memory(msgspec.structs.replace(a_memory(1), **change))
    with pytest.raises(Refused, match=r"directives\.at_least\.until"):
        codec.encode_directives(Directives(at_least=AtLeast(units=1, until=Instant(value))))


def test_bytes_that_only_look_like_a_nan_are_saved() -> None:
    """The integer's own bytes spell what the quick look searches for; the exact one lets it pass."""
    memory = msgspec.structs.replace(a_memory(1), cut_total=0x00CB7FF800000000)
    assert codec._NOT_FINITE.search(msgspec.msgpack.encode(memory))
    assert codec.decode_memory(codec.encode_memory(memory), "memory") == memory


@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_reading_that_is_not_finite_survives_in_a_record(value: float) -> None:
    """Telemetry may say NaN, and a tick must be saved all the same, and replayed as it was."""
    reading = Reading(signal=Signal.QUEUE_LENGTH, kind=Kind.TOTAL, state=ReadingState.OK, at=Instant(1.0), value=value)
    record = a_record(a_memory(1))
    seen = msgspec.structs.replace(
        record.observation, load=LoadSample(at=Instant(1.0), readings={Signal.QUEUE_LENGTH: reading})
    )
    back = codec.decode_record(codec.encode_record(msgspec.structs.replace(record, observation=seen)), "record")
    assert back.observation.load is not None
    found = back.observation.load.readings[Signal.QUEUE_LENGTH].value
    assert found is not None
    assert found == value or (math.isnan(found) and math.isnan(value))


@pytest.mark.parametrize("fact", [2**70, "\ud800"])
def test_what_has_no_form_on_disk_is_refused(fact: int | str) -> None:
    record = a_record(a_memory(1))
    decision = msgspec.structs.replace(record.decision, reason=Reason(code="odd", facts={"x": fact}))
    with pytest.raises(Refused, match="record cannot be saved"):
        codec.encode_record(msgspec.structs.replace(record, decision=decision))


def test_memory_of_a_newer_schema_is_refused() -> None:
    text = codec.encode_memory(msgspec.structs.replace(a_memory(1), schema=SCHEMA_VERSION + 1))
    with pytest.raises(Refused, match=f"pool llama has schema {SCHEMA_VERSION + 1}, this program knows up to"):
        codec.decode_memory(text, "pool llama")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sequence": "many"}', '{"intents": {"i:1": null}}'])
def test_damaged_memory_is_refused_with_what_is_wrong(text: str) -> None:
    with pytest.raises(Refused, match=r"^pool llama cannot be read: ."):
        codec.decode_memory(text, "pool llama")


@pytest.mark.parametrize("body", [b"", b"x", codec.encode_record(a_record(a_memory(1)))[:-9]])
def test_a_damaged_record_is_refused(body: bytes) -> None:
    with pytest.raises(Refused, match="record 7 cannot be read"):
        codec.decode_record(body, "record 7")


def test_memory_on_disk_is_json_that_a_person_can_read() -> None:
    text = codec.encode_memory(a_memory(3))
    assert msgspec.json.decode(text)["intents"][ReplicaId("i-0:8000")]["phase"] == "in_service"
