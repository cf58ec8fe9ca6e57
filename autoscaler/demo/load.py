"""The load client: replays recorded arrivals through a balancer, and writes down what became of each.

    python -m autoscaler.demo.load --url http://127.0.0.1:10000 --time-scale 20 --out requests.jsonl

It is open-loop: a request leaves at its recorded time whether or not earlier ones were answered, and how late
it really left is measured and reported. It retries nothing (the client library repeats only idempotent
requests, and these are POST), follows no redirect, and has no limit on connections that could hold a request
back. It does not judge the run: `summary` does.

Invariant: as many records as requests were sent, each with one outcome: ok (all tokens and the end of the
stream), failed (why), cut (the stream began and did not end), stopped (this client was told to end).
"""

import argparse
import asyncio
import contextlib
import math
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import aiohttp
import msgspec

from autoscaler.demo import openai_api
from autoscaler.demo.records import Progress, RequestRecord, progress_path, quantile, write_whole
from autoscaler.demo.workload import Arrival, TraceError, compress, cut, half, read_trace, shipped_trace

_SNAPSHOT_EVERY_S = 0.5
_RECENT_S = 30.0  # trace seconds that the latency of the live view looks back over
_QUIET_BELOW = 20  # samples; a p95 of fewer says nothing
_EXIT_BAD_TRACE = 2
_EXIT_CANNOT_WRITE = 3
_DONE_LINE = openai_api.DONE.strip()
_HEAD = 200  # bytes of a refusal that are kept: enough for the balancer's reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What to replay, where to, and how fast. *Units*: `timeout_s` before division by `time_scale`."""

    url: str
    out: Path
    arrivals: Sequence[Arrival]
    time_scale: float = 1.0
    model: str | None = None
    timeout_s: float = 600.0


@dataclass(slots=True)
class _Tally:
    """What the snapshot is made from."""

    sent: int = 0
    in_flight: int = 0
    in_flight_peak: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("ok", "failed", "cut", "stopped"), 0))
    lags_s: list[float] = field(default_factory=list)
    recent: deque[tuple[float, float]] = field(default_factory=deque)
    sent_before: int = 0


class LoadClient:
    """One replay."""

    def __init__(self, options: LoadOptions) -> None:
        """Must be made inside a running loop."""
        self._options = options
        self._arrivals = compress(options.arrivals, options.time_scale)
        self._tally = _Tally()
        self._ended: list[RequestRecord] = []
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._began = 0.0
        self._wall_minus_loop = time.time() - self._loop.time()

    def stop(self) -> None:
        """Send nothing more and give up what is in flight."""
        self._stop.set()

    async def run(self) -> Progress:
        """Replay to the end and return the last snapshot. Raises OSError if the records cannot be written."""
        options = self._options
        timeout = aiohttp.ClientTimeout(total=options.timeout_s / options.time_scale)
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=60)
        with options.out.open("ab") as out:
            self._began = self._loop.time()
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                reporter = asyncio.create_task(self._report(out))
                replay = asyncio.create_task(self._replay(session))
                stopped = asyncio.create_task(self._stop.wait())
                try:
                    await asyncio.wait({reporter, replay, stopped}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in (stopped, replay, reporter):
                        task.cancel()
                    results = await asyncio.gather(replay, reporter, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                    raise result
            return self._snapshot(out, done=True)

    async def _replay(self, session: aiohttp.ClientSession) -> None:
        async with asyncio.TaskGroup() as requests:
            for index, arrival in enumerate(self._arrivals):
                due = self._began + arrival.at_s
                wait_s = due - self._loop.time()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                requests.create_task(self._request(session, index, arrival, due))

    async def _request(self, session: aiohttp.ClientSession, index: int, arrival: Arrival, due: float) -> None:
        tally = self._tally
        record = RequestRecord(
            index=index,
            scheduled_at=due + self._wall_minus_loop,
            sent_at=self._now(),
            input_tokens=arrival.input_tokens,
            output_tokens=arrival.output_tokens,
        )
        tally.sent += 1
        tally.in_flight += 1
        tally.in_flight_peak = max(tally.in_flight_peak, tally.in_flight)
        try:
            await self._exchange(session, record)
        except asyncio.CancelledError:
            record.outcome, record.why = "stopped", "the client was told to end"
            raise
        except TimeoutError:
            self._lost(record, "timeout")
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a line without end
            self._lost(record, f"{type(error).__name__}: {error}")
        finally:
            record.ended_at = self._now()
            tally.in_flight -= 1
            self._note(record)

    async def _exchange(self, session: aiohttp.ClientSession, record: RequestRecord) -> None:
        body = {"prompt": "recorded", "max_tokens": record.output_tokens, "stream": True}
        if self._options.model is not None:
            body["model"] = self._options.model
        headers = {
            "Content-Type": "application/json",
            openai_api.INPUT_TOKENS_HEADER: str(record.input_tokens),
        }
        url = f"{self._options.url.rstrip('/')}/v1/completions"
        posted = session.post(url, data=msgspec.json.encode(body), headers=headers, allow_redirects=False)
        async with posted as response:
            record.status = response.status
            if response.status != 200:
                head = (await response.content.read(_HEAD)).decode(errors="replace").strip()
                record.outcome, record.why = "failed", f"status {response.status}: {head}"
                return
            ended = False
            async for line in response.content:
                tokens = openai_api.words_in(line)
                if tokens and record.first_token_at is None:
                    record.first_token_at = self._now()
                record.tokens_received += tokens
                ended = ended or line.rstrip() == _DONE_LINE
            self._ended_well(record, ended=ended)

    @staticmethod
    def _ended_well(record: RequestRecord, *, ended: bool) -> None:
        if not ended:
            record.outcome, record.why = "cut", "no end of stream"
        elif record.tokens_received != record.output_tokens:
            record.outcome = "failed"
            record.why = f"content: {record.tokens_received} of {record.output_tokens} tokens"
        else:
            record.outcome = "ok"

    @staticmethod
    def _lost(record: RequestRecord, why: str) -> None:
        """A request that ended in an error: cut once its answer had begun, else failed."""
        record.outcome = "failed" if record.status is None else "cut"
        record.why = why

    def _note(self, record: RequestRecord) -> None:
        tally = self._tally
        tally.outcomes[record.outcome] += 1
        tally.lags_s.append(record.send_lag_s)
        if record.ttft_s is not None:
            tally.recent.append((record.ended_at, record.ttft_s))
        self._ended.append(record)

    def _now(self) -> float:
        return self._loop.time() + self._wall_minus_loop

    async def _report(self, out: BinaryIO) -> None:
        while True:
            self._snapshot(out, done=False)
            await asyncio.sleep(_SNAPSHOT_EVERY_S)

    def _snapshot(self, out: BinaryIO, *, done: bool) -> Progress:
        """Append the records that ended since the last snapshot, then replace the snapshot."""
        ended, self._ended = self._ended, []
        out.writelines(msgspec.json.encode(record) + b"\n" for record in ended)
        out.flush()
        tally, scale = self._tally, self._options.time_scale
        now = self._now()
        while tally.recent and tally.recent[0][0] < now - _RECENT_S / scale:
            tally.recent.popleft()
        enough = len(tally.recent) >= _QUIET_BELOW
        ttft_s = quantile((s for _, s in tally.recent), 0.95) if enough else None
        per_wall_s = (tally.sent - tally.sent_before) / _SNAPSHOT_EVERY_S
        tally.sent_before = tally.sent
        progress = Progress(
            at=now,
            elapsed_s=(self._loop.time() - self._began) * scale,
            scheduled=len(self._arrivals),
            sent=tally.sent,
            in_flight=tally.in_flight,
            in_flight_peak=tally.in_flight_peak,
            **tally.outcomes,
            requests_per_s=per_wall_s / scale,
            requests_per_wall_s=per_wall_s,
            ttft_s_p95=None if ttft_s is None else ttft_s * scale,
            ttft_wall_s_p95=ttft_s,
            send_lag_wall_s_p95=quantile(tally.lags_s, 0.95),
            send_lag_wall_s_max=max(tally.lags_s, default=None),
            done=done,
        )
        write_whole(progress_path(self._options.out), msgspec.json.encode(progress))
        return progress


def read_options(arguments: list[str] | None) -> LoadOptions:
    """Read the command line. Exits with code 2 on bad usage. Raises TraceError."""
    parser = argparse.ArgumentParser(
        prog="python -m autoscaler.demo.load",
        description="Replay recorded arrivals, open-loop, no retries. Times are divided by --time-scale.",
    )
    option = parser.add_argument
    option("--url", required=True, help="the balancer, as http://HOST:PORT")
    option("--out", type=Path, required=True, help="records are appended here, one JSON line a request")
    option("--trace", type=Path, default=None, help="CSV, plain or .gz (the Azure code trace of 2023)")
    option("--half", choices=("first", "second"), help="half of the trace's time")
    option("--start-s", type=float, default=0.0, help="where to begin in the trace or half")
    option("--length-s", type=float, default=math.inf, help="how much of it to replay")
    option("--time-scale", type=float, default=1.0, help="how many times as fast (%(default)s)")
    option("--timeout-s", type=float, default=600.0, help="for one whole request (%(default)s)")
    option("--model", default=None, help="asked for by name; left out, the server's own")
    found = parser.parse_args(arguments)
    for name in ("time_scale", "timeout_s", "length_s"):
        if not getattr(found, name) > 0:
            parser.error(f"--{name.replace('_', '-')}: found {getattr(found, name):g}, allowed is above 0")
    if not found.url.startswith(("http://", "https://")):
        parser.error(f"--url: found {found.url!r}, allowed is http://HOST:PORT")
    arrivals = read_trace(found.trace or shipped_trace())
    if found.half is not None:
        arrivals = half(arrivals, found.half)
    return LoadOptions(
        url=found.url,
        out=found.out,
        arrivals=cut(arrivals, found.start_s, found.length_s),
        time_scale=found.time_scale,
        model=found.model,
        timeout_s=found.timeout_s,
    )


async def _run(options: LoadOptions) -> Progress:
    client = LoadClient(options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, client.stop)
    return await client.run()


def _raise_file_limit() -> None:
    """A soft limit on open files would hold connections back: take what the machine allows."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(arguments: list[str] | None = None) -> int:
    """Replay and print the last snapshot. Exit codes: 0 replayed, 2 bad usage or trace, 3 cannot write."""
    try:
        options = read_options(arguments)
    except TraceError as error:
        print(error, file=sys.stderr)
        return _EXIT_BAD_TRACE
    _raise_file_limit()
    try:
        progress = asyncio.run(_run(options))
    except OSError as error:
        print(f"{options.out}: {error.strerror or error}", file=sys.stderr)
        return _EXIT_CANNOT_WRITE
    print(msgspec.json.encode(progress).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
