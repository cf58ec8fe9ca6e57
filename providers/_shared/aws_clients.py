"""boto3 clients of one AWS account and region, made when first used and shared by all adapters of this process.

Does: make sessions and clients, keep a few threads for each service. Does not: call, or know what an answer means.
Invariant: a hundred target groups of one region share the clients and threads of one; those of another service are
others, so a load balancer's API that hangs does not hold up a look at the machines.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final
from weakref import WeakValueDictionary

#: Calls to one service that are under way at once.
_THREADS: Final = 8
_MAKING: Final = threading.Lock()
CONNECT_S: Final = 2.0
READ_S: Final = 5.0


class Clients:
    """Clients and threads. `users`: adapters that share them; `waiting`: calls to each service that have not ended."""

    def __init__(self, region: str, profile: str, configure: Callable[[Any], None] | None = None) -> None:
        self.users = 0
        self.waiting: Counter[str] = Counter()
        self._region, self._profile, self._configure = region, profile, configure
        self._session: Any = None
        self._made: dict[tuple[str, int], Any] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}

    def threads(self, service: str) -> ThreadPoolExecutor:
        """The threads for calls to one service; asked for from the event loop only."""
        if service not in self._threads:
            self._threads[service] = ThreadPoolExecutor(_THREADS, f"aws-{self._region}-{service}")
        return self._threads[service]

    def get(self, service: str, attempts: int) -> Any:
        """A service's client that tries each call so often; from any thread."""
        with _MAKING:  # making a session or a client is not thread-safe; using one is
            key = (service, attempts)
            if key not in self._made:
                self._made[key] = self._make(service, attempts)
            return self._made[key]

    def _make(self, service: str, attempts: int) -> Any:
        from botocore.config import Config

        if self._session is None:
            self._session = _session(self._region, self._profile)
        # botocore would repeat InsufficientInstanceCapacity by itself (it comes with HTTP 500) and hold up the loop.
        retries = {"mode": "standard", "total_max_attempts": attempts}
        config = Config(connect_timeout=CONNECT_S, read_timeout=READ_S, retries=retries, max_pool_connections=_THREADS)
        client = self._session.client(service, config=config)
        if self._configure is not None:
            self._configure(client)
        return client

    def close(self) -> None:
        """Release threads and sockets; whoever comes next makes new ones."""
        for key in [key for key, one in _SHARED.items() if one is self]:
            del _SHARED[key]
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        for client in list(self._made.values()):
            client.close()


_SHARED: Final[WeakValueDictionary[tuple[object, ...], Clients]] = WeakValueDictionary()


def clients_of(region: str, profile: str) -> Clients:
    """Those of this region and profile; others once the environment, which the SDK reads when it makes one, differs."""
    said = tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith("AWS_")))
    key = (region, profile, said)
    found = _SHARED.get(key)
    if found is None:
        found = _SHARED[key] = Clients(region, profile)
    return found


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
