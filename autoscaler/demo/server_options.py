"""The command line of the stand-in model server, read and checked.

It turns arguments into one frozen value or ends the process with a usage message. It opens no file and no
socket.

Invariant: options that come out of here can be carried out: rates and sizes are above 0, and the control
endpoint exists on a loopback address only.
"""

import argparse
import enum
import ipaddress
import math
import os
from dataclasses import dataclass
from pathlib import Path

from autoscaler.demo.batching import Limits
from autoscaler.demo.profile import GpuProfile, UnknownProfileError, profile, profiles

_DEFAULT_PROFILE = "qwen3-32b-2xh100-vllm"


class WhileLoading(enum.StrEnum):
    """What a client meets before the model is loaded."""

    REFUSE = "refuse"  # nothing listens: vLLM
    ANSWER_503 = "503"  # every route answers 503: llama.cpp
    LIE = "lie"  # health, models and metrics are fine, an inference fails: Triton, explicit mode


class Fault(enum.StrEnum):
    """What can be made to go wrong with a replica."""

    NEVER_LOAD = "never-load"
    HANG = "hang"  # accepts everything, answers nothing
    MUTE = "mute"  # generates, but no look gets an answer: saturated, with no thread left for health and metrics
    STALL = "stall"  # the GPU hangs: health and metrics answer, streams stop, no token comes
    CUT = "cut"  # streams break off after their first chunk
    ERROR_500 = "error-500"
    WRONG_CONTENT = "wrong-content"  # says 200, with no choice in it
    EXIT = "exit"  # the process crashes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How one stand-in behaves. *Units*: seconds before they are divided by `time_scale`."""

    host: str
    port: int
    model: str
    profile: GpuProfile
    limits: Limits
    time_scale: float
    load_s: float
    load_jitter: float
    seed: int
    while_loading: WhileLoading
    fail: Fault | None
    fail_after_s: float
    control: bool
    stats_path: Path | None


def read_options(arguments: list[str] | None) -> ServerOptions:
    """Read the command line; a mistake ends the process with exit code 2 and says what is allowed."""
    parser = _parser()
    found = parser.parse_args(arguments)
    try:
        gpu = profile(found.profile)
    except UnknownProfileError as error:
        parser.error(str(error))
    if found.control and not _is_loopback(found.host):
        parser.error(f"--control: allowed on a loopback address only, found --host {found.host}")
    if found.stats_dir is not None and found.stats_file is not None:
        parser.error("--stats-dir and --stats-file: allowed is one of them")
    return ServerOptions(
        host=found.host,
        port=found.port,
        model=found.model or gpu.model,
        profile=gpu,
        limits=Limits(found.max_num_seqs, found.max_num_batched_tokens, found.kv_cache_tokens),
        time_scale=found.time_scale,
        load_s=found.load_s,
        load_jitter=found.load_jitter,
        seed=found.seed,
        while_loading=WhileLoading(found.while_loading),
        fail=None if found.fail is None else Fault(found.fail),
        fail_after_s=found.fail_after_s,
        control=found.control,
        stats_path=_stats_path(found),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m autoscaler.demo.model_server",
        description="A stand-in for a model server. All times are divided by --time-scale.",
    )
    limits = Limits()
    option = parser.add_argument
    option("--host", default="127.0.0.1", help="an IPv4 address (%(default)s)")
    option("--port", type=_port, required=True)
    option("--model", help="the served model's name (the profile's model)")
    option("--profile", default=_DEFAULT_PROFILE, help=f"one of {', '.join(profiles())} (%(default)s)")
    option("--max-num-seqs", type=_whole, default=limits.max_num_seqs, help="slots (%(default)s)")
    option("--max-num-batched-tokens", type=_whole, default=limits.max_num_batched_tokens)
    option("--kv-cache-tokens", type=_whole, default=limits.kv_cache_tokens)
    option("--time-scale", type=_positive, default=1.0, help="how many times as fast (%(default)s)")
    option("--load-s", type=_not_negative, default=0.0, help="from process start to a loaded model")
    option("--load-jitter", type=_share, default=0.0, help="share of --load-s, drawn by --seed and port")
    option("--seed", type=int, default=0)
    option("--while-loading", choices=list(map(str, WhileLoading)), default=str(WhileLoading.REFUSE))
    option("--fail", choices=list(map(str, Fault)), help="a fault to show")
    option("--fail-after-s", type=_not_negative, default=0.0, help="counted from the loaded model")
    option("--control", action="store_true", help='POST /control {"fail": "hang"}, {"fail": null}')
    option("--stats-file", type=Path, help="where the replica's own counts are kept")
    option("--stats-dir", type=Path, help="the same, as PORT-PID.json in a folder, which is made")
    return parser


def _stats_path(found: argparse.Namespace) -> Path | None:
    if found.stats_dir is not None:
        return Path(found.stats_dir) / f"{found.port}-{os.getpid()}.json"
    return None if found.stats_file is None else Path(found.stats_file)


def _port(text: str) -> int:
    port = _number(text, "a port from 1 to 65535")
    if not (port.is_integer() and 1 <= port <= 65535):
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed is a port from 1 to 65535")
    return int(port)


def _whole(text: str) -> int:
    number = _number(text, "a whole number from 1")
    if not (number.is_integer() and number >= 1):
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed is a whole number from 1")
    return int(number)


def _positive(text: str) -> float:
    number = _number(text, "a number above 0")
    if number <= 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed is a number above 0")
    return number


def _not_negative(text: str) -> float:
    number = _number(text, "a number from 0")
    if number < 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed is a number from 0")
    return number


def _share(text: str) -> float:
    number = _number(text, "a number from 0 to 1")
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed is a number from 0 to 1")
    return number


def _number(text: str, allowed: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed is {allowed}")
    return number


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
