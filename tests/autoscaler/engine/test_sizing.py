"""From wanted to aimed at, as a table: steps, cooldowns, floors, and the size that is kept while nothing is known."""

import pytest

from autoscaler.domain.base import Instant
from autoscaler.domain.decision import Calendar, Launch, Withdraw
from autoscaler.domain.directives import AtLeast, Directives
from autoscaler.domain.load import Signal
from autoscaler.domain.memory import OpenLaunch, Wanted
from autoscaler.domain.pool import Bounds
from autoscaler.engine.decide import decide
from tests.support.builders import NOW, Asks, a_memory, a_pool, an_observation, decided, in_service, replace

FOUR = tuple(in_service(f"r{index}") for index in range(1, 5))


@pytest.mark.parametrize(
    ("wants", "target"),
    [
        (4, 4),
        (5, 5),
        (8, 8),  # max(2, 100 % of 4) = 4 more
        (20, 8),
        (3, 3),
        (1, 3),  # one at a time
        (0, 3),
        (None, 4),
    ],
)
def test_a_step(wants: int | None, target: int) -> None:
    assert decided(a_pool(1, 20), *FOUR, wants=wants).target == target


@pytest.mark.parametrize(
    ("changes", "wants", "target"),
    [
        ({"last_out_at": Instant(NOW - 29.0)}, 6, 4),
        ({"last_out_at": Instant(NOW - 30.0)}, 6, 6),
        ({"last_in_at": Instant(NOW - 59.0)}, 1, 4),
        ({"last_in_at": Instant(NOW - 60.0)}, 1, 3),
        ({"history_since": Instant(NOW - 119.0)}, 1, 4),
        ({"history_since": Instant(NOW - 120.0)}, 1, 3),
        ({"last_at": Instant(NOW - 45.0)}, 1, 3),
        ({"last_at": Instant(NOW - 46.0)}, 1, 4),  # more than three ticks: as after a restart
        ({"window": (Wanted(at=Instant(NOW - 119.0), units=4),)}, 1, 4),
        ({"window": (Wanted(at=Instant(NOW - 120.0), units=4),)}, 1, 3),
    ],
)
def test_the_clocks(changes: dict[str, object], wants: int, target: int) -> None:
    assert decided(a_pool(1, 20), *FOUR, wants=wants, memory=a_memory(*FOUR, **changes)).target == target


@pytest.mark.parametrize(("units", "seconds", "target"), [(6, 1.0, 6), (6, 0.0, 4), (99, 1.0, 8)])
def test_a_floor_needs_no_pace(units: int, seconds: float, target: int) -> None:
    """At least 6: at once, though scale-out cools down; never above max 8."""
    said = Directives(at_least=AtLeast(units=units, until=Instant(NOW + seconds)))
    memory = a_memory(*FOUR, last_out_at=NOW)
    assert decided(a_pool(1, 8), *FOUR, wants=4, directives=said, memory=memory).target == target


@pytest.mark.parametrize(("wants", "target", "told"), [(1, 3, True), (3, 3, False), (5, 5, False)])
def test_an_operators_floor_is_told_where_it_binds_and_does_not_hold_what_is_above_it(
    wants: int, target: int, told: bool
) -> None:
    """At least 3 with 4 in service: down to 3 it may go, and the sentence says who wants the third."""
    said = Directives(at_least=AtLeast(units=3, until=Instant(NOW + 60.0)))
    memory = a_memory(*FOUR, window=(Wanted(at=Instant(NOW - 1.0), units=1),))
    found = decided(a_pool(1, 8), *FOUR, wants=wants, directives=said, memory=memory)
    assert found.target == target
    assert ("floor" in {one.code for one in found.blocks}) is told
    assert ("an operator holds at least 3" in found.sentence) is told


@pytest.mark.parametrize(
    ("known", "kept"),
    [(None, 4), (4, 4), (6, 6), (9, 8)],
)
def test_while_telemetry_is_blind_the_size_last_aimed_at_is_kept(known: int | None, kept: int) -> None:
    """Four serve of six: two were taken away meanwhile. Nine were more than max 8 allows now."""
    found = decide(
        a_pool(1, 8),
        [Asks(1, signals=[Signal.QUEUE_LENGTH])],
        a_memory(*FOUR, size=known),
        an_observation(*FOUR),
        Calendar(),
    )
    assert found.target == kept


def test_what_is_kept_is_no_more_than_somebody_still_wants() -> None:
    """Six were aimed at; four serve; two are wanted: the stabilised four remain, not the six."""
    assert decided(a_pool(), *FOUR, wants=4, memory=a_memory(*FOUR, size=6)).memory.size == 4
    assert decided(a_pool(), *FOUR, wants=6, memory=a_memory(*FOUR, size=6, last_out_at=NOW)).memory.size == 6


def test_max_that_came_down_does_not_scale_in_blindly() -> None:
    blind = decide(
        a_pool(bounds=Bounds(min=1, max=2)), [Asks(1, signals=[Signal.QUEUE_LENGTH])], a_memory(*FOUR),
        an_observation(*FOUR), Calendar(),
    )  # fmt: skip
    assert blind.target == 4
    assert decided(a_pool(1, 2), *FOUR, wants=4).target == 3


def test_a_launch_that_nobody_needs_any_more_is_taken_back_before_anyone_leaves() -> None:
    launch = OpenLaunch(
        token="e1-p-5-0", placement=a_pool().offers[0].placements[0], count=1, units=1, total_after=5, request="{}",  # type: ignore[arg-type]
        at=NOW, expires_at=Instant(NOW + 60.0),
    )  # fmt: skip
    memory = a_memory(*FOUR, launches=(launch,))
    found = decided(a_pool(), *FOUR, wants=4, memory=memory)
    assert [type(one) for one in found.plan] == [Withdraw]
    assert found.memory.launches == (replace(launch, withdrawn=True),)
    again = decided(a_pool(), *FOUR, wants=5, memory=found.memory)
    assert [type(one) for one in again.plan] == [Withdraw, Launch]  # said again until confirmed; and no longer counted
