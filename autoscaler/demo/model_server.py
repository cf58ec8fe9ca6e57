"""A stand-in for a model server: vLLM's API, metrics and manners on a machine without a GPU.

    python -m autoscaler.demo.model_server --port 8000 --time-scale 20 --load-s 80 --stats-dir stats

It answers as slowly as the named GPU profile would, `time-scale` times as fast: load delay, prefill and
decode are all divided, so proportions stay. It generates words without meaning, keeps no state between
requests, and does not decide what to do with a fault that it was told to show.

Invariant: it generates nothing before its load delay has passed, whatever it claims meanwhile.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable

import msgspec
import psutil
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from autoscaler.demo import openai_api
from autoscaler.demo.batching import ContinuousBatch
from autoscaler.demo.clocked_batch import ClockedBatch, TokenStream
from autoscaler.demo.openai_api import PROBE_HEADER, Asked, BadRequestError, Reply
from autoscaler.demo.replica_metrics import ReplicaMetrics
from autoscaler.demo.replica_stats import ReplicaStats, StatsFile
from autoscaler.demo.server_options import Fault, ServerOptions, WhileLoading, read_options

_JSON = "application/json"
_EXIT_PORT_TAKEN = 3
_STATS_EVERY_S = 1.0
_KEEPALIVE_S = 3600.0  # a server that closes idle connections first races with the balancer's next request
_ABORT_S = 0.01
_CRASHED = 70

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ModelServer:
    """One replica: its load, its batch, its HTTP face and its faults."""

    def __init__(self, options: ServerOptions, started_at: float) -> None:
        """Must be made inside a running loop."""
        self._options = options
        self._started_at = started_at
        self._loaded = False
        self._fault: Fault | None = options.fail if options.fail is Fault.NEVER_LOAD else None
        self._asked_to_stop = asyncio.Event()
        self._stopping = False
        self._clocked = ClockedBatch(ContinuousBatch(options.profile, options.limits), options.time_scale)
        self._metrics = ReplicaMetrics(
            model=options.model,
            gpu=options.profile.gpu,
            port=options.port,
            started_at=started_at,
            time_scale=options.time_scale,
        )
        self._stats = StatsFile(
            ReplicaStats(
                port=options.port,
                pid=os.getpid(),
                model=options.model,
                time_scale=options.time_scale,
                started_at=started_at,
            ),
            options.stats_path,
        )
        self._replies = 0
        self._open: set[asyncio.Transport] = set()

    def stop(self) -> None:
        """End as on SIGTERM."""
        self._asked_to_stop.set()

    async def run(self) -> None:
        """Load, serve until SIGTERM or SIGINT, then abort what is in flight, as vLLM does by default."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        self._stats.write()
        # vLLM binds first and listens once the engine is up: the port is taken, and refuses.
        with _bound(self._options) as listener:
            runner = web.AppRunner(
                self._app(),
                handler_cancellation=True,  # a client that goes away frees its slot
                access_log=None,
                keepalive_timeout=_KEEPALIVE_S,
                shutdown_timeout=_ABORT_S,
            )
            await runner.setup()
            site = web.SockSite(runner, listener)
            work = asyncio.create_task(self._live(site))
            stopped = asyncio.create_task(self._asked_to_stop.wait())
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            self._stopping = True
            work.cancel()
            stopped.cancel()
            ends = await asyncio.gather(work, stopped, return_exceptions=True)
            for transport in list(self._open):
                transport.abort()
            await runner.cleanup()
        if isinstance(ends[0], OSError):  # another process listened on the port first
            raise ends[0]
        self._stats.stats.exited_at = time.time()
        self._stats.write_if_possible()

    async def _live(self, site: web.SockSite) -> None:
        options = self._options
        refuses = options.while_loading is WhileLoading.REFUSE
        if not refuses:
            await site.start()
        if self._fault is Fault.NEVER_LOAD:
            await self._keep_writing()
        jitter = random.Random(f"{options.seed}:{options.port}").uniform(-1.0, 1.0) * options.load_jitter
        load_s = options.load_s * (1.0 + jitter) / options.time_scale
        await asyncio.sleep(max(0.0, self._started_at + load_s - time.time()))
        self._loaded = True
        self._stats.note_loaded()
        if refuses:
            await site.start()
        if options.fail is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(options.fail_after_s / options.time_scale, self._show, options.fail)
        await self._keep_writing()

    async def _keep_writing(self) -> None:
        while True:
            await asyncio.sleep(_STATS_EVERY_S)
            self._stats.write_if_possible()

    def _show(self, fault: Fault | None) -> None:
        if fault is Fault.EXIT:
            os._exit(_CRASHED)
        self._fault = fault
        self._clocked.stall(on=fault is Fault.STALL)

    # -- HTTP ------------------------------------------------------------------------------------------

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._faulty])
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._page)
        app.router.add_get("/standin/stats", self._tell_stats)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        if self._options.control:
            app.router.add_post("/control", self._control)
        return app

    @web.middleware
    async def _faulty(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """What a fault or a load in progress does to every route, but for the stand-in's own."""
        if request.path in {"/control", "/standin/stats"}:
            return await handler(request)
        if request.method != "POST":
            return await self._look(request, handler)
        client = PROBE_HEADER not in request.headers
        if client:
            self._stats.note_received(loaded=self._loaded)
        else:
            self._stats.stats.probes += 1
        if self._fault is Fault.HANG:
            await asyncio.Event().wait()
        if self._fault is Fault.ERROR_500:
            response: web.StreamResponse = _error("the engine failed, as it was told to", 500)
        elif self._loaded:
            response = await handler(request)
        else:
            response = _error("Loading model", 503)
        if client and response.status >= 400:
            self._stats.stats.refused += 1
        return response

    async def _look(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if self._fault in {Fault.HANG, Fault.MUTE}:
            await asyncio.Event().wait()
        if self._loaded or self._options.while_loading is WhileLoading.LIE:
            return await handler(request)
        return _error("Loading model", 503)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _request: web.Request) -> web.Response:
        return web.Response(body=openai_api.models(self._options.model), content_type=_JSON)

    async def _page(self, _request: web.Request) -> web.Response:
        self._clocked.settle()
        body = self._metrics.page(self._clocked.batch, self._clocked.now_s)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _tell_stats(self, _request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._stats.stats), content_type=_JSON)

    async def _control(self, request: web.Request) -> web.Response:
        try:
            told = msgspec.json.decode(await request.read(), type=dict[str, Fault | None])
            fault = told["fail"]
        except (msgspec.DecodeError, KeyError):
            allowed = ", ".join(Fault)
            return _error(f'allowed is {{"fail": null}} or one of {allowed}', 400)
        self._show(fault)
        return web.Response(body=msgspec.json.encode({"fail": fault}), content_type=_JSON)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    # -- Generation ------------------------------------------------------------------------------------

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        began = asyncio.get_running_loop().time()
        try:
            asked = openai_api.read_request(await request.read(), request.headers, chat=chat, model=self._options.model)
        except BadRequestError as error:
            return _error(str(error), error.status)
        if not self._clocked.batch.fits(asked.input_tokens, asked.output_tokens):
            return _error("the request is larger than the KV cache", 400)
        self._replies += 1
        prefix = "chatcmpl" if chat else "cmpl"
        reply = Reply(asked, f"{prefix}-{self._replies}", self._options.model, int(time.time()))
        stream = self._clocked.submit(asked.input_tokens, asked.output_tokens)
        if request.transport is not None:
            self._open.add(request.transport)
        try:
            response = await self._answer(request, reply, stream, began)
        finally:
            self._open.discard(request.transport)
            self._close(request, stream)
        return response

    async def _answer(
        self, request: web.Request, reply: Reply, stream: TokenStream, began: float
    ) -> web.StreamResponse:
        asked = reply.asked
        response: web.StreamResponse | None = None
        while not stream.finished:
            tokens = await stream.take()
            self._note_tokens(asked, stream, tokens, began)
            if self._fault is Fault.WRONG_CONTENT or not asked.stream:
                continue
            if response is None:
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
                await response.prepare(request)
            chunk = reply.event(tokens, finished=stream.finished)
            if self._fault is Fault.CUT and request.transport is not None:
                await response.write(chunk)
                request.transport.close()
                await asyncio.Event().wait()
            await response.write(chunk + openai_api.DONE if stream.finished else chunk)
        if response is not None:
            await response.write_eof()
            return response
        body = reply.nonsense() if self._fault is Fault.WRONG_CONTENT else reply.whole()
        return web.Response(body=body, content_type="text/event-stream" if asked.stream else _JSON)

    def _note_tokens(self, asked: Asked, stream: TokenStream, tokens: int, began: float) -> None:
        elapsed_s = asyncio.get_running_loop().time() - began
        if stream.taken == tokens:
            self._metrics.ttft_s.observe(elapsed_s)
            self._metrics.prompt_tokens.inc(asked.input_tokens)
        self._metrics.generation_tokens.inc(tokens)
        if stream.finished:
            self._metrics.e2e_s.observe(elapsed_s)
            self._metrics.finished["length"].inc()

    def _close(self, request: web.Request, stream: TokenStream) -> None:
        """Count how a request ended, once."""
        self._clocked.cancel(stream)
        if not stream.finished:
            self._metrics.finished["abort"].inc()
        if PROBE_HEADER in request.headers:
            return
        if stream.finished:
            self._stats.stats.completed += 1
        elif self._fault is Fault.CUT:
            self._stats.stats.broken_off += 1
        elif self._stopping:
            self._stats.stats.aborted_on_exit += 1
        else:
            self._stats.stats.cut_by_client += 1


def _error(message: str, status: int) -> web.Response:
    return web.Response(body=openai_api.error(message, status), status=status, content_type=_JSON)


def _bound(options: ServerOptions) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
    except OSError:
        listener.close()
        raise
    return listener


def main(arguments: list[str] | None = None) -> int:
    """Run until told to stop. Exit codes: 0 fine, 2 bad usage, 3 no port or no stats file to be had."""
    options = read_options(arguments)
    started_at = psutil.Process().create_time()

    async def serve() -> None:
        await ModelServer(options, started_at).run()

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve())
    except OSError as error:
        what = error.filename or f"{options.host}:{options.port}"
        print(f"model server: {what}: {error.strerror or error}", file=sys.stderr)
        return _EXIT_PORT_TAKEN
    return 0


if __name__ == "__main__":
    sys.exit(main())
