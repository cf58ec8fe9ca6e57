"""Arrays in a carry: 32-bit floats as base64 text, which costs a tenth of what numbers in JSON cost.

Does: pack and unpack. Does not: know what the numbers mean.
Invariant: unpack(pack(x)) is x in 32 bits, the same on every machine.
"""

import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Sequence


def pack(values: Sequence[float]) -> str:
    """As text."""
    packed = array("f", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return b64encode(packed.tobytes()).decode("ascii")


def unpack(text: str, count: int) -> "array[float]":
    """As numbers; zeros when there is nothing, or not that many."""
    packed = array("f")
    try:
        packed.frombytes(b64decode(text, validate=True))
    except ValueError:
        packed = array("f")
    if len(packed) != count:
        return array("f", bytes(4 * count))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed
