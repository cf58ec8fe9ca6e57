"""A file that is no good gets one clear line."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.config.read import SIZE_MAX, parse_mapping, read_mapping
from autoscaler.domain.faults import ConfigError

Told = Callable[[Path], str]


def told(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_mapping(path)
    (line,) = caught.value.mistakes
    assert "\n" not in line
    assert "allowed: " in line
    assert str(path) in line
    return line


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00a", "not UTF-8"),
        (b"a: 1\0b: 2", "NUL"),
        (b"a: 1\na: 2\n", "'a' is written twice"),
        (b"a:\n  b: 1\n  b: 2\n", "'b' is written twice"),
        (b"a:\n\t- b\n", "a tab"),
        (b"", "found nothing"),
        (b"- a\n- b\n", "found a list"),
        (b"just text", "found a str"),
        (b"a: [1", "',' or ']'"),
        (b"a: 1\n---\nb: 2\n", "another document"),
        (b"a: !!python/object:os.system x\n", "constructor"),
        (b"a: *nobody\n", "undefined alias"),
        (b"1: a\n", "the key '1' is no text"),
        (b"{[a]: 1}", ""),
        (b"a: 2024-13-45\n", ""),
        (b"a: &a [*a]\n", "recursive"),
        (b"a: " + b"[" * 500 + b"]" * 500, "nested"),
        (b"a: " + b"[" * 50_000, "nest"),
    ],
)
def test_content_that_is_no_config(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    line = told(path)
    assert said in line


def test_a_position_is_told_and_the_line_itself_is_not(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("token: hunter2-hunter2\n  password: hunter3\n")
    line = told(path)
    assert f"{path}:2:" in line
    assert "hunter" not in line


def test_a_file_that_is_too_large_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"a: 1\n#" + b"x" * SIZE_MAX)
    assert "larger than" in told(path)


def test_aliases_that_unfold_to_very_much_are_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(lines))
    began = time.process_time()
    assert "once aliases are followed" in told(path)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "text",
    [
        "a: " + ":".join(["1"] * 500_000),
        "a: " + "9" * 1_000_000,
        "a: 0x" + "f" * 1_000_000,
        "a: 2001-01-01 00:00:00." + "9" * 1_000_000,
        "a: " + "{a: " * 400_000,
        "".join(f"{' ' * depth}a:\n" for depth in range(1400)),
        "".join(f"a{n}: &a{n} 1\n" for n in range(50_000)),
        "\n".join(
            ["a0: &a0 {k0: x, k1: x, k2: x, k3: x, k4: x, k5: x, k6: x, k7: x}"]
            + [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12)]
        ),
    ],
    ids=["base 60", "digits", "hex", "date", "flow", "block", "anchors", "merge"],
)
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    with contextlib.suppress(ConfigError):
        parse_mapping(text[:SIZE_MAX], "f")
    assert time.process_time() - began < 10


def test_a_number_of_a_sane_length_is_a_number() -> None:
    assert parse_mapping("a: 1\nb: 1.5\nc: 190:20:30\nd: 2001-01-01", "f")["c"] == 685230


def test_what_is_no_readable_file(tmp_path: Path) -> None:
    assert "No such file" in told(tmp_path / "absent.yaml")
    assert "regular file" in told(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "regular file" in told(pipe)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "cannot be read" in told(loop)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_mapping(Path("a\0b"))


def test_merge_keys_and_aliases_are_fine() -> None:
    text = "base: &b {x: 1, y: 2}\nuse: {<<: *b, y: 3}\n"
    assert parse_mapping(text, "f")["use"] == {"x": 1, "y": 3}


@settings(max_examples=300)
@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_no_text_is_a_traceback(text: str) -> None:
    lines = []
    try:
        found = parse_mapping(text, "f")
    except ConfigError as error:
        lines = error.mistakes
    else:
        assert isinstance(found, dict)
    assert all(line.startswith("f") and "\n" not in line for line in lines)
