"""Pages of metrics: what real servers wrote, what hostile ones might, and whatever hypothesis thinks of."""

import math
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers._shared.metrics_page import Page, histogram, mean_ratio, plain, read_page, sum_of, total
from providers._shared.presets import GPU_UTILIZATION, PRESETS, Scaled

DATA = Path(__file__).parents[1] / "data"
WANTED = frozenset({"vllm_num_requests_running", "vllm_e_bucket", "DCGM_FI_DEV_GPU_UTIL", "x", "y"})


def page(text: str, *names: str) -> Page:
    return read_page(text.encode(), frozenset(map(plain, names)) or WANTED)


def captured(name: str, *names: str) -> Page:
    found = read_page((DATA / name).read_bytes(), frozenset(map(plain, names)), "text/plain")
    assert found.fault == ""
    return found


# -- What real servers wrote -----------------------------------------------------------------------------


def test_llama_server_tells_two_running_and_eight_waiting() -> None:
    preset = PRESETS["llama_cpp"]
    found = captured("llama-server.metrics.txt", *preset.running, *preset.waiting, *preset.progress)
    assert total(found, preset.running) == 2
    assert total(found, preset.waiting) == 8
    assert sum_of(found, preset.progress) == 51 + 80


def test_triton_tells_what_is_pending_and_what_was_completed() -> None:
    preset = PRESETS["triton"]
    found = captured("triton.metrics.txt", *preset.waiting, *preset.completions)
    assert total(found, preset.waiting) == 35
    assert sum_of(found, preset.completions) == 37
    assert total(found, preset.running) is None


def test_torchserves_trailing_comma_is_read() -> None:
    preset = PRESETS["torchserve"]
    assert ",}" in (DATA / "torchserve.metrics.txt").read_text()
    found = captured("torchserve.metrics.txt", *preset.arrivals, "GPUUtilization")
    assert total(found, preset.arrivals) == 41
    assert mean_ratio(found, GPU_UTILIZATION) is None  # declared with TYPE, without a sample: no GPU


# -- Names, labels, scales -------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["vllm:num_requests_running", "vllm_num_requests_running"])
def test_a_colon_that_became_an_underscore_is_the_same_name(written: str) -> None:
    assert total(page(f"{written} 3\n"), ["vllm:num_requests_running"]) == 3


@pytest.mark.parametrize("written", ["vllm:request_success_total", "vllm:request_success"])
def test_the_suffix_of_a_counter_does_not_matter(written: str) -> None:
    text = f'# TYPE {written} counter\n{written}{{finished_reason="stop"}} 3\n{written}{{finished_reason="abort"}} 2\n'
    assert total(page(text, "vllm:request_success"), ["vllm:request_success"]) == 5


def test_a_name_that_only_begins_like_it_is_another() -> None:
    text = 'vllm:num_requests_waiting_by_reason{reason="capacity"} 9\nvllm:num_requests_waiting 2\n'
    assert total(page(text, "vllm:num_requests_waiting"), ["vllm:num_requests_waiting"]) == 2


def test_engines_are_added_up_and_ranks_of_one_engine_are_not() -> None:
    name = "sglang:num_running_reqs"
    ranks = "".join(f'{name}{{dp_rank="{dp}",tp_rank="{tp}"}} {dp + 2}\n' for dp in (0, 1) for tp in (0, 1))
    assert total(page(ranks, name), [name]) == 2 + 3


def test_priorities_are_not_added_to_their_own_sum() -> None:
    name = "sglang:num_queue_reqs"
    text = f'{name}{{priority=""}} 5\n{name}{{priority="1"}} 3\n{name}{{priority="2"}} 2\n'
    assert total(page(text, name), [name]) == 5


def test_the_new_name_goes_before_the_old_one() -> None:
    gauges = PRESETS["vllm"].kv_cache
    both = "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.25\n"
    names = [gauge.name for gauge in gauges]
    assert mean_ratio(page(both, *names), gauges) == 0.25
    assert mean_ratio(page("vllm:gpu_cache_usage_perc 0.9\n", *names), gauges) == 0.9


def test_percent_and_share_are_the_same_thing_and_blanks_are_dropped() -> None:
    names = [gauge.name for gauge in GPU_UTILIZATION]
    dcgm = 'DCGM_FI_DEV_GPU_UTIL{{gpu="{}"}} {}\n'
    assert mean_ratio(page(dcgm.format(0, 80) + dcgm.format(1, 40), *names), GPU_UTILIZATION) == pytest.approx(0.6)
    blank = dcgm.format(0, 9223372036854775794)
    assert mean_ratio(page(blank + dcgm.format(1, 40), *names), GPU_UTILIZATION) == 0.4
    assert mean_ratio(page(blank, *names), GPU_UTILIZATION) is None
    engine = "DCGM_FI_PROF_GR_ENGINE_ACTIVE 0.7\n"
    assert mean_ratio(page(blank + engine, *names), GPU_UTILIZATION) == 0.7
    assert mean_ratio(page("nv_gpu_utilization 0.3\n", *names), GPU_UTILIZATION) == 0.3


def test_one_series_that_is_no_number_spoils_a_sum() -> None:
    """A part of the load must not pass for all of it."""
    assert total(page('x{e="0"} 3\nx{e="1"} 4\n'), ["x"]) == 7
    for bad in ("NaN", "+Inf", "-1"):
        assert total(page(f'x{{e="0"}} 3\nx{{e="1"}} {bad}\n'), ["x"]) is None
    assert mean_ratio(page("x NaN\n"), [Scaled("x")]) is None


def test_zero_is_not_absence() -> None:
    assert total(page("x 0\n"), ["x"]) == 0
    assert total(page("other 0\n"), ["x"]) is None


# -- Histograms ------------------------------------------------------------------------------------------


def test_buckets_are_summed_by_edge_over_all_labels() -> None:
    text = "".join(
        f'vllm:e_bucket{{engine="{engine}",le="{edge}"}} {count}\n'
        for engine in (0, 1)
        for edge, count in (("0.5", 1), ("1.0", 3), ("+Inf", 4))
    )
    assert histogram(page(text), ["vllm:e"]) == {0.5: 2, 1.0: 6, math.inf: 8}


@pytest.mark.parametrize(
    "text",
    [
        'vllm:e_bucket{le="1"} 2\n',  # without the last one the page is incomplete
        'vllm:e_bucket{le="1"} 2\nvllm:e_bucket{le="+Inf"} 1\n',
        'vllm:e_bucket{le="often"} 2\nvllm:e_bucket{le="+Inf"} 3\n',
        'vllm:e_bucket{le="1"} NaN\nvllm:e_bucket{le="+Inf"} 3\n',
        "vllm:e_bucket 2\n",
    ],
)
def test_a_histogram_that_contradicts_itself_is_absent(text: str) -> None:
    assert page(text).families
    assert histogram(page(text), ["vllm:e"]) is None


# -- Hostile pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kind", "fault"),
    [
        (b"<html>\n", "text/html", "content type"),
        (b"<html>\n", "text/plain", "no line of a metrics page"),
        (b"x 1", "text/plain", "cut off"),
        (b"x 1\nx \xff\n", "text/plain", "UTF-8"),
        (b'x{a="b" 1\n', "text/plain", "cannot be read"),
        (b"x one\n", "text/plain", "cannot be read"),
        (b"x 1 1" + b"0" * 400 + b"\n", "text/plain", "cannot be read"),
        (b'x{a="' + b"b" * 5000 + b'"} 1\n', "text/plain", "longer lines"),
        (b"x 1\n" * 30_000, "text/plain", "longer lines"),
        (b"\x00\x01\x02\n", "text/plain", "no line"),
    ],
)
def test_a_page_that_cannot_be_trusted_says_why_and_nothing_else(body: bytes, kind: str, fault: str) -> None:
    found = read_page(body, WANTED, kind)
    assert fault in found.fault
    assert not found.families


def test_the_worst_page_within_the_limits_does_not_hold_up_the_loop() -> None:
    """Processor time, not wall time: labels are what the parser is slowest with."""
    line = "x{" + ",".join(f'a{number}=""' for number in range(400)) + "} 1\n"
    assert len(line) < 4096
    body = (line * (512 * 1024 // len(line))).encode()
    began = time.process_time()
    assert read_page(body, WANTED).fault == ""
    assert time.process_time() - began < 5


LINES = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.sampled_from(
            ["x 1", 'x{le="1"} 2', "# TYPE x counter", "# HELP x \\", 'x{a="\\"} 1', "x{", '{"x"} 1', 'x{"a"} 1']
        ),
        st.from_regex(r'[xy](_bucket)?\{(le|a)="?[^\n]{0,8}"?,?\} ?-?([0-9]{1,400}|NaN|Inf|0x1|1_0)?', fullmatch=True),
    )
)


@given(lines=LINES, end=st.sampled_from(["", "\n", "\r\n"]))
def test_any_text_is_a_page_or_a_fault(lines: list[str], end: str) -> None:
    body = ("\n".join(lines) + end).encode(errors="surrogatepass")
    found = read_page(body, WANTED)
    assert not (found.fault and found.families)
    for name in WANTED:
        value = total(found, [name])
        assert value is None or (math.isfinite(value) and value >= 0)
        ratio = mean_ratio(found, [Scaled(name)])
        assert ratio is None or 0 <= ratio <= 1
        assert histogram(found, [name]) is None or math.inf in (histogram(found, [name]) or {})


@given(body=st.binary(max_size=300))
def test_any_bytes_are_a_page_or_a_fault(body: bytes) -> None:
    found = read_page(body, WANTED)
    assert not (found.fault and found.families)
