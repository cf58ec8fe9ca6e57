"""Every provider and policy can be found by its entry point, and what is installed is what is written."""

import importlib
import importlib.util
import pkgutil
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import autoscaler

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENTRY_POINTS: dict[str, dict[str, str]] = PROJECT["entry-points"]

# Where the modules of each group stand.
PACKAGES = {
    "autoscaler.compute": "providers.compute",
    "autoscaler.balancer": "providers.balancer",
    "autoscaler.telemetry": "providers.telemetry",
    "autoscaler.probe": "providers.probe",
    "autoscaler.ledger": "providers.ledger",
    "autoscaler.policy": "policies",
}
REGISTERED = [(group, module) for group, entries in ENTRY_POINTS.items() for module in entries.values()]


def modules_of(package: str) -> set[str]:
    found = pkgutil.iter_modules([str(ROOT / package.replace(".", "/"))])
    return {f"{package}.{module.name}" for module in found if not module.name.startswith("_")}


@pytest.mark.parametrize("group", PACKAGES)
def test_every_module_has_an_entry_point_and_every_entry_point_a_module(group: str) -> None:
    assert modules_of(PACKAGES[group]) == set(ENTRY_POINTS.get(group, {}).values())


def test_no_group_is_unknown() -> None:
    assert set(ENTRY_POINTS) <= set(PACKAGES)


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in ENTRY_POINTS.items() for name in names])
def test_an_entry_point_is_named_after_its_module(group: str, name: str) -> None:
    assert ENTRY_POINTS[group][name] == f"{PACKAGES[group]}.{name}"


@pytest.mark.parametrize(("group", "module"), REGISTERED)
def test_a_registered_module_exposes_its_settings_and_how_to_build_it(group: str, module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.fail(f"{group} names {module}, which is not there")
    loaded = importlib.import_module(module)
    assert isinstance(getattr(loaded, "Settings", None), type)
    assert callable(getattr(loaded, "build", None))


def test_what_is_installed_is_what_is_written() -> None:
    """An editable install freezes entry points: `make install` after changing them."""
    installed = metadata.distribution(PROJECT["name"])
    ours = [entry for entry in installed.entry_points if entry.group in PACKAGES]
    written = {(group, name, module) for group, names in ENTRY_POINTS.items() for name, module in names.items()}
    assert {(entry.group, entry.name, entry.value) for entry in ours} == written
    assert installed.version == PROJECT["version"] == autoscaler.__version__
    scripts = {entry.name: entry.value for entry in installed.entry_points if entry.group == "console_scripts"}
    assert scripts == PROJECT["scripts"]
