"""What all AWS adapters share: clients of one account and region, bounded calls, and errors as Faults.

Does: make boto3 clients when first used, run their blocking calls in a few threads of this account, tell what an
error code means for the loop. Does not: decide anything, cache an answer, or retry a write: the next tick does.
Invariant: every call ends within the socket timeouts below times the attempts, well inside a tick, and whatever
botocore raises comes out as a PortFault.

Where calls go is botocore's business: credentials are found in its usual order, and AWS_ENDPOINT_URL names another
address for all services (VPC endpoints, tests).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from autoscaler.domain.faults import Conflict, NoCapacity, PortFault, QuotaReached, Refused, Throttled, Unreachable

T = TypeVar("T")

_THREADS: Final = 8
#: Calls that may wait for a thread. Beyond it the account is as good as unreachable, and says so at once.
_WAITING: Final = 64
_MAKING: Final = threading.Lock()
CONNECT_S: Final = 2.0
READ_S: Final = 5.0

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
    """Clients for one region and profile, and the threads that they share.

    `configure` is called with each botocore client made; tests hang a misbehaving wire between SDK and server there.
    """

    def __init__(self, region: str, profile: str = "", configure: Callable[[Any], None] | None = None) -> None:
        self.region, self.profile = region, profile
        self._configure = configure
        self._session: Any = None
        self._clients: dict[tuple[str, int], Any] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"aws-{region}")
        self._waiting = 0

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One call that changes something, or must be told at once when it fails: a single attempt."""
        return await self._run(operation, functools.partial(self._once, service, operation, parameters))

    async def read(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One look, with a second attempt for a connection that broke."""
        return await self._run(operation, functools.partial(self._look, service, operation, parameters))

    async def pages(self, service: str, operation: str, **parameters: Any) -> list[dict[str, Any]]:
        """All pages of a look."""
        return await self._run(operation, functools.partial(self._pages, service, operation, parameters))

    async def _run(self, operation: str, work: Callable[[], T]) -> T:
        if self._waiting >= _WAITING:
            raise Unreachable(f"{operation}: {self._waiting} calls to AWS {self.region} wait already")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._told, operation, work)
        finally:
            self._waiting -= 1

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
        answer: dict[str, Any] = getattr(self._client(service, 1), operation)(**parameters)
        return answer

    def _look(self, service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self._client(service, 2), operation)(**parameters)
        return answer

    def _pages(self, service: str, operation: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        return list(self._client(service, 2).get_paginator(operation).paginate(**parameters))

    def _client(self, service: str, attempts: int) -> Any:
        with _MAKING:  # making a session or a client is not thread-safe; using one is
            key = (service, attempts)
            if key not in self._clients:
                self._clients[key] = self._made(service, attempts)
            return self._clients[key]

    def _made(self, service: str, attempts: int) -> Any:
        from botocore.config import Config

        if self._session is None:
            self._session = _session(self.region, self.profile)
        # botocore would repeat InsufficientInstanceCapacity by itself (it comes with HTTP 500) and hold up the loop.
        retries = {"mode": "standard", "total_max_attempts": attempts}
        config = Config(connect_timeout=CONNECT_S, read_timeout=READ_S, retries=retries, max_pool_connections=_THREADS)
        client = self._session.client(service, config=config)
        if self._configure is not None:
            self._configure(client)
        return client

    async def aclose(self) -> None:
        """Release threads and sockets."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()


@functools.cache
def _models() -> Any:
    """The SDK's descriptions of its services: EC2's takes half a second to read, and every adapter needs it.

    EC2's machine is cut down to what is read here: botocore spends most of a look at 10,000 machines on its other
    members, and holds the interpreter meanwhile.
    """
    from botocore.loaders import create_loader

    loader = create_loader()
    shapes = loader.load_service_model("ec2", "service-2")["shapes"]  # kept by the loader, which is ours alone
    for shape, wanted in _READ.items():
        members = shapes[shape]["members"]
        for name in [one for one in members if one not in wanted]:
            del members[name]
    return loader


#: All that is read of these shapes of EC2. Both are only ever answers.
_READ: Final = {
    "Instance": frozenset(
        {
            "InstanceId",
            "LaunchTime",
            "Placement",
            "PrivateIpAddress",
            "PublicIpAddress",
            "State",
            "StateReason",
            "Tags",
        }
    ),
    "Reservation": frozenset({"Instances"}),
}


def _session(region: str, profile: str) -> Any:
    import boto3
    from botocore.session import get_session

    core = get_session()
    core.register_component("data_loader", _models())
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_instant)
    return boto3.Session(region_name=region, profile_name=profile or None, botocore_session=core)


def _instant(text: Any) -> datetime:
    """ISO 8601 as all services but a few write it, twenty times as fast as the SDK's own reader; else that one."""
    from botocore.utils import parse_timestamp

    if isinstance(text, str):
        with contextlib.suppress(ValueError):
            found = datetime.fromisoformat(text)
            return found if found.tzinfo else found.replace(tzinfo=UTC)
    parsed: datetime = parse_timestamp(text)
    return parsed


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
        return max(0.0, float(headers.get("retry-after", 0.0)))
    except ValueError:
        return 0.0
