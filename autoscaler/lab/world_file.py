"""The lab's own small YAML file (`--world`): what the daemon's config does not say about the world that it is tried in.

    slo: {ttft: 2s, e2e: 2s, per_token: 100ms, goal: 0.99}
    hardware: {"*": llama-3.1-8b-1xh100-trtllm, big: {profile: qwen3-32b-2xh100-vllm, speed: 1.5}}   # by offer
    cold_start: 5m                       # or cloud: {launch: {p50_s: 20}, boot: ..., load: ..., spot_per_h: 0.1}
    front: {strategy: least_load, lag_s: 2}
    telemetry: {window_s: 30, delay_s: 15}
    troubles: [{kind: telemetry_gap, at_s: 3600, for_s: 600}]
    workload: {scale: 2, tokens: {prompt: {p50: 900, p95: 4000}, output: {p50: 120, p95: 600}}}
    tune: {"policies[0].target": {low: 1, high: 20, log: true}}

Does: check it, every mistake at once, and put options of the command line over it. Does not: simulate.
Invariant: what is not said has the default that the lab's settings have, in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from autoscaler.config.hints import settings_of
from autoscaler.config.mistakes import at
from autoscaler.config.read import read_mapping
from autoscaler.config.validate import Refusal, validate
from autoscaler.domain.base import Duration
from autoscaler.domain.faults import ConfigError
from autoscaler.lab.hardware import DEFAULT_PROFILE, Hardware, profile, profiles
from autoscaler.lab.overrides import Wishes
from autoscaler.lab.scorecard import Slo
from autoscaler.lab.settings import CloudSettings, FrontSettings, TelemetrySettings, Trouble, WorldSettings, cold_start
from autoscaler.lab.traces import Drawing
from autoscaler.lab.workload import Lengths, Tokens

#: The offer name that stands for all that have no line of their own.
ANY: Final = "*"


class LengthsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A log-normal number of tokens by median and 95th percentile, at most `most`."""

    p50: float
    p95: float
    most: int = 32_768

    def __post_init__(self) -> None:
        if not 1 <= self.p50 < self.p95:
            raise Refusal("p95", f"with p50 {self.p50:g}", "more than p50, which is at least 1")
        if self.most < self.p95:
            raise Refusal("most", f"with p95 {self.p95:g}", "at least p95")

    def lengths(self) -> Lengths:
        """As the workload draws them."""
        return Lengths(self.p50, self.p95, most=self.most)


class TokensSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lengths where the file of the workload has none (a rate series)."""

    prompt: LengthsSection | None = None
    output: LengthsSection | None = None


class WorkloadSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`scale`: traffic times this. `cv`: variation of the gaps inside a bin of a rate series (1 is Poisson)."""

    scale: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    cv: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    tokens: TokensSection = TokensSection()


class Range(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one parameter is searched: from `low` to `high` (whole where the setting is), or one of `choices`."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[float | str | bool, ...] = ()

    def __post_init__(self) -> None:
        if self.choices and (self.low is not None or self.high is not None or self.log):
            raise Refusal("choices", "beside low, high or log", "choices alone, or low and high")
        if not self.choices:
            if self.low is None or self.high is None:
                raise Refusal("low", "without the other bound", "low and high, or choices")
            if not self.low < self.high:
                raise Refusal("high", f"with low {self.low:g}", "more than low")
            if self.log and self.low <= 0:
                raise Refusal("low", "with log", "above 0")


class WorldFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. See the module."""

    slo: Slo = Slo()
    hardware: dict[str, str | Hardware | dict[str, Any]] = {}
    cold_start: Duration | None = None
    cloud: CloudSettings | None = None
    front: FrontSettings | None = None
    telemetry: TelemetrySettings = TelemetrySettings()
    troubles: tuple[Trouble, ...] = ()
    workload: WorkloadSection = WorkloadSection()
    tune: dict[str, Range] = {}
    start: int | None = None
    tail: Duration = Duration(600.0)

    def __post_init__(self) -> None:
        if self.cloud is not None and self.cold_start is not None:
            raise Refusal("cold_start", "and cloud too", "one of the two: cloud says the same in more words")

    def drawing(self, seed: int) -> Drawing:
        """How the workload's file is read."""
        prompt, output, standard = self.workload.tokens.prompt, self.workload.tokens.output, Tokens()
        tokens = Tokens(
            prompt=prompt.lengths() if prompt else standard.prompt,
            output=output.lengths() if output else standard.output,
        )
        return Drawing(tokens=tokens, seed=seed, cv=self.workload.cv, scale=self.workload.scale)

    def settings(self, strategy: str | None = None) -> WorldSettings:
        """The world's settings; `strategy`: of the config's own balancer, where this file says nothing of it."""
        cloud = self.cloud or (CloudSettings() if self.cold_start is None else cold_start(self.cold_start))
        front = self.front or FrontSettings()
        if self.front is None and strategy is not None:
            front = msgspec.structs.replace(front, strategy=strategy)
        hardware = {"" if name == ANY else name: one for name, one in self.hardware.items()}
        found = {name: one for name, one in hardware.items() if isinstance(one, Hardware)}
        return WorldSettings(
            hardware={"": profile(DEFAULT_PROFILE), **found}, cloud=cloud, front=front, telemetry=self.telemetry,
            troubles=self.troubles, start=self.start, tail_s=self.tail,
        )  # fmt: skip


def read_world(path: Path | None, wishes: Wishes | None = None) -> WorldFile:
    """The file, or the defaults without one, with the wishes of the command line above it. Raises ConfigError."""
    mapping = {} if path is None else read_mapping(path)
    over = (wishes or Wishes()).over(mapping.get("troubles"))
    return world_of(mapping, over, "" if path is None else str(path))


def world_of(mapping: Mapping[str, Any], over: Mapping[str, Any], name: str) -> WorldFile:
    """As read_world, of a mapping; `name` stands for the file in messages."""
    merged = {key: value for key, value in mapping.items() if not (key == "cloud" and "cold_start" in over)}
    merged = {**merged, **{key: value for key, value in over.items() if key not in {"front", "workload"}}}
    for key in ("front", "workload"):
        if key in over:
            below = mapping.get(key)
            merged[key] = {**(below if isinstance(below, Mapping) else {}), **over[key]}
    hardware, mistakes = _hardware(merged.pop("hardware", {}))
    found, wrong = validate(WorldFile, merged, "")
    mistakes += [mistake.removeprefix(".") for mistake in wrong]
    if mistakes or found is None:
        raise ConfigError([f"{name}: {mistake}" if name else mistake for mistake in mistakes])
    return msgspec.structs.replace(found, hardware=hardware)


def _hardware(given: object) -> tuple[dict[str, str | Hardware | dict[str, Any]], list[str]]:
    """Hardware by offer: the name of a set-up, one's own numbers, or a set-up with some numbers changed."""
    if not isinstance(given, Mapping):
        return {}, ["hardware: found no mapping; allowed: offer names (or '*') with a set-up or numbers each"]
    known = profiles()
    found: dict[str, str | Hardware | dict[str, Any]] = {}
    mistakes: list[str] = []
    for offer, value in given.items():
        here = at("hardware", str(offer))
        changes = {"profile": value} if isinstance(value, str) else value
        if not isinstance(changes, Mapping):
            mistakes.append(f"{here}: found no mapping; allowed: {', '.join(sorted(known))}, or numbers of one's own")
            continue
        base = changes.get("profile")
        if base is not None and base not in known:
            mistakes.append(f"{here}: found {str(base)[:60]!r}; allowed: {', '.join(sorted(known))}")
            continue
        numbers = {} if base is None else _numbers(known[base])
        own = {key: each for key, each in changes.items() if key != "profile"}
        made, wrong = validate(Hardware, {**numbers, **own}, here, also=("profile",))
        mistakes += wrong
        if made is not None:
            found[str(offer)] = made
    return found, mistakes


def _numbers(hardware: Hardware) -> dict[str, Any]:
    return {setting.key: getattr(hardware, setting.attribute) for setting in settings_of(Hardware)}
