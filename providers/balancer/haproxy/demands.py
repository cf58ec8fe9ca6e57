"""What an HAProxy must be for this adapter, and what a person must change where it is not.

Does: judge the process that answers and the backend, without changing anything. Does not: start or mend any of them.
Invariant: each refusal is one line that names what was found and what to write instead.
"""

from __future__ import annotations

from typing import Final

from autoscaler.domain.faults import Refused
from providers.balancer.haproxy.reading import Backend, Info, no_admin, no_backend
from providers.balancer.haproxy.runtime import Runtime
from providers.balancer.haproxy.settings import Settings, Strategy

#: `balance` of a backend by strategy, the first of them as we would write it.
BALANCE: Final[dict[Strategy, tuple[str, ...]]] = {
    "round_robin": ("roundrobin",),
    "least_connections": ("leastconn",),
    "weighted": ("roundrobin",),
    "source_hash": ("source", "hdr", "uri", "url_param"),
}
#: No server is called so: the command has no address, so HAProxy can only say why it would not add one.
_TRIAL: Final = "add server {backend}/autoscaler.trial"
_WOULD_ADD: Final = "expects <name> and <addr>"


async def judge(runtime: Runtime, settings: Settings, info: Info, backend: Backend) -> None:
    """Raise Refused unless servers can be added to this backend and it balances as the settings say."""
    name = settings.backend
    if info.old:
        raise Refused(f"HAProxy {info.version} at {runtime.where} is too old: servers at run time need 2.6 or later")
    said = await runtime.ask(_TRIAL.format(backend=name))
    if "Permission denied" in said:
        raise no_admin(runtime)
    if "No such backend" in said:
        raise no_backend(runtime, name)
    if "dynamic load balancing" in said:
        raise Refused(
            f"backend {name} balances by a static algorithm ({backend.algorithm}), to which no server can be added: "
            f"write {_wording(settings)} in it"
        )
    if _WOULD_ADD not in said:
        raise Refused(f"HAProxy {info.version} at {runtime.where} adds no servers at run time: {said[:120]}")
    if backend.mode not in {"", "http"}:
        raise Refused(
            f"backend {name} has mode {backend.mode}, in which one request is not told from another: mode http"
        )
    _judge_strategy(settings, backend.algorithm)


def _judge_strategy(settings: Settings, found: str) -> None:
    if found in BALANCE[settings.strategy]:
        return
    fits = [strategy for strategy, algorithms in BALANCE.items() if found in algorithms]
    instead = f", or set strategy to {' or '.join(fits)}" if fits else ""
    shown = "neither roundrobin, leastconn nor a hash" if found in {"", "unknown"} else found
    raise Refused(
        f"backend {settings.backend} balances by {shown}, the settings say {settings.strategy}: "
        f"write {_wording(settings)} in the backend{instead}"
    )


def _wording(settings: Settings) -> str:
    return " and ".join(f"`{line}`" for line in balance_lines(settings))


def balance_lines(settings: Settings) -> tuple[str, ...]:
    """The lines of a backend that balances as the settings say."""
    if settings.strategy != "source_hash":
        return (f"balance {BALANCE[settings.strategy][0]}",)
    by = f"hdr({settings.hash_header})" if settings.hash_header else "source"
    return (f"balance {by}", "hash-type consistent")
