"""What becomes of an open launch: closed on machines, on a definite no, or on a withdrawal; never forgotten."""

import pytest

from autoscaler.domain.base import Instant, Token
from autoscaler.domain.decision import Drain, Launch, Outcome, OutcomeStatus, Withdraw
from autoscaler.domain.faults import Fault, FaultKind
from autoscaler.domain.memory import Breaker, OpenLaunch
from autoscaler.domain.pool import Pace, Placement
from autoscaler.domain.replica import ComputeView, Endpoint, LaunchState, LaunchStatus
from autoscaler.engine import launches
from tests.support.builders import NOW, a_machine, a_memory, a_pool, an_observation, decided, in_service, replace, rid

OPEN = OpenLaunch(
    token=Token("e1-p-5-0"), placement=Placement(offer="o", zone="local"), count=2, units=2, total_after=2,
    request="{}", at=Instant(NOW - 100.0), expires_at=Instant(NOW + 20.0),
)  # fmt: skip
EXPIRED = replace(OPEN, expires_at=NOW)
LOST = Fault(kind=FaultKind.UNREACHABLE, detail="no answer")


def outcome(action: object, status: OutcomeStatus, fault: Fault | None = None) -> Outcome:
    return Outcome(action=action, status=status, at=NOW, fault=fault)  # type: ignore[arg-type]


def settled(launch: OpenLaunch, *outcomes: Outcome, shown: int = 0, **changes: object) -> launches.Launches:
    machines = tuple(a_machine(f"m{index}", token=launch.token) for index in range(shown))
    view = ComputeView(compute="c", instances=machines, as_of=NOW)
    observation = replace(an_observation(outcomes=outcomes), **{"computes": {"c": view}, **changes})
    return launches.settle(a_pool(), a_memory(launches=(launch,)), observation)


ORDER, BACK = launches.order_of(OPEN), launches.withdrawal_of(OPEN)


@pytest.mark.parametrize(
    ("launch", "outcomes", "shown", "requested", "withdrawn"),
    [
        (OPEN, (), 0, 2.0, 0.0),
        (OPEN, (), 1, 1.0, 0.0),
        (OPEN, (), 2, 0.0, 0.0),  # both are there: closed
        (OPEN, (outcome(ORDER, OutcomeStatus.FAULT, LOST),), 0, 2.0, 0.0),
        (OPEN, (outcome(ORDER, OutcomeStatus.FAULT, replace(LOST, kind=FaultKind.REFUSED)),), 0, 0.0, 0.0),
        (EXPIRED, (), 0, 0.0, 2.0),  # taken back, and counted until that is certain
        (EXPIRED, (), 1, 0.0, 1.0),
        (replace(OPEN, withdrawn=True), (), 0, 0.0, 2.0),
        (replace(OPEN, withdrawn=True), (outcome(BACK, OutcomeStatus.FAULT, LOST),), 0, 0.0, 2.0),
        (replace(OPEN, withdrawn=True), (outcome(BACK, OutcomeStatus.DONE),), 0, 0.0, 0.0),
        (replace(EXPIRED, withdrawn=True), (), 0, 0.0, 0.0),  # nobody ever answered: the tag sweep applies
    ],
)
def test_how_an_open_launch_counts(
    launch: OpenLaunch, outcomes: tuple[Outcome, ...], shown: int, requested: float, withdrawn: float
) -> None:
    book = settled(launch, *outcomes, shown=shown)
    assert (book.requested_units(), book.withdrawn_units()) == (requested, withdrawn)


@pytest.mark.parametrize(
    "unseen",
    [
        {"computes": {}},
        {"computes": {"c": ComputeView(compute="c", instances=(), as_of=NOW, unreachable_zones=("local",))}},
        {"in_flight": frozenset({ORDER.key})},
    ],
)
def test_a_launch_does_not_expire_where_nobody_looked(unseen: dict[str, object]) -> None:
    """A machine in a zone that does not answer would be launched a second time elsewhere, and pass max (law 3)."""
    book = settled(EXPIRED, **unseen)  # type: ignore[arg-type]
    assert book.requested_units() == 2.0
    assert book.breakers == {}


def test_fewer_than_asked_is_an_answer() -> None:
    done = {OPEN.token: LaunchState(status=LaunchStatus.DONE, ids=(a_machine("m0").id,))}
    view = ComputeView(compute="c", instances=(a_machine("m0", token=OPEN.token),), as_of=NOW, launches=done)
    assert settled(OPEN, computes={"c": view}).open == []


def test_what_a_launch_counts_does_not_change_with_the_config() -> None:
    assert settled(replace(OPEN, units=8)).requested_units() == 8.0


@pytest.mark.parametrize(
    ("launch", "throttled", "in_flight", "sent"),
    [
        (OPEN, False, "", [Launch]),
        (replace(OPEN, accepted=True), False, "", []),
        (replace(OPEN, resend_after=Instant(NOW + 1.0)), False, "", []),
        (OPEN, True, "", []),
        (OPEN, False, ORDER.key, []),
        (replace(OPEN, withdrawn=True), True, "", [Withdraw]),
        (replace(OPEN, withdrawn=True), False, BACK.key, []),
    ],
)
def test_what_is_sent_again(launch: OpenLaunch, throttled: bool, in_flight: str, sent: list[type]) -> None:
    observation = an_observation(in_flight=frozenset({in_flight}))
    book = settled(launch)
    book.throttled_until = Instant(NOW + 30.0) if throttled else book.throttled_until
    assert [type(one) for one in launches.resend(book, observation)] == sent


@pytest.mark.parametrize(
    ("unheard", "kind", "asked", "wait"),
    [
        (0, FaultKind.THROTTLED, 0.0, 15.0),
        (1, FaultKind.THROTTLED, 0.0, 30.0),
        (2, FaultKind.UNREACHABLE, 0.0, 45.0),
        (40, FaultKind.UNREACHABLE, 0.0, 45.0),  # a part of the launch deadline
        (1, FaultKind.THROTTLED, 90.0, 90.0),  # as long as was asked for, however long
        (5, FaultKind.CONFLICT, 0.0, 15.0),  # an answer: what it waits for is looked at in the next tick
    ],
)
def test_the_wait_before_a_launch_is_sent_again_doubles(
    unheard: int, kind: FaultKind, asked: float, wait: float
) -> None:
    said = outcome(ORDER, OutcomeStatus.FAULT, Fault(kind=kind, detail="x", retry_after_s=asked))
    memory, pool = a_memory(launches=(replace(OPEN, unheard=unheard),)), replace(a_pool(), pace=Pace())
    (kept,) = launches.settle(pool, memory, an_observation(outcomes=(said,))).open
    assert kept.resend_after - NOW == wait
    assert kept.unheard == (0 if kind is FaultKind.CONFLICT else unheard + 1)


def test_a_launch_that_nobody_heard_says_nothing_about_its_template() -> None:
    book = settled(replace(EXPIRED, unheard=3))
    assert (book.open[0].withdrawn, book.breakers) == (True, {})
    assert settled(EXPIRED).breakers[OPEN.placement.offer].failures == 1


def test_a_throttled_balancer_does_not_stop_launches() -> None:
    where = Endpoint(replica=rid("r1"), instance=a_machine().id, host="h", port=80)
    slow = Fault(kind=FaultKind.THROTTLED, detail="slow down", retry_after_s=60.0)
    said = outcome(Drain(endpoint=where, balancer="b", why="scale_in"), OutcomeStatus.FAULT, slow)
    found = decided(a_pool(), in_service("r1"), wants=2, outcomes=(said,))
    assert [type(one) for one in found.plan] == [Launch]


@pytest.mark.parametrize(
    ("failures", "ever_ready", "wait", "tripped"),
    [
        (0, False, 30.0, False),
        (1, False, 60.0, False),
        (2, False, 480.0, True),  # the third in a row of a template that never worked
        (2, True, 120.0, False),
        (40, True, 480.0, False),
    ],
)
def test_the_wait_doubles_and_the_breaker_trips(failures: int, ever_ready: bool, wait: float, tripped: bool) -> None:
    known = Breaker(failures=failures, ever_ready=ever_ready)
    found = launches.failed_again(a_pool(), known, NOW, "x")
    assert (found.retry_at - NOW, found.tripped) == (wait, tripped)
