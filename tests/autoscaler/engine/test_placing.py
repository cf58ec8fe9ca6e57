"""Where launches go: offers in order, zones spread, room and budget kept, tokens counted."""

import pytest

from autoscaler.domain.base import Instant
from autoscaler.domain.decision import Launch
from autoscaler.domain.memory import Breaker, Mark
from autoscaler.domain.pool import Pool
from tests.support.builders import NOW, Seen, a_machine, a_memory, a_pool, an_observation, decided, in_service, replace

OFFER = a_pool().offers[0]
ZONES = replace(OFFER, zones=("a", "b"))


def at(name: str, zone: str) -> Seen:
    seen = in_service(name)
    assert seen.intent is not None
    return seen.but(machine=a_machine(name, zone=zone), intent=replace(seen.intent, zone=zone))


def launched(pool: Pool, *seen: Seen, wants: int, **changes: object) -> list[tuple[str, int]]:
    found = decided(pool, *seen, wants=wants, **changes)
    return [(one.placement.key, one.count) for one in found.plan if isinstance(one, Launch)]


@pytest.mark.parametrize(
    ("changes", "wants", "plan"),
    [
        ({"offers": (OFFER,)}, 3, [("o/local", 2)]),
        ({"offers": (ZONES,)}, 3, [("o/b", 1), ("o/a", 1)]),  # r1 is in a
        ({"offers": (replace(OFFER, capacity=4),)}, 6, [("o/local", 1)]),  # r1 is four units, and one more is eight
        ({"offers": (OFFER,), "budget_usd_per_h": 4.0}, 3, [("o/local", 1)]),  # r1 costs 2 $/h already
        ({"offers": (OFFER,), "budget_usd_per_h": 3.9}, 3, []),
    ],
)
def test_where_two_more_units_come_from(changes: dict[str, object], wants: int, plan: list[tuple[str, int]]) -> None:
    assert launched(a_pool(1, 9, **changes), at("r1", "a"), wants=wants) == plan


def test_room_is_what_max_leaves_those_that_leave_included() -> None:
    assert launched(a_pool(1, 2), in_service("r1"), wants=9) == [("o/local", 1)]
    assert launched(a_pool(1, 1), in_service("r1"), wants=9) == []


def test_a_marked_zone_and_a_dark_one_are_passed_over() -> None:
    pool = a_pool(1, 9, offers=(ZONES, replace(ZONES, name="dear")))
    marks = {"o/b": Mark(until=Instant(NOW + 1.0), why="none left")}
    memory = a_memory(at("r1", "a"), marks=marks)
    assert launched(pool, at("r1", "a"), wants=2, memory=memory) == [("o/a", 1)]
    view = an_observation(at("r1", "a")).computes["c"]
    dark = {"c": replace(view, unreachable_zones=("b",))}
    assert launched(pool, at("r1", "a"), wants=2, computes=dark) == [("o/a", 1)]
    assert launched(pool, at("r1", "a"), wants=2, computes={}) == []


@pytest.mark.parametrize(("retry", "plan"), [(1.0, [("dear/local", 2)]), (0.0, [("o/local", 1), ("dear/local", 1)])])
def test_a_failing_template_is_tried_one_at_a_time_and_the_next_offer_fills_up(
    retry: float, plan: list[tuple[str, int]]
) -> None:
    pool = a_pool(1, 9, offers=(OFFER, replace(OFFER, name="dear")))
    breakers = {"o": Breaker(failures=1, retry_at=Instant(NOW + retry))}
    memory = a_memory(in_service("r1"), breakers=breakers)
    assert launched(pool, in_service("r1"), wants=3, memory=memory) == plan


def test_tokens_name_the_pool_the_decision_and_the_order() -> None:
    found = decided(a_pool(1, 9, offers=(ZONES,)), in_service("r1"), wants=3)
    assert [one.token for one in found.plan if isinstance(one, Launch)] == ["e1-p-8-0", "e1-p-8-1"]
    assert [one.total_after for one in found.plan if isinstance(one, Launch)] == [1, 1]
