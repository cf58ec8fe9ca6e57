"""All laws with aws_ec2 and aws_elb in the world: 2,000 seeded fault schedules over an account in memory.

Each world draws a script of troubles (tests/support/campaign.py's words, and `storm`: two of five calls fail), and in
each of them one call in twenty fails besides: throttled, refused for the moment, failed before or after it took
effect, never answered. The judge checks every law after every decision, action and step.
"""

from collections import Counter
from collections.abc import Mapping
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from providers.balancer.aws_elb.health import member_of
from providers.compute.aws_ec2 import orders
from tests.support import moto
from tests.support.aws_law_world import AwsLaws, AwsWorld, aws_pools
from tests.support.aws_wire import Wire
from tests.support.judge import LawBroken
from tests.support.world import Event, Script

KINDS = (
    "load", "load", "load", "load", "storm", "storm", "crash", "crash", "crash_before_save", "down", "dropped",
    "outcomes_lost", "dies", "hangs", "recovers", "reboots", "stops", "vanishes", "hide", "never_loads", "slow_boot",
    "no_capacity", "no_capacity", "quota", "refused", "throttled", "terminate_throttled", "unreachable",
    "balancer_fault", "forgets", "undrains", "no_traffic", "stream", "at_least", "replace", "drain", "notice",
    "t_stale", "t_partial", "lose_ledger",
)  # fmt: skip
SHAPES = (aws_pools(), aws_pools(zones=1), aws_pools(ports=2), aws_pools(zones=3))
PARTS, WORLDS = 8, 250
#: What all worlds of one part must have reached together, so that nothing is proven by standing still.
LEAST = {
    "launch": 300, "admissions": 400, "scale_in": 25, "terminations": 80, "drained_empty": 40, "crash": 120,
    "calm_ends": 25, "failed_members": 20, "throttled": 20, "marks": 10, "drain_past_deadline": 3, "lost": 10,
    "token_again": 10, "no_capacity": 4, "orphans_ended": 1,
}  # fmt: skip


def script(seed: int, least: int = 4, most: int = 8) -> Script:
    """Some troubles; every eighth world ends in a calm, after which nothing may be left over."""
    chance = Random(seed)
    events = tuple(
        Event(chance.choice((0, 1, 2, 3, 5, 8, 12)), chance.choice(KINDS), chance.randint(0, 11), chance.randint(1, 8))
        for _ in range(chance.randint(least, most))
    )
    warm, demand = chance.choice((5, 9, 14)), chance.choice((0, 4, 8, 12, 16, 24))
    return Script(pool=chance.choice(SHAPES), events=events, demand=demand, warm=warm, calm=0 if seed % 8 else 60)


def played(scripts: Mapping[int, Script], *laws: int, wire: Wire | None = None) -> Counter[str]:
    """Run these worlds; what they reached, and what the account was asked and answered."""
    reached: Counter[str] = Counter()
    for seed, one in scripts.items():
        world = AwsWorld(one, AwsLaws(*laws), seed, wire=wire)
        try:
            world.run()
        except LawBroken as broken:
            broken.add_note(f"world {seed}, step {world.step_no}: {world.decision and world.decision.sentence}")
            raise
        finally:
            world.close()
            reached.update(world.reach)
            reached.update(world.aws.happened)
            reached["lost"] += world.aws.happened["lost_answer:run_instances"]
            reached["worlds"] += 1
    return reached


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(300)
def test_the_laws_hold_whatever_aws_answers(part: int) -> None:
    reached = played({seed: script(seed) for seed in range(part * WORLDS, (part + 1) * WORLDS)})
    print(f"{reached['worlds']} worlds, {reached['decisions']} decisions:", {name: reached[name] for name in LEAST})
    missed = {name: (reached[name], least) for name, least in LEAST.items() if reached[name] < least}
    assert not missed, f"hardly tried: (reached, wanted) {missed}"


def bites(law: int, most: int = 150) -> None:
    """With a mutant planted, some world breaks the law."""
    with pytest.raises(LawBroken) as found:
        played({seed: script(seed) for seed in range(most)}, law)
    assert found.value.law == law


def test_a_mutant_that_gives_each_call_a_token_of_its_own_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of a launch is lost, the engine asks again with the same token, and EC2 launches twice."""
    counter, real = Counter[str](), orders.client_token

    def fresh(*asked: Any) -> str:
        counter["asked"] += 1
        return f"{real(*asked)}-{counter['asked']}"[-64:]

    monkeypatch.setattr(orders, "client_token", fresh)
    bites(6)


def test_a_mutant_that_takes_a_draining_target_for_one_that_left_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(described: Any) -> Any:
        return None if described["TargetHealth"]["State"] == "draining" else member_of(described)

    monkeypatch.setattr("providers.balancer.aws_elb.group.member_of", hasty)
    bites(2)


@pytest.mark.timeout(300)
def test_the_laws_hold_through_boto3_in_100_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same through the SDK: its parameters, its signatures, its retries, its errors."""
    for name, value in moto.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))  # its waits before a retry
    wire = Wire()
    reached = played({seed: script(seed, 2, 5) for seed in range(100)}, wire=wire)
    print(f"{reached['worlds']} worlds, {wire.sent} requests of boto3:", {name: reached[name] for name in LEAST})
    assert wire.sent > 4000
    missed = {name: (reached[name], least) for name, least in LEAST.items() if reached[name] < least // 10}
    assert not missed, f"hardly tried: (reached, wanted) {missed}"
