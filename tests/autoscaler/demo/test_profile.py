import pytest

from autoscaler.demo.profile import UnknownProfileError, profile, profiles


def test_each_row_that_ships_is_measured_and_names_its_source() -> None:
    rows = profiles()
    assert len(rows) >= 4
    for name, row in rows.items():
        assert row.name == name
        assert row.kind == "measured"
        assert "aiconfigurator" in row.source


def test_the_time_between_tokens_grows_with_the_batch_as_the_row_says() -> None:
    row = profile("qwen3-32b-2xh100-vllm")
    # itl_alpha_ms 14.374 + itl_beta_ms 0.1831 x 64; the row's own measurement at 64 is 26.09 ms
    assert row.itl_s(64) == pytest.approx(0.0260924)
    assert row.itl_s(64) == pytest.approx(0.02609, rel=0.01)


def test_an_unknown_name_is_answered_with_those_that_exist() -> None:
    with pytest.raises(UnknownProfileError, match=r"'h100'.*qwen3-32b-2xh100-vllm"):
        profile("h100")
