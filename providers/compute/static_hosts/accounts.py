"""Whose a host becomes, step by step: changes of the state, each made under its lock.

Does: claim hosts for a token, close a token's account, take it back, mark a host that is to stop, adopt one.
Does not: run commands or touch a file. Invariant: a token is never given more hosts than it asked for, in all its life.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from autoscaler.domain.base import InstanceId, Instant, Token
from autoscaler.domain.decision import Launch
from autoscaler.domain.faults import Refused
from autoscaler.domain.pool import Pool
from providers.compute.static_hosts.settings import Host
from providers.compute.static_hosts.state import Claim, Given, Stage, State, key_of

replace = msgspec.structs.replace


def withdrawn(token: Token) -> str:
    """Why a token starts nothing."""
    return f"launch {token} was withdrawn; it starts nothing any more"


def is_complete(state: State, pool: Pool, order: Launch) -> bool:
    """Whether a token needs no further host."""
    given = state.tokens.get(key_of(pool, order.token), Given())
    return given.final or given.withdrawn or len(_ever(state, pool, order.token)) >= order.count


def _ever(state: State, pool: Pool, token: Token) -> set[InstanceId]:
    """All hosts that a token has or had."""
    given = state.tokens.get(key_of(pool, token), Given())
    return {*given.ids, *(claim.instance for claim in state.of_token(pool, token))}


def claim_hosts(state: State, pool: Pool, order: Launch, free: Sequence[Host], now: Instant) -> list[Claim]:
    """What the token has and what it gets besides, written down before anything is started. Raises Refused."""
    given = state.tokens.get(key_of(pool, order.token), Given())
    if given.withdrawn and not given.ids:
        raise Refused(withdrawn(order.token))
    claims = list(state.of_token(pool, order.token))
    missing = 0 if is_complete(state, pool, order) else order.count - len(_ever(state, pool, order.token))
    for host in [one for one in free if one.name not in state.claims][:missing]:
        claim = Claim(
            installation=pool.installation, pool=pool.name, token=order.token, offer=order.placement.offer,
            host=host, request=order.request, at=now,
        )  # fmt: skip
        state.claims[host.name] = claim
        claims.append(claim)
    return claims


def recover(state: State, claim: Claim) -> None:
    """Put back what a host itself tells of, after the file was lost."""
    if state.claims.setdefault(claim.host.name, claim) == claim:
        note_started(state, claim)


def note_started(state: State, claim: Claim) -> None:
    """A token has got this host."""
    key = f"{claim.installation}/{claim.pool}/{claim.token}"
    given = state.tokens.get(key, Given())
    if claim.instance not in given.ids:
        state.give(key, replace(given, ids=tuple(sorted((*given.ids, claim.instance)))))


def started(state: State, claim: Claim, note: str) -> None:
    """The start was accepted, or may have had an effect (`note` says what it said)."""
    now = state.claim_of(claim)
    if now is not None:
        state.claims[claim.host.name] = replace(now, stage=Stage.STARTED, detail=note)
        note_started(state, claim)


def stop_accepted(state: State, claim: Claim) -> None:
    """A stop command said that it did its work."""
    now = state.claim_of(claim)
    if now is not None:
        state.claims[claim.host.name] = replace(now, stop_accepted=True)


def end(state: State, claim: Claim) -> None:
    """The host is nobody's any more."""
    if state.claim_of(claim) is not None:
        del state.claims[claim.host.name]


def close(state: State, pool: Pool, order: Launch) -> tuple[InstanceId, ...]:
    """Close a token's account, unless it got nothing: then it may be tried again."""
    key = key_of(pool, order.token)
    given = state.tokens.get(key, Given())
    if given.ids:
        state.give(key, replace(given, final=True))
    return given.ids


def withdraw(state: State, pool: Pool, token: Token) -> None:
    """No further host for this token; those whose start is under way may have started, and are machines."""
    key = key_of(pool, token)
    given = state.tokens.get(key, Given())
    for claim in list(state.of_token(pool, token)):
        state.claims[claim.host.name] = replace(claim, stage=Stage.STARTED)
        given = given if claim.instance in given.ids else replace(given, ids=(*given.ids, claim.instance))
    state.give(key, replace(given, withdrawn=True))


def mark(state: State, claim: Claim, now: Instant, boot: str) -> Claim | None:
    """Write down that a host is to stop, before it is told; None when it is another's by now."""
    state.claims.setdefault(claim.host.name, claim)  # known by its tag only until now
    found = state.claim_of(claim)
    if found is None or found.stop_at is not None:
        return found
    stopping = replace(found, stage=Stage.STARTED, stop_at=now, stop_boot=boot)
    state.claims[claim.host.name] = stopping
    return stopping


def adopt(state: State, claim: Claim, pool: Pool) -> None:
    """Give a host that nobody has to a pool; already its own is success. Raises Refused."""
    there = state.claims.setdefault(claim.host.name, claim)
    if not there.of(pool):
        raise Refused(f"{claim.host.name} belongs to installation {there.installation}, pool {there.pool}")
