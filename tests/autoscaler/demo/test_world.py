"""The demo's config: the product's own format and defaults, with the scene's times."""

import stat
from pathlib import Path

import pytest
import yaml

from autoscaler.config.load import load
from autoscaler.demo import world
from autoscaler.demo.scene import DEFAULT
from autoscaler.domain.faults import ConfigError
from autoscaler.domain.pool import DrainRule, Pace, ReadyRule

SCALE = DEFAULT.time_scale


@pytest.fixture
def here(tmp_path: Path) -> world.World:
    return world.make(tmp_path)


def test_a_world_has_its_own_folders_and_ports(here: world.World) -> None:
    assert len({here.admin_port, here.listen_port, here.proxy_admin_port}) == 3
    for folder in (here.state, here.stats):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert here.daemon_command[1:] == ["-m", "autoscaler.cli.main", "run", "--config", str(here.config)]
    assert here.url == f"http://127.0.0.1:{here.listen_port}"


def test_the_products_own_check_accepts_it_with_the_default_pace_divided(here: world.World) -> None:
    world.write(here, DEFAULT, world.default_policies(DEFAULT), seed=7)
    world.check(here, None)
    (made,) = load(here.config).pools
    pool, default = made.pool, Pace()
    assert (pool.bounds.min, pool.bounds.max) == (DEFAULT.replicas_min, DEFAULT.replicas_max)
    assert pool.pace.tick == pytest.approx(default.tick / SCALE)
    assert pool.pace.scale_out.cooldown == pytest.approx(default.scale_out.cooldown / SCALE)
    assert pool.pace.scale_in.cooldown == pytest.approx(default.scale_in.cooldown / SCALE)
    assert pool.pace.scale_in.stabilization == pytest.approx(default.scale_in.stabilization / SCALE)
    assert (pool.pace.scale_out.max_step, pool.pace.scale_in.max_step) == (2, 1)
    assert pool.pace.unhealthy_after == default.unhealthy_after  # a dead process is no faster noticed
    assert pool.drain.deadline == pytest.approx(DrainRule().deadline / SCALE)
    assert pool.ready.give_up_after == pytest.approx(ReadyRule().give_up_after / SCALE)
    assert [policy.kind for policy in made.policies] == ["target_tracking", "target_tracking", "latency_slo"]


def test_a_latency_is_divided_a_rate_multiplied_and_a_queue_left() -> None:
    scaled = [
        world.scaled_policy(policy, 25.0)
        for policy in (
            {"kind": "target_tracking", "signal": "queue_length", "target": 4},
            {"kind": "target_tracking", "signal": "request_rate", "target": 2},
            {
                "kind": "latency_slo",
                "signal": "ttft_s_p95",
                "objective": "2s",
                "confirm": [{"signal": "token_rate", "above": 10}],
            },
            {"kind": "latency_slo", "signal": "latency_p95", "objective": 50},
            {"kind": "step", "signal": "ttft_s_p95", "steps": [{"at_least": 5.0, "add": 2}]},
            {"kind": "step", "signal": "request_rate", "steps": [{"at_least": 2, "add": 1}], "scale_in": {"below": 1}},
            {
                "kind": "compose",
                "as": "lowest",
                "of": [{"signal": "token_rate", "target": 3}],
            },
        )
    ]
    assert scaled == [
        {"kind": "target_tracking", "signal": "queue_length", "target": 4},
        {"kind": "target_tracking", "signal": "request_rate", "target": 50},
        {
            "kind": "latency_slo",
            "signal": "ttft_s_p95",
            "objective": "0.08s",
            "confirm": [{"signal": "token_rate", "above": 250}],
        },
        {"kind": "latency_slo", "signal": "latency_p95", "objective": 2},
        {"kind": "step", "signal": "ttft_s_p95", "steps": [{"at_least": 0.2, "add": 2}]},
        {"kind": "step", "signal": "request_rate", "steps": [{"at_least": 50, "add": 1}], "scale_in": {"below": 25}},
        {"kind": "compose", "as": "lowest", "of": [{"signal": "token_rate", "target": 75}]},
    ]


@pytest.mark.parametrize(
    "policy", [3, "fixed", None, {"kind": "step", "steps": 3}, {"objective": "soon"}, {"target": True}]
)
def test_what_is_no_policy_is_left_for_the_check_to_name(policy: object) -> None:
    assert world.scaled_policy(policy, 25.0) == policy


@pytest.mark.parametrize(
    "text",
    [
        "- {kind: fixed, size: 2}\n",
        "# mine\n\n- kind: fixed\n  size: 2\n",
        "policies: [{kind: fixed, size: 2}]\n",
        "[{kind: fixed, size: 2}]\n",
    ],
)
def test_a_policy_file_is_a_list_or_has_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert world.read_policies(path) == [{"kind": "fixed", "size": 2}]


@pytest.mark.parametrize(
    "text", ["", "policies: []\n", "policies: 3\n", "pools: []\n", "policies: [1]\npools: []\n", "- [\n", "\x00"]
)
def test_a_file_that_has_no_policies_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        world.read_policies(path)


def test_a_mistake_in_a_users_policy_is_told_in_the_words_of_his_file(here: world.World, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    world.write(here, DEFAULT, [{"kind": "target_tracking", "signal": "queue_length", "target": -1}], seed=1)
    with pytest.raises(ConfigError) as told:
        world.check(here, mine)
    (line,) = told.value.mistakes
    assert line.startswith(f"{mine}: policies[0].target: found -1")


def test_what_is_written_is_plain_yaml_without_aliases(here: world.World) -> None:
    world.write(here, DEFAULT, world.default_policies(DEFAULT), seed=1)
    text = here.config.read_text()
    assert "&id" not in text
    assert yaml.safe_load(text)["installation"] == here.installation


def test_two_worlds_are_two_installations_so_that_neither_adopts_the_others_machines(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(world.make(tmp_path / name))
    assert made[0].installation != made[1].installation
