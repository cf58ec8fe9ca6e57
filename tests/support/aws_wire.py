"""The account in memory (aws_double.py) behind real boto3 clients: a hook between the SDK and the network.

Requests are built, signed, retried and parsed by botocore; what it would send is answered here, as XML made from the
double's answers by botocore's own description of each service. Nothing goes out.
"""

import asyncio
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from xml.sax.saxutils import escape

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ClientError, ReadTimeoutError

from autoscaler.domain.faults import PortFault
from tests.support.aws_double import AwsDouble
from tests.support.aws_quirks import error


class _Body:
    """The stream that botocore's answer wants."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, **_: Any) -> Any:
        yield self._content

    def read(self) -> bytes:
        return self._content


class Wire:
    """Hang it into clients by Account(configure=wire.configure); `double` is the account that answers just now."""

    def __init__(self) -> None:
        self.double: AwsDouble | None = None
        self.sent = 0
        self._asked = threading.local()  # a call is built and sent, and sent again, in one thread

    def configure(self, client: Any) -> None:
        """Answer all that this client asks."""
        service = client.meta.service_model.service_name

        def before_build(params: dict[str, Any], model: Any, **_: Any) -> None:
            self._asked.params, self._asked.model = dict(params), model

        def before_send(request: AWSPreparedRequest, **_: Any) -> AWSResponse:
            self.sent += 1
            status, body = self._answer(service)
            return AWSResponse(request.url, status, {"content-type": "text/xml"}, _Body(body))

        client.meta.events.register(f"provide-client-params.{service}", before_build)
        client.meta.events.register(f"before-send.{service}", before_send)

    def _answer(self, service: str) -> tuple[int, bytes]:
        assert self.double is not None
        model = self._asked.model
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in model.name).lstrip("_")
        try:
            answer = _at_once(self.double.call(service, name, **self._asked.params))
        except PortFault as fault:
            cause = fault.__cause__
            if isinstance(cause, ClientError):
                code, told = cause.response["Error"]["Code"], cause.response["Error"]["Message"]
                made = error(service, code, cause.response["ResponseMetadata"]["HTTPStatusCode"], told)
                return made.status, made.body
            raise ReadTimeoutError(endpoint_url="the double") from fault
        inside = xml(model.output_shape, answer) if model.output_shape is not None else ""
        wrapper = model.output_shape.serialization.get("resultWrapper") if model.output_shape is not None else None
        inside = f"<{wrapper}>{inside}</{wrapper}>" if wrapper else inside
        return 200, f"<{model.name}Response>{inside}</{model.name}Response>".encode()


def _at_once(call: Any) -> Any:
    """The result of a coroutine of the double: they wait for nothing."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    raise asyncio.InvalidStateError("the double waited")


def xml(shape: Any, value: Any) -> str:
    """A value of this shape, without its own tag."""
    if shape.type_name == "structure":
        return "".join(_member(name, shape.members[name], inner) for name, inner in _items(shape, value))
    if shape.type_name == "list":
        tag = shape.member.serialization.get("name", "member")
        return "".join(f"<{tag}>{xml(shape.member, one)}</{tag}>" for one in value)
    if isinstance(value, bool):
        return str(value).lower()
    return escape(value.isoformat() if isinstance(value, datetime) else str(value))


def _items(shape: Any, value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, inner) for name, inner in value.items() if name in shape.members]


def _member(name: str, shape: Any, value: Any) -> str:
    tag = shape.serialization.get("name", name)
    return f"<{tag}>{xml(shape, value)}</{tag}>"
