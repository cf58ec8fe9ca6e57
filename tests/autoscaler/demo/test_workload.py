import gzip
from pathlib import Path

import pytest

from autoscaler.demo.workload import (
    Arrival,
    Half,
    TraceError,
    compress,
    cut,
    half,
    read_trace,
    shipped_trace,
)

HEADER = "arrival_s,input_tokens,output_tokens\n"


def test_the_shipped_recording_is_whole_and_splits_into_two_halves() -> None:
    arrivals = read_trace(shipped_trace())
    # The owner's README: 8,819 requests, 0.95 h, tokens p50 1,469 in and 13 out.
    assert len(arrivals) == 8819
    assert sorted(a.input_tokens for a in arrivals)[4409] == 1469
    assert sorted(a.output_tokens for a in arrivals)[4409] == 13
    first, second = half(arrivals, "first"), half(arrivals, "second")
    assert (len(first), len(second)) == (5353, 3466)
    for part in (first, second):
        assert 0 <= part[0].at_s < 60
        assert part[-1].at_s < arrivals[-1].at_s / 2 + 1


def test_a_slice_begins_at_zero_and_ends_before_its_end() -> None:
    arrivals = [Arrival(float(i), 1, 1) for i in range(10)]
    assert [a.at_s for a in cut(arrivals, 3, 4)] == [0, 1, 2, 3]


def test_compression_changes_instants_and_nothing_else() -> None:
    assert compress([Arrival(50.0, 7, 8)], 25) == [Arrival(2.0, 7, 8)]


@pytest.mark.parametrize("which", ["first", "second"])
def test_a_half_of_a_short_trace_is_there(which: Half) -> None:
    assert half([Arrival(0.0, 1, 1), Arrival(10.0, 1, 1)], which)


def test_plain_and_compressed_files_read_alike_and_more_columns_do_no_harm(tmp_path: Path) -> None:
    text = "output_tokens,arrival_s,input_tokens,user\n3,0.5,9,a\n\n4,0.5,8,b\n"
    plain, packed = tmp_path / "t.csv", tmp_path / "t.csv.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_trace(plain) == read_trace(packed) == [Arrival(0.5, 9, 3), Arrival(0.5, 8, 4)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"t\.csv: is empty, allowed is a header arrival_s,input_tokens,output_tokens"),
        (HEADER, r"t\.csv: has a header and no request"),
        (
            "time,tokens\n1,2\n",
            r"t\.csv: line 1: no column arrival_s, input_tokens, output_tokens: found time",
        ),
        (HEADER + "0,1,1\nsoon,1,1\n", r"t\.csv: line 3: arrival_s: found 'soon', allowed is a number"),
        (HEADER + "nan,1,1\n", r"line 2: arrival_s: found 'nan'"),
        (HEADER + "-1,1,1\n", r"line 2: arrival_s: found '-1'"),
        (HEADER + "5,1,1\n4,1,1\n", r"line 3: arrival_s: found 4 after 5, allowed is sorted order"),
        (HEADER + "5,1.5,1\n", r"line 2: input_tokens: found '1\.5', allowed is a whole number from 1"),
        (HEADER + "5,1,\n", r"line 2: output_tokens: found ''"),
        (HEADER + "5,1\n", r"line 2: output_tokens: found ''"),
        (HEADER + "5,0,1\n", r"line 2: input_tokens: found '0'"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=said) as told:
        read_trace(path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.csv", None, "cannot be read: No such file"),
        ("not.csv.gz", b"arrival_s", "cannot be read: Not a gzipped file"),
        ("torn.csv.gz", gzip.compress(HEADER.encode() + b"1,1,1\n" * 50, mtime=0)[:-9], "cannot be read"),
        ("bytes.csv", b"\xff\xfe\x00", "found bytes that are no text"),
    ],
    ids=["missing", "not gzip", "torn", "no text"],
)
def test_a_file_that_is_none_is_told_as_such(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=said) as told:
        read_trace(path)
    assert name in str(told.value)


def test_a_slice_without_requests_is_refused() -> None:
    with pytest.raises(TraceError, match="no request from 100 s for inf s: the trace has requests from 0 to 9 s"):
        cut([Arrival(9.0, 1, 1)], 100)
