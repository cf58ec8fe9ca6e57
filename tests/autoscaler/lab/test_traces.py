"""Files of traffic: what is read, and each mistake with its file and line."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from autoscaler.domain.faults import ConfigError
from autoscaler.lab.traces import UNKNOWN_INPUT, UNKNOWN_OUTPUT, Drawing, read_workload

HEADER = "arrival_s,input_tokens,output_tokens\n"


def file(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_request_trace_is_read_plain_and_zipped_with_blanks_as_stated(tmp_path: Path) -> None:
    text = HEADER.replace("\n", ",more\n") + "0.5,10,20,x\n0.5,,5,x\n\n7.25,3,,x\n"
    zipped = tmp_path / "z.csv.gz"
    zipped.write_bytes(gzip.compress(text.encode()))
    for path in (file(tmp_path, text), zipped):
        found = read_workload(path)
        assert found.arrival_s.tolist() == [0.5, 0.5, 7.25]
        assert found.input_tokens.tolist() == [10, UNKNOWN_INPUT, 3]
        assert found.output_tokens.tolist() == [20, 5, UNKNOWN_OUTPUT]
        assert found.duration_s == 7.25
    assert read_workload(zipped).name == "z"


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("", "", "is empty"),
        ("time,in,out\n", "line 1", "'time,in,out'"),
        (HEADER, "", "found no request"),
        (HEADER + "1,2,3\n0.5,2,3\n", "line 3", "arrival_s '0.5' after 1"),
        (HEADER + "1,2\n", "line 2", "2 cells"),
        (HEADER + "x,2,3\n", "line 2", "arrival_s 'x'"),
        (HEADER + "nan,2,3\n", "line 2", "arrival_s 'nan'"),
        (HEADER + "-1,2,3\n", "line 2", "arrival_s '-1'"),
        (HEADER + "1,-2,3\n", "line 2", "input_tokens '-2'"),
        (HEADER + "1,2,3.5\n", "line 2", "output_tokens '3.5'"),
        (HEADER + "1,2,inf\n", "line 2", "output_tokens 'inf'"),
        ("start_s,requests\n0,5\n", "", "found 1 bins"),
        ("start_s,requests\n0,5\n600,5\n500,5\n", "line 4", "start_s '500' after 600"),
        ("start_s,requests\n0,5\n600,5\n1300,5\n", "line 4", "a bin that starts at '1300'"),
        ("start_s,requests\n0,0\n600,0\n", "", "found no request"),
        ("start_s,requests\n0,5\n600,-5\n", "line 3", "requests '-5'"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_where_and_what_is_expected(
    tmp_path: Path, text: str, line: str, found: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        read_workload(file(tmp_path, text))
    (told,) = raised.value.mistakes
    assert told.startswith(str(tmp_path / "t.csv"))
    assert line in told
    assert found in told
    assert "expected: " in told or "allowed: " in told


def test_what_is_no_file_or_no_text_is_a_clear_mistake_too(tmp_path: Path) -> None:
    broken = tmp_path / "b.csv.gz"
    broken.write_bytes(gzip.compress((HEADER + "1,2,3\n" * 10_000).encode())[:60])
    binary = tmp_path / "c.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "absent.csv", broken, binary):
        with pytest.raises(ConfigError, match=str(path)):
            read_workload(path)


def test_a_rate_series_is_drawn_by_seed_bin_by_bin(tmp_path: Path) -> None:
    path = file(tmp_path, "start_s,requests,interarrival_cv\n0,1000,1\n600,0,1\n1200,4000,3\n")
    found = read_workload(path)
    assert np.histogram(found.arrival_s, [0, 600, 1200, 1800])[0].tolist() == [1000, 0, 4000]
    assert found.duration_s == 1800.0
    assert (np.diff(found.arrival_s) >= 0).all()
    gaps = np.diff(found.arrival_s[1000:])
    assert gaps.std() / gaps.mean() == pytest.approx(3.0, rel=0.25)
    assert np.median(found.input_tokens) == pytest.approx(601, rel=0.1)
    assert np.quantile(found.output_tokens, 0.95) == pytest.approx(539, rel=0.2)
    same, other = read_workload(path), read_workload(path, Drawing(seed=1))
    assert same.arrival_s.tobytes() == found.arrival_s.tobytes()
    assert same.output_tokens.tobytes() == found.output_tokens.tobytes()
    assert other.arrival_s.tobytes() != found.arrival_s.tobytes()


def test_a_rate_series_beyond_what_fits_asks_for_a_scale(tmp_path: Path) -> None:
    path = file(tmp_path, "start_s,requests\n0,90000000\n600,90000000\n")
    with pytest.raises(ConfigError, match="use a scale below 1"):
        read_workload(path)
    assert read_workload(path, Drawing(scale=0.0001)).requests == 18_000


def test_parts_and_scales_keep_order_and_rate(tmp_path: Path) -> None:
    whole = read_workload(file(tmp_path, "start_s,requests\n0,3000\n600,9000\n"))
    first, second = whole.first_half(), whole.second_half()
    assert (first.requests, second.requests) == (3000, 9000)
    assert (first.duration_s, second.duration_s) == (600.0, 600.0)
    assert 0 <= second.arrival_s[0] < second.arrival_s[-1] <= 600.0
    for factor in (0.5, 2.5):
        scaled = whole.scaled(factor)
        assert scaled.requests == pytest.approx(factor * 12_000, rel=0.05)
        assert (np.diff(scaled.arrival_s) >= 0).all()
        assert scaled.arrival_s[-1] <= whole.duration_s
    with pytest.raises(ConfigError, match="no request between"):
        whole.between(5000.0, 6000.0)
