"""The admin API: health, metrics, what each pool does and why, and the operators' directives.

Does: read the pools' latest state, and write directives into the ledger. Does not: act on a pool itself (the next tick
reads the directives), or listen beyond loopback unless told to.
Invariant: nothing is written without the bearer token; without a configured token the writing routes answer 403.
"""

import asyncio
import contextlib
import hmac
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from typing_extensions import override

from autoscaler.domain.base import Duration, InstanceId, Instant, PoolName, ReplicaId, after, instance_of
from autoscaler.domain.directives import AtLeast, Directives, Pause
from autoscaler.domain.faults import PortFault, Unreachable
from autoscaler.runtime import views
from autoscaler.runtime.loop import PoolLoop
from autoscaler.runtime.observer import guarded
from autoscaler.runtime.parts import Services

#: A pool is alive when its last tick ended no longer ago than this many ticks.
ALIVE_TICKS = 5
LEDGER_DEADLINE = Duration(5.0)
#: A client may say which installation it means.
INSTALLATION_HEADER = "X-Autoscaler-Installation"


class ApiSettings(NamedTuple):
    """Where to listen. `token`: what writing routes ask for; None: they are off."""

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PauseBody(_Body):
    """Which direction to pause."""

    direction: Annotated[str, Field(pattern="^(in|out|both)$")] = "both"


class AtLeastBody(_Body):
    """Hold at least `units` for `for_s` seconds."""

    units: Annotated[int, Field(ge=0)]
    for_s: Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)]


class ReplicaBody(_Body):
    """A replica by its id, `instance:port`."""

    replica: str


class ProtectBody(_Body):
    """Protect an instance, or end that."""

    instance: str
    on: bool = True


class Api:
    """The HTTP server, in the daemon's own event loop. `bind`, then `start`, then `close`."""

    def __init__(self, settings: ApiSettings, loops: Mapping[PoolName, PoolLoop], services: Services) -> None:
        self._settings = settings
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.app = application(loops, services, settings.token)

    def bind(self) -> int:
        """Take the port and return it (port 0 takes a free one). Raises Unreachable with one clear line."""
        host, port = self._settings.host, self._settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        taken = socket.socket(family, socket.SOCK_STREAM)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((host, port))
            taken.listen(128)
        except OSError as error:
            taken.close()
            why = error.strerror or str(error)
            raise Unreachable(f"admin API: cannot listen on {host}:{port}: {why}; choose another port") from error
        self._socket = taken
        return int(taken.getsockname()[1])

    def start(self) -> None:
        """Answer requests, in a task of its own, until `close`."""
        config = uvicorn.Config(
            self.app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2
        )
        self._server = _QuietServer(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket] if self._socket else None))

    async def close(self) -> None:
        """Answer what is under way and give the port back, also when it was never served."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait({self._serving}, timeout=5.0)
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _QuietServer(uvicorn.Server):
    """Signals belong to the supervisor."""

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def application(loops: Mapping[PoolName, PoolLoop], services: Services, token: str | None) -> FastAPI:
    """The routes over these pools."""
    app = FastAPI(
        title="autoscaler",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        dependencies=[Depends(_meant(loops))],
    )
    _errors(app)
    _health(app, loops, services)
    _reading(app, loops, services)
    _Directing(loops, services, token).routes(app)
    return app


def _meant(loops: Mapping[PoolName, PoolLoop]) -> Callable[[Request], None]:
    """Refuse a client that says it wants another installation: two daemons' configs may name one address."""

    def check(request: Request) -> None:
        wanted = request.headers.get(INSTALLATION_HEADER)
        ours = {loop.parts.pool.installation for loop in loops.values()}
        if wanted is not None and ours and wanted not in ours:
            raise HTTPException(409, f"this daemon is of installation {', '.join(sorted(ours))}, not {wanted[:80]}")

    return check


def _errors(app: FastAPI) -> None:
    """Every error is JSON with one clear line."""

    @app.exception_handler(StarletteHTTPException)
    async def on_http(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"detail": str(error.detail)}, status_code=error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def on_body(_: Request, error: RequestValidationError) -> JSONResponse:
        lines = [f"{'.'.join(str(part) for part in one['loc'][1:]) or 'body'}: {one['msg']}" for one in error.errors()]
        return JSONResponse({"detail": "; ".join(lines)}, status_code=422)

    @app.exception_handler(PortFault)
    async def on_fault(_: Request, error: PortFault) -> JSONResponse:
        return JSONResponse({"detail": f"the ledger does not answer: {error}"}, status_code=503)


def _health(app: FastAPI, loops: Mapping[PoolName, PoolLoop], services: Services) -> None:
    def late() -> list[str]:
        now = services.clock.now()
        found = []
        for name, loop in loops.items():
            at, allowed = loop.status.tick_at, ALIVE_TICKS * loop.parts.pool.pace.tick
            if now - (loop.born_at if at is None else at) > allowed:
                found.append(str(name))
        return found

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        stuck = late()
        return JSONResponse({"alive": not stuck, "stuck": stuck}, status_code=503 if stuck else 200)

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        why = {str(n): lp.status.trouble or "no tick yet" for n, lp in loops.items() if not lp.status.fine}
        return JSONResponse({"ready": not why, "why": why}, status_code=503 if why else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(services.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _reading(app: FastAPI, loops: Mapping[PoolName, PoolLoop], services: Services) -> None:
    @app.get("/v1/pools")
    async def pools() -> Response:
        now = services.clock.now()
        return _json([views.short(loop.status, now) for loop in loops.values()])

    @app.get("/v1/pools/{name}")
    async def pool(name: str) -> Response:
        return _json(views.full(_loop(loops, name).status, services.clock.now()))

    @app.get("/v1/pools/{name}/decisions")
    async def decisions(name: str, limit: int = 50, since_s: float = 86400.0) -> Response:
        loop = _loop(loops, name)
        if not 1 <= limit <= 1000:
            raise HTTPException(422, "limit: from 1 to 1000")
        since = Instant(services.clock.now() - since_s)
        async with asyncio.timeout(LEDGER_DEADLINE):
            found = await services.ledger.summaries(loop.parts.pool.name, since, limit)
        return _json([one._asdict() for one in found])


class _Directing:
    """The writing routes: each changes one part of the pool's directives and wakes its loop."""

    def __init__(self, loops: Mapping[PoolName, PoolLoop], services: Services, token: str | None) -> None:
        self._loops = loops
        self._services = services
        self._token = token
        self._lock = asyncio.Lock()  # read, change, write: one at a time

    def routes(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        guard = [Depends(self._authorised)]

        @app.post("/v1/pools/{name}/pause", dependencies=guard)
        async def pause(name: str, body: PauseBody) -> Response:
            return await self._change(name, pause=Pause(body.direction))

        @app.post("/v1/pools/{name}/resume", dependencies=guard)
        async def resume(name: str) -> Response:
            return await self._change(name, pause=Pause.NONE)

        @app.post("/v1/pools/{name}/at-least", dependencies=guard)
        async def at_least(name: str, body: AtLeastBody) -> Response:
            most = _loop(self._loops, name).parts.pool.bounds.max
            if body.units > most:
                raise HTTPException(422, f"units: {body.units} is more than the pool's max of {most}")
            until = after(self._services.clock.now(), Duration(body.for_s))
            return await self._change(name, at_least=AtLeast(units=body.units, until=until) if body.units else None)

        @app.post("/v1/pools/{name}/drain", dependencies=guard)
        async def drain(name: str, body: ReplicaBody) -> Response:
            return await self._change(name, drain=self._known(name, body.replica))

        @app.post("/v1/pools/{name}/replace", dependencies=guard)
        async def replace(name: str, body: ReplicaBody) -> Response:
            return await self._change(name, replace=self._known(name, body.replica))

        @app.post("/v1/pools/{name}/protect", dependencies=guard)
        async def protect(name: str, body: ProtectBody) -> Response:
            machine = self._machine(name, body.instance)
            return await self._change(name, **{"protect" if body.on else "unprotect": machine})

    async def _authorised(self, request: Request) -> None:
        if self._token is None:
            raise HTTPException(403, "no token is configured for the admin API, so it changes nothing; set one")
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self._token.encode())
        if kind.lower() != "bearer" or not same:
            raise HTTPException(401, "a valid bearer token is needed", {"WWW-Authenticate": "Bearer"})

    def _known(self, name: str, replica: str) -> ReplicaId:
        decision = _loop(self._loops, name).status.decision
        known = sorted(one.id for one in decision.replicas) if decision else []
        if replica not in known:
            raise HTTPException(404, f"replica: pool {name} has no {replica!r}; it has {', '.join(known) or 'none'}")
        return ReplicaId(replica)

    def _machine(self, name: str, given: str) -> InstanceId:
        """A machine by its own id or by that of a replica on it: a mark has one spelling, so that it can be undone."""
        decision = _loop(self._loops, name).status.decision
        replicas = {one.id for one in decision.replicas} if decision else set()
        return instance_of(ReplicaId(given)) if given in replicas else InstanceId(given)

    async def _change(self, name: str, **change: Any) -> Response:
        """Apply one change to the directives in force, and forget marks of replicas that are gone."""
        loop, ledger = _loop(self._loops, name), self._services.ledger
        pool = loop.parts.pool.name
        async with self._lock:
            known = await guarded("ledger", partial(ledger.directives, pool), LEDGER_DEADLINE)
            if not isinstance(known, Directives):
                raise HTTPException(503, f"the ledger does not answer: {known.fault.detail}")
            changed = changed_directives(_pruned(known, loop), change)
            failed = await guarded("ledger", partial(ledger.direct, pool, changed, "api"), LEDGER_DEADLINE)
            if failed is not None:
                raise HTTPException(503, f"the ledger does not answer: {failed.fault.detail}")
        loop.wake("directive")
        return _json(changed)


def changed_directives(known: Directives, change: Mapping[str, Any]) -> Directives:
    """The directives after one change: marks are added, single values replaced, `unprotect` taken out."""
    fields: dict[str, Any] = {}
    for field, value in change.items():
        match field:
            case "pause" | "at_least":
                fields[field] = value
            case "unprotect":
                fields["protect"] = known.protect - {value}
            case _:
                fields[field] = getattr(known, field) | {value}
    return msgspec.structs.replace(known, **fields)


def _pruned(known: Directives, loop: PoolLoop) -> Directives:
    decision = loop.status.decision
    if decision is None:
        return known
    here = {one.id for one in decision.replicas}
    return msgspec.structs.replace(known, drain=known.drain & here, replace=known.replace & here)


def _loop(loops: Mapping[PoolName, PoolLoop], name: str) -> PoolLoop:
    loop = loops.get(PoolName(name))
    if loop is None:
        raise HTTPException(404, f"no pool {name!r}; there are: {', '.join(sorted(loops)) or 'none'}")
    return loop


def _json(value: object) -> Response:
    """JSON by msgspec: it knows our values, and sorted keys make the answer stable."""
    return Response(json.dumps(msgspec.to_builtins(value), sort_keys=True), media_type="application/json")
