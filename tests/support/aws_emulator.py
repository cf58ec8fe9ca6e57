"""A small emulator of two looks of AWS, for more machines than moto can hold: it answers at the HTTP level, and counts.

| behaviour | source in the contracts' AWS section, and its mark |
|---|---|
| DescribeInstances gives pages of at most MaxResults (5-1000), NextToken leads on | limits and batching, read |
| DescribeTargetHealth gives all targets of a group in one answer, without pages | limits and batching, read |
| ReceiveMessage of an empty queue gives no Messages | SQS: memory |

What it is asked beside these is an error, so that a call that nobody thought of fails the test.
"""

import json
import urllib.parse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse


class Emulator:
    """Machines by pool, each a target of its pool's group; `calls` counts by action."""

    def __init__(self, installation: str, pools: Mapping[str, Sequence[str]]) -> None:
        self.calls: Counter[str] = Counter()
        self.bytes = 0
        self._machines = [_machine(one, installation, pool) for pool, ones in pools.items() for one in ones]
        self._targets = {pool: "".join(map(_target, ones)) for pool, ones in pools.items()}

    def configure(self, client: Any) -> None:
        """What Account(configure=) takes."""
        client.meta.events.register("before-send", self._answer)

    def _answer(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        headers = {key.lower(): _text(value) for key, value in request.headers.items()}
        values = dict(urllib.parse.parse_qsl(_text(request.body or b"")))
        action = headers.get("x-amz-target", "").rpartition(".")[2] or values.get("Action", "")
        self.calls[action] += 1
        status, body = 200, ""
        if action == "DescribeInstances":
            body = self._instances(values)
        elif action == "DescribeTargetHealth":
            body = self._health(values["TargetGroupArn"].split("/")[1])
        elif action == "ReceiveMessage":
            body = json.dumps({})
        else:
            status, body = 400, "<Response><Errors><Error><Code>NotEmulated</Code></Error></Errors></Response>"
        self.bytes += len(body)
        return AWSResponse(request.url, status, {"content-type": "text/xml"}, _Raw(body.encode()))

    def _instances(self, values: Mapping[str, str]) -> str:
        first, size = int(values.get("NextToken", "0")), int(values["MaxResults"])
        last = first + size
        token = f"<nextToken>{last}</nextToken>" if last < len(self._machines) else ""
        return (
            '<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15"><reservationSet><item>'
            f"<instancesSet>{''.join(self._machines[first:last])}</instancesSet></item></reservationSet>{token}"
            "</DescribeInstancesResponse>"
        )

    def _health(self, pool: str) -> str:
        return (
            "<DescribeTargetHealthResponse><DescribeTargetHealthResult><TargetHealthDescriptions>"
            f"{self._targets[pool]}</TargetHealthDescriptions></DescribeTargetHealthResult>"
            "</DescribeTargetHealthResponse>"
        )


def _machine(name: str, installation: str, pool: str) -> str:
    tags = {"installation": installation, "pool": pool, "token": "e7-1-0", "offer": "o", "zone": "a", "epoch": "e7"}
    shown = "".join(f"<item><key>autoscaler:{key}</key><value>{value}</value></item>" for key, value in tags.items())
    return (
        f"<item><instanceId>{name}</instanceId><instanceState><code>16</code><name>running</name></instanceState>"
        "<launchTime>2026-12-01T10:00:00.000Z</launchTime><privateIpAddress>10.0.0.1</privateIpAddress>"
        f"<placement><availabilityZone>us-east-1a</availabilityZone></placement><tagSet>{shown}</tagSet>{_REST}</item>"
    )


#: What EC2 says of a machine besides, about as much of it: it has to be read over.
_REST = (
    "<architecture>x86_64</architecture><hypervisor>xen</hypervisor><virtualizationType>hvm</virtualizationType>"
    "<blockDeviceMapping><item><deviceName>/dev/sda1</deviceName><ebs><attachTime>2026-12-01T10:00:00.000Z</attachTime>"
    "<deleteOnTermination>true</deleteOnTermination><status>attached</status><volumeId>vol-0</volumeId></ebs></item>"
    "</blockDeviceMapping><networkInterfaceSet><item><attachment><attachmentId>eni-attach-0</attachmentId>"
    "<deviceIndex>0</deviceIndex><status>attached</status></attachment><groupSet><item><groupId>sg-0</groupId>"
    "<groupName>g</groupName></item></groupSet><macAddress>02:00:00:00:00:00</macAddress><ownerId>1</ownerId>"
    "<privateIpAddressesSet><item><primary>true</primary><privateIpAddress>10.0.0.1</privateIpAddress></item>"
    "</privateIpAddressesSet><subnetId>subnet-0</subnetId><vpcId>vpc-0</vpcId></item></networkInterfaceSet>"
    "<groupSet><item><groupId>sg-0</groupId><groupName>g</groupName></item></groupSet><imageId>ami-0</imageId>"
    "<instanceType>g6e.12xlarge</instanceType><keyName>k</keyName><monitoring><state>disabled</state></monitoring>"
    "<metadataOptions><state>applied</state><httpTokens>required</httpTokens><httpEndpoint>enabled</httpEndpoint>"
    "</metadataOptions><cpuOptions><coreCount>24</coreCount><threadsPerCore>2</threadsPerCore></cpuOptions>"
    "<subnetId>subnet-0</subnetId><vpcId>vpc-0</vpcId><rootDeviceName>/dev/sda1</rootDeviceName>"
    "<rootDeviceType>ebs</rootDeviceType><sourceDestCheck>true</sourceDestCheck><enaSupport>true</enaSupport>"
)


def _target(name: str) -> str:
    return (
        f"<member><TargetHealth><State>healthy</State></TargetHealth><Target><Port>8000</Port><Id>{name}</Id></Target>"
        "</member>"
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _Raw:
    """The stream that botocore's answer wants."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, **_: Any) -> Any:
        yield self._body

    def read(self) -> bytes:
        return self._body
