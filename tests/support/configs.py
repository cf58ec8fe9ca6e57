"""Configs to begin from: complete ones that a test then spoils."""

from typing import Any


def a_pool(name: str = "llama", **changes: Any) -> dict[str, Any]:
    """A pool over the acme package; `changes` replace whole sections, None removes one."""
    pool: dict[str, Any] = {
        "name": name,
        "capacity": {"min": 1, "max": 4},
        "offers": [{"compute": "acme", "region": "north", "ports": [8000]}],
        "ready_when": {"kind": "acme"},
        "balancers": [{"kind": "acme", "target": f"target-of-{name}"}],
        "telemetry": {"kind": "acme"},
        "policies": [{"kind": "target_tracking", "signal": "queue_length", "target": 4}],
    }
    pool.update(changes)
    return {key: value for key, value in pool.items() if value is not None}


def a_config(*pools: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A whole file around these pools, or around one good pool."""
    return {"installation": "test", "pools": list(pools) or [a_pool()], **changes}
