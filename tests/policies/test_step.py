"""Steps out and in, and pairs of thresholds that would flap."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.domain.load import Kind, ReadingState, Signal
from policies import step
from policies.step import Settings, StepIn, StepOut
from tests.policies.conftest import Ask, a_reading, a_situation

QUEUE, GPU, TTFT = Signal.QUEUE_LENGTH, Signal.GPU_UTILIZATION, Signal.TTFT_S_P95
STEPS = (StepOut(at_least=4, add=1), StepOut(at_least=10, add=3))
POLICY = step.build(Settings(signal=QUEUE, steps=STEPS, scale_in=StepIn(below=2, remove=1)))


@pytest.mark.parametrize(
    ("value", "in_service", "on_the_way", "target", "code"),
    [
        (8.0, 2.0, 0.0, 3.0, "step_out"),  # 4 a unit
        (7.9, 2.0, 0.0, 2.0, "between_steps"),
        (20.0, 2.0, 0.0, 5.0, "step_out"),  # 10 a unit
        (20.0, 2.0, 3.0, 5.0, "step_waits"),  # the three are on their way
        (20.0, 2.0, 1.0, 5.0, "step_out"),  # one is: it grew meanwhile
        (4.0, 2.0, 0.0, 2.0, "between_steps"),  # 2 a unit is not below 2
        (3.9, 2.0, 0.0, 1.0, "step_in"),
        (1.0, 1.0, 0.0, 1.0, "step_in"),  # the last one stays while there is load
        (0.0, 1.0, 0.0, 0.0, "step_in"),
        (5.0, 0.0, 0.0, 1.0, "step_out"),  # all of it would fall on the first unit
        (3.0, 0.0, 0.0, 1.0, "between_steps"),  # from nothing, any load wants one
        (0.0, 0.0, 0.0, 0.0, "step_in"),
        (50.0, 0.0, 2.0, None, "nothing_in_service"),
    ],
)
def test_steps(ask: Ask, value: float, in_service: float, on_the_way: float, target: float | None, code: str) -> None:
    found = ask(POLICY, a_situation(a_reading(QUEUE, value), in_service=in_service, on_the_way=on_the_way))
    assert (found.target, found.reason.code) == (target, code)


def test_missing_replicas_keep_it_from_going_in(ask: Ask) -> None:
    """Four in service, one silent: (4 + 1 x 4) / 4 = 2 a unit, which is not below 2."""
    found = ask(POLICY, a_situation(a_reading(QUEUE, 4.0, covered=3, expected=4), in_service=4.0))
    assert found.target == 4.0


def test_without_a_way_in_it_never_asks_for_less(ask: Ask) -> None:
    policy = step.build(Settings(signal=TTFT, steps=(StepOut(at_least=2, add=1),)))
    assert ask(policy, a_situation(a_reading(TTFT, 0.1), in_service=3.0)).target == 3.0
    assert ask(policy, a_situation(a_reading(TTFT, 2.0), in_service=3.0)).target == 4.0


def test_an_absent_signal_is_no_opinion(ask: Ask) -> None:
    assert ask(POLICY, a_situation(a_reading(QUEUE, None, state=ReadingState.ABSENT))).target is None


@given(values=st.tuples(st.floats(0, 200), st.floats(0, 200)), in_service=st.integers(0, 9), way=st.integers(0, 9))
def test_more_load_never_lowers_the_target(values: tuple[float, float], in_service: int, way: int) -> None:
    from autoscaler.domain.decision import Calendar
    from tests.policies.conftest import POOL

    def size(value: float) -> float:
        situation = a_situation(a_reading(QUEUE, value), in_service=in_service, on_the_way=way)
        found = POLICY.recommend(POOL, situation, "", Calendar())
        return -1.0 if found.target is None else found.target

    assert size(min(values)) <= size(max(values))


@given(
    at_least=st.floats(0.1, 100),
    remove=st.integers(1, 4),
    share=st.floats(0.01, 1.0),
    units=st.integers(2, 30),
    load=st.floats(0.001, 1.0),
)
def test_what_goes_in_does_not_come_out_again_under_the_same_load(
    at_least: float, remove: int, share: float, units: int, load: float
) -> None:
    from autoscaler.domain.decision import Calendar
    from tests.policies.conftest import POOL

    below = at_least / (remove + 1) * share
    settings = Settings(
        signal=GPU, steps=(StepOut(at_least=at_least, add=1),), scale_in=StepIn(below=below, remove=remove)
    )
    policy = step.build(settings)
    total = below * load * 0.999 * units

    def size(at: float) -> float:
        reading = a_reading(GPU, total / at, kind=Kind.MEAN)
        found = policy.recommend(POOL, a_situation(reading, in_service=at), "", Calendar())
        assert found.target is not None
        return found.target

    smaller = size(units)
    assert smaller < units
    assert size(smaller) <= smaller


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"steps": []}, "needed is at least one"),
        ({"steps": [{"at_least": 0, "add": 1}]}, "allowed are numbers above 0"),
        ({"steps": [{"at_least": 4, "add": 3}, {"at_least": 10, "add": 1}]}, "more load adds no less"),
        ({"steps": [{"at_least": 10, "add": 1}, {"at_least": 4, "add": 1}]}, "in rising order"),
        ({"scale_in": {"below": 3, "remove": 1}}, "found 3, allowed is at most 2: with 1 fewer .* would flap"),
        ({"scale_in": {"below": 2, "remove": 2}}, "allowed is at most 1.33333"),
        ({"scale_in": {"below": 0, "remove": 1}}, "numbers above 0"),
        ({"signal": "ttft_s_p95", "scale_in": {"below": 1}}, "is a latency"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(settings: dict[str, object], says: str) -> None:
    whole = {"signal": "queue_length", "steps": [{"at_least": 4, "add": 1}], **settings}
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert(whole, Settings)


def test_it_says_what_it_needs() -> None:
    assert POLICY.signals() == {QUEUE}
    assert POLICY.name == "step:queue_length"
