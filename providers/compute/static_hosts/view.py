"""Claims and what hosts say, as the compute port shows them.

Does: turn a claim and a status into an instance; name what is not ours. Does not: ask a host or change a claim.
Invariant: an owned host whose status cannot be known keeps being shown as it was last known, never as gone: whether it
serves is for the probe to say, and a host that nobody can reach must be replaceable.
"""

from __future__ import annotations

from typing import Final

from autoscaler.domain.base import InstanceId, Instant, Token, elapsed
from autoscaler.domain.replica import Instance, InstanceState
from providers.compute.static_hosts.settings import Host, Settings
from providers.compute.static_hosts.state import Claim
from providers.compute.static_hosts.status import Power, Status

_STATES: Final = {
    Power.RUNNING: InstanceState.RUNNING,
    Power.STARTING: InstanceState.PENDING,
    Power.STOPPING: InstanceState.STOPPING,
}


class Known:
    """What this process has seen of each instance: nothing of it has to outlive the process.

    `up`: False while a host that we started has not been seen running; True once it has.
    """

    def __init__(self) -> None:
        self.up: dict[InstanceId, bool] = {}
        self.boots: dict[InstanceId, str] = {}

    def note(self, claim: Claim, status: Status) -> None:
        """Remember what a look has told."""
        if status.power is Power.RUNNING:
            self.up[claim.instance] = True
        if status.boot:
            self.boots[claim.instance] = status.boot

    def keep(self, instances: set[InstanceId]) -> None:
        """Forget all others."""
        self.up = {name: up for name, up in self.up.items() if name in instances}
        self.boots = {name: boot for name, boot in self.boots.items() if name in instances}

    def show(self, claim: Claim, settings: Settings, status: Status, now: Instant) -> Instance:
        """A claimed host as a machine of its pool. Called after `note`, for a claim that has not ended."""
        detail = "; ".join(text for text in (claim.detail, status.detail if settings.status else "") if text)
        return Instance(
            id=claim.instance,
            token=Token(claim.token),
            offer=claim.offer,
            zone=claim.host.zone,
            state=self._state(claim, settings, status, now),
            launched_at=Instant(claim.at),
            address=claim.host.reached_at,
            ports=claim.host.ports,
            boot=self._boot(claim, settings, status),
            epoch=claim.token.partition("-")[0],
            detail=detail,
        )

    def _state(self, claim: Claim, settings: Settings, status: Status, now: Instant) -> InstanceState:
        if claim.stop_at is not None:
            return InstanceState.STOPPING
        if status.power in _STATES:
            return _STATES[status.power]
        up = self.up.get(claim.instance)
        if status.power is Power.STOPPED:
            young = elapsed(Instant(claim.at), now) < settings.boot_within
            return InstanceState.PENDING if young and not up else InstanceState.STOPPED
        booting = bool(settings.status) and up is False
        return InstanceState.PENDING if booting else InstanceState.RUNNING

    def _boot(self, claim: Claim, settings: Settings, status: Status) -> str:
        """The boot as told, as last told, or the start that we asked for where none is ever told."""
        known = self.boots.get(claim.instance, "")
        told_none = not settings.status or (status.power is Power.RUNNING and not status.boot)
        return known or (f"start-{claim.at:.3f}" if told_none else "")


def foreign_claim(claim: Claim) -> Instance:
    """A host that our own file gives to another installation, or to a pool that no config knows."""
    return Instance(
        id=claim.instance,
        token=Token(claim.token),
        offer=claim.offer,
        zone=claim.host.zone,
        state=InstanceState.STOPPING if claim.stop_at is not None else InstanceState.RUNNING,
        launched_at=Instant(claim.at),
        address=claim.host.reached_at,
        detail=f"installation {claim.installation}, pool {claim.pool}",
    )


def foreign_host(host: Host, status: Status, at: Instant) -> Instance:
    """A host that runs and that nobody of ours has started; its id is its name."""
    whose = f"its tag says {status.tag}" if status.tag else "somebody else started it"
    return Instance(
        id=InstanceId(host.name),
        token=Token(""),
        offer="",
        zone=host.zone,
        state=InstanceState.RUNNING,
        launched_at=at,
        address=host.reached_at,
        boot=status.boot,
        detail=f"{whose}; `adopt` gives it to a pool",
    )
