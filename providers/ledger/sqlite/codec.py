"""Domain values to bytes and back.

Does: keep what a person may have to read as JSON (memory, directives) and what only the program reads as msgpack
(records, outcomes), records compressed. Does not: know tables.
Invariant: what is encoded decodes to an equal value. JSON has no NaN and no infinity, so memory and directives that
hold one are Refused with its place; msgpack has them, so a record keeps a reading of NaN as it was, fit for replay.
"""

from __future__ import annotations

import math
import re
import zlib
from typing import Any

import msgspec

from autoscaler.domain.decision import Outcome, Record
from autoscaler.domain.directives import Directives
from autoscaler.domain.faults import Refused
from autoscaler.domain.memory import SCHEMA_VERSION, Memory

_json = msgspec.json.Encoder()
_pack = msgspec.msgpack.Encoder()
_memory = msgspec.json.Decoder(Memory)
_directives = msgspec.json.Decoder(Directives)
_record = msgspec.msgpack.Decoder(Record)
_outcome = msgspec.msgpack.Decoder(Outcome)

# A float in msgpack is 0xCB and eight bytes; all exponent bits set is NaN or an infinity. Chance hits inside other
# bytes are possible, so a hit only starts the exact search; a miss, nearly always, saves it.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]", re.DOTALL)

#: What the encoders raise for a value that has no form on disk: an integer beyond 64 bits, a lone surrogate.
_UNWRITABLE = (OverflowError, UnicodeEncodeError, TypeError, ValueError)
#: Fastest: decision records repeat themselves so much that higher levels gain little and cost several times more.
_LEVEL = 1


def _places(value: Any, place: str) -> list[str]:
    """Where in a value of plain containers a float is not finite, as `place = value`."""
    if isinstance(value, float):
        return [] if math.isfinite(value) else [f"{place} = {value}"]
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in _places(item, f"{place}.{key}")]
    if isinstance(value, list | tuple | set | frozenset):
        return [found for index, item in enumerate(value) for found in _places(item, f"{place}[{index}]")]
    return []


def _to_json(value: Memory | Directives, what: str) -> str:
    try:
        suspicious = _NOT_FINITE.search(_pack.encode(value))
        places = _places(msgspec.to_builtins(value), what) if suspicious else []
        text = _json.encode(value).decode()
    except _UNWRITABLE as error:
        raise Refused(f"{what} cannot be saved: {error}") from error
    if places:
        raise Refused(f"{what} cannot be saved: found {places[0]}, allowed: finite numbers")
    return text


def encode_memory(memory: Memory) -> str:
    """Memory as JSON text; raises Refused when it holds a number that is not finite."""
    return _to_json(memory, "memory")


def decode_memory(text: str, what: str) -> Memory:
    """Memory from JSON text; raises Refused when it is of a newer schema or no memory; `what` names it."""
    try:
        memory = _memory.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Refused(f"{what} cannot be read: {error}") from error
    if memory.schema > SCHEMA_VERSION:
        raise Refused(f"{what} has schema {memory.schema}, this program knows up to {SCHEMA_VERSION}: use a newer one")
    return memory


def encode_directives(directives: Directives) -> str:
    """Directives as JSON text; raises Refused when they hold a number that is not finite."""
    return _to_json(directives, "directives")


def decode_directives(text: str, what: str) -> Directives:
    """Directives from JSON text; raises Refused when it holds none; `what` names it."""
    try:
        return _directives.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Refused(f"{what} cannot be read: {error}") from error


def encode_record(record: Record) -> bytes:
    """A record as compressed msgpack; raises Refused when a value has no form on disk."""
    try:
        return zlib.compress(_pack.encode(record), _LEVEL)
    except _UNWRITABLE as error:
        raise Refused(f"record cannot be saved: {error}") from error


def decode_record(body: bytes, what: str) -> Record:
    """A record from compressed msgpack; raises Refused when it holds none; `what` names it."""
    try:
        return _record.decode(zlib.decompress(body))
    except (msgspec.DecodeError, zlib.error, UnicodeError) as error:
        raise Refused(f"{what} cannot be read: {error}") from error


def encode_outcome(outcome: Outcome) -> bytes:
    """An outcome as msgpack; raises Refused when a value has no form on disk."""
    try:
        return _pack.encode(outcome)
    except _UNWRITABLE as error:
        raise Refused(f"outcome cannot be saved: {error}") from error


def decode_outcome(body: bytes, what: str) -> Outcome:
    """An outcome from msgpack; raises Refused when it holds none; `what` names it."""
    try:
        return _outcome.decode(body)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Refused(f"{what} cannot be read: {error}") from error
