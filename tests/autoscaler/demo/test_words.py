"""A few words a decision, in trace time."""

import pytest

from autoscaler.demo.words import short


@pytest.mark.parametrize(
    ("code", "facts", "words"),
    [
        ("above_target", {"signal": "queue_length", "value": 52.0, "target": 4.0}, "queue 52, aim 4"),
        ("below_target", {"signal": "gpu_utilization", "value": 0.31, "target": 0.75}, "GPU 31 %, aim 75 %"),
        ("slo_breach", {"signal": "ttft_s_p95", "value": 0.2, "objective": 0.08}, "TTFT p95 5 s, aim 2 s"),
        ("above_target", {"signal": "request_rate", "value": 100.0, "target": 50.0}, "requests/s 4, aim 2"),
        ("step_out", {"signal": "queue_length", "value": 12}, "queue 12"),
        ("above_target", {"signal": "my_own"}, "my_own ?, aim ?"),
        ("telemetry_hold", {"why": "blind"}, "telemetry hold"),
    ],
)
def test_the_reason_in_a_few_words(code: str, facts: dict[str, object], words: str) -> None:
    assert short(code, facts, 25.0) == words
