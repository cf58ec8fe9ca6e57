"""`autoscaler check`: lint, what the modules say of the offers, and with --online whether everything answers.

Does: reach each compute, balancer, telemetry, the ledger and the admin address once. Does not: change any of them.
Invariant: every line stands for something that was really tried; one that fails does not hide the others.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NamedTuple

from autoscaler import wiring
from autoscaler.cli.admin import Daemon
from autoscaler.config.lint import Finding, Severity, lint
from autoscaler.domain.faults import PortFault, Refused, Unreachable
from autoscaler.ports.diagnosis import DiagnosingPart, Lack
from autoscaler.ports.telemetry import Diagnosing
from autoscaler.runtime.clock import SystemClock

if TYPE_CHECKING:
    from autoscaler.config.schema import Config
    from autoscaler.domain.pool import Pool
    from autoscaler.runtime.parts import PoolParts

_DEADLINE_S = 15.0


class Reached(NamedTuple):
    """One thing that was tried. `fault` is empty when it answered."""

    what: str
    said: str
    fault: str = ""

    def line(self) -> str:
        """For people."""
        return f"failed: {self.what}: {self.fault}" if self.fault else f"ok: {self.what}: {self.said}"

    def plain(self) -> dict[str, Any]:
        """For --json."""
        return {"what": self.what, "ok": not self.fault, "said": self.fault or self.said}


class Result(NamedTuple):
    """All findings, and what was reached."""

    config: str
    findings: list[Finding]
    reached: list[Reached]

    def exit_code(self, *, strict: bool) -> int:
        """3 when something did not answer, 1 when a finding fails the check, else 0."""
        if any(each.fault for each in self.reached):
            return 3
        failing = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
        return int(any(finding.severity in failing for finding in self.findings))

    def lines(self) -> list[str]:
        """For people."""
        lines = [finding.line() for finding in self.findings]
        lines += [
            f"{'failed' if each.fault else 'ok'}: {each.what}: {each.fault or each.said}" for each in self.reached
        ]
        counts = ", ".join(
            f"{sum(finding.severity is severity for finding in self.findings)} {severity.value}s"
            for severity in Severity
        )
        return [*lines, f"{self.config}: {counts}"]

    def plain(self, *, strict: bool) -> dict[str, Any]:
        """For --json."""
        return {
            "ok": self.exit_code(strict=strict) == 0,
            "mistakes": [],
            "findings": [
                {"severity": str(each.severity), "path": each.path, "what": each.what, "mend": each.mend}
                for each in self.findings
            ],
            "reached": [
                {"what": each.what, "ok": not each.fault, "said": each.fault or each.said} for each in self.reached
            ],
        }


def check(config: Config, *, online: bool) -> Result:
    """Lint, build everything (no network), ask each compute about its offers; with `online`, reach it all."""
    findings = lint(config)
    return asyncio.run(_check(config, findings, online=online))


async def _check(config: Config, findings: list[Finding], *, online: bool) -> Result:
    wired = wiring.build(config, SystemClock(), read_only=True)
    try:
        for settings, parts in zip(config.pools, wired.pools, strict=True):
            findings += _offers(settings.path, parts)
        reached: list[Reached] = []
        if online:
            reached = list(await asyncio.gather(*_calls(config, wired, findings)))
    finally:
        await wiring.close(wired)
    return Result(config.source, findings, reached)


def _offers(path: str, parts: PoolParts) -> list[Finding]:
    """What a compute finds wrong in an offer without the network."""
    return [
        Finding(severity=Severity.ERROR, path=f"{path}.offers[{index}]", what=line, mend="see the compute's settings")
        for index, offer in enumerate(parts.pool.offers)
        for line in parts.computes[offer.compute].check_offer(offer)
    ]


def _calls(config: Config, wired: wiring.Wired, findings: list[Finding]) -> list[Awaitable[Reached]]:
    """Everything that is to be reached; what one of them finds lacking is added to `findings`."""
    calls: list[Awaitable[Reached]] = [_ledger(config, wired), asyncio.to_thread(_admin, config)]
    for settings, parts in zip(config.pools, wired.pools, strict=True):
        name = parts.pool.name
        embedded = {each.name for each in settings.balancers if getattr(each.settings, "embedded", False)}
        preset = str(getattr(settings.probe.settings, "preset", ""))
        told = _Told(findings, preset)
        calls += [_compute(parts, key, told.at(f"{settings.path}.offers")) for key in parts.computes]
        calls += [
            _balancer(parts, each.name, told.at(each.path), ours=each.name in embedded) for each in settings.balancers
        ]
        if parts.signals:
            calls.append(_telemetry(parts, f"{name} telemetry", f"{settings.path}.telemetry", findings))
    return calls


async def _tried(what: str, call: Awaitable[str]) -> Reached:
    try:
        async with asyncio.timeout(_DEADLINE_S):
            return Reached(what, await call)
    except PortFault as fault:
        return Reached(what, "", str(fault) or fault.kind.value)
    except TimeoutError:
        return Reached(what, "", f"no answer within {_DEADLINE_S:g} s")


class _Told(NamedTuple):
    """Where what a part lacks is told. `preset`: the model server that the pool's probe expects."""

    findings: list[Finding]
    preset: str
    path: str = ""

    def at(self, path: str) -> _Told:
        """The same for a part that stands elsewhere in the file."""
        return self._replace(path=path)

    async def by(self, part: object, pool: Pool) -> str:
        """Tell what a part lacks; what to say of it when the pool cannot work so, "" when there is more to ask."""
        lacks = await part.lacks(pool, self.preset) if isinstance(part, DiagnosingPart) else []
        self.findings.extend(_found(self.path, one) for one in lacks)
        return f"answers; {_counted(lacks)}" if any(one.stops for one in lacks) else ""


def _found(path: str, lack: Lack) -> Finding:
    severity = Severity.ERROR if lack.stops else Severity.WARNING
    return Finding(severity=severity, path=path, what=lack.what, mend=lack.mend)


def _counted(lacks: list[Lack]) -> str:
    return f"{len(lacks)} thing{'s' * (len(lacks) != 1)} lack{'s' * (len(lacks) == 1)}"


async def _compute(parts: PoolParts, key: str, told: _Told) -> Reached:
    async def look() -> str:
        if said := await told.by(parts.computes[key], parts.pool):
            return said
        view = await parts.computes[key].observe(parts.pool, (), SystemClock().now())
        if view.unreachable_zones:
            raise Unreachable(f"zones {', '.join(view.unreachable_zones)} cannot be seen")
        foreign = f", {len(view.foreign)} that no pool knows" if view.foreign else ""
        return f"{len(view.instances)} machines{foreign}"

    return await _tried(f"{parts.pool.name} compute {key}", look())


async def _balancer(parts: PoolParts, key: str, told: _Told, *, ours: bool) -> Reached:
    async def look() -> str:
        if said := await told.by(parts.balancers[key], parts.pool):
            return said
        try:
            view = await parts.balancers[key].members()
        except Unreachable as fault:
            if not ours:
                raise
            return f"does not run; the daemon starts it ({fault})"
        foreign = f", {len(view.foreign)} that are not ours" if view.foreign else ""
        return f"{len(view.members)} members{foreign}"

    return await _tried(f"{parts.pool.name} balancer {key}", look())


async def _telemetry(parts: PoolParts, what: str, path: str, findings: list[Finding]) -> Reached:
    async def look() -> str:
        telemetry = parts.telemetry
        if isinstance(telemetry, Diagnosing):  # it can say more than that there is no replica to read yet
            lacks = await telemetry.lacks(parts.signals)
            findings.extend(_found(path, one) for one in lacks)
            return f"answers; has {len(parts.signals)} signals" if not lacks else f"answers; {len(lacks)} things lack"
        sample = await parts.telemetry.sample(parts.signals, ())
        states = sorted(f"{signal} {reading.state}" for signal, reading in sample.readings.items())
        return f"answers; {', '.join(states) or 'no replica to read yet'}"

    return await _tried(what, look())


async def _ledger(config: Config, wired: wiring.Wired) -> Reached:
    async def look() -> str:
        found = await wired.ledger.load(config.pools[0].pool.name)
        return f"readable, memory at version {found.version}"

    return await _tried("ledger", look())


def _admin(config: Config) -> Reached:
    """The daemon answers, or its address is free to take."""
    daemon, what = Daemon(config.admin, config.installation), "admin address"
    try:
        daemon.get("v1", "pools")
    except Unreachable:
        return _free(config, what)
    except Refused as fault:
        return Reached(what, "", str(fault))
    return Reached(what, f"the daemon answers at {daemon.url}")


def _free(config: Config, what: str) -> Reached:
    host, port = config.admin.host, config.admin.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            return Reached(what, "", f"{host}:{port}: {error.strerror or error}, and no daemon of ours answers there")
    return Reached(what, f"{host}:{port} is free; no daemon runs")
