"""The steps that show that a model is loaded: alive, loaded, and a minimal real inference.

Does: ask a replica step by step and judge each answer. Does not: bound the time (its caller does) or read metrics.
Invariant: a step that fails ends the look; nothing after it is asked, so a loading replica gets no inference.
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from providers._shared.http_client import Answer, HttpClient, NoAnswer, address, json_of
from providers._shared.presets import Generation, LoadedCheck, Preset
from providers._shared.torchserve import model_path, pending_requests, why_not_ready
from providers.probe.http.inference import request_for, served_models, triton_request, what_is_wrong


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps came to."""

    alive: bool
    loaded: bool
    certain: bool = True
    waiting: int | None = None
    detail: str = ""


class Where(msgspec.Struct, kw_only=True):
    """Where one look goes, and how far it came: for the verdict when its time runs out."""

    host: str
    port: int
    management_port: int | None
    step: str = ""
    answered: bool = False


class ModelCheck:
    """The steps of one preset."""

    def __init__(
        self, preset: Preset, client: HttpClient, *, model: str | None, path: str | None, body: bytes | None
    ) -> None:
        self._preset = preset
        self._client = client
        self._model = model
        self._path = path
        self._body = body

    async def look(self, where: Where, *, generate: bool) -> Finding:
        """Take the steps, at most up to the first that fails; never raises but for a cancellation."""
        try:
            return await self._steps(where, generate=generate)
        except NoAnswer as failure:
            alive = where.answered or failure.connected
            return Finding(alive=alive, loaded=False, certain=failure.certain, detail=failure.detail)

    async def _steps(self, where: Where, *, generate: bool) -> Finding:
        answer = await self._get(where, self._preset.live)
        if answer.status != 200:
            return _no(f"GET {self._preset.live}: HTTP {answer.status}")
        model, waiting, wrong = await self._loaded(where, answer)
        if not wrong and generate:
            wrong = await self._generate(where, model)
        return Finding(alive=True, loaded=not wrong, waiting=waiting, detail=wrong)

    async def _loaded(self, where: Where, live: Answer) -> tuple[str | None, int | None, str]:
        """The model's name to ask for, requests waiting for it where this is told, and why it is not loaded."""
        match self._preset.loaded:
            case LoadedCheck.STATUS:
                status = json_of(live)
                said = status.get("status", "ok") if isinstance(status, dict) else "ok"
                return self._model, None, "" if said == "ok" else f"GET {self._preset.live}: status {str(said)[:60]!r}"
            case LoadedCheck.MODELS:
                model, wrong = await self._served(where)
                return model, None, wrong
            case LoadedCheck.TRITON:
                path = self._named("/v2/models/{}/ready")
                status_code = (await self._get(where, path)).status
                return self._model, None, "" if status_code == 200 else f"GET {path}: HTTP {status_code}"
            case LoadedCheck.TORCHSERVE:
                wrong, waiting = await self._workers(where)
                return self._model, waiting, wrong

    async def _served(self, where: Where) -> tuple[str | None, str]:
        """The name to ask for, and what is wrong."""
        answer = await self._get(where, "/v1/models")
        if answer.status != 200:
            return None, f"GET /v1/models: HTTP {answer.status}"
        served = served_models(json_of(answer))
        if not served:
            return None, "GET /v1/models: lists no model"
        if self._model is not None and self._model not in served:
            shown = ", ".join(name[:60] for name in served[:3])
            return None, f"GET /v1/models: found {shown}, not {self._model}"
        return self._model or served[0], ""

    async def _workers(self, where: Where) -> tuple[str, int | None]:
        path = model_path(self._model or "")
        answer = await self._get(where, path, port=where.management_port)
        if answer.status != 200:
            return f"GET {path} (management): HTTP {answer.status}", None
        document = json_of(answer)
        return why_not_ready(document), pending_requests(document)

    async def _generate(self, where: Where, model: str | None) -> str:
        """What is wrong with a minimal inference; empty when it has content."""
        path, body = request_for(self._preset.generation, model)
        if self._preset.generation is Generation.TRITON and self._body is None:
            described = self._named("/v2/models/{}")
            answer = await self._get(where, described)
            path, body, wrong = triton_request(json_of(answer), self._model or "")
            if answer.status != 200 or wrong:
                return f"GET {described}: {wrong if answer.status == 200 else f'HTTP {answer.status}'}"
        path, body = self._path or path, self._body or body
        where.step = f"POST {path}"
        answer = await self._client.post(address(where.host, where.port, path), body)
        where.answered = True
        if answer.status != 200:
            return f"POST {path}: HTTP {answer.status}"
        wrong = what_is_wrong(answer.body, json_of(answer), self._preset.generation, own=self._path is not None)
        return f"POST {path}: {wrong}" if wrong else ""

    async def _get(self, where: Where, path: str, port: int | None = None) -> Answer:
        where.step = f"GET {path}"
        answer = await self._client.get(address(where.host, port or where.port, path))
        where.answered = True
        return answer

    def _named(self, template: str) -> str:
        return template.format(quote(self._model or "", safe=""))


def _no(detail: str) -> Finding:
    return Finding(alive=True, loaded=False, detail=detail)
