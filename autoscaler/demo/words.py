"""A decision's reason in the few words that fit into a picture: `queue 52, aim 4`.

Does: shorten what the policies of the demo say, with times in trace time. Does not: replace the daemon's own sentence.
Invariant: a code that it does not know is shown by its name, never left out.
"""

from collections.abc import Mapping
from typing import Any

_SIGNALS = {
    "queue_length": "queue",
    "running": "running",
    "gpu_utilization": "GPU",
    "kv_cache_use": "KV cache",
    "ttft_s_p95": "TTFT p95",
    "e2e_s_p95": "latency p95",
    "request_rate": "requests/s",
    "token_rate": "tokens/s",
    "input_token_rate": "prompt tokens/s",
}
_SHARES = {"gpu_utilization", "kv_cache_use"}
_LATENCIES = {"ttft_s_p95", "e2e_s_p95"}
_RATES = {"request_rate", "token_rate", "input_token_rate"}


def short(code: str, facts: Mapping[str, Any], scale: float) -> str:
    """The reason in a few words. `scale`: the daemon's seconds times this are trace seconds."""
    signal = str(facts.get("signal", ""))
    name = _SIGNALS.get(signal, signal)
    if code in {"slo_breach", "slo_breach_waits", "slo_breach_settling"}:
        return f"{name} {_value(signal, facts, 'value', scale)}, aim {_value(signal, facts, 'objective', scale)}"
    if code in {"above_target", "below_target"}:
        return f"{name} {_value(signal, facts, 'value', scale)}, aim {_value(signal, facts, 'target', scale)}"
    if code in {"step_out", "step_in"}:
        return f"{name} {_value(signal, facts, 'value', scale)}"
    return code.replace("_", " ")


def _value(signal: str, facts: Mapping[str, Any], key: str, scale: float) -> str:
    value = facts.get(key)
    if not isinstance(value, int | float):
        return "?"
    if signal in _SHARES:
        return f"{value:.0%}".replace("%", " %")
    if signal in _LATENCIES:
        return f"{value * scale:.3g} s"
    return f"{value / scale if signal in _RATES else value:.3g}"
