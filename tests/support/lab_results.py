"""Hand-made results of runs, of which every figure can be worked out on paper."""

from typing import Any

import numpy as np

from autoscaler.lab.result import OK, Life, Requests, Result, Ticks


def a_result(
    *requests: tuple[float, int, float | None, float | None, int],
    targets: tuple[tuple[float, float], ...] = ((0.0, 1.0),),
    lives: tuple[Life, ...] = (),
    **changes: Any,
) -> Result:
    """`requests`: (arrival, output tokens, ttft, e2e, status). `targets`: (second, target); one replica is busy."""
    rows = requests or ((0.0, 1, 0.1, 0.2, OK),)
    nan = float("nan")
    at = np.array([one[0] for one in targets])
    sizes = np.array([one[1] for one in targets], dtype=np.float32)
    ones = np.ones(len(targets), dtype=np.float32)
    given: dict[str, Any] = {
        "workload": "made", "source": "by hand", "seed": 0, "duration_s": 3600.0, "ended_s": 3600.0, "complete": True,
        "requests": Requests(
            np.array([one[0] for one in rows]),
            np.ones(len(rows), dtype=np.int32),
            np.array([one[1] for one in rows], dtype=np.int32),
            np.array([nan if one[2] is None else one[2] for one in rows], dtype=np.float32),
            np.array([nan if one[3] is None else one[3] for one in rows], dtype=np.float32),
            np.array([one[4] for one in rows], dtype=np.uint8),
        ),
        "ticks": Ticks(at, sizes, sizes, sizes, 0 * ones, 0 * ones, sizes, 0 * ones, 10 * sizes, sizes, ones),
        "lives": lives, "launches": 0, "actions": {}, "faults": {},
    }  # fmt: skip
    return Result(**{**given, **changes})
