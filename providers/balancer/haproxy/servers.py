"""Changes to the servers of one backend, each a word or two to the runtime API.

Does: add, make ready, weigh, drain and remove one server, as far as it is not so already. Does not: choose which.
Invariant: a server is added in maintenance and gets requests only when it is made ready; a refusal by HAProxy that is
not about something already so raises, with HAProxy's own words.
"""

from __future__ import annotations

from typing import Final

from autoscaler.domain.faults import Conflict, Refused
from providers.balancer.haproxy.kept import Line, at
from providers.balancer.haproxy.reading import Server, no_admin, no_backend
from providers.balancer.haproxy.runtime import Runtime
from providers.balancer.haproxy.settings import Settings

_GONE: Final = "No such server"
_THERE: Final = "Already exists"
_NO_CHECK: Final = "Health check was not configured"
_BUSY: Final = ("still has connections", "Only servers in maintenance", "cannot remove", "cannot be deleted")


class Servers:
    """The servers of one backend of one HAProxy."""

    def __init__(self, runtime: Runtime, settings: Settings) -> None:
        self._runtime, self._settings = runtime, settings

    async def admit(self, name: str, line: Line, found: Server | None) -> None:
        """Let it have requests, wherever it stands now."""
        options = self._settings.server_options
        if found is None:
            command = f"add server {self._at(name)} {at(line.host, line.port)} weight {line.weight} {options}"
            said = await self._runtime.ask(command.rstrip())
            if _THERE in said:
                raise Conflict(f"somebody added server {name} at this moment; looking again")
            if "registered" not in said:
                raise self._refusal(command, said)
        elif (found.host, found.port) != (line.host, line.port):
            command = f"set server {self._at(name)} addr {line.host} port {line.port}"
            said = await self._runtime.ask(command)
            if "changed" not in said and "no need" not in said:
                raise self._refusal(command, said)
        if found is not None:
            await self.reweigh(found, line.weight)
        if self._settings.checks:
            await self._do(f"enable health {self._at(name)}", but=_NO_CHECK)
        if found is None or found.maint or found.draining:
            await self._do(f"set server {self._at(name)} state ready")

    async def reweigh(self, found: Server, weight: int) -> None:
        """Give it this weight."""
        if found.weight != weight:
            await self._do(f"set server {self._at(found.name)} weight {weight}", but=_GONE)

    async def drain(self, found: Server) -> None:
        """Let it have nothing new; one in maintenance has nothing anyway."""
        if not found.draining and not found.maint:
            await self._do(f"set server {self._at(found.name)} state drain", but=_GONE)

    async def remove(self, found: Server) -> None:
        """Take it out, and delete it unless connections of requests that still run hold it."""
        if not found.maint:
            await self._do(f"set server {self._at(found.name)} state maint", but=_GONE)
        command = f"del server {self._at(found.name)}"
        said = await self._runtime.ask(command)
        if "deleted" not in said and _GONE not in said and not any(words in said for words in _BUSY):
            raise self._refusal(command, said)

    def _at(self, name: str) -> str:
        return f"{self._settings.backend}/{name}"

    async def _do(self, command: str, *, but: str = "") -> None:
        """A command that says nothing when it is done. `but`: words that mean there was nothing to do."""
        said = await self._runtime.ask(command)
        if said and not (but and but in said):
            raise self._refusal(command, said)

    def _refusal(self, command: str, said: str) -> Refused | Conflict:
        if "Permission denied" in said:
            return no_admin(self._runtime)
        if "No such backend" in said:
            return no_backend(self._runtime, self._settings.backend)
        if _GONE in said:
            return Conflict(f"{command!r}: the server is not there any more; looking again")
        return Refused(f"HAProxy refused {command!r}: {said.partition(chr(10))[0][:200]}")
