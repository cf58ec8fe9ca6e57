"""The whole file: good ones, and each kind of mistake with its line."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoscaler.config.environment import Environment, variables
from autoscaler.config.load import from_mapping
from autoscaler.config.schema import Config
from autoscaler.domain.faults import ConfigError
from autoscaler.domain.pool import Mode
from tests.support.configs import a_config, a_pool

Load = Callable[[Any], Config]
Mistakes = Callable[[Any], list[str]]

pytestmark = pytest.mark.usefixtures("acme")


def test_a_good_file_becomes_pools_and_choices(load_text: Load, tmp_path: Path) -> None:
    config = load_text(a_config(a_pool(mode="advise", budget={"usd_per_hour": 9}, offers=[
        {"compute": "acme", "region": "north", "usd_per_hour": 2, "zones": ["a", "b"], "capacity": 2},
        {"compute": "acme", "region": "north", "usd_per_hour": 1, "market": "spot"},
        {"compute": "acme", "region": "south", "usd_per_hour": 1, "name": "far", "size": "large", "boot": "2m"},
    ], ready_when={"kind": "acme", "port": 8000, "passes": 3})))  # fmt: skip
    (pool,) = config.pools
    assert config.state_dir == str(tmp_path / "state")
    assert config.ledger.kind == "sqlite"
    assert pool.pool.mode is Mode.ADVISE
    assert [(offer.name, offer.compute, offer.capacity) for offer in pool.pool.offers] == [
        ("acme", "acme:north", 2), ("acme-spot", "acme:north", 1), ("far", "acme:south", 1),
    ]  # fmt: skip
    assert {offer.ports for offer in pool.pool.offers} == {(8000,)}
    assert set(pool.computes) == {"acme:north", "acme:south"}
    assert msgspec.json.decode(pool.pool.offers[2].request)["boot"] == 120.0
    assert pool.pool.ready.passes == 3
    assert [choice.name for choice in pool.balancers] == ["acme"]


def test_the_design_s_example_reads_apart_from_its_cloud(load_text: Load) -> None:
    text = """
    installation: prod-eu
    ledger: sqlite:///state/autoscaler.db
    pools:
      - name: llama-70b
        mode: advise
        capacity: {min: 1, max: 12}
        budget: {usd_per_hour: 120}
        offers:
          - {compute: acme, region: eu-west-1, zones: [a, b], market: spot, usd_per_hour: 6.1}
          - {compute: acme, region: eu-west-1, zones: [a, b], usd_per_hour: 10.5}
        ready_when: {preset: vllm, port: 8000, model: my-model, generate: true, passes: 2, give_up_after: 20m}
        balancers: [{kind: acme, target: "arn:of-it", strategy: least_connections}]
        telemetry: {kind: acme}
        policies:
          - {kind: target_tracking, signal: queue_length, target: 4}
          - {kind: target_tracking, signal: gpu_utilization, target: 0.75}
          - {kind: latency_slo, signal: ttft_s_p95, objective: 2s}
        pace: {tick: 15s, scale_out: {max_step: 2}, scale_in: {cooldown: 5m, stabilization: 10m, max_step: 1}}
        drain: {deadline: 15m}
    """
    assert load_text(text).pools[0].probe.kind == "http"


CASES: list[tuple[dict[str, Any], str]] = [
    ({"capacity": {"min": 5, "max": 3}}, "pools[0].capacity.min: found 5, which is more than max 3; allowed: 0 to 3"),
    ({"capacity": {"min": 1, "max": 3, "fallback": 9}},
     "pools[0].capacity.fallback: found 9, which is outside the bounds; allowed: min 1 to max 3"),
    ({"capacity": None}, "pools[0].capacity: missing; allowed: a mapping"),
    ({"mode": "advize"}, "pools[0].mode: found 'advize'; allowed: one of act, advise"),
    ({"name": "No Good"}, "pools[0].name: found 'No Good'; allowed: up to 63 of a-z"),
    ({"polices": []}, "pools[0].polices: unknown setting (did you mean 'policies'?); allowed: balancers, "),
    ({"offers": []}, "pools[0].offers: found an empty list; allowed: a list of: a mapping, not empty"),
    ({"offers": "x"}, "pools[0].offers: found 'x'; allowed: a list of: a mapping"),
    ({"offers": [3]}, "pools[0].offers[0]: found 3; allowed: a mapping"),
    ({"offers": [{"region": "n"}]}, "pools[0].offers[0].compute: missing; allowed: text"),
    ({"offers": [{"compute": "acmee", "region": "n"}]},
     "pools[0].offers[0].compute: found 'acmee' (did you mean 'acme'?)"),
    ({"offers": [{"compute": 3}]}, "pools[0].offers[0].compute: found 3; allowed: text"),
    ({"offers": [{"compute": "acme"}]}, "pools[0].offers[0].region: missing; allowed: text"),
    ({"offers": [{"compute": "acme", "region": "n", "regionn": 1}]},
     "pools[0].offers[0].regionn: unknown setting (did you mean 'region'?); allowed: "),
    ({"offers": [{"compute": "acme", "region": "n", "usd_per_hour": -1}]},
     "pools[0].offers[0].usd_per_hour: found -1; allowed: a number, at least 0"),
    ({"offers": [{"compute": "acme", "region": "n", "ports": [0]}]},
     "pools[0].offers[0].ports[0]: found 0; allowed: a whole number, at least 1, at most 65535"),
    ({"offers": [{"compute": "acme", "region": "n", "disks": [{"gib": 0}]}]},
     "pools[0].offers[0].disks[0].gib: found 0; allowed: a whole number, at least 1, at most 100"),
    ({"offers": [{"compute": "acme", "region": "n", "image": "cursed"}]},
     "pools[0].offers[0].image: found 'cursed', allowed: any other"),
    ({"offers": [{"compute": "acme", "region": "n"}, {"compute": "acme", "region": "n"}]},
     "pools[0].offers[1].name: found 'acme', as pools[0].offers[0] has; allowed: a name of its own"),
    ({"offers": [{"compute": "acme_broken"}]},
     "pools[0].offers[0].compute: 'acme_broken' (acme_things.broken) cannot be imported: RuntimeError: broken on;"),
    ({"offers": [{"compute": "acme_bare"}]}, "pools[0].offers[0].compute: 'acme_bare' (acme_things.bare) has no"),
    ({"offers": [{"compute": "acme_needs"}]},
     "pools[0].offers[0].compute: 'acme_needs' needs the package a_package_that_is_not_there"),
    ({"ready_when": {"kind": "acme", "passes": 0}},
     "pools[0].ready_when.passes: found 0; allowed: a whole number, "),
    ({"ready_when": {"kind": "acme", "give_up_after": 0}}, "pools[0].ready_when.give_up_after: found 0, which gives a"),
    ({"ready_when": {"kind": "acme", "port": 1}},
     "pools[0].ready_when.port: has no effect, every offer has ports; allowed: one of the two"),
    ({"ready_when": [1]}, "pools[0].ready_when: found a list of 1; allowed: a mapping"),
    ({"budget": {"usd_per_hour": 3}}, "pools[0].budget: has no effect while no offer has a price; allowed: "),
    ({"budget": {"usd_per_hour": 0}}, "pools[0].budget.usd_per_hour: found 0; allowed: a number, more than 0"),
    ({"balancers": [{"kind": "acme", "target": "x"}, {"kind": "acme", "target": "y"}]},
     "pools[0].balancers[1].name: found 'acme', as pools[0].balancers[0] has; allowed: a name of its own"),
    ({"balancers": [{"kind": "acme", "target": "x"}, {"kind": "acme", "target": "x", "name": "b"}]},
     "pools[0].balancers[1]: acts on the same target as pools[0].balancers[0]; allowed: one of its own"),
    ({"balancers": [{"kind": "envoy", "listen": "127.0.0.1:9095"}]},
     "pools[0].balancers[0].listen: found '127.0.0.1:9095', the address of admin.listen; "),
    ({"telemetry": None}, "pools[0].telemetry: missing, and the policies read queue_length; allowed: "),
    ({"telemetry": {}}, "pools[0].telemetry.kind: missing; allowed: text"),
    ({"telemetry": None, "policies": [{"kind": "fixed", "size": 2}], "capacity": {"min": 1, "max": 3, "fallback": 2}},
     "pools[0].capacity.fallback: has no effect without telemetry; allowed: "),
    ({"policies": []}, "pools[0].policies: found an empty list; allowed: a list of: a mapping, not empty"),
    ({"policies": [{"kind": "target_trackin"}]},
     "pools[0].policies[0].kind: found 'target_trackin' (did you mean 'target_tracking'?); "),
    ({"policies": [{"kind": "target_tracking", "signal": "queue", "target": 1}]},
     "pools[0].policies[0].signal: found 'queue'; allowed: one of queue_length, "),
    ({"policies": [{"kind": "target_tracking", "signal": "queue_length", "target": 0}]},
     "pools[0].policies[0].target: found 0, allowed is a number above 0"),
    ({"policies": [{"kind": "fixed", "size": 1}, {"kind": "fixed", "size": 2}]},
     "pools[0].policies[1]: is 'fixed' again, as pools[0].policies[0]; allowed: one of each"),
    ({"policies": [{"kind": "compose", "as": "highest", "of": []}]},
     "pools[0].policies[0].of: found an empty list; allowed: at least one policy"),
    ({"policies": [{"kind": "compose", "as": "tallest", "of": [{"kind": "fixed", "size": 1}]}]},
     "pools[0].policies[0].as: found 'tallest'; allowed: one of highest, lowest, ceiling, veto"),
    ({"policies": [{"kind": "compose", "as": "veto", "of": [
        {"kind": "compose", "as": "veto", "of": [{"kind": "fixed"}]}]}]},
     "pools[0].policies[0].of[0].of[0].size: missing; allowed: a number"),
    ({"pace": {"tick": 0}}, "pools[0].pace.tick: found 0; allowed: "),
    ({"pace": {"scale_in": {"max_step": 0}}}, "pools[0].pace.scale_in.max_step: found 0; allowed: a whole number"),
    ({"pace": {"backoff_first": "2h"}}, "pools[0].pace.backoff_first: found 7200 s, which is more than "),
    ({"pace": {"tik": 1}}, "pools[0].pace.tik: unknown setting (did you mean 'tick'?); allowed: backoff_first, "),
    ({"drain": {"deadline": "soon"}}, "pools[0].drain.deadline: found 'soon'; allowed: a duration such as 30s"),
    (
        {"offers": [{"compute": "acme", "region": "n", "ports": [1], "tags": {"a": 1}}]},
        "pools[0].offers[0].tags.a: found 1; allowed: text",
    ),
    ({"labels": {"a": "b"}}, "pools[0].labels: unknown setting"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), CASES, ids=[line[:60] for _, line in CASES])
def test_a_mistake_in_a_pool(mistakes_of: Mistakes, changes: dict[str, Any], line: str) -> None:
    pool = a_pool()
    pool.update(changes)
    mistakes = mistakes_of(a_config({key: value for key, value in pool.items() if value is not None}))
    assert [mistake for mistake in mistakes if mistake.startswith(line)], mistakes
    assert len(mistakes) == 1, "one cause, one line"


TOP: list[tuple[dict[str, Any], str]] = [
    ({"installation": 3}, "installation: found 3; allowed: up to 63"),
    ({"pools": []}, "pools: found an empty list; allowed: a list of: a mapping, not empty"),
    ({"pools": 3}, "pools: found 3; allowed: a list of: a mapping"),
    ({"installationn": "x"}, "installationn: unknown setting (did you mean 'installation'?); allowed: admin, "),
    ({"log": {"level": "loud"}}, "log.level: found 'loud'; allowed: one of debug, info, warning, error"),
    ({"admin": {"listen": "here"}}, "admin.listen: found 'here'; allowed: HOST:PORT such as 127.0.0.1:9095"),
    ({"admin": {"listen": "127.0.0.1:99999"}}, "admin.listen: found '127.0.0.1:99999'; allowed: HOST:PORT"),
    ({"admin": {"listen": "0.0.0.0:9095"}}, "admin.listen: found '0.0.0.0:9095', which others can reach"),
    ({"admin": {"token_file": "absent"}}, "admin.token_file: "),
    ({"ledger": "nonsense"}, "ledger: found 'nonsense'; allowed: sqlite://..."),
    ({"ledger": "oracle://db/x"}, "ledger: found 'oracle'; allowed: "),
    ({"ledger": 3}, "ledger: found 3; allowed: "),
    ({"ledger": {"url": "sqlite:///x.db", "busy_timeout": "2h"}}, "ledger.busy_timeout: found 7200"),
    ({"ledger": {"busy_timeut": 1}}, "ledger.busy_timeut: unknown setting (did you mean 'busy_timeout'?); allowed: "),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), TOP, ids=[line[:60] for _, line in TOP])
def test_a_mistake_at_the_top(mistakes_of: Mistakes, changes: dict[str, Any], line: str) -> None:
    mistakes = mistakes_of({**a_config(), **changes})
    assert [mistake for mistake in mistakes if mistake.startswith(line)], mistakes


def test_all_mistakes_of_a_file_come_at_once(mistakes_of: Mistakes) -> None:
    first = a_pool("one", capacity={"min": 5, "max": 3}, mode="x", pace={"tick": "x", "breaker_after": 0})
    first["offers"] = [{"compute": "nope"}, {"compute": "acme", "zone": 1}]
    second = a_pool("one", policies=[{"kind": "nope"}, {"kind": "fixed", "size": -1}])
    third = a_pool("three", balancers=[{"kind": "acme", "target": "target-of-four"}])
    fourth = a_pool("four")
    config = a_config(first, second, third, fourth, admin={"listen": "x", "token": "hunter2"}, zzz=1)
    paths = [mistake.partition(":")[0] for mistake in mistakes_of(config)]
    assert paths == [
        "admin.token", "zzz",
        "pools[0].capacity.min", "pools[0].mode", "pools[0].pace.tick", "pools[0].pace.breaker_after",
        "pools[0].offers[0].compute", "pools[0].offers[1].region", "pools[0].offers[1].zone",
        "pools[1].policies[0].kind", "pools[1].policies[1].size", "pools[1].name",
        "admin.listen", "pools[3].balancers[0]",
    ]  # fmt: skip


PLANTED = "hunter2-hunter2-hunter2"


@pytest.mark.parametrize(
    ("where", "mend"),
    [
        ({"admin": {"token": PLANTED}}, "AUTOSCALER_ADMIN_TOKEN"),
        ({"ledger": f"postgresql+psycopg://me:{PLANTED}@db/x"}, "AUTOSCALER_LEDGER"),
        ({"pools": [a_pool(telemetry={"kind": "acme", "api_key": PLANTED})]}, "api_key_file"),
        ({"pools": [a_pool(telemetry={"kind": "acme", "url": f"http://u:{PLANTED}@h/"})]}, "environment variable"),
        (
            {"pools": [a_pool(offers=[{"compute": "acme", "region": "n", "tags": {"HF_TOKEN": PLANTED}}])]},
            "HF_TOKEN_env",
        ),
        (
            {"pools": [a_pool(balancers=[{"kind": "acme", "target": "t", "headers": {"authorization": PLANTED}}])]},
            "_file",
        ),
        ({"pools": [a_pool(balancers=[{"kind": "acme", "target": f"Bearer {PLANTED}"}])]}, "environment variable"),
        ({"pools": [a_pool(password={"nested": PLANTED})]}, ""),
        ({"pools": [a_pool(token=[PLANTED])]}, ""),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_shown(mistakes_of: Mistakes, where: dict[str, Any], mend: str) -> None:
    mistakes = mistakes_of({**a_config(), **where})
    assert any(mend in mistake for mistake in mistakes), mistakes
    assert PLANTED not in "\n".join(mistakes)


def test_the_environment_wins_and_brings_the_token(load_text: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSCALER_LOG__LEVEL", "debug")
    monkeypatch.setenv("AUTOSCALER_ADMIN__LISTEN", "127.0.0.1:9999")
    monkeypatch.setenv("AUTOSCALER_LEDGER", "sqlite:////var/lib/a.db")
    monkeypatch.setenv("AUTOSCALER_ADMIN_TOKEN", PLANTED)
    monkeypatch.setenv("AUTOSCALER_INSTALLATION", "")  # empty is not set
    config = load_text({**a_config(), "log": {"level": "error", "format": "console"}})
    assert (config.log.level, config.log.format, config.admin.port) == ("debug", "console", 9999)
    assert config.installation == "test"
    assert getattr(config.ledger.settings, "url", "") == "sqlite:////var/lib/a.db"
    assert config.admin.token is not None
    assert config.admin.token.reveal() == PLANTED
    assert PLANTED not in repr(config)


def test_what_is_wrong_in_the_environment_is_named_without_its_value(
    mistakes_of: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOSCALER_ADMIN__TOKEN", PLANTED)
    (line,) = mistakes_of(a_config())
    assert line.startswith("environment AUTOSCALER_ADMIN__TOKEN: unknown or wrong; allowed: ")
    assert PLANTED not in line
    monkeypatch.delenv("AUTOSCALER_ADMIN__TOKEN")
    monkeypatch.setenv("AUTOSCALER_ADMIN", PLANTED)
    (line,) = mistakes_of(a_config())
    assert line.startswith("environment AUTOSCALER_ADMIN: ")
    assert PLANTED not in line


def test_a_mounted_token(
    load_text: Load, mistakes_of: Mistakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    config = {**a_config(), "admin": {"token_file": "token", "listen": "0.0.0.0:9095"}}
    file.write_text(f"{PLANTED}\n")
    file.chmod(0o644)
    (line,) = mistakes_of(config)
    assert line.startswith(f"admin.token_file: {file}: everyone may read the secret in it")
    file.chmod(0o600)
    token = load_text(config).admin.token
    assert token is not None
    assert token.reveal() == PLANTED
    file.write_text("short")
    (line,) = mistakes_of(config)
    assert (
        line == "admin token: found a text of length 5; allowed: at least 16 printable ASCII characters without spaces"
    )
    file.write_bytes(b"\xff\xfe")
    assert any("not UTF-8" in line for line in mistakes_of(config))
    monkeypatch.setenv("AUTOSCALER_ADMIN_TOKEN", PLANTED)
    (line,) = mistakes_of(config)
    assert line.startswith("admin.token_file: has no effect")


def test_every_variable_is_listed() -> None:
    assert "AUTOSCALER_ADMIN_TOKEN" in variables()
    assert "AUTOSCALER_LOG__LEVEL" in variables()
    assert len(variables()) == len(set(variables())) >= 8


def test_the_hash_names_the_settings_and_nothing_else(load_text: Load) -> None:
    def hashes(*pools: dict[str, Any]) -> list[str]:
        return [pool.config_hash for pool in load_text(a_config(*pools)).pools]

    (first,) = hashes(a_pool())
    assert hashes(dict(reversed(a_pool().items()))) == [first], "the order of keys does not count"
    assert hashes(a_pool("other"), a_pool())[1] == first, "nor does the place in the file"
    assert hashes(a_pool(ready_when={"kind": "acme", "passes": 2})) == [first], "nor a default written out"
    changed = [
        a_pool(capacity={"min": 1, "max": 5}),
        a_pool(telemetry={"kind": "acme", "value": 1.0}),
        a_pool(ready_when={"kind": "acme", "loaded": False}),
        a_pool(policies=[{"kind": "target_tracking", "signal": "queue_length", "target": 5}]),
        a_pool(policies=[{"kind": "compose", "as": "veto", "of": a_pool()["policies"]}]),
        a_pool(pace={"tick": 14}),
    ]
    assert len({first, *(hashes(pool)[0] for pool in changed)}) == len(changed) + 1


def test_identity_changes_with_what_must_not_change_under_a_running_pool(load_text: Load) -> None:
    def identity(pool: dict[str, Any], **changes: Any) -> str:
        return load_text(a_config(pool, **changes)).pools[0].pool.identity

    first = identity(a_pool())
    assert identity(a_pool(capacity={"min": 2, "max": 9}, pace={"tick": 3})) == first
    for other in (
        identity(a_pool("other", balancers=a_pool()["balancers"])),
        identity(a_pool(), installation="other"),
        identity(a_pool(balancers=[{"kind": "acme", "target": "elsewhere"}])),
        identity(a_pool(offers=[{"compute": "acme", "region": "south", "ports": [8000]}])),
    ):
        assert other != first


words = st.sampled_from([
    "name", "capacity", "min", "max", "offers", "compute", "acme", "region", "kind", "policies", "fixed", "size",
    "telemetry", "balancers", "ready_when", "pace", "tick", "drain", "mode", "compose", "of", "as", "highest", "http",
])  # fmt: skip
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words | st.text(max_size=4) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_no_config_is_a_traceback(data: st.DataObject) -> None:
    config: Any = a_config(a_pool(), a_pool("other"))
    for _ in range(data.draw(st.integers(1, 3))):
        spoil(config, data)
    lines: list[str] = []
    try:
        found: Config | None = from_mapping(config, Path("/nowhere/autoscaler.yaml"), Environment())
    except ConfigError as error:
        found, lines = None, error.mistakes
    assert lines if found is None else found.pools
    assert all(": " in line and "\n" not in line for line in lines)


def spoil(node: Any, data: st.DataObject) -> None:
    """Replace, add or remove something somewhere."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(node[key], dict | list) and data.draw(st.integers(0, 3)):
            node = node[key]
            continue
        break
    what = data.draw(st.sampled_from(["replace", "remove", "add"]))
    if what == "remove":
        del node[key]
    elif what == "add" and isinstance(node, dict):
        node[data.draw(words | st.text(max_size=4))] = data.draw(junk)
    else:
        node[key] = data.draw(junk)


def test_loading_reads_the_real_environment(tmp_path: Path) -> None:
    assert not [name for name in os.environ if name.startswith("AUTOSCALER_")], "the fixture takes them away"
    assert yaml.safe_load(yaml.safe_dump(a_config())) == a_config()
