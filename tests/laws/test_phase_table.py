"""The transition table: every move that the worlds make is in it, and the rows that nothing reached are listed."""

import pytest

from autoscaler.domain.lifecycle import MOVES, Phase
from tests.support.campaign import EVERYTHING, REPLICAS, SHAPES, a_script
from tests.support.judge import Laws
from tests.support.world import World, pools

P = Phase

#: Standby is a word of the design that the engine does not plan yet: nothing stops a machine to keep it.
#: A recall always goes by READY, so that no admission is taken for granted.
UNREACHABLE = {move for move in MOVES if P.STANDBY in move} | {(P.DRAINING, P.IN_SERVICE)}
#: Right, and too rare for so few worlds (tests/autoscaler/engine/test_reconcile.py plays each of them).
RARE = {
    (P.REQUESTED, P.LOST), (P.REQUESTED, P.GONE), (P.REQUESTED, P.TERMINATING), (P.BOOTING, P.DRAINING),
    (P.BOOTING, P.GONE), (P.LOADING, P.GONE), (P.READY, P.GONE), (P.IN_SERVICE, P.GONE), (P.READY, P.BOOTING),
    (P.REQUESTED, P.DRAINING), (P.LOST, P.BOOTING), (P.LOST, P.IN_SERVICE), (P.BOOTING, P.LOST),
    (P.READY, P.LOADING), (P.LOADING, P.IN_SERVICE), (P.REQUESTED, P.IN_SERVICE), (P.LOADING, P.BOOTING),
    (P.BOOTING, P.IN_SERVICE),
}  # fmt: skip
SHAPES_HERE = (*SHAPES, pools(balancers=0))


@pytest.fixture(scope="module")
def moves() -> set[tuple[Phase, Phase]]:
    """What some worlds with everything in them did; a move that is not in the table raises as law 0."""
    found: set[tuple[Phase, Phase]] = set()
    for seed in range(1000, 1100):
        judge = Laws()
        World(a_script(seed, (*EVERYTHING, *REPLICAS, *REPLICAS), SHAPES_HERE, 0, 12), judge).run()
        found |= judge.moves
    return found


def test_every_move_that_is_made_is_in_the_table(moves: set[tuple[Phase, Phase]]) -> None:
    assert moves <= set(MOVES)
    assert len(moves) >= 25


def test_every_row_is_reached_or_listed_with_its_reason(moves: set[tuple[Phase, Phase]]) -> None:
    unreached = set(MOVES) - moves
    print(sorted(f"{before} -> {now}" for before, now in unreached))
    assert unreached <= UNREACHABLE | RARE


def test_what_is_listed_as_unreachable_is_not_reached(moves: set[tuple[Phase, Phase]]) -> None:
    assert not moves & UNREACHABLE
