"""The gate: the one question before each action."""

from autoscaler.domain.base import Duration, Instant
from autoscaler.domain.faults import Unreachable
from autoscaler.runtime.gate import Gate, NullLease
from tests.support.virtual_time import VirtualClock, run_virtual


class Until:
    """A lease with an end that a test sets; None: another daemon's."""

    def __init__(self, until: Instant | None) -> None:
        self.until = until
        self.fault: Unreachable | None = None

    async def renew(self) -> Instant | None:
        if self.fault is not None:
            raise self.fault
        return self.until

    async def aclose(self) -> None: ...


def test_the_gate_shuts_a_margin_before_the_lease_ends() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        gate = Gate(clock, margin=Duration(5.0))
        lease = Until(Instant(clock.now() + 20))
        assert await gate.renew(lease, deadline=Duration(1.0)) == ""
        assert gate.why_shut() == ""
        await clock.sleep(Duration(15.0))
        assert gate.why_shut() == ""
        await clock.sleep(Duration(0.1))
        assert gate.why_shut() == "the lease ends too soon"
        assert 4.8 < gate.lease_left() < 5.0

    run_virtual(scenario)


def test_a_renewal_that_fails_leaves_the_end_that_stands() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        gate = Gate(clock)
        lease = Until(Instant(clock.now() + 20))
        await gate.renew(lease, deadline=Duration(1.0))
        lease.fault = Unreachable("store gone")
        assert "store gone" in await gate.renew(lease, deadline=Duration(1.0))
        assert gate.why_shut() == ""
        await clock.sleep(Duration(16.0))
        assert gate.why_shut() == "the lease ends too soon"

    run_virtual(scenario)


def test_a_lease_that_another_holds_shuts_the_gate_at_once() -> None:
    async def scenario() -> None:
        gate = Gate(VirtualClock())
        await gate.renew(Until(None), deadline=Duration(1.0))
        assert gate.why_shut() == "another daemon holds the lease"
        assert not gate.lease_left()
        await gate.renew(NullLease(), deadline=Duration(1.0))
        assert gate.why_shut() == ""

    run_virtual(scenario)


def test_a_closed_gate_stays_shut() -> None:
    async def scenario() -> None:
        gate = Gate(VirtualClock())
        gate.close()
        await gate.renew(NullLease(), deadline=Duration(1.0))
        assert gate.why_shut() == "the daemon is stopping"

    run_virtual(scenario)
