"""Bytes that nobody wrote on purpose: the config loader and the metrics parser give a value or their own error.

Two ways: any bytes at all, and real pages and files spoiled step by step, which come much further into the parsers.
"""

import math
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from autoscaler.config.environment import Environment
from autoscaler.config.load import from_mapping, load
from autoscaler.config.read import parse_mapping
from autoscaler.domain.faults import ConfigError
from providers._shared.looks import read_counters, read_gauges, wanted_names
from providers._shared.metrics_page import Page, histogram, mean_ratio, read_page, total
from providers._shared.presets import PRESETS

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_bytes() for path in sorted((ROOT / "tests/providers/data").glob("*.metrics.txt"))}
CONFIGS = {path.name: path.read_bytes() for path in sorted((ROOT / "docs/examples").rglob("*.yaml"))}
SERVERS = [preset for preset in PRESETS.values() if preset.metrics_path]
WANTED = frozenset().union(*(wanted_names(preset) for preset in SERVERS))
#: Seconds of work for one input; a hundred times what a real page takes.
LONGEST_S = 5.0
#: What tends to be mishandled, beside random bytes.
SPLINTERS = [
    *(b"{", b"}", b'"', b"\\", b",", b"=", b"\n", b"\r", b"\0", b" ", b"#", b"_total", b"_bucket", b'le="+Inf"'),
    *(b"NaN", b"-1", b"1e999", b"0x1p3", b"9" * 400, b"\xff", b"\xe2\x80\xa8", b'{a="', b"# TYPE x histogram\n"),
    *(b"&a ", b"*a", b"<<: ", b"!!", b"- ", b": ", b"? ", b"%YAML 9.9\n", b"---\n", b"...", b"\t", b"|", b">"),
    *(b"1:1:1", b"0o8", b"~"),
]


def judge_page(body: bytes) -> Page:
    """Everything that is done with a page; raises nothing, and says no number that is none."""
    began = time.process_time()
    page = read_page(body, WANTED)
    assert not page.fault or not page.families
    assert "\n" not in page.fault
    assert len(page.fault) < 400
    for preset in SERVERS:
        for value in read_gauges(page, page, preset).values():
            assert math.isfinite(value)
        assert read_counters(page, preset) is not None
        total(page, preset.running)
        mean_ratio(page, preset.kv_cache)
        histogram(page, preset.ttft)
    assert time.process_time() - began < LONGEST_S
    return page


def judge_config(body: bytes, path: Path = Path("/nowhere/c.yaml")) -> bool:
    """A Config, or lines that say what, where and what is allowed."""
    began = time.process_time()
    mistakes: list[str] | None = None
    try:
        from_mapping(parse_mapping(body.decode("latin-1"), "c.yaml"), path, Environment())
    except ConfigError as error:
        mistakes = error.mistakes
    assert mistakes != []
    assert all(line and "\n" not in line for line in mistakes or ())
    assert time.process_time() - began < LONGEST_S
    return mistakes is None


class Spoiled(RuleBasedStateMachine):
    """A real text, cut, doubled, mixed and spattered, judged after each step."""

    texts: dict[str, bytes]

    def __init__(self) -> None:
        super().__init__()
        self.body = b"".join(list(self.texts.values())[:1])

    @rule(data=st.data())
    def begin_with(self, data: st.DataObject) -> None:
        self.body = self.texts[data.draw(st.sampled_from(sorted(self.texts)))]

    @rule(at=st.floats(0, 1), splinter=st.sampled_from(SPLINTERS) | st.binary(max_size=8))
    def spatter(self, at: float, splinter: bytes) -> None:
        place = int(at * len(self.body))
        self.body = self.body[:place] + splinter + self.body[place:]

    @rule(at=st.floats(0, 1), length=st.integers(1, 200))
    def cut(self, at: float, length: int) -> None:
        place = int(at * len(self.body))
        self.body = self.body[:place] + self.body[place + length :]

    @rule(at=st.floats(0, 1), to=st.floats(0, 1))
    def double_a_line(self, at: float, to: float) -> None:
        lines = self.body.split(b"\n")
        line = lines[int(at * (len(lines) - 1))]
        lines.insert(int(to * len(lines)), line)
        self.body = b"\n".join(lines)[:200_000]

    @rule(at=st.floats(0, 1), bit=st.integers(0, 7))
    def flip(self, at: float, bit: int) -> None:
        if self.body:
            place = int(at * (len(self.body) - 1))
            self.body = self.body[:place] + bytes([self.body[place] ^ 1 << bit]) + self.body[place + 1 :]

    @rule(end=st.floats(0, 1))
    def cut_off(self, end: float) -> None:
        self.body = self.body[: int(end * len(self.body))] + b"\n"


class SpoiledPage(Spoiled):
    texts = PAGES

    @invariant()
    def is_a_page_or_a_fault(self) -> None:
        judge_page(self.body)


class SpoiledConfig(Spoiled):
    texts = CONFIGS

    @invariant()
    def is_a_config_or_mistakes(self) -> None:
        judge_config(self.body)


STEPS = settings(max_examples=40, stateful_step_count=15, deadline=None)
TestSpoiledPage = pytest.mark.timeout(120)(SpoiledPage.TestCase)
TestSpoiledPage.settings = STEPS
TestSpoiledConfig = pytest.mark.timeout(120)(SpoiledConfig.TestCase)
TestSpoiledConfig.settings = settings(STEPS, max_examples=25)


def test_what_is_spoiled_was_good() -> None:
    assert len(PAGES) >= 3
    for body in PAGES.values():
        page = judge_page(body)
        assert page.families
        assert page.fault == ""
    assert CONFIGS
    assert any(judge_config(body) for body in CONFIGS.values())


@settings(max_examples=300)
@given(st.binary(max_size=2000))
def test_any_bytes_are_a_page_or_a_fault(body: bytes) -> None:
    judge_page(body)
    judge_page(body + b"\n")


@settings(max_examples=200)
@given(st.lists(st.sampled_from(SPLINTERS) | st.text(max_size=6).map(str.encode), max_size=30).map(b"".join))
def test_splinters_are_a_page_and_a_config_or_not(body: bytes) -> None:
    judge_page(b"vllm:num_requests_running" + body + b"\n")
    judge_config(b"installation: a\n" + body)


@settings(max_examples=100)
@given(st.binary(max_size=1000))
def test_any_file_is_a_config_or_mistakes(tmp_path_factory: pytest.TempPathFactory, body: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(body)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.mistakes
