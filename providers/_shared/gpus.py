"""GPU utilisation, from whoever exports it: one number for the GPUs of one replica.

Does: tell GPUs and MIG slices apart, take each once, drop what is no utilisation, and sum them up.
Does not: fetch, or know which exporter wrote a page.
Invariant: 0..1, or None when no GPU told; a blank value, a missing exporter and a missing field are never 0.

A card in MIG mode has no DCGM_FI_DEV_GPU_UTIL for its slices; each slice (label GPU_I_ID) tells its engine's activity,
and the card's own value, where there is one, is not counted beside them. DCGM writes 9.22e18 for "blank".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from providers._shared.metrics_page import Page, plain, ratio_of
from providers._shared.presets import GPU_UTILIZATION

#: The labels that name a GPU, the most certain first: those of DCGM and TorchServe differ from Triton's and of
#: nvidia_gpu_exporter's.
_CARD: Final = ("UUID", "gpu_uuid", "uuid", "DeviceId", "gpu", "device")
_SLICE: Final = "GPU_I_ID"


class Gpus(StrEnum):
    """How several GPUs become one number."""

    MEAN = "mean"
    MAX = "max"


#: The plain names that a page is searched for.
GPU_NAMES: Final = frozenset(plain(gauge.name) for gauge in GPU_UTILIZATION)


def gpu_use(page: Page, how: Gpus = Gpus.MEAN) -> float | None:
    """Utilisation 0..1 of the GPUs and slices on a page; each is read from the first gauge that has it."""
    found: dict[tuple[str, str], float] = {}
    for gauge in GPU_UTILIZATION:
        for series in page.families.get(plain(gauge.name), ()):
            ratio = ratio_of(series.value, gauge)
            if ratio is not None:
                found.setdefault((_card(series.labels), series.labels.get(_SLICE, "")), ratio)
    return _one(_slices_for_cards(found), how)


def _card(labels: Mapping[str, str]) -> str:
    named = next((labels[label] for label in _CARD if labels.get(label)), None)
    return repr(sorted(labels.items())) if named is None else named


def _slices_for_cards(found: Mapping[tuple[str, str], float]) -> list[float]:
    sliced = {card for card, part in found if part}
    return [value for (card, part), value in found.items() if part or card not in sliced]


def _one(values: Iterable[float], how: Gpus) -> float | None:
    used = list(values)
    if not used:
        return None
    return max(used) if how is Gpus.MAX else math.fsum(used) / len(used)
