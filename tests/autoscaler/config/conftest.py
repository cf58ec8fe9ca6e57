"""The acme distribution in this process, and files to load."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscaler.config import modules
from autoscaler.config.load import load
from autoscaler.config.schema import Config
from autoscaler.domain.faults import ConfigError
from tests.support.acme import install_acme

Load = Callable[[Any], Config]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("AUTOSCALER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site = install_acme(tmp_path / "site")
    monkeypatch.syspath_prepend(site)
    modules._entries.cache_clear()
    yield site
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_things"]:
        del sys.modules[name]
    modules._entries.cache_clear()


@pytest.fixture
def load_text(tmp_path: Path) -> Load:
    """Write a text (or a value, as YAML) to a file and load it."""

    def loaded(content: Any) -> Config:
        path = tmp_path / "autoscaler.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
        return load(path)

    return loaded


@pytest.fixture
def mistakes_of(load_text: Load) -> Callable[[Any], list[str]]:
    """All mistakes of a content that must not load."""

    def told(content: Any) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load_text(content)
        return caught.value.mistakes

    return told
