"""One size, whatever the load."""

import msgspec
import pytest

from policies import fixed
from tests.policies.conftest import Ask, a_situation


@pytest.mark.parametrize("in_service", [0.0, 3.0, 9.0])
def test_it_wants_its_size_without_any_telemetry(ask: Ask, in_service: float) -> None:
    policy = fixed.build(fixed.Settings(size=3))
    found = ask(policy, msgspec.structs.replace(a_situation(in_service=in_service), load=None))
    assert (found.target, found.reason.code, found.reason.facts) == (3.0, "fixed", {"size": 3.0})
    assert policy.signals() == frozenset()
    assert policy.name == "fixed"


def test_a_size_below_zero_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="size: found -1, allowed is a number from 0"):
        msgspec.convert({"size": -1}, fixed.Settings)
