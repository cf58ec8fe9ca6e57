"""Any Struct from any mapping, or every mistake at once."""

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.config.validate import Refusal, validate
from autoscaler.domain.base import Duration
from autoscaler.domain.load import Signal
from autoscaler.domain.pool import Pace, require

TIME = "a duration such as 30s, 5m, 2h or 1d, or a number of seconds"


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    low: Annotated[int, msgspec.Meta(ge=0, le=10)]
    high: int = 5

    def __post_init__(self) -> None:
        require(self.low != 7, "seven is a bug of ours")
        if self.low > self.high:
            raise Refusal("low", f"which is more than high {self.high}", f"0 to {self.high}")


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(pattern="^[a-z]+$", max_length=8)]
    wait: Duration = Duration(5.0)
    colour: Colour = Colour.RED
    signal: Signal = Signal.RUNNING
    how: Literal["fast", "slow"] = "fast"
    inner: Inner = Inner(low=1)
    maybe: Inner | None = None
    many: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (1, "a")
    words: frozenset[str] = frozenset()
    table: dict[str, Duration] = {}
    either: int | str | None = None
    ratio: float = 0.5
    on: bool = False
    json: str = ""
    as_: str = msgspec.field(default="", name="as")

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise ValueError("name: found 'bad', allowed: a good one")


def checked(**mapping: Any) -> Outer:
    value, mistakes = validate(Outer, {"name": "x", **mapping}, "here")
    assert mistakes == []
    assert value is not None
    return value


def test_what_is_left_out_is_the_structs_own_default() -> None:
    assert checked() == Outer(name="x")


def test_each_kind_of_field_is_read() -> None:
    value = checked(
        wait="2m",
        colour="blue",
        signal="latency_p95",
        how="slow",
        inner={"low": 2},
        maybe={"low": 3, "high": 4},
        many=[{"low": 0}],
        pair=[2, "b"],
        words=["a", "a"],
        table={"k": "1h"},
        either="text",
        ratio=1,
        on=True,
        json="kept",
        **{"as": "renamed"},
    )
    assert value == Outer(
        name="x",
        wait=Duration(120.0),
        colour=Colour.BLUE,
        signal=Signal.E2E_S_P95,
        how="slow",
        inner=Inner(low=2),
        maybe=Inner(low=3, high=4),
        many=(Inner(low=0),),
        pair=(2, "b"),
        words=frozenset({"a"}),
        table={"k": Duration(3600.0)},
        either="text",
        ratio=1.0,
        on=True,
        json="kept",
        as_="renamed",
    )


@pytest.mark.parametrize(
    ("mapping", "line"),
    [
        ({"name": 3}, "here.name: found 3; allowed: text, of the form ^[a-z]+$, of at most length 8"),
        ({"name": "UP"}, "here.name: found 'UP'; allowed: text, of the form ^[a-z]+$, of at most length 8"),
        ({"name": "bad"}, "here.name: found 'bad', allowed: a good one"),
        ({"wait": "x"}, f"here.wait: found 'x'; allowed: {TIME}"),
        (
            {"wait": True},
            f"here.wait: found true; allowed: {TIME}",
        ),
        ({"colour": "green"}, "here.colour: found 'green'; allowed: one of red, blue"),
        ({"how": None}, "here.how: found nothing; allowed: one of fast, slow"),
        ({"inner": 3}, "here.inner: found 3; allowed: a mapping"),
        ({"inner": {}}, "here.inner.low: missing; allowed: a whole number, at least 0, at most 10"),
        ({"inner": {"low": 11}}, "here.inner.low: found 11; allowed: a whole number, at least 0, at most 10"),
        ({"inner": {"low": 9}}, "here.inner.low: found 9, which is more than high 5; allowed: 0 to 5"),
        ({"inner": {"low": 7, "high": 8}}, "here.inner: seven is a bug of ours"),
        (
            {"inner": {"low": 1, "hihg": 2}},
            "here.inner.hihg: unknown setting (did you mean 'high'?); allowed: high, low",
        ),
        (
            {"many": [{"low": 1}, {"low": "x"}]},
            "here.many[1].low: found 'x'; allowed: a whole number, at least 0, at most 10",
        ),
        ({"many": {"low": 1}}, "here.many: found a mapping with 1 keys; allowed: a list of: a mapping"),
        ({"words": [3]}, "here.words[0]: found 3; allowed: text"),
        (
            {"table": {"k": "x"}},
            f"here.table.k: found 'x'; allowed: {TIME}",
        ),
        ({"either": [1]}, "here.either: found a list of 1; allowed: a whole number or text or nothing"),
        ({"ratio": "1"}, "here.ratio: found '1'; allowed: a number"),
        ({"ratio": float("nan")}, "here.ratio: found nan; allowed: a number"),
        ({"ratio": True}, "here.ratio: found true; allowed: a number"),
        ({"on": 1}, "here.on: found 1; allowed: true or false"),
        ({"x": 1}, None),
    ],
)
def test_a_mistake_says_where_what_and_what_is_allowed(mapping: dict[str, Any], line: str | None) -> None:
    value, mistakes = validate(Outer, {"name": "x", **mapping}, "here")
    assert value is None
    (found,) = mistakes
    assert "here.x: unknown setting" in found if line is None else found == line


def test_all_mistakes_come_at_once() -> None:
    mapping = {"wait": -1, "how": "x", "inner": {"low": "a", "high": "b"}, "many": [1, {"low": 99}], "zz": 1}
    _, mistakes = validate(Outer, mapping, "p")
    paths = {mistake.partition(":")[0] for mistake in mistakes}
    assert paths == {"p.name", "p.wait", "p.how", "p.inner.low", "p.inner.high", "p.many[0]", "p.many[1].low", "p.zz"}


def test_the_domain_s_own_structs_are_read_too() -> None:
    pace, mistakes = validate(Pace, {"tick": "5s", "scale_in": {"max_step": 2}}, "pace")
    assert mistakes == []
    assert pace is not None
    assert (pace.tick, pace.scale_in.max_step, pace.scale_in.cooldown) == (5.0, 2, 300.0)
    assert validate(Pace, {"tick": 0, "scale_in": {"max_step": 0}}, "pace")[1] == [
        "pace.tick: found 0; allowed: a duration such as 30s, 5m, 2h or 1d, or a number of seconds, more than 0",
        "pace.scale_in.max_step: found 0; allowed: a whole number, at least 1",
    ]


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["30s", "red", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from(["name", "wait", "colour", "inner", "maybe", "many", "pair", "words", "table", "either", "as"])


@settings(max_examples=300)
@given(st.dictionaries(fields | st.text(max_size=4), values, max_size=6))
def test_no_mapping_is_a_traceback(mapping: dict[str, Any]) -> None:
    value, mistakes = validate(Outer, mapping, "p")
    assert (value is None) == bool(mistakes)
    assert all(mistake.startswith("p") and "\n" not in mistake for mistake in mistakes)
