"""What a config names becomes parts, lazily, shared where it should be, and with every mistake at once."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoscaler import wiring
from autoscaler.config import modules
from autoscaler.config.environment import Environment
from autoscaler.config.load import from_mapping
from autoscaler.config.schema import Config
from autoscaler.domain.faults import ConfigError
from autoscaler.domain.load import Signal
from autoscaler.runtime.clock import SystemClock
from tests.support.acme import install_acme
from tests.support.configs import a_config, a_pool


@pytest.fixture(autouse=True)
def _acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(install_acme(tmp_path / "site"))
    modules._entries.cache_clear()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_things"]:
        del sys.modules[name]
    modules._entries.cache_clear()


def configured(tmp_path: Path, *pools: dict[str, Any]) -> Config:
    return from_mapping(a_config(*pools), tmp_path / "autoscaler.yaml", Environment())


async def test_pools_of_one_account_share_its_compute(tmp_path: Path) -> None:
    south = [{"compute": "acme", "region": "south", "ports": [1]}, {"compute": "acme", "region": "north", "name": "n"}]
    wired = wiring.build(
        configured(tmp_path, a_pool("one"), a_pool("two"), a_pool("three", offers=south)), SystemClock()
    )
    one, two, three = wired.pools
    assert one.computes["acme:north"] is two.computes["acme:north"] is three.computes["acme:north"]
    assert set(three.computes) == {"acme:north", "acme:south"}
    assert one.balancers["acme"] is not two.balancers["acme"]
    for parts in wired.pools:
        assert {offer.compute for offer in parts.pool.offers} == set(parts.computes)
        assert {traits.name for traits in parts.pool.balancers} == set(parts.balancers)
        assert parts.signals == {Signal.QUEUE_LENGTH}
        assert len(parts.config_hash) == 16
    folders = {parts.balancers["acme"].context.state_dir for parts in wired.pools}  # type: ignore[attr-defined]
    assert len(folders) == 3, "bindings of one name do not share files"
    assert not Path(tmp_path / "state").exists()
    await wiring.close(wired)


async def test_only_what_is_named_is_imported(tmp_path: Path) -> None:
    sys.modules.pop("acme_things.telemetry", None)
    config = configured(tmp_path, a_pool(telemetry=None, policies=[{"kind": "fixed", "size": 2}]))
    wired = wiring.build(config, SystemClock())
    assert "acme_things.compute" in sys.modules
    assert "acme_things.telemetry" not in sys.modules
    sample = await wired.pools[0].telemetry.sample(frozenset(), ())
    assert sample.readings == {}
    await wiring.close(wired)


async def test_a_policy_of_somebody_else_runs_in_a_worker(tmp_path: Path) -> None:
    more = [{"kind": "acme_more"}, {"kind": "acme_more", "more": 2, "name": "acme_most"}, *a_pool()["policies"]]
    wired = wiring.build(configured(tmp_path, a_pool(policies=more)), SystemClock())
    first, second, ours = wired.pools[0].policies
    assert isinstance(first, wiring.NamedWorker)
    assert isinstance(second, wiring.NamedWorker)
    assert not isinstance(ours, wiring.NamedWorker)
    assert [first.name, second.name] == ["acme_more", "acme_most"]
    await wiring.close(wired)


def test_what_only_the_modules_can_see_is_told_at_once(tmp_path: Path) -> None:
    config = configured(
        tmp_path,
        a_pool(offers=[{"compute": "acme", "region": "n", "ports": [1], "image": "unbuildable"}]),
        a_pool("two", balancers=[{"kind": "acme", "target": "t", "strategy": "guess"}]),
    )
    with pytest.raises(ConfigError) as caught:
        wiring.build(config, SystemClock())
    assert [line.partition(":")[0] for line in caught.value.mistakes] == [
        "pools[0].offers[0]",
        "pools[1].balancers[0].strategy",
    ]


async def test_looking_only_starts_no_balancer_of_ours(tmp_path: Path) -> None:
    config = configured(tmp_path, a_pool(balancers=[{"kind": "envoy"}]))
    wired = wiring.build(config, SystemClock(), read_only=True)
    assert getattr(config.pools[0].balancers[0].settings, "embedded", None) is True
    assert wired.pools[0].balancers["envoy"]._settings.embedded is False  # type: ignore[attr-defined]
    await wiring.close(wired)


async def test_a_pool_that_only_advises_starts_no_balancer_of_ours_either(tmp_path: Path) -> None:
    pools = (
        a_pool(
            "talks", mode="advise", balancers=[{"kind": "envoy", "listen": "127.0.0.1:8180", "admin": "127.0.0.1:9981"}]
        ),
        a_pool("acts", balancers=[{"kind": "envoy", "listen": "127.0.0.1:8181", "admin": "127.0.0.1:9982"}]),
    )
    wired = wiring.build(configured(tmp_path, *pools), SystemClock())
    embedded = [one.balancers["envoy"]._settings.embedded for one in wired.pools]  # type: ignore[attr-defined]
    assert embedded == [False, True]
    await wiring.close(wired)
