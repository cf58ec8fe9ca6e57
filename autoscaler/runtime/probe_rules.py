"""What a row of looks at one replica means: the prober's rules, pure.

Does: fold one verdict into what is known of a replica in its present boot. Does not: look, wait or know the time.
The rules:
- A boot is the compute's boot joined with the server's process start. A new boot forgets everything.
- Before a replica is admitted, the last of the passes that it needs must be a real generation. Once one has failed,
  every look asks for one: a server that says it is fine and generates nothing fails without a break, and not by turns,
  so that whoever looks at the record now and then sees it.
- A failure that is certain (refused, or an answer that says no) ends the row of passes and counts from that look on.
- A look without an answer says little about a replica that was loaded or takes traffic: a saturated server is slow,
  not dead. Its passes stand, and it counts as failing only when nothing at all was heard from it (no answer to a look,
  no scrape) for `unhealthy_after`; then it counts as failing since the first look that was not answered.
- Requests inside and a token counter that stands still from look to look for `hang_after` is a hang.
Invariant: `passes` counts looks of one boot only.
"""

from typing import NamedTuple

from autoscaler.domain.base import Duration, Instant, ReplicaId
from autoscaler.domain.pool import Pool
from autoscaler.domain.replica import ProbeRecord, ProbeVerdict


class Rules(NamedTuple):
    """The pool's numbers, in seconds: see Pace.unhealthy_after; `hang_after` is twice that (30 s by default)."""

    passes: int
    unhealthy_after: Duration
    hang_after: Duration


def rules_of(pool: Pool) -> Rules:
    """The rules that a pool's pace implies."""
    wait = pool.pace.unhealthy_after
    return Rules(passes=pool.ready.passes, unhealthy_after=wait, hang_after=Duration(2.0 * wait))


class Look(NamedTuple):
    """One look that ended at `at`. `admitted`: a balancer shows the replica, so no generation was asked for."""

    replica: ReplicaId
    verdict: ProbeVerdict
    started_at: Instant
    at: Instant
    compute_boot: str
    generated: bool
    admitted: bool


class Track(NamedTuple):
    """A record with what is needed to go on: the two halves of the boot, silence and standstill so far.

    `tokens`: the counter's value that has stood since `still_since` while requests were inside. `barren`: the last
    generation that was asked for failed.
    """

    record: ProbeRecord
    compute_boot: str
    server_boot: str
    silent_since: Instant | None = None
    still_since: Instant | None = None
    tokens: float | None = None
    barren: bool = False


def boot_name(compute_boot: str, server_boot: str) -> str:
    """One name for both boots. Learning the server's start refines the name; no other boot's name begins like it."""
    return f"{compute_boot}|{server_boot}|" if server_boot else f"{compute_boot}|"


def needs_generation(track: Track | None, compute_boot: str, *, admitted: bool, rules: Rules) -> bool:
    """Whether the next look must ask for a real generation: the last needed pass, and only before admission.

    Every look, once a generation has failed.
    """
    if admitted:
        return False
    known = track if track is not None and track.compute_boot == compute_boot else None
    if known is not None and known.record.loaded_at is not None:
        return False
    return (known.record.passes if known else 0) >= rules.passes - 1 or (known is not None and known.barren)


def follow(track: Track | None, look: Look, rules: Rules) -> Track:
    """What is known after one more look."""
    known = track if track is not None and track.compute_boot == look.compute_boot else None
    server_boot = look.verdict.boot or (known.server_boot if known else "")
    if known is not None and known.server_boot != server_boot:
        known = None
    boot = boot_name(look.compute_boot, server_boot)
    if look.verdict.loaded:
        return _passed(known, look, boot, server_boot, rules)
    loaded = look.admitted if known is None else look.admitted or known.record.loaded_at is not None
    if loaded and not look.verdict.certain:
        return _unanswered(known, look, server_boot, rules)
    since = known.record.failing_since if known else None
    record = ProbeRecord(
        replica=look.replica,
        boot=boot,
        passes=0,
        last=look.verdict,
        last_at=look.at,
        failing_since=look.at if since is None else since,
        hung=False,
    )
    barren = look.generated or (known is not None and known.barren)
    return Track(record, look.compute_boot, server_boot, barren=barren)


def heard(track: Track, at: Instant) -> Track:
    """Something else (a scrape) had an answer from the replica at `at`: silence starts anew."""
    if track.silent_since is None or at <= track.silent_since:
        return track
    return track._replace(silent_since=None)


def _passed(known: Track | None, look: Look, boot: str, server_boot: str, rules: Rules) -> Track:
    before = known.record if known else None
    passes = (before.passes if before else 0) + 1
    loaded_at = before.loaded_at if before else None
    if loaded_at is None and passes >= rules.passes:
        if look.generated or look.admitted:
            loaded_at = look.at
        else:
            # It was to be a generation and was not: the replica left its balancers meanwhile. One pass short again.
            passes = rules.passes - 1
    tokens, still = _progress(known, look)
    hung = still is not None and look.at - still >= rules.hang_after
    record = ProbeRecord(
        replica=look.replica,
        boot=boot,
        passes=passes,
        last=look.verdict,
        last_at=look.at,
        failing_since=still if hung else None,
        loaded_at=loaded_at,
        hung=hung,
    )
    return Track(record, look.compute_boot, server_boot, None, still, tokens)


def _unanswered(known: Track | None, look: Look, server_boot: str, rules: Rules) -> Track:
    silent = known.silent_since if known else None
    if look.verdict.alive:
        silent = None  # slow, but something answered
    elif silent is None:
        silent = look.started_at
    tokens, still = _progress(known, look)
    hung = still is not None and look.at - still >= rules.hang_after
    failing = silent if silent is not None and look.at - silent >= rules.unhealthy_after else None
    record = ProbeRecord(
        replica=look.replica,
        boot=boot_name(look.compute_boot, server_boot),
        passes=known.record.passes if known else 0,
        last=look.verdict,
        last_at=look.at,
        failing_since=still if hung else failing,
        loaded_at=known.record.loaded_at if known else None,
        hung=hung,
    )
    return Track(record, look.compute_boot, server_boot, silent, still, tokens)


def _progress(known: Track | None, look: Look) -> tuple[float | None, Instant | None]:
    """The token counter while requests are inside, and since when it has shown that value; (None, None) when idle."""
    verdict = look.verdict
    before = (known.tokens, known.still_since) if known else (None, None)
    if verdict.running == 0:
        return None, None
    if verdict.tokens_total is None or verdict.running is None:
        return before
    return before if before[0] == verdict.tokens_total else (verdict.tokens_total, look.at)
