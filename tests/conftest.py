"""What holds for every test: in CI a missing part is a failure, and hypothesis tells how to repeat a find."""

import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import moto

settings.register_profile("house", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


def _fail_skip_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With CI=true, turn a skip into a failure: CI installs what the tests need, so nothing is missing."""
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, and CI skips nothing: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_skip_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_skip_in_ci(report)
    return report


@pytest.fixture(scope="session")
def moto_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One moto server for all tests of a worker: its start costs seconds. Each test makes a VPC of its own in it."""
    with moto.moto_server(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture
def aws_environment(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The SDK's usual environment, pointed at moto; gives its URL."""
    for name, value in {**moto.CREDENTIALS, "AWS_ENDPOINT_URL": moto_url}.items():
        monkeypatch.setenv(name, value)
    return moto_url
