"""docs/prometheus.md holds what works: each snippet loads as it stands, and its PromQL is PromQL."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscaler.config.load import load
from autoscaler.domain.load import Signal
from providers._shared.presets import PRESETS
from providers.telemetry.prometheus import Settings
from tests.support.configs import a_config, a_pool

GUIDE = Path(__file__).parents[3] / "docs" / "prometheus.md"
TEXT = GUIDE.read_text(encoding="utf-8")
SNIPPETS = [block.partition("```")[0] for block in TEXT.split("```yaml\n")[1:]]


def settings_of(snippet: str, folder: Path) -> Settings:
    document: dict[str, Any] = yaml.safe_load(snippet)
    path = folder / "autoscaler.yaml"
    offers = [{"compute": "local_process", "command": ["serve", "{port}"], "port_range": "auto"}]
    path.write_text(
        yaml.safe_dump(a_config(a_pool(offers=offers, balancers=[], ready_when={"preset": "vllm"}, **document)))
    )
    path.chmod(0o600)
    choice = load(path).pools[0].telemetry
    assert choice is not None
    assert isinstance(choice.settings, Settings)
    return choice.settings


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_each_snippet_loads_as_it_stands(snippet: str, tmp_path: Path) -> None:
    settings = settings_of(snippet, tmp_path)
    for query in settings.queries.values():
        for promql in filter(None, (query.promql, query.age_of, query.samples)):
            _is_promql(promql, tmp_path)


def _is_promql(promql: str, folder: Path) -> None:
    """Prometheus' own tool reads it, as the expression of a rule."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: make debian")
    rules = folder / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [{"record": "r", "expr": promql}]}]}))
    told = subprocess.run([tool, "check", "rules", str(rules)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


def test_the_guide_shows_one_of_each_and_names_every_preset_that_has_metrics() -> None:
    assert len(SNIPPETS) == 3
    assert Signal.QUEUE_LENGTH in TEXT
    for name, preset in PRESETS.items():
        assert (name in TEXT.partition("replicas: {selector")[0]) is (preset.metrics_path is not None), name
