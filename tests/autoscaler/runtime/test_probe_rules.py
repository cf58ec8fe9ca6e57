"""What a row of looks means: boots, passes, generation, silence and hangs."""

from typing import Any

import msgspec

from autoscaler.domain.base import Duration, Instant, ReplicaId
from autoscaler.domain.replica import ProbeVerdict
from autoscaler.runtime.probe_rules import Look, Rules, Track, follow, heard, needs_generation, rules_of
from tests.support.pool_world import a_pool

RULES = Rules(passes=2, unhealthy_after=Duration(15.0), hang_after=Duration(30.0))
FINE = ProbeVerdict(alive=True, loaded=True, running=0, waiting=0, tokens_total=0.0, boot="s1")
REFUSED = ProbeVerdict(alive=False, loaded=False, detail="refused")
SILENT = ProbeVerdict(alive=False, loaded=False, certain=False, detail="no answer")
R = ReplicaId("m:8000")


def saying(**changes: Any) -> ProbeVerdict:
    return msgspec.structs.replace(FINE, **changes)


def look(verdict: ProbeVerdict, at: float, **changes: Any) -> Look:
    base = Look(
        replica=R,
        verdict=verdict,
        started_at=Instant(at),
        at=Instant(at),
        compute_boot="c1",
        generated=False,
        admitted=False,
    )
    return base._replace(**changes)


def after(*looks: Look, rules: Rules = RULES) -> Track:
    track: Track | None = None
    for one in looks:
        track = follow(track, one, rules)
    assert track is not None
    return track


def loaded(at: float = 0.0) -> Track:
    return after(look(FINE, at), look(FINE, at + 1, generated=True))


def test_the_rules_follow_the_pace() -> None:
    assert rules_of(a_pool()) == Rules(passes=2, unhealthy_after=Duration(15.0), hang_after=Duration(30.0))


def test_enough_passes_in_a_row_of_which_the_last_was_a_generation_make_it_loaded() -> None:
    record = loaded().record
    assert (record.passes, record.loaded_at, record.failing_since) == (2, 1.0, None)


def test_without_the_generation_the_last_pass_is_not_counted() -> None:
    record = after(look(FINE, 0), look(FINE, 1), look(FINE, 2)).record
    assert (record.passes, record.loaded_at) == (1, None)


def test_a_failed_generation_begins_the_row_anew() -> None:
    no = saying(loaded=False, detail="the generation failed")
    record = after(look(FINE, 0), look(no, 1, generated=True)).record
    assert (record.passes, record.failing_since) == (0, 1.0)


def test_what_a_balancer_already_shows_needs_no_generation() -> None:
    record = after(look(FINE, 0, admitted=True), look(FINE, 1, admitted=True)).record
    assert record.loaded_at == 1.0


def test_a_generation_is_asked_on_the_last_needed_pass_only_and_only_before_admission() -> None:
    def asks(track: Track | None, *, admitted: bool = False, boot: str = "c1") -> bool:
        return needs_generation(track, boot, admitted=admitted, rules=RULES)

    one = after(look(FINE, 0))
    assert [asks(None), asks(one), asks(loaded())] == [False, True, False]
    assert not asks(one, admitted=True)
    assert not asks(loaded(), boot="c2")
    assert needs_generation(None, "c1", admitted=False, rules=RULES._replace(passes=1))


def test_a_server_that_claims_to_be_fine_and_generates_nothing_fails_without_a_break() -> None:
    """By turns, it would look fine to a tick that comes at the wrong moments, and never be given up."""
    track: Track | None = None
    failing = []
    for at in range(20):
        generated = needs_generation(track, "c1", admitted=False, rules=RULES)
        verdict = saying(loaded=False, detail="POST: HTTP 503") if generated else FINE
        track = follow(track, look(verdict, at, generated=generated), RULES)
        failing.append(track.record.failing_since)
    assert failing == [None] + [1.0] * 19
    assert track is not None
    works = follow(track, look(FINE, 20, generated=True), RULES)
    assert (works.record.passes, works.record.failing_since) == (1, None)
    assert follow(works, look(FINE, 21, generated=True), RULES).record.loaded_at == 21.0


def test_a_new_boot_of_the_machine_forgets_everything() -> None:
    track = follow(loaded(), look(FINE, 5, compute_boot="c2"), RULES)
    assert (track.record.passes, track.record.loaded_at, track.record.boot) == (1, None, "c2|s1|")


def test_a_new_process_on_the_same_machine_forgets_everything() -> None:
    track = follow(loaded(), look(saying(boot="s2"), 5), RULES)
    assert (track.record.passes, track.record.loaded_at, track.record.boot) == (1, None, "c1|s2|")


def test_learning_the_process_start_refines_the_name_and_no_other_boot_begins_like_it() -> None:
    unknown = after(look(REFUSED, 0))
    known = follow(unknown, look(FINE, 1), RULES)
    assert known.record.boot.startswith(unknown.record.boot)
    longer = after(look(saying(boot="s11"), 1)).record.boot
    assert not longer.startswith(known.record.boot)


def test_an_answer_without_a_process_start_is_of_the_known_boot() -> None:
    track = follow(loaded(), look(saying(boot=""), 5), RULES)
    assert (track.record.passes, track.record.boot) == (3, "c1|s1|")


def test_a_certain_failure_ends_the_row_at_once_and_counts_from_the_first() -> None:
    track = follow(follow(loaded(), look(REFUSED, 5), RULES), look(REFUSED, 9), RULES)
    assert (track.record.passes, track.record.loaded_at, track.record.failing_since) == (0, None, 5.0)


def test_silence_of_a_loaded_replica_counts_only_after_the_whole_patience_and_then_from_its_beginning() -> None:
    track = loaded()
    for at in (6.0, 11.0, 16.0, 20.9):
        track = follow(track, look(SILENT, at, started_at=Instant(at - 5)), RULES)
        assert (track.record.failing_since, track.record.passes) == ((None, 2) if at < 16 else (1.0, 2))


def test_an_answer_to_a_scrape_ends_the_silence() -> None:
    track = follow(loaded(), look(SILENT, 6, started_at=Instant(1.0)), RULES)
    track = heard(track, Instant(10.0))
    track = follow(track, look(SILENT, 20, started_at=Instant(15.0)), RULES)
    assert track.record.failing_since is None
    assert heard(track, Instant(14.0)) is track


def test_a_slow_server_that_still_answers_something_is_not_failing() -> None:
    slow = saying(loaded=False, certain=False, running=None, tokens_total=None, boot="")
    track = loaded()
    for at in range(5, 200, 5):
        track = follow(track, look(slow, at), RULES)
    assert track.record.failing_since is None
    assert track.record.passes == 2


def test_a_member_found_after_a_restart_of_the_daemon_gets_the_same_patience() -> None:
    track = after(look(SILENT, 5, started_at=Instant(0.0), admitted=True))
    assert track.record.failing_since is None
    track = follow(track, look(SILENT, 15, started_at=Instant(10.0), admitted=True), RULES)
    assert track.record.failing_since == 0.0


def test_a_loading_replica_that_stays_silent_is_failing_and_has_no_passes() -> None:
    record = after(look(FINE, 0), look(SILENT, 6)).record
    assert (record.passes, record.failing_since) == (0, 6.0)


def test_requests_inside_and_no_token_for_long_is_a_hang() -> None:
    track = loaded()
    for at in (10.0, 20.0, 39.9):
        track = follow(track, look(saying(running=3, tokens_total=7.0), at), RULES)
        assert not track.record.hung
    track = follow(track, look(saying(running=3, tokens_total=7.0), 40), RULES)
    assert track.record.hung
    assert track.record.failing_since == 10.0


def test_tokens_that_move_or_an_idle_server_is_no_hang() -> None:
    moving, idle = loaded(), loaded()
    for at in range(10, 300, 10):
        moving = follow(moving, look(saying(running=3, tokens_total=float(at)), at), RULES)
        idle = follow(idle, look(saying(running=0, tokens_total=7.0), at), RULES)
        assert not moving.record.hung
        assert not idle.record.hung


def test_a_hang_that_ends_is_over() -> None:
    track = loaded()
    for at in range(10, 60, 10):
        track = follow(track, look(saying(running=3, tokens_total=7.0), at), RULES)
    assert track.record.hung
    track = follow(track, look(saying(running=3, tokens_total=8.0), 60), RULES)
    assert (track.record.hung, track.record.failing_since) == (False, None)


def test_a_first_request_after_idleness_does_not_inherit_the_standstill() -> None:
    track = loaded()
    for at in range(10, 200, 10):
        track = follow(track, look(saying(running=0, tokens_total=7.0), at), RULES)
    track = follow(track, look(saying(running=1, tokens_total=7.0), 200), RULES)
    track = follow(track, look(saying(running=1, tokens_total=7.0), 215), RULES)
    assert not track.record.hung


def test_a_look_without_figures_neither_starts_nor_ends_a_standstill() -> None:
    track = follow(loaded(), look(saying(running=3, tokens_total=7.0), 10), RULES)
    track = follow(track, look(SILENT, 20), RULES)
    track = follow(track, look(saying(running=3, tokens_total=9.0), 30), RULES)
    assert track.still_since == 30.0
    track = follow(track, look(saying(running=3, tokens_total=None), 45), RULES)
    track = follow(track, look(saying(running=3, tokens_total=9.0), 60), RULES)
    assert track.record.hung
