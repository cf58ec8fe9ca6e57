"""The command itself: what it loads, and what bad usage becomes."""

import subprocess
import sys
from typing import Any

import pytest

HEAVY = [
    "aiohttp", "fastapi", "starlette", "uvicorn", "sqlalchemy", "pydantic", "pydantic_settings", "rich", "structlog",
    "prometheus_client", "yaml", "matplotlib", "psutil", "boto3", "kubernetes",
]  # fmt: skip

COMMANDS = [
    ["run"], ["plan"], ["check"], ["status"], ["explain"], ["scale"], ["drain"], ["replace"], ["protect"], ["pause"],
    ["resume"], ["adopt"], ["retire"], ["demo"], ["ledger"], ["ledger", "backup"], ["ledger", "restore"],
]  # fmt: skip


def test_the_help_loads_nothing_heavy() -> None:
    code = f"import sys, autoscaler.cli.main; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    missing = f"import sys, autoscaler.config.load; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", missing], capture_output=True, text=True, check=True)
    assert "pydantic" in done.stdout, "the list above means something"


def test_every_command_has_help(shop: Any) -> None:
    whole = shop("--help")
    assert whole.code == 0
    for command in COMMANDS:
        assert command[0] in whole.out
    done = shop("ledger", "restore", "--help")
    assert done.code == 0
    assert "Usage" in done.out


def test_the_version(shop: Any) -> None:
    from autoscaler import __version__

    assert shop("--version").out == f"autoscaler {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nope"],
        ["status", "--nope"],
        ["scale", "llama"],
        ["scale", "llama", "--at-least", "-1"],
        ["scale", "llama", "--at-least", "2", "--for", "soon"],
        ["scale", "llama", "--at-least", "2", "--for", "0"],
        ["scale", "llama", "--at-least", "99"],
        ["pause", "llama", "--direction", "up"],
        ["pause", "llamb"],
        ["explain", "llamb"],
        ["drain", "nobody:1"],
        ["protect", "nobody"],
        ["plan", "--window", "x"],
        ["plan", "--pool", "x"],
        ["demo", "--duration", "x"],
        ["demo", "--seed", "x"],
    ],
)
def test_bad_usage_is_exit_code_2(shop: Any, arguments: list[str]) -> None:
    shop.write()
    done = shop(*arguments)
    assert done.code == 2
    assert done.err or done.out
