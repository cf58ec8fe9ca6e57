"""The next memory of a pool that only advises: everything that was learned, nothing that was only intended.

Does: take back what the plan noted as asked for (launches, admissions, drains, ends), because nobody carries it out.
Does not: touch the ledger (law 14: the memory stays in the process).
Invariant: without the plan's notes the next advice starts from the world as it is, so it never waits for itself.
"""

import msgspec

from autoscaler.domain.base import ReplicaId
from autoscaler.domain.memory import Intent, Memory

replace = msgspec.structs.replace


def unacted(before: Memory, after: Memory) -> Memory:
    """`after` as if its plan had not been made: what was learned goes on, what was to be done does not."""
    sent = {launch.token for launch in before.launches}
    intents: dict[ReplicaId, Intent] = {}
    for name, intent in after.intents.items():
        known = before.intents.get(name)
        if _noted(known) == _noted(intent):
            intents[name] = intent
        elif known is not None:
            intents[name] = known
    return replace(
        after,
        launches=tuple(launch for launch in after.launches if launch.token in sent),
        intents=intents,
        last_out_at=before.last_out_at,
        last_in_at=before.last_in_at,
        replace_paced_at=before.replace_paced_at,
        spend_usd=before.spend_usd,
        cut_total=before.cut_total,
    )


def _noted(intent: Intent | None) -> tuple[object, ...]:
    """What a plan notes in an intent when it asks for something."""
    if intent is None:
        return (None, None, None, None, 0)
    return (intent.drain, intent.terminating_since, intent.admitted_at, intent.taken_out_at, intent.recalls)
