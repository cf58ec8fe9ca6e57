"""What policies remember: carries that survive a wrong version, and samples averaged over time.

Does: decode a carry or begin anew, keep samples of a window and average them by the time that each held. Does not: know
any policy's formula.
Invariant: what is kept is bounded whatever the tick: samples closer together than a step are merged.
"""

from typing import Final, TypeVar

import msgspec

from autoscaler.domain.base import Duration, Instant

#: Most samples of a window: more would not make an average more exact.
SAMPLES_MAX: Final = 120

State = TypeVar("State", bound=msgspec.Struct)


def recall(carry: str, decoder: msgspec.json.Decoder[State], version: int) -> State | None:
    """What was carried, or None when there is nothing, it is broken, or it is of another version (field `v`)."""
    if not carry:
        return None
    try:
        state = decoder.decode(carry)
    except msgspec.DecodeError:
        return None
    return state if getattr(state, "v", None) == version else None


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A value that held from the sample before until `at`."""

    at: Instant
    value: float


def with_sample(samples: tuple[Sample, ...], now: Instant, value: float, keep: Duration) -> tuple[Sample, ...]:
    """The samples of the last `keep` seconds, and this one. What lies ahead of now (a clock set back) is dropped."""
    kept = tuple(one for one in samples if now - keep <= one.at < now)
    step = keep / SAMPLES_MAX
    if len(kept) >= 2 and now - kept[-2].at < step:
        kept = kept[:-1]
    return (*kept, Sample(now, value))


def average(samples: tuple[Sample, ...], now: Instant, window: Duration) -> float:
    """Mean over the last `window` seconds, weighted by time; the first sample held from its own instant only."""
    begin = now - window
    total = spent = 0.0
    last = None
    for one in samples:
        if last is not None and one.at > begin:
            held = one.at - max(last, begin)
            total += one.value * held
            spent += held
        last = one.at
    return total / spent if spent > 0 else samples[-1].value
