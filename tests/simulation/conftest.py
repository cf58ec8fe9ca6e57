"""The kernel is compiled at its first use, which takes some ten seconds of a processor of its own."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/simulation" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(300))
