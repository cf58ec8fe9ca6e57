"""Load, straight from the replicas: one page of metrics each, a few dozen at a time.

Does: fetch, remember each replica's counters over a window, and give readings. Does not: judge them (engine.trust
does).
Invariant: sample() never raises for what a replica does, and takes at most twice `timeout`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from autoscaler.domain.base import Duration, ReplicaId
from autoscaler.domain.load import LoadSample, Signal
from autoscaler.domain.replica import Endpoint
from autoscaler.ports.build import Context
from autoscaler.ports.clock import Clock
from providers._shared.gpus import GPU_NAMES, Gpus
from providers._shared.http_client import Answer, HttpClient, NoAnswer, address, headers_from_environment, json_of
from providers._shared.looks import Look, read_counters, read_gauges, read_start, wanted_names
from providers._shared.meter import Meter
from providers._shared.metrics_page import ACCEPT, Page, read_page
from providers._shared.presets import PRESETS, mistake_in_preset, mistakes_in_ports
from providers._shared.readings import Looks, idleness_of, reading_of, replica_loads
from providers._shared.torchserve import model_path, pending_requests

if TYPE_CHECKING:
    from autoscaler.ports.telemetry import Telemetry


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to scrape. Durations in seconds.

    `model`: its name, needed for the queue of TorchServe, which only the management port tells; unused otherwise.
    `path`, `metrics_port`, `management_port`: where they are, when not where the preset says. `window`: over which
    rates and quantiles are taken; when ticks are further apart, they are taken from tick to tick. `timeout`: for one
    page. `gpu_exporter_port`: of a GPU exporter (dcgm-exporter 9400, nvidia_gpu_exporter 9835) on each replica's host;
    all GPUs of a host count for each of its replicas. `gpus`: how the GPUs, or MIG slices, of a replica become one
    number; over replicas it is always the mean. `concurrency`: pages fetched at a time. `headers`: a header's
    name to the environment variable that holds its value; `token_env`: the variable that holds a bearer token.
    """

    preset: str
    model: str | None = None
    path: str | None = None
    management_port: int | None = None
    metrics_port: int | None = None
    window: Duration = Duration(30.0)
    timeout: Duration = Duration(5.0)
    gpu_exporter_port: int | None = None
    gpu_exporter_path: str = "/metrics"
    gpus: Gpus = Gpus.MEAN
    concurrency: int = 64
    headers: dict[str, str] = {}
    token_env: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError with all mistakes."""
        mistakes = [
            f"{field}: found {value:g} s, allowed is more than 0 s"
            for field, value in (("window", self.window), ("timeout", self.timeout))
            if not 0 < value < float("inf")
        ]
        mistakes += [
            f"{field}: found {path!r}, allowed is a path that starts with one /"
            for field, path in (("path", self.path), ("gpu_exporter_path", self.gpu_exporter_path))
            if path is not None and (not path.startswith("/") or path.startswith("//"))
        ]
        if not 1 <= self.concurrency <= 256:
            mistakes.append(f"concurrency: found {self.concurrency}, allowed is 1 to 256")
        mistakes += mistakes_in_ports(
            {
                "metrics_port": self.metrics_port,
                "management_port": self.management_port,
                "gpu_exporter_port": self.gpu_exporter_port,
            }
        )
        preset = PRESETS.get(self.preset)
        if preset is None:
            mistakes.append(mistake_in_preset(self.preset))
        elif preset.metrics_path is None:
            with_metrics = ", ".join(name for name, one in PRESETS.items() if one.metrics_path)
            mistakes.append(f"preset: {self.preset} has no metrics, allowed is one of {with_metrics}")
        if mistakes:
            raise ValueError("; ".join(mistakes))


class Scrape:
    """The telemetry of one pool."""

    def __init__(self, settings: Settings, headers: dict[str, str], clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._preset = PRESETS[settings.preset]
        self._client = HttpClient(headers)
        self._wanted = wanted_names(self._preset)
        self._meters: dict[ReplicaId, Meter] = {}

    async def sample(self, signals: frozenset[Signal], replicas: Sequence[Endpoint]) -> LoadSample:
        """Ask every replica once. A replica that is not named any more is forgotten."""
        gates = asyncio.Semaphore(self._settings.concurrency)
        # Several replicas may stand on one machine: its GPU exporter is asked once.
        hosts = {endpoint.host for endpoint in replicas} if self._settings.gpu_exporter_port else set()
        async with asyncio.TaskGroup() as group:
            exporters = {host: group.create_task(self._gpu_page(host, gates)) for host in sorted(hosts)}
            looking = [
                group.create_task(self._look(endpoint, exporters.get(endpoint.host), gates)) for endpoint in replicas
            ]
        looks = [task.result() for task in looking]
        went_back = self._remember(looks)
        seen = Looks(
            preset=self._preset, at=self._clock.now(), looks=looks, meters=self._meters, source="scrape",
            went_back=went_back,
        )  # fmt: skip
        return LoadSample(
            at=seen.at,
            readings={signal: reading_of(signal, seen) for signal in sorted(signals)},
            replicas=replica_loads(seen),
            idleness=idleness_of(signals, seen),
            detail=f"{len(seen.answered)} of {len(looks)} replicas answered",
        )

    async def aclose(self) -> None:
        """Release sockets."""
        await self._client.aclose()

    def _remember(self, looks: Sequence[Look]) -> bool:
        asked = {look.replica for look in looks}
        self._meters = {replica: meter for replica, meter in self._meters.items() if replica in asked}
        went_back = False
        for look in itertools.filterfalse(lambda look: look.fault, looks):
            meter = self._meters.setdefault(look.replica, Meter(self._settings.window))
            went_back |= meter.advance(look.at, look.counters, look.started)
        return went_back

    async def _look(self, endpoint: Endpoint, exporter: asyncio.Task[Page] | None, gates: asyncio.Semaphore) -> Look:
        settings = self._settings
        port = settings.metrics_port or self._preset.metrics_port or endpoint.port
        path = settings.path or self._preset.metrics_path or "/metrics"
        page = await self._page((endpoint.host, port, path), self._wanted, gates)
        at = self._clock.now()
        pending = None if page.fault else await self._pending(endpoint, gates)
        gpu_page = None if exporter is None else await exporter
        if page.fault:
            return Look(replica=endpoint.replica, at=at, fault=page.fault)
        gauges = read_gauges(page, gpu_page, self._preset, settings.gpus)
        return Look(
            replica=endpoint.replica,
            at=at,
            gpu_fault="" if gpu_page is None else gpu_page.fault,
            gauges=gauges if pending is None else {**gauges, Signal.QUEUE_LENGTH: float(pending)},
            counters=read_counters(page, self._preset),
            started=read_start(page),
        )

    async def _gpu_page(self, host: str, gates: asyncio.Semaphore) -> Page:
        port = self._settings.gpu_exporter_port or 0
        page = await self._page((host, port, self._settings.gpu_exporter_path), GPU_NAMES, gates)
        return Page(fault=f"GPU exporter: {page.fault}") if page.fault else page

    async def _pending(self, endpoint: Endpoint, gates: asyncio.Semaphore) -> int | None:
        """Requests in TorchServe's queue; None for other servers and when it does not say."""
        port = self._settings.management_port or self._preset.management_port
        if port is None or self._settings.model is None:
            return None
        answer = await self._fetch((endpoint.host, port, model_path(self._settings.model)), gates)
        return None if isinstance(answer, str) else pending_requests(json_of(answer))

    async def _page(self, where: tuple[str, int, str], wanted: frozenset[str], gates: asyncio.Semaphore) -> Page:
        answer = await self._fetch(where, gates)
        return Page(fault=answer) if isinstance(answer, str) else read_page(answer.body, wanted, answer.content_type)

    async def _fetch(self, where: tuple[str, int, str], gates: asyncio.Semaphore) -> Answer | str:
        """One answer, or why there is none; waiting for a gate counts, so that a sample ends in time whatever hangs."""
        try:
            async with asyncio.timeout(self._settings.timeout), gates:
                answer = await self._client.get(address(*where), accept=ACCEPT)
        except TimeoutError:
            return f"no answer within {self._settings.timeout:g} s"
        except NoAnswer as failure:
            return failure.detail
        return answer if answer.status == 200 else f"GET {where[2]}: HTTP {answer.status}"


def build(settings: Settings, context: Context) -> Scrape:
    """Make the telemetry of one pool; raises ConfigError for a secret that the environment does not hold."""
    return Scrape(settings, headers_from_environment(settings.headers, settings.token_env), context.clock)


if TYPE_CHECKING:
    _adapter: type[Telemetry] = Scrape
