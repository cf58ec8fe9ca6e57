"""Modules and functions stay readable at one sitting: limits in `[tool.autoscaler]`, no exemptions."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMITS: dict[str, int] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["autoscaler"]
SOURCES = sorted(path for package in ("autoscaler", "policies", "providers") for path in (ROOT / package).rglob("*.py"))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each function of the module, nested ones too, with its length in lines, docstring included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (
                f"{path.relative_to(ROOT)}:{node.lineno} {node.name}",
                (node.end_lineno or 0) - node.lineno + 1,
            )


def test_there_is_something_to_measure() -> None:
    assert len(SOURCES) > 10


def test_no_module_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > LIMITS["module_lines_max"]} == {}


def test_no_function_is_too_long() -> None:
    lengths = dict(pair for path in SOURCES for pair in functions(path))
    assert {name: lines for name, lines in lengths.items() if lines > LIMITS["function_lines_max"]} == {}
