"""TorchServe's management API: which workers are ready, and how many requests wait, which its metrics do not say.

Does: read the answer to GET /models/NAME. Does not: ask for it.
Invariant: takes any document whatever and raises nothing; an unknown shape is "not loaded" and "not known".
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote


def model_path(model: str) -> str:
    """The path that describes a model, on the management port."""
    return f"/models/{quote(model, safe='')}"


def why_not_ready(document: Any) -> str:
    """Why the model is not loaded; empty when it is.

    Every version that is shown must have its minimum of workers READY, and at least one: the model is listed, and the
    server calls itself healthy, long before.
    """
    if not isinstance(document, list) or not document:
        return "the management port shows no model"
    for version in document:
        workers = field(version, "workers")
        states = [field(one, "status") for one in workers] if isinstance(workers, list) else []
        least = field(version, "minWorkers")
        needed = max(1, least if isinstance(least, int) else 1)
        if states.count("READY") < needed:
            return f"{states.count('READY')} of {needed} workers READY"
    return ""


def pending_requests(document: Any) -> int | None:
    """Requests that wait for a worker; None when not told."""
    versions = document if isinstance(document, list) else []
    pending = [field(field(version, "jobQueueStatus"), "pendingRequests") for version in versions]
    counts = [count for count in pending if isinstance(count, int) and count >= 0]
    return sum(counts) if counts and len(counts) == len(pending) else None


def field(document: Any, key: str) -> Any:
    """A field of an object; None when it has none, or is none."""
    return document.get(key) if isinstance(document, dict) else None
