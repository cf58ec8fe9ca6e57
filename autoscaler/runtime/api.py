"""The admin API: health, metrics, what each pool does and why, and the operators' directives.

Does: read the pools' latest state, and write directives into the ledger. Does not: act on a pool itself (the next tick
reads the directives), listen beyond loopback unless told to, or know who asks (the door before it does).
Invariant: nothing is written without the bearer token; without a configured token the writing routes answer 403.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from typing_extensions import override

from autoscaler import __version__
from autoscaler.domain.base import Duration, InstanceId, Instant, PoolName, ReplicaId, after, instance_of
from autoscaler.domain.decision import SourceFault
from autoscaler.domain.directives import AtLeast, Directives, Pause
from autoscaler.domain.faults import Unreachable
from autoscaler.runtime import views
from autoscaler.runtime.door import CONNECTIONS_MAX, HEAD_MAX, BoundedProtocol, Door
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


Name = Annotated[str, Path(max_length=63, examples=["chat"])]
Limit = Annotated[int, Query(ge=1, le=1000)]
Since = Annotated[float, Query(ge=0, le=10 * 366 * 86400, allow_inf_nan=False)]
Id = Annotated[str, Field(min_length=1, max_length=256)]


class PauseBody(_Body):
    """Which direction to pause."""

    direction: Annotated[str, Field(pattern="^(in|out|both)$")] = "both"


def _whole(value: object) -> object:
    """2.0 is an integer in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class AtLeastBody(_Body):
    """Hold at least `units` for `for_s` seconds."""

    units: Annotated[int, Field(ge=0, le=100_000), BeforeValidator(_whole)]
    for_s: Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)]


class ReplicaBody(_Body):
    """A replica by its id, `instance:port`."""

    replica: Id


class ProtectBody(_Body):
    """Protect an instance, or end that."""

    instance: Id
    on: bool = True


class Api:
    """The HTTP server, in the daemon's own event loop. `bind`, then `start`, then `close`."""

    def __init__(self, settings: ApiSettings, loops: Mapping[PoolName, PoolLoop], services: Services) -> None:
        self._settings = settings
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._app = Door(application(loops, services), host=settings.host, token=settings.token)

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
            self._app,
            http=BoundedProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=HEAD_MAX,
            timeout_graceful_shutdown=2,
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


class Problem(BaseModel):
    """Every answer that is none of 200."""

    detail: str


class _Alive(BaseModel):
    alive: bool
    stuck: list[str]


class _Ready(BaseModel):
    ready: bool
    why: dict[str, str]


def _problems(**why: str) -> dict[int | str, dict[str, Any]]:
    """Answers for the description, `s404="no such pool"`."""
    return {int(status[1:]): {"model": Problem, "description": text} for status, text in why.items()}


_ANY = _problems(
    s400="the request is no HTTP",
    s401="no valid token",
    s403="no token is configured",
    s408="the body did not come in time",
    s409="another installation is meant, or the pool's max does not allow it",
    s413="the body is too large",
    s421="the Host is not one of this daemon",
    s500="an error of the daemon",
)
_POOL = _problems(s404="no such pool, replica or path", s422="a value is not allowed", s503="no ledger")


def application(loops: Mapping[PoolName, PoolLoop], services: Services) -> FastAPI:
    """The routes over these pools; who may ask is for the door to say."""
    app = FastAPI(
        title="autoscaler",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        responses=_ANY,
        dependencies=[Depends(_meant(loops))],
    )
    _errors(app)
    _health(app, loops, services)
    _reading(app, loops, services)
    _Directing(loops, services).routes(app)
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

    @app.exception_handler(Exception)
    async def on_ours(_: Request, error: Exception) -> JSONResponse:
        # Its traceback goes to the log, and only there.
        return JSONResponse({"detail": f"an error of the daemon: {type(error).__name__}"}, status_code=500)


def _health(app: FastAPI, loops: Mapping[PoolName, PoolLoop], services: Services) -> None:
    def late() -> list[str]:
        now = services.clock.now()
        found = []
        for name, loop in loops.items():
            at, allowed = loop.status.tick_at, ALIVE_TICKS * loop.parts.pool.pace.tick
            if now - (loop.born_at if at is None else at) > allowed:
                found.append(str(name))
        return found

    @app.get("/healthz", response_model=_Alive, responses={503: {"model": _Alive, "description": "a pool is stuck"}})
    async def healthz() -> JSONResponse:
        stuck = late()
        return JSONResponse({"alive": not stuck, "stuck": stuck}, status_code=503 if stuck else 200)

    @app.get("/readyz", response_model=_Ready, responses={503: {"model": _Ready, "description": "a pool is not"}})
    async def readyz() -> JSONResponse:
        why = {str(n): lp.status.trouble or "no tick yet" for n, lp in loops.items() if not lp.status.fine}
        return JSONResponse({"ready": not why, "why": why}, status_code=503 if why else 200)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(services.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _reading(app: FastAPI, loops: Mapping[PoolName, PoolLoop], services: Services) -> None:
    @app.get("/v1/pools")
    async def pools() -> Response:
        now = services.clock.now()
        return _json([views.short(loop.status, now) for loop in loops.values()])

    @app.get("/v1/pools/{name}", responses=_POOL)
    async def pool(name: Name) -> Response:
        return _json(views.full(_loop(loops, name).status, services.clock.now()))

    @app.get("/v1/pools/{name}/decisions", responses=_POOL)
    async def decisions(name: Name, limit: Limit = 50, since_s: Since = 86400.0) -> Response:
        loop = _loop(loops, name)
        since = Instant(services.clock.now() - since_s)
        asked = partial(services.ledger.summaries, loop.parts.pool.name, since, limit)
        found = await guarded("ledger", asked, LEDGER_DEADLINE)
        if isinstance(found, SourceFault):
            raise HTTPException(503, f"the ledger does not answer: {found.fault.detail}")
        return _json([one._asdict() for one in found])


class _Directing:
    """The writing routes: each changes one part of the pool's directives and wakes its loop."""

    def __init__(self, loops: Mapping[PoolName, PoolLoop], services: Services) -> None:
        self._loops = loops
        self._services = services
        self._lock = asyncio.Lock()  # read, change, write: one at a time

    def routes(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        # For the description only: the door has looked at the token before a route sees the request.
        token = [Security(HTTPBearer(auto_error=False, scheme_name="token"))]
        post = partial(app.post, dependencies=token, responses=_POOL)

        @post("/v1/pools/{name}/pause")
        async def pause(name: Name, body: PauseBody) -> Response:
            return await self._change(name, pause=Pause(body.direction))

        @post("/v1/pools/{name}/resume")
        async def resume(name: Name) -> Response:
            return await self._change(name, pause=Pause.NONE)

        @post("/v1/pools/{name}/at-least")
        async def at_least(name: Name, body: AtLeastBody) -> Response:
            most = _loop(self._loops, name).parts.pool.bounds.max
            if body.units > most:
                raise HTTPException(409, f"units: {body.units} is more than the pool's max of {most}")
            until = after(self._services.clock.now(), Duration(body.for_s))
            return await self._change(name, at_least=AtLeast(units=body.units, until=until) if body.units else None)

        @post("/v1/pools/{name}/drain")
        async def drain(name: Name, body: ReplicaBody) -> Response:
            return await self._change(name, drain=self._known(name, body.replica))

        @post("/v1/pools/{name}/replace")
        async def replace(name: Name, body: ReplicaBody) -> Response:
            return await self._change(name, replace=self._known(name, body.replica))

        @post("/v1/pools/{name}/protect")
        async def protect(name: Name, body: ProtectBody) -> Response:
            machine = self._machine(name, body.instance)
            return await self._change(name, **{"protect" if body.on else "unprotect": machine})

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
