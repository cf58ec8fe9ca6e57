"""What all AWS adapters share: clients of one account and region, bounded calls, and errors as Faults.

Does: run the blocking calls of boto3 clients (aws_clients) in a few threads, tell what an error code means for the
loop. Does not: decide anything, cache an answer, or retry a write: the next tick does.
Invariant: every call ends within the socket timeouts times the attempts, well inside a tick, and whatever
botocore raises comes out as a PortFault.

Where calls go is botocore's business: credentials are found in its usual order, and AWS_ENDPOINT_URL names another
address for all services (VPC endpoints, tests).
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from autoscaler.domain.faults import Conflict, NoCapacity, PortFault, QuotaReached, Refused, Throttled, Unreachable
from providers._shared.aws_clients import Clients, clients_of

T = TypeVar("T")

#: Calls to one service that may wait for a thread, for each adapter that shares them. Beyond it the account is as good
#: as unreachable, and says so at once.
_WAITING: Final = 64
#: The longest that we let ourselves be told to wait, seconds.
_LONGEST_WAIT_S: Final = 600.0

#: As botocore's own list of throttling codes (botocore.retries.standard), with EC2's.
THROTTLED: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
#: This zone and type have nothing just now, or cannot ever have it: another placement may.
NO_CAPACITY: Final = frozenset(
    {
        "CapacityReservationNotInValidState",
        "InsufficientCapacity",
        "InsufficientCapacityOnHost",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",
        "InsufficientReservedInstanceCapacity",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "UnfulfillableCapacity",
        "Unsupported",
    }
)
#: The account's limit, whatever the zone.
QUOTA: Final = frozenset(
    {
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "TooManyTargets",
        "VcpuLimitExceeded",
        "VolumeLimitExceeded",
        "ResourceLimitExceeded",
    }
)
#: The world moved, or an answer belongs to another question: look again.
CONFLICT: Final = frozenset({"IdempotentParameterMismatch", "IncorrectInstanceState", "ScalingActivityInProgress"})
#: Proves nothing about the world: the service's side, a clock, or credentials that are renewed by themselves.
UNREACHABLE: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "PendingVerification",
        "RequestExpired",
        "RequestTimeout",
        "ServiceUnavailable",
        "Unavailable",
    }
)
_SECRET: Final = re.compile(r"(?i)(AKIA|ASIA)[A-Z0-9]{8,}|(?<=encoded authorization failure message: )\S+")


class Account:
    """Clients for one region and profile, and the threads that they share with all others of this process.

    `configure` is called with each botocore client made, which then are its own; tests hang a misbehaving wire between
    SDK and server there.
    """

    def __init__(self, region: str, profile: str = "", configure: Callable[[Any], None] | None = None) -> None:
        self.region, self.profile = region, profile
        self._clients = clients_of(region, profile) if configure is None else Clients(region, profile, configure)
        self._clients.users += 1
        self._closed = False

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One call that changes something, or must be told at once when it fails: a single attempt."""
        return await self._run(service, operation, functools.partial(self._once, service, operation, parameters))

    async def read(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One look, with a second attempt for a connection that broke."""
        return await self._run(service, operation, functools.partial(self._look, service, operation, parameters))

    async def pages(self, service: str, operation: str, **parameters: Any) -> list[dict[str, Any]]:
        """All pages of a look."""
        return await self._run(service, operation, functools.partial(self._pages, service, operation, parameters))

    async def _run(self, service: str, operation: str, work: Callable[[], T]) -> T:
        clients = self._clients
        if clients.waiting[service] >= _WAITING * clients.users:
            raise Unreachable(f"{operation}: {clients.waiting[service]} calls to AWS {self.region} wait already")
        clients.waiting[service] += 1
        try:
            threads = clients.threads(service)
            return await asyncio.get_running_loop().run_in_executor(threads, self._told, operation, work)
        finally:
            clients.waiting[service] -= 1

    @staticmethod
    def _told(operation: str, work: Callable[[], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            return work()
        except (BotoCoreError, ClientError) as error:
            raise fault_of(operation, error) from error
        except ResponseParserError as error:  # a proxy's page, or half an answer
            raise Unreachable(f"{operation}: an answer came that is none of AWS") from error
        except ValueError as error:  # AWS_ENDPOINT_URL that is no address
            raise Refused(f"{operation}: {str(error).partition(chr(10))[0][:200]}") from error

    def _once(self, service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self._clients.get(service, 1), operation)(**parameters)
        return answer

    def _look(self, service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self._clients.get(service, 2), operation)(**parameters)
        return answer

    def _pages(self, service: str, operation: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        return list(self._clients.get(service, 2).get_paginator(operation).paginate(**parameters))

    async def aclose(self) -> None:
        """Release threads and sockets, which the last of those that share them closes."""
        if self._closed:
            return
        self._closed = True
        self._clients.users -= 1
        if self._clients.users == 0:
            self._clients.close()


def code_of(error: Exception) -> str:
    """The service's error code, or the name of the SDK's exception."""
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else type(error).__name__


def fault_of(operation: str, error: Exception) -> PortFault:
    """What an SDK's exception means for the loop (tables of codes above).

    Codes: botocore's service models and retry handlers; karpenter-provider-aws for which of them mean capacity.
    """
    code = code_of(error)
    text = _SECRET.sub("(left out)", str(error).partition("\n")[0])[:300]
    detail = f"{operation}: {text}" if code in text else f"{operation}: {code}: {text}"
    if code in THROTTLED:
        return Throttled(detail, retry_after_s=_retry_after(error))
    for codes, kind in _KINDS:
        if code in codes:
            return kind(detail)
    return _by_status(error, detail)


_KINDS: Final[tuple[tuple[frozenset[str], type[PortFault]], ...]] = (
    (NO_CAPACITY, NoCapacity),
    (QUOTA, QuotaReached),
    (CONFLICT, Conflict),
    (UNREACHABLE, Unreachable),
)
#: Exceptions of the SDK itself that a person must mend; all its others are a network that did not carry.
_MEND: Final = frozenset(
    {
        "ConfigNotFound",
        "InvalidConfigError",
        "InvalidRegionError",
        "NoCredentialsError",
        "NoRegionError",
        "ParamValidationError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "UnknownServiceError",
    }
)


def _by_status(error: Exception, detail: str) -> PortFault:
    answer = getattr(error, "response", None)
    if not isinstance(answer, dict):
        return Refused(detail) if type(error).__name__ in _MEND else Unreachable(detail)
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    # An unknown code with a client's status will be answered the same way again; a server's proves nothing.
    return Refused(detail) if 400 <= status < 500 else Unreachable(detail)


def _retry_after(error: Exception) -> float:
    headers = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return min(_LONGEST_WAIT_S, max(0.0, float(headers.get("retry-after", 0.0))))
    except ValueError:
        return 0.0
