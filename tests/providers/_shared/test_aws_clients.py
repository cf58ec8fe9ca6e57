"""Clients of one AWS account and region are shared: what a hundred bindings make, wait for, and leave behind."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from autoscaler.domain.faults import Refused, Unreachable
from providers._shared import aws, aws_clients
from providers._shared.aws import Account
from tests.support import moto

_NO = b"<Response><Errors><Error><Code>InvalidParameterValue</Code><Message>no</Message></Error></Errors></Response>"
_REFUSED = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/xml\r\ncontent-length: %d\r\n\r\n%s" % (len(_NO), _NO)


@pytest.fixture(autouse=True)
async def _site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """An endpoint whose load balancers never answer, and whose machines refuse at once."""

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        asked = b""
        while chunk := await reader.read(65536):
            asked += chunk
            if b"Action=DescribeInstances" in asked:
                asked = b""
                writer.write(_REFUSED)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    for name, value in moto.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    monkeypatch.setattr(aws_clients, "READ_S", 1.0)
    yield
    server.close()
    await asyncio.gather(*serving, return_exceptions=True)


def _threads() -> int:
    return sum(one.name.startswith("aws-eu-west-9") for one in threading.enumerate())


async def test_a_hundred_bindings_have_the_clients_and_threads_of_one() -> None:
    accounts = [Account("eu-west-9") for _ in range(100)]
    answers = await asyncio.gather(*(one.read("ec2", "describe_instances") for one in accounts), return_exceptions=True)
    assert {type(one) for one in answers} == {Refused}
    assert 0 < _threads() <= 8
    assert len({id(one._clients.get("ec2", 2)) for one in accounts}) == 1
    for one in accounts[1:]:
        await one.aclose()
        await one.aclose()  # twice is once
    with pytest.raises(Refused, match="InvalidParameterValue"):
        await accounts[0].read("ec2", "describe_instances")
    await accounts[0].aclose()
    after = Account("eu-west-9")
    with pytest.raises(Refused, match="InvalidParameterValue"):
        await after.read("ec2", "describe_instances")
    await after.aclose()


async def test_load_balancers_that_hang_do_not_hold_up_a_look_at_the_machines() -> None:
    account = Account("eu-west-7")
    with pytest.raises(Refused):
        await account.call("ec2", "describe_instances")
    hanging = [
        asyncio.create_task(account.call("elbv2", "describe_target_health", TargetGroupArn="x")) for _ in range(16)
    ]
    await asyncio.sleep(0.1)
    with pytest.raises(Refused):
        await account.call("ec2", "describe_instances")
    assert not any(one.done() for one in hanging)
    assert {type(one) for one in await asyncio.gather(*hanging, return_exceptions=True)} == {Unreachable}
    await account.aclose()


async def test_each_adapter_brings_room_for_calls_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws, "_WAITING", 2)
    first, second = Account("eu-west-9"), Account("eu-west-9")
    asked = [asyncio.create_task(first.call("ec2", "describe_instances")) for _ in range(5)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in answers] == [Refused] * 4 + [Unreachable]
    await first.aclose()
    await second.aclose()


async def test_another_environment_has_clients_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK reads it when a client is made; a profile or a region differs in the same way."""
    first, same, away = Account("eu-west-9"), Account("eu-west-9"), Account("eu-west-8")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    other = Account("eu-west-9")
    assert first._clients is same._clients
    assert len({id(one._clients) for one in (first, away, other)}) == 3
    for one in (first, same, away, other):
        await one.aclose()
