"""Look at a replica over HTTP: is it alive, is its model loaded, does it generate, what is inside it?

Does: one bounded look, by the rules of a preset. Does not: remember earlier looks or count passes (runtime.prober
does).
Invariant: `loaded` is true only when every step that was asked for said so within its time; with `generate`, the last
step is a real inference whose answer has content, since health endpoints, metrics and even the servers' own counts of
success can be fine while no inference works.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import msgspec

from autoscaler.domain.base import Duration
from autoscaler.domain.replica import Endpoint, ProbeVerdict
from autoscaler.ports.build import Context
from providers._shared.http_client import HttpClient, NoAnswer, address, headers_from_environment
from providers._shared.metrics_page import ACCEPT, plain, read_page, sum_of, total
from providers._shared.presets import PRESETS, PROCESS_START, mistake_in_preset, mistakes_in_ports
from providers.probe.http.model import Finding, ModelCheck, Where

if TYPE_CHECKING:
    from autoscaler.ports.probe import Probe


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to look. Durations in seconds.

    `port`: where the server answers checks, when it is not the port that gets traffic. `model`: the served name; read
    from /v1/models when not given, needed for Triton and TorchServe. `generate`: ask for a real inference before
    admission; `generate_path`, `generate_body` (JSON text): a request of one's own for it, where the preset's does not
    fit the model. `timeout`: for the whole look; `generate_timeout`: for the whole look when it generates, because a
    first inference compiles kernels. `headers`: a header's name to the environment variable that holds its value;
    `token_env`: the variable that holds a bearer token.
    """

    preset: str
    port: int | None = None
    model: str | None = None
    generate: bool = True
    generate_path: str | None = None
    generate_body: str | None = None
    timeout: Duration = Duration(5.0)
    generate_timeout: Duration = Duration(20.0)
    metrics_port: int | None = None
    metrics_path: str | None = None
    management_port: int | None = None
    headers: dict[str, str] = {}
    token_env: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError with all mistakes."""
        mistakes = [mistake_in_preset(self.preset), *self._mistakes_in_times(), *self._mistakes_in_generation()]
        preset = PRESETS.get(self.preset)
        if preset is not None and preset.needs_model and not self.model:
            mistakes.append(f"model: found nothing, preset {self.preset} needs the name of the model")
        mistakes += mistakes_in_ports(
            {"port": self.port, "metrics_port": self.metrics_port, "management_port": self.management_port}
        )
        if mistakes := [mistake for mistake in mistakes if mistake]:
            raise ValueError("; ".join(mistakes))

    def _mistakes_in_times(self) -> list[str]:
        preset = PRESETS.get(self.preset)
        least = 0.0 if preset is None else preset.slowest_health_s
        return [
            f"{field}: found {value:g} s, allowed is more than {least:g} s"
            + (f", since a healthy {self.preset} takes that long to say so" if least else "")
            for field, value in (("timeout", self.timeout), ("generate_timeout", self.generate_timeout))
            if not least < value < float("inf")
        ]

    def _mistakes_in_generation(self) -> list[str]:
        mistakes = [
            f"{field}: found {path!r}, allowed is a path that starts with one /"
            for field, path in (("generate_path", self.generate_path), ("metrics_path", self.metrics_path))
            if path is not None and (not path.startswith("/") or path.startswith("//"))
        ]
        if self.generate_body is not None:
            try:
                json.loads(self.generate_body)
            except ValueError as error:
                mistakes.append(f"generate_body: found no JSON: {error}")
        return mistakes


class _Figures(msgspec.Struct, frozen=True, kw_only=True):
    running: int | None = None
    waiting: int | None = None
    tokens_total: float | None = None
    boot: str = ""
    answered: bool = False
    detail: str = ""


class HttpProbe:
    """Looks at replicas of one pool, many at a time."""

    def __init__(self, settings: Settings, headers: dict[str, str]) -> None:
        self._settings = settings
        self._preset = preset = PRESETS[settings.preset]
        self._client = HttpClient(headers)
        self._model = ModelCheck(
            preset,
            self._client,
            model=settings.model,
            path=settings.generate_path,
            body=None if settings.generate_body is None else settings.generate_body.encode(),
        )
        names = (*preset.running, *preset.waiting, *preset.progress, *PROCESS_START)
        self._wanted = frozenset(map(plain, names))

    async def check(self, endpoint: Endpoint, *, generate: bool) -> ProbeVerdict:
        """One look, bounded in time and size.

        A refused connection or an answer that says no is certain; a timeout is not. Figures are read beside the check
        and do not decide it: running, waiting and the start of the process stay unknown where they cannot be read.
        `tokens_total` is the sum of the counters that move while a request is being generated; it is unknown for
        servers that count tokens only when a request ends (TGI), because standing still would prove nothing there.
        """
        generate = generate and self._settings.generate
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._look(endpoint, generate=generate))
            reading = group.create_task(self._figures(endpoint))
        found, figures = looking.result(), reading.result()
        return ProbeVerdict(
            alive=found.alive or figures.answered,
            loaded=found.loaded,
            certain=found.certain,
            running=figures.running,
            waiting=found.waiting if figures.waiting is None else figures.waiting,
            tokens_total=figures.tokens_total,
            boot=figures.boot,
            detail="; ".join(filter(None, (found.detail, figures.detail if found.loaded else ""))),
        )

    async def aclose(self) -> None:
        """Release sockets."""
        await self._client.aclose()

    async def _look(self, endpoint: Endpoint, *, generate: bool) -> Finding:
        limit = self._settings.generate_timeout if generate else self._settings.timeout
        where = Where(
            host=endpoint.host,
            port=self._settings.port or endpoint.port,
            management_port=self._settings.management_port or self._preset.management_port,
        )
        try:
            async with asyncio.timeout(limit):
                return await self._model.look(where, generate=generate)
        except TimeoutError:
            detail = f"{where.step or 'GET ' + self._preset.live}: no answer within {limit:g} s"
            return Finding(alive=where.answered, loaded=False, certain=False, detail=detail)

    async def _figures(self, endpoint: Endpoint) -> _Figures:
        settings, preset = self._settings, self._preset
        path = settings.metrics_path or preset.metrics_path
        if path is None:
            return _Figures()
        port = settings.metrics_port or preset.metrics_port or settings.port or endpoint.port
        try:
            async with asyncio.timeout(settings.timeout):
                answer = await self._client.get(address(endpoint.host, port, path), accept=ACCEPT)
        except TimeoutError:
            return _Figures(detail=f"metrics: no answer within {settings.timeout:g} s")
        except NoAnswer as failure:
            return _Figures(detail=f"metrics: {failure.detail}")
        if answer.status != 200:
            return _Figures(answered=True, detail=f"metrics: HTTP {answer.status}")
        page = read_page(answer.body, self._wanted, answer.content_type)
        if page.fault:
            return _Figures(answered=True, detail=page.fault)
        started = total(page, PROCESS_START)
        return _Figures(
            running=_whole(total(page, preset.running)),
            waiting=_whole(total(page, preset.waiting)),
            tokens_total=sum_of(page, preset.progress),
            answered=True,
            boot="" if started is None else f"{started:.2f}",
        )


def build(settings: Settings, context: Context) -> HttpProbe:  # noqa: ARG001 - all providers are built alike
    """Make the probe of one pool; raises ConfigError for a secret that the environment does not hold."""
    return HttpProbe(settings, headers_from_environment(settings.headers, settings.token_env))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


if TYPE_CHECKING:
    _adapter: type[Probe] = HttpProbe
