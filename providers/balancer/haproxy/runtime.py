"""HAProxy's runtime API: one command, one connection, one answer.

Does: carry a command over a UNIX socket or TCP, within a deadline and a bound. Does not: know what a command means.
Invariant: an answer is whole or the call raises; a process that hangs, dies midway or babbles never passes for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import Final

from autoscaler.domain.base import Duration
from autoscaler.domain.faults import Refused, Unreachable
from providers.balancer.haproxy.settings import Address

#: Some 600 bytes a server in `show stat`: room for ten thousand.
_ANSWER_BYTES: Final = 8 * 2**20
_CHUNK: Final = 65536


class NotAnswering(Unreachable):
    """Nothing accepts connections there: HAProxy does not run."""


class NoSocket(NotAnswering):
    """There is no such socket: HAProxy never made it, or makes it elsewhere."""


class Runtime:
    """The runtime API of one HAProxy at `where`: a path, or IP address and port."""

    def __init__(self, where: str, timeout: Duration) -> None:
        self.where = where
        self._timeout = timeout

    async def ask(self, command: str) -> str:
        """Send one command; returns the answer without blank lines around it.

        Raises NotAnswering, Unreachable (too slow, broken off, too long) or Refused (no permission).
        """
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._exchange(command)
        except TimeoutError:
            raise Unreachable(f"HAProxy at {self.where} did not answer within {self._timeout:g} s") from None
        except FileNotFoundError:
            raise NoSocket(
                f"there is no socket {self.where}: HAProxy does not run, or has no such `stats socket`"
            ) from None
        except PermissionError as error:
            raise Refused(
                f"no permission to use {self.where}: give the socket's `mode` and `group` (stats socket ... mode 660 "
                "group NAME) and put the daemon's user into that group"
            ) from error
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                raise NotAnswering(f"nobody answers at {self.where}: HAProxy does not run") from error
            raise Unreachable(f"HAProxy at {self.where}: {error.strerror or error}") from error
        # A single line, or lines that end with a blank one: what stops elsewhere was broken off.
        if not answer.endswith("\n\n") and not (answer.endswith("\n") and answer.count("\n") == 1):
            raise Unreachable(f"HAProxy at {self.where} broke off its answer")
        return answer.strip("\n")

    async def _exchange(self, command: str) -> str:
        if self.where.startswith("/"):
            reader, writer = await asyncio.open_unix_connection(self.where)
        else:
            reader, writer = await asyncio.open_connection(*Address.read(self.where))
        try:
            writer.write(f"{command}\n".encode())
            await writer.drain()
            parts, length = [], 0
            while part := await reader.read(_CHUNK):
                parts.append(part)
                length += len(part)
                if length > _ANSWER_BYTES:
                    raise Unreachable(f"what answers at {self.where} sends more than {_ANSWER_BYTES >> 20} MiB")
            return b"".join(parts).decode(errors="replace")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
