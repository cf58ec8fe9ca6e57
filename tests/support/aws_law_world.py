"""The laws' world with our AWS adapters in it: what it launches, ends, admits and drains goes through aws_ec2 and
aws_elb to an account in memory (tests/support/aws_double.py).

The judge stays the same and reads the account's truth, not what the adapters say: machines and members of the world
are brought in step with the account after each call. In addition it looks that no token made more machines than were
asked for, and that nothing was done to machines of others.
"""

import asyncio
import functools
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

import msgspec
import pytest
from typing_extensions import override

from autoscaler.domain.base import Duration, InstanceId, Instant, ReplicaId, Token, replica_id
from autoscaler.domain.decision import Admit, Decision, Drain, Evict, Launch, Observation, Recall, Terminate, Withdraw
from autoscaler.domain.faults import Fault, PortFault
from autoscaler.domain.pool import Offer, Pool
from autoscaler.domain.replica import BalancerView, ComputeView, MemberState
from autoscaler.ports.build import Context
from providers._shared.aws import Account
from providers.balancer import aws_elb
from providers.balancer.aws_elb import group as elb_adapter
from providers.compute import aws_ec2
from providers.compute.aws_ec2 import adapter as ec2_adapter
from tests.support.aws_double import FOREVER, REGION, AwsDouble, Target
from tests.support.aws_quirks import Failure
from tests.support.aws_wire import Wire
from tests.support.judge import Laws
from tests.support.world import Event, Machine, Script, World, pools

replace = msgspec.structs.replace
T = TypeVar("T")
COMPUTE = "aws_ec2:us-east-1"
GROUP = f"arn:aws:elasticloadbalancing:{REGION}:123456789012:targetgroup/g/0123456789abcdef"
_BINDING = aws_elb.Settings(target_group=GROUP, strategy="least_connections", settle=Duration(10.0))
#: What any call may answer now and then: throttled, failed, failed after it took effect, not at all.
WEATHER = (
    Failure("RequestLimitExceeded", 503), Failure("InternalError", 500), Failure("ExpiredToken", 400),
    Failure("InternalError", 500, took_effect=True), Failure("timeout", 0, took_effect=True), Failure("timeout", 0),
)  # fmt: skip


def aws_pools(ports: int = 1, zones: int = 2, **changes: object) -> Pool:
    """A pool with a spot offer that names zones and an on-demand offer that names subnets."""
    spot = aws_ec2.Settings(region=REGION, launch_template="lt-0abc", version="7")
    dear = replace(spot, subnets=tuple(f"subnet-{zone}" for zone in "abc"[:zones]))
    base = pools(ports=ports, zones=zones)
    offers = [
        replace(offer, compute=COMPUTE, market=market, request=msgspec.json.encode(settings).decode())
        for offer, market, settings in zip(base.offers, ("spot", "on_demand"), (spot, dear), strict=True)
    ]
    traits = aws_elb.TargetGroup(_BINDING, Context(installation="here", state_dir="", clock=_Clock(None), name="b"))
    return replace(base, offers=tuple(offers), balancers=(traits.traits(),), **changes)


@functools.cache
def _account(wire: Wire) -> Account:
    """Clients of boto3 are dear to make: one account serves all worlds, each with its own double behind the wire."""
    return Account(REGION, "", wire.configure)


class _Clock:
    """The world's time, as the adapters ask for it."""

    def __init__(self, world: World | None) -> None:
        self._world = world

    def now(self) -> Instant:
        return self._world.now if self._world is not None else Instant(0.0)

    async def sleep(self, wait: Duration) -> None:
        raise AssertionError(f"an adapter slept {wait:g} s")


class AwsLaws(Laws):
    """The laws, and what they mean at EC2."""

    @override
    def stepped(self, world: World, decision: Decision) -> None:
        super().stepped(world, decision)
        assert isinstance(world, AwsWorld)
        for token, (order, ids) in world.tokens.items():
            if len(ids) > order.count:
                self.broken(6, f"token {token} asked for {order.count} and made {len(ids)} machines: {sorted(ids)}")
        if world.aws.touched & world.bystanders:
            self.broken(7, f"machines of others were ended: {sorted(world.aws.touched & world.bystanders)}")

    @override
    def _law_2(self, world: World, action: Terminate) -> None:
        """A machine whose model was loaded again only after it had left had no request in this boot: see world 1591.

        That its two looks are one is so by the engine's design: a restart is what empties a machine for certain.
        """
        machine = world.machines.get(action.instance)
        ports = machine.ports if machine is not None else ()
        left = [self._out_at.get(replica_id(action.instance, port), FOREVER) for port in ports]
        if machine is not None and machine.boots > 1 and all(at <= machine.loads_at for at in left):
            if any(machine.inside.values()) or any(world.states(replica_id(machine.id, port)) for port in ports):
                self.broken(2, f"{machine.id} is terminated with requests inside, or while a balancer lists it")
            return
        super()._law_2(world, action)

    @override
    def ended(self, world: World) -> None:
        super().ended(world)
        assert isinstance(world, AwsWorld)
        living = {name for name, one in world.aws.machines.items() if one.ends_at == FOREVER} - world.bystanders
        if living != {name for name, one in world.machines.items() if one.ending_at == FOREVER}:
            self.broken(6, "the account and the world do not have the same machines")
        if not all(world.aws.machines[one].ends_at == FOREVER for one in world.bystanders):
            self.broken(7, "a machine of others has ended")


class AwsWorld(World):
    """A world whose computes and balancers are ours over AWS. `rate`: of calls that fail. `wire`: go by boto3."""

    def __init__(self, script: Script, judge: Laws, seed: int, rate: float = 0.05, wire: Wire | None = None) -> None:
        super().__init__(script, judge)
        self._loop = asyncio.new_event_loop()
        self._chance, self._rate = Random(seed), rate
        self.aws = AwsDouble(lambda: self.now, self._fails, self._answers)
        self.aws.unlisted_s, self.aws.ending_s = self._chance.choice((0.0, 0.0, 20.0, 40.0)), 30.0
        self.aws.initial_s, self.aws.draining_s = 10.0, self._chance.choice((20.0, 60.0))
        self._account: Any = self.aws
        if wire is not None:
            wire.double, self._account = self.aws, _account(wire)
        self._orders: dict[Token, Launch] = {}
        foreign = {"autoscaler:installation": "there", "autoscaler:pool": "p"}
        self.bystanders = {self.aws.launch(f"{REGION}a", tags).id for tags in ({}, foreign)}
        self._build()

    def close(self) -> None:
        """Release the loop."""
        self._loop.close()

    def _build(self) -> None:
        """The adapters of a daemon that starts."""
        context = Context(installation=self.pool.installation, state_dir="", clock=_Clock(self), pool=self.pool.name)
        settings = aws_ec2.Settings(region=REGION, launch_template="lt-0abc", version="7")
        with pytest.MonkeyPatch.context() as patch:
            for module in (ec2_adapter, elb_adapter):
                patch.setattr(module, "Account", lambda *_: self._account)
            self._compute = aws_ec2.Ec2Compute(settings, msgspec.structs.replace(context, name=COMPUTE))
            self._balancer = aws_elb.TargetGroup(_BINDING, msgspec.structs.replace(context, name="b"))

    def _done(self, asked: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asked)

    # --- what fails ---

    def _fails(self, operation: str) -> Failure | None:
        lost = Failure("InternalError", 500, took_effect=bool(self._chance.getrandbits(1)))
        changes = not operation.startswith("describe")
        for trouble, concerned, failure in (
            ("throttled", operation == "run_instances", Failure("RequestLimitExceeded", 503)),
            ("terminate_throttled", operation == "terminate_instances", Failure("RequestLimitExceeded", 503)),
            ("quota", operation == "run_instances", Failure("VcpuLimitExceeded", 400)),
            ("refused", operation == "run_instances", Failure("InvalidAMIID.NotFound", 400)),
            ("unreachable", changes and "target" not in operation, lost),
            ("balancer_fault", changes and "target" in operation, lost),
        ):
            if concerned and self.is_on(trouble):
                return failure
        # A launch whose answer is lost is what tokens are for: it happens often enough to be tried.
        rate = 0.4 if self.is_on("storm") else self._rate * (4.0 if operation == "run_instances" else 1.0)
        return self._chance.choice(WEATHER) if self._chance.random() < rate else None

    def _answers(self, name: str, port: int) -> bool:
        machine = self.machines.get(InstanceId(name))
        rid = replica_id(InstanceId(name), port)
        return machine is not None and machine.loaded(self.now) and rid not in self.no_traffic

    @override
    def heal(self) -> None:
        super().heal()
        self._rate = 0.0

    # --- the account and the world in step ---

    @override
    def _move(self) -> None:
        self.aws.room = {f"{REGION}a": 0} if self.is_on("no_capacity") else {}
        super()._move()
        self._sync()

    def _sync(self) -> None:
        """What is so in the account is so in the world."""
        for name, one in self.aws.machines.items():
            token = Token(one.tags.get("autoscaler:token", ""))
            if name in self.bystanders or token not in self._orders:
                continue
            order, ids = self.tokens.setdefault(token, (self._orders[token], []))
            if name not in ids:
                ids.append(InstanceId(name))
                offer = self.pool.offer(order.placement.offer)
                assert offer is not None
                one.runs_at = self.add_machine(InstanceId(name), token, offer, order.placement.zone).runs_at
        for machine in self.machines.values():
            there = self.aws.machines[machine.id]
            there.stopped = machine.stopped
            if there.ends_at != FOREVER and machine.ending_at == FOREVER:
                self.cut += sum(len(inside) for inside in machine.inside.values())
                machine.inside.clear()
                machine.up, machine.ended_by, machine.ending_at = False, "us", there.ends_at
        self._sync_members()

    def _sync_members(self) -> None:
        self.aws.settle()
        before, members = self.members["b"], dict[ReplicaId, MemberState]()
        for (name, port), target in self.aws.targets.items():
            rid, drains = replica_id(InstanceId(name), port), target.draining_since != FOREVER
            members[rid] = MemberState.DRAINING if drains else MemberState.ADMITTED
            if not drains and before.get(rid) is not MemberState.ADMITTED:
                self.admitted_at[rid] = float(self.now)
                machine = self.machine_of(rid)
                if machine is not None:
                    machine.served = True
        self.members["b"] = members

    @override
    def _vanish(self, machine: Machine, by: str) -> None:
        self.aws.end(machine.id, at_once=True)
        super()._vanish(machine, by)

    @override
    def _crash(self) -> None:
        super()._crash()
        self._build()

    # --- looking ---

    @override
    def _observe(self) -> Observation:
        for machine in self.machines.values():
            if machine.hidden:
                self.aws.machines[machine.id].listed_at = self.now + 1.0
        self._done(self._look())
        found = super()._observe()
        faults = tuple(
            replace(one, source=f"compute:{COMPUTE}") if one.source == "compute:c" else one for one in found.faults
        )
        return replace(found, computes={COMPUTE: found.computes["c"]} if "c" in found.computes else {}, faults=faults)

    async def _look(self) -> None:
        try:
            self._seen = await self._compute.observe(self.pool, self.memory.launches, self.now)
        except PortFault:
            self.until["blind_compute"] = max(self.step_no, self.until.get("blind_compute", -1))
        try:
            self._listed = await self._balancer.members()
        except PortFault:
            self.until["blind_balancer"] = max(self.step_no, self.until.get("blind_balancer", -1))

    @override
    def _compute_view(self) -> ComputeView:
        shown = []
        for one in self._seen.instances:
            machine = self.machines.get(one.id)
            if machine is not None:
                machine.shown_at = min(machine.shown_at, float(self.now))
                # A machine restarts its model server by itself: EC2 would not tell, the server's start does.
                shown.append(replace(one, boot=machine.boot, ports=machine.ports))
        if len(shown) < len(self.machines):
            self.disturb()
        return replace(self._seen, instances=tuple(shown), notices=tuple(self.notices.values()))

    @override
    def _balancer_view(self, name: str) -> BalancerView:
        return self._listed

    # --- acting ---

    def _asked(self, call: Coroutine[Any, Any, Any]) -> Fault | None:
        try:
            self._done(call)
        except PortFault as fault:
            return fault.fault
        finally:
            self._sync()
        return None

    @override
    def _do(self, action: Any) -> Fault | None:
        self.judge.acting(self, action)
        match action:
            case Launch():
                self._orders.setdefault(action.token, action)
                return self._asked(self._compute.launch(self.pool, action))
            case Withdraw():
                return self._asked(self._compute.withdraw(self.pool, action.token))
            case Terminate():
                return self._asked(self._compute.terminate(self.pool, [action.instance]))
            case Admit() | Recall():
                return self._asked(self._balancer.admit([action.endpoint]))
            case Drain():
                return self._asked(self._balancer.drain([action.endpoint]))
            case Evict():
                return self._asked(self._balancer.evict([action.endpoint]))
            case _:
                return None

    # --- troubles that are others here ---

    @override
    def _on_forgets(self, event: Event) -> None:
        rid = self._member(event.which)
        if rid is not None:
            name, _, port = rid.rpartition(":")
            self.aws.targets.pop((name, int(port)), None)
            self._sync_members()

    @override
    def _on_undrains(self, event: Event) -> None:
        for key in self.aws.targets:
            self.aws.targets[key] = Target(float(self.now))
        self._sync_members()
        self.disturb()


__all__ = ["AwsLaws", "AwsWorld", "Offer", "aws_pools"]
