"""What no file of the project may contain, and what every module must.

The forbidden strings are put together here, so that this file does not find itself.
"""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("autoscaler", "policies", "providers")
LOCKS = ("*.lock", "*lock*.txt", "*requirements*", "*.lock.hcl", "package-lock.json")

FORBIDDEN = {
    "a path of a developer's machine": r"(?<![\w.])/(?:work|farm|root|Users)/",
    "the host of a package registry": "|".join(
        re.escape(".".join(parts))
        for parts in [
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("npmjs", "org"),
            ("npmjs", "com"),
            ("deb", "debian", "org"),
        ]
    ),
    "something left to do": rf"\b(?:{'|'.join(['TO' + 'DO', 'FIX' + 'ME', 'X' * 3])})\b",
    "an emoji": "[\U0001f000-\U0001faff]",
}


def tracked(*patterns: str) -> list[Path]:
    """List the files that git knows or would know, so that a mistake shows before it is committed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [path for name in sorted(set(names)) if name and (path := ROOT / name).is_file()]


def text_of(path: Path) -> str:
    """Read a file as text; one with a NUL byte is no text and reads as empty."""
    content = path.read_bytes()
    return "" if b"\0" in content else content.decode(errors="replace")


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_contains(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in tracked()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_no_lock_names_an_address() -> None:
    locks = tracked(*LOCKS)
    assert {"requirements.lock", "requirements-dev.lock"} <= {path.name for path in locks}
    assert [path.name for path in locks if "://" in path.read_text()] == []


def test_every_requirement_is_pinned_with_hashes() -> None:
    locks = tracked("*.lock")
    assert len(locks) >= 5  # ours, the developers', one a model server
    for lock in locks:
        entries = re.split(r"\n(?! )", lock.read_text().strip())
        assert [entry for entry in entries if not re.match(r"\S+==\S+.*\\\n +--hash=sha256:", entry)] == []


def test_the_demo_needs_no_cloud_and_no_laboratory() -> None:
    heavy = {"boto3", "botocore", "google-cloud-compute", "azure-identity", "kubernetes", "numba", "optuna"}
    assert heavy.isdisjoint(re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert modules
    assert [str(path.relative_to(ROOT)) for path in modules if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_every_part_of_the_autoscaler_has_a_layer() -> None:
    """A new package that no layer names would be free to import anything."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    placed = set(re.findall(r"autoscaler\.(\w+)", " ".join(layers)))
    parts = {path.parent.name for path in (ROOT / "autoscaler").glob("*/__init__.py")}
    parts |= {path.stem for path in (ROOT / "autoscaler").glob("*.py")} - {"__init__", "__main__"}
    assert parts - placed == set()
