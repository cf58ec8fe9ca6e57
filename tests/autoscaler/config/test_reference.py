"""docs/config.md is what the code says."""

from pathlib import Path

from autoscaler.config.hints import settings_of
from autoscaler.config.reference import _SECTIONS, reference
from autoscaler.config.schema import PoolSection

PAGE = Path(__file__).parents[3] / "docs" / "config.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "python -m autoscaler.config.reference > docs/config.md"


def test_every_setting_is_in_it() -> None:
    page = reference()
    for _, struct in _SECTIONS:
        for setting in settings_of(struct):
            assert f"| `{setting.key}` |" in page
    assert len(list(settings_of(PoolSection))) > 10
