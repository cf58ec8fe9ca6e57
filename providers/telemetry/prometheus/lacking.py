"""What a Prometheus server lacks for a pool: for `check --online`.

Does: look for `up`, for the preset's series and for what the user's queries give. Does not: need any replica.
Invariant: it asks for counts and never for the series themselves, so that it is cheap on a large server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final

from autoscaler.domain.load import Signal
from autoscaler.ports.diagnosis import Lack
from providers._shared.presets import PRESETS, Preset
from providers.telemetry.prometheus.series import UP, gpu_names, names, selector, spelled
from providers.telemetry.prometheus.settings import Match, Settings

if TYPE_CHECKING:
    from providers.telemetry.prometheus.session import Answer

#: More targets than this are no pool: every look would read them all.
_MANY: Final = 2000

Ask = Callable[[str], Awaitable["Answer"]]


async def lacks(ask: Ask, settings: Settings, signals: frozenset[Signal]) -> list[Lack]:
    """One line for each thing that is not there. Raises Unreachable."""
    preset = PRESETS[settings.preset] if settings.preset is not None else None
    found = await _targets(ask, settings)
    for signal in sorted(signals):
        query = settings.queries.get(signal)
        if query is not None:
            rows = (await ask(query.promql)).rows
            if not rows:
                found.append(Lack(f"queries.{signal} gives nothing", "try its promql in the server's own page"))
        elif preset is None:
            found.append(Lack(f"nothing says how to read {signal}", f"add queries.{signal}, or a preset"))
        else:
            found += await _series(ask, settings, preset, signal)
    return found


async def _targets(ask: Ask, settings: Settings) -> list[Lack]:
    match = settings.replicas
    under = _under(match)
    count = await _count(ask, f"count({selector([UP], match.selector)})")
    if not count:
        return [
            Lack(
                f"no `up` {under}: a replica that dies is noticed by the age of its samples only",
                "let Prometheus scrape the replicas, and select by target labels (job, namespace) only",
            )
        ]
    if count > _MANY:
        return [Lack(f"{count:.0f} targets {under} are read at each look", 'set replicas.selector, as job="vllm"')]
    named = _and(match.selector, f'{match.label}!=""')
    labelled = await _count(ask, f"count({selector([UP], named)})")
    if not labelled:
        return [Lack(f"no `up` {under} has the label {match.label}", "set replicas.label to one that names replicas")]
    return []


async def _series(ask: Ask, settings: Settings, preset: Preset, signal: Signal) -> list[Lack]:
    """Whether the names of one signal are known to the server."""
    gpu = settings.gpu if signal is Signal.GPU_UTILIZATION else None
    wanted = sorted(set(_of_signal(preset, signal) if gpu is None else gpu_names()) - {UP})
    match = settings.replicas if gpu is None else gpu
    if not wanted:
        return [Lack(f"a {preset.name} server exports no {signal}", f"take another signal, or add queries.{signal}")]
    if await _count(ask, f"count({selector(wanted, match.selector)})"):
        return []
    mend = "set gpu to match a GPU exporter" if signal is Signal.GPU_UTILIZATION and gpu is None else ""
    mend = mend or "let Prometheus scrape the replicas' own metrics, or correct preset and selector"
    return [Lack(f"no series {wanted[0]} {_under(match)}, which {signal} needs", mend)]


def _of_signal(preset: Preset, signal: Signal) -> Iterator[str]:
    """The names that this signal adds to what is always asked for."""
    own = {Signal.QUEUE_LENGTH: preset.waiting, Signal.RUNNING: preset.running}
    if signal in own:
        yield from spelled(own[signal])
    elif signal is Signal.REQUEST_RATE:
        either = preset.arrivals or preset.completions
        yield from spelled(f"{name}{end}" for name in either for end in ("", "_total"))
    else:
        yield from set(names(preset, (signal,), own_gpus=True)) - set(names(preset, (), own_gpus=True))


async def _count(ask: Ask, promql: str) -> float:
    rows = (await ask(promql)).rows
    return float(rows[0].value[1]) if rows and rows[0].value is not None else 0.0


def _under(match: Match) -> str:
    return f"under {{{match.selector}}}" if match.selector else "on the server"


def _and(matchers: str, more: str) -> str:
    return f"{matchers.strip().rstrip(',')},{more}" if matchers.strip() else more
