from pathlib import Path

import pytest

from autoscaler.demo.server_options import Fault, WhileLoading, read_options


def test_a_port_is_all_that_is_needed() -> None:
    options = read_options(["--port", "8000"])
    assert (options.port, options.host, options.while_loading) == (8000, "127.0.0.1", WhileLoading.REFUSE)
    assert (options.model, options.fail, options.control) == ("Qwen/Qwen3-32B", None, False)


def test_every_mode_and_fault_has_its_word() -> None:
    assert [m.value for m in WhileLoading] == ["refuse", "503", "lie"]
    for fault in Fault:
        assert read_options(["--port", "1", "--fail", fault.value]).fail is fault


def test_a_stats_folder_names_the_file_after_port_and_process() -> None:
    path = read_options(["--port", "8001", "--stats-dir", "s"]).stats_path
    assert path is not None
    assert path.parent == Path("s")
    assert path.name.startswith("8001-")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--port"),
        (["--port", "0"], "found '0', allowed is a port from 1 to 65535"),
        (["--port", "99999"], "allowed is a port from 1 to 65535"),
        (["--port", "1", "--time-scale", "0"], "found '0', allowed is a number above 0"),
        (["--port", "1", "--time-scale", "nan"], "found 'nan'"),
        (["--port", "1", "--load-s", "-3"], "allowed is a number from 0"),
        (["--port", "1", "--load-jitter", "2"], "allowed is a number from 0 to 1"),
        (["--port", "1", "--max-num-seqs", "1.5"], "allowed is a whole number from 1"),
        (["--port", "1", "--profile", "h100"], "no GPU profile 'h100': allowed are"),
        (["--port", "1", "--while-loading", "sleep"], "invalid choice: 'sleep'"),
        (["--port", "1", "--host", "0.0.0.0", "--control"], "allowed on a loopback address only"),
        (["--port", "1", "--stats-dir", "a", "--stats-file", "b"], "allowed is one of them"),
    ],
)
def test_a_mistake_is_usage_and_says_what_is_allowed(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_options(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
