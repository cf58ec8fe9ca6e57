from pathlib import Path

from autoscaler.demo.load import read_options as read_load_options
from autoscaler.demo.profile import profile
from autoscaler.demo.scene import DEFAULT
from autoscaler.demo.server_options import read_options
from autoscaler.demo.workload import half, read_trace, shipped_trace


def test_the_scenes_commands_are_ones_that_the_processes_understand() -> None:
    server = DEFAULT.server_command(port=8000, stats_dir=Path("stats"), seed=3, control=True)
    options = read_options(server[3:])
    assert (options.port, options.seed, options.control) == (8000, 3, True)
    assert (options.time_scale, options.load_s) == (DEFAULT.time_scale, DEFAULT.load_s)
    assert options.profile.name == DEFAULT.profile
    load = DEFAULT.load_command(url="http://127.0.0.1:1", out=Path("o"), half="second", length_s=100)
    assert read_load_options(load[3:]).time_scale == DEFAULT.time_scale


def test_one_replica_is_too_few_for_the_bursts_of_either_half_and_enough_for_their_mean() -> None:
    prefill_tokens_per_s = profile(DEFAULT.profile).prefill_tokens_per_s
    whole = read_trace(shipped_trace())
    for arrivals in (half(whole, "first"), half(whole, "second")):
        tokens = [0] * 60
        for arrival in arrivals:
            tokens[int(arrival.at_s / 30)] += arrival.input_tokens
        assert max(tokens) / 30 > 1.2 * prefill_tokens_per_s
        assert sum(tokens) / 1718 < 0.75 * prefill_tokens_per_s


def test_a_whole_half_and_the_way_back_end_within_the_demos_time() -> None:
    stabilization_s, cooldown_s = 600, 300
    steps_in = DEFAULT.replicas_max - DEFAULT.replicas_min
    assert DEFAULT.wall_s(1718 + stabilization_s + (steps_in - 1) * cooldown_s) < 150
