"""The arithmetic of target tracking, each row with its derivation."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.domain.decision import Calendar, Recommendation, Situation
from autoscaler.domain.load import Kind, Reading, ReadingState, Signal
from policies import target_tracking
from policies.target_tracking import Settings
from tests.policies.conftest import POOL, a_reading, a_situation

QUEUE, GPU = Signal.QUEUE_LENGTH, Signal.GPU_UTILIZATION


def wanted(signal: Signal, target: float, situation: Situation, tolerance: float = 0.1) -> Recommendation:
    policy = target_tracking.build(Settings(signal=signal, target=target, tolerance=tolerance))
    return policy.recommend(POOL, situation, "", Calendar())


@pytest.mark.parametrize(
    ("signal", "target", "value", "in_service", "on_the_way", "units", "code"),
    [
        (QUEUE, 4.0, 12.0, 1.0, 0.0, 3.0, "above_target"),  # 12 / 4
        (QUEUE, 4.0, 12.0, 1.0, 2.0, 3.0, "within_tolerance"),  # 3 are held: two are on their way for it
        (QUEUE, 4.0, 13.0, 1.0, 2.0, 3.0, "within_tolerance"),  # 3.25 / 3 = 1.083
        (QUEUE, 4.0, 14.0, 1.0, 2.0, 3.5, "above_target"),  # 3.5 / 3 = 1.167
        (QUEUE, 4.0, 4.0, 4.0, 0.0, 1.0, "below_target"),  # 4 / 4
        (QUEUE, 4.0, 0.0, 4.0, 0.0, 0.0, "below_target"),  # nothing waits
        (GPU, 0.75, 1.0, 3.0, 0.0, 4.0, "above_target"),  # 3 x 1 / 0.75
        (GPU, 0.75, 0.3, 5.0, 0.0, 2.0, "below_target"),  # 5 x 0.3 / 0.75
        (GPU, 0.75, 0.8, 3.0, 0.0, 3.0, "within_tolerance"),  # 3.2 / 3 = 1.067
        (GPU, 0.75, 1.0, 3.0, 3.0, 6.0, "at_cap"),  # 4 would be below 6, but a full pool says "at least"
        (GPU, 0.75, 0.9, 3.0, 3.0, 3.6, "below_target"),  # not at the cap: 3 x 0.9 / 0.75
        (GPU, 0.7, 0.7, 3.0, 0.0, 3.0, "within_tolerance"),
    ],
)
def test_the_size_is_proportional(
    *, signal: Signal, target: float, value: float, in_service: float, on_the_way: float, units: float, code: str
) -> None:
    found = wanted(signal, target, a_situation(a_reading(signal, value), in_service=in_service, on_the_way=on_the_way))
    assert (found.target, found.reason.code) == (units, code)
    assert found.ceiling is None
    assert not found.veto_in
    assert found.carry == ""


def test_the_largest_of_the_replicas_counts_like_a_mean() -> None:
    reading = a_reading(GPU, 0.9, kind=Kind.MAX)
    assert wanted(GPU, 0.75, a_situation(reading, in_service=2.0)).target == pytest.approx(2.4)


def test_the_last_bits_of_a_float_do_not_buy_a_machine() -> None:
    found = wanted(GPU, 0.7, a_situation(a_reading(GPU, 0.7), in_service=3.0), tolerance=0.0)
    assert found.target == 3.0


@pytest.mark.parametrize(
    ("value", "covered", "units", "code"),
    [
        # Four in service, target 4 each. In: those that are missing have 4 each. Out: they have none.
        (4.0, 3, 2.0, "below_target"),  # (4 + 1 x 4) / 4
        (8.0, 2, 4.0, "missing_replicas"),  # in: (8 + 2 x 4) / 4 = 4, which is no way in
        (24.0, 2, 6.0, "above_target"),  # out: 24 / 4
        (17.0, 3, 4.0, "within_tolerance"),
    ],
)
def test_missing_replicas_count_as_busy_on_the_way_in_and_idle_on_the_way_out(
    value: float, covered: int, units: float, code: str
) -> None:
    reading = a_reading(QUEUE, value, covered=covered, expected=4)
    found = wanted(QUEUE, 4.0, a_situation(reading, in_service=4.0))
    assert (found.target, found.reason.code) == (units, code)


def test_missing_replicas_do_not_flip_a_mean() -> None:
    """Out: 4 x 0.9 x 3/4 / 0.75 = 3.6; in: 3.6 + 1 = 4.6; held is 4, so it stays."""
    reading = a_reading(GPU, 0.9, covered=3, expected=4)
    found = wanted(GPU, 0.75, a_situation(reading, in_service=4.0))
    assert found.target == 4.0


def test_a_maximum_with_a_missing_replica_never_goes_in() -> None:
    reading = a_reading(GPU, 0.1, kind=Kind.MAX, covered=3, expected=4)
    found = wanted(GPU, 0.75, a_situation(reading, in_service=4.0))
    assert (found.target, found.reason.code) == (4.0, "missing_replicas")


@pytest.mark.parametrize(
    ("signal", "value", "units"), [(QUEUE, 1.0, 1.0), (QUEUE, 20.0, 5.0), (QUEUE, 0.0, 0.0), (GPU, 0.1, 1.0)]
)
def test_from_nothing_any_load_wants_at_least_one(signal: Signal, value: float, units: float) -> None:
    target = 4.0 if signal is QUEUE else 0.75
    reading = a_reading(signal, value, covered=0, expected=0)
    found = wanted(signal, target, a_situation(reading, in_service=0.0))
    assert (found.target, found.reason.code) == (units, "load_from_zero")


def test_a_mean_over_nobody_is_no_opinion_while_the_first_is_on_its_way() -> None:
    reading = a_reading(GPU, 0.0, covered=0, expected=0)
    found = wanted(GPU, 0.75, a_situation(reading, in_service=0.0, on_the_way=1.0))
    assert (found.target, found.reason.code) == (None, "nothing_in_service")


def test_a_queue_before_a_pool_that_is_on_its_way_counts() -> None:
    reading = a_reading(QUEUE, 40.0, covered=0, expected=0)
    found = wanted(QUEUE, 4.0, a_situation(reading, in_service=0.0, on_the_way=2.0))
    assert (found.target, found.reason.code) == (10.0, "above_target")


@pytest.mark.parametrize(
    ("reading", "code"),
    [
        (a_reading(QUEUE, None, state=ReadingState.QUIET), "signal_quiet"),
        (a_reading(QUEUE, None, state=ReadingState.ABSENT), "signal_absent"),
        (a_reading(QUEUE, float("nan")), "signal_absent"),
        (a_reading(QUEUE, -1.0), "signal_absent"),
        (a_reading(QUEUE, 0.0, covered=0, expected=3), "signal_absent"),
        (a_reading(QUEUE, 1.0, kind=Kind.QUANTILE), "signal_unusable"),
        (a_reading(GPU, 0.5), "signal_absent"),  # another signal: this one was not sampled
    ],
)
def test_what_cannot_be_read_is_no_opinion_and_never_zero(reading: Reading, code: str) -> None:
    found = wanted(QUEUE, 4.0, a_situation(reading, in_service=3.0))
    assert (found.target, found.reason.code) == (None, code)


def test_a_signal_that_trust_does_not_list_is_no_opinion() -> None:
    situation = a_situation(a_reading(QUEUE, 0.0), in_service=3.0, unusable=frozenset({QUEUE}))
    found = wanted(QUEUE, 4.0, situation)
    assert (found.target, found.reason.code) == (None, "signal_unusable")


def test_without_any_load_sample_there_is_no_opinion() -> None:
    situation = msgspec.structs.replace(a_situation(), load=None)
    assert wanted(QUEUE, 4.0, situation).target is None


@given(
    values=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    in_service=st.integers(1, 20),
    on_the_way=st.integers(0, 20),
    covered=st.integers(1, 20),
    kind=st.sampled_from([Kind.TOTAL, Kind.MEAN, Kind.MAX]),
)
def test_more_load_never_lowers_the_target(
    values: tuple[float, float], in_service: int, on_the_way: int, covered: int, kind: Kind
) -> None:
    def size(value: float) -> float:
        signal, scale = (QUEUE, 200.0) if kind is Kind.TOTAL else (GPU, 1.0)
        reading = a_reading(signal, value * scale, kind=kind, covered=min(covered, in_service), expected=in_service)
        target = 4.0 if kind is Kind.TOTAL else 0.75
        found = wanted(signal, target, a_situation(reading, in_service=in_service, on_the_way=on_the_way)).target
        assert found is not None
        return found

    assert size(min(values)) <= size(max(values))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"signal": "ttft_s_p95", "target": 2}, "use latency_slo"),
        ({"signal": "e2e_s_p95", "target": 2}, "use latency_slo"),
        ({"signal": "queue_length", "target": 0}, "target: found 0, allowed is a number above 0"),
        ({"signal": "gpu_utilization", "target": 75}, "target: found 75, allowed for gpu_utilization"),
        ({"signal": "queue_length", "target": 4, "tolerance": 1}, "tolerance: found 1"),
        ({"signal": "queue", "target": 4}, "signal"),
        ({"signal": "queue_length", "target": 4, "tolerances": 0.1}, "tolerances"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(settings: dict[str, object], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert(settings, Settings)


def test_it_says_what_it_needs() -> None:
    policy = target_tracking.build(Settings(signal=QUEUE, target=4))
    assert policy.signals() == {QUEUE}
    assert policy.name == "target_tracking:queue_length"
