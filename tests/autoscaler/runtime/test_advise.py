"""The memory of a pool that only advises: what was learned, without what was only intended."""

import msgspec

from autoscaler.domain.base import Instant, ReplicaId, Token
from autoscaler.domain.lifecycle import Phase
from autoscaler.domain.memory import DrainWhy, Intent, Memory, OpenLaunch, Wanted
from autoscaler.domain.pool import Placement
from autoscaler.runtime.advise import unacted

replace = msgspec.structs.replace
AT = Instant(100.0)
INTENT = Intent(phase=Phase.IN_SERVICE, since=AT, launched_at=AT, offer="gpu", zone="local", units=1.0)
OPEN = OpenLaunch(
    token=Token("t"),
    placement=Placement(offer="gpu", zone="local"),
    count=1,
    units=1,
    total_after=1,
    request="{}",
    at=AT,
    expires_at=AT,
)
A, B, C = ReplicaId("a:1"), ReplicaId("b:1"), ReplicaId("c:1")


def test_what_was_learned_goes_on() -> None:
    before = Memory(sequence=4, intents={A: INTENT})
    seen = replace(INTENT, phase=Phase.READY, boot="b|", ready_at=AT)
    window = (Wanted(at=AT, units=3),)
    after = replace(before, sequence=5, last_at=AT, window=window, carries={"p": "{}"}, intents={A: seen, B: INTENT})
    assert unacted(before, after) == after


def test_a_launch_that_was_sent_before_is_settled_and_a_new_one_is_forgotten() -> None:
    sent, advised = OPEN, replace(OPEN, token=Token("t2"))
    before = Memory(launches=(sent,))
    assert unacted(before, replace(before, launches=(replace(sent, accepted=True), advised))).launches == (
        replace(sent, accepted=True),
    )
    assert unacted(before, replace(before, launches=())).launches == ()


def test_what_was_only_intended_is_taken_back() -> None:
    before = Memory(intents={A: INTENT, B: INTENT})
    drain = DrainWhy(why="scale_in", since=AT, deadline=AT)
    after = replace(
        before,
        intents={
            A: replace(INTENT, phase=Phase.DRAINING, drain=drain),
            B: replace(INTENT, phase=Phase.TERMINATING, terminating_since=AT),
            C: replace(INTENT, phase=Phase.READY, admitted_at=AT),
        },
        launches=(OPEN,),
        last_out_at=AT,
        last_in_at=AT,
        replace_paced_at=AT,
        spend_usd=3.0,
        cut_total=2,
    )
    assert unacted(before, after) == before
