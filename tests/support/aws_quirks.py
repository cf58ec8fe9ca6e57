"""What moto does not imitate of AWS, as a layer of ours before it. Not a recording: each answer is made here.

The same `Quirks` sit in two shells: `hook` hangs them into the SDK of this process, `proxy` (aws_proxy.py) puts them
before moto for another process.

| behaviour | source in the contracts' AWS section, and its mark |
|---|---|
| the same ClientToken gives the first answer again | RunInstances idempotency, memory |
| the same ClientToken with other parameters: 400 IdempotentParameterMismatch | same, memory |
| a new machine is `pending` for `pending_s` | what moto skips: run; EC2 itself: memory |
| a new machine is listed `unlisted_s` after its launch | eventual consistency, memory |
| MaxCount machines where there is room; moto launches MinCount | run |
| 500 InsufficientInstanceCapacity for a zone without room; fewer than asked where some is left | capacity codes, read |
| 503 RequestLimitExceeded (EC2), 400 Throttling (ELB), 400 with ThrottlingException (SQS) | throttling, memory |
| 500 InternalError before or after the call took effect | memory |
| 400 ExpiredToken | memory |
| no answer within the socket timeout | any network |
| 503 with Retry-After, where the test says so | HTTP; seen with AWS: memory |
| 400 OperationNotPermitted for machines with termination protection; those of other zones are ended | read |
| LaunchTime is set anew when a stopped machine starts | memory |
| a machine held in any state with any StateReason | EC2's names, read |
| a registered target is `initial` for `initial_s`, then `healthy` | target health, read |
| a deregistered target is `draining` for `draining_s`, then unused (not listed) | draining, read |
| deregistering a target that is not there succeeds; moto says InvalidTarget | read |
| a template's own tags are no part of its data; moto shows them there | run |
| a target held in any state and reason | target health names, read |
"""

import json
import random
import re
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.httpsession import URLLib3Session

Forward = Callable[[bytes], tuple[int, bytes]]
_EC2 = "{http://ec2.amazonaws.com/doc/2016-11-15}"
#: Tags of the template itself, which moto shows as if the template gave them to what is launched from it.
_OWN_TAGS = re.compile(
    r"<tagSpecificationSet><item><resourceType>launch-template</resourceType>.*?</tagSpecificationSet>", re.DOTALL
)
_MEMBER = re.compile(r"<member>(?:(?!<member>).)*?<TargetHealth>.*?</member>", re.DOTALL)


class Answer(NamedTuple):
    """A whole HTTP answer. `retry_after`: the header of that name, seconds; 0 leaves it out."""

    status: int
    body: bytes
    retry_after: float = 0.0


class Failure(NamedTuple):
    """How often a call of `action` ("" for any) fails, how, and whether it took effect all the same."""

    code: str
    status: int
    rate: float = 1.0
    action: str = ""
    took_effect: bool = False
    retry_after: float = 0.0


class Quirks:
    """The behaviours, over any clock. `now` in seconds."""

    def __init__(self, now: Callable[[], float], seed: int = 0) -> None:
        self._now = now
        self._random = random.Random(seed)
        self.pending_s = self.unlisted_s = self.initial_s = self.draining_s = 0.0
        self.room: dict[str, int] = {}  # machines left in a zone (whole name); absent: without end
        self.failures: list[Failure] = []
        self.protected: set[str] = set()
        self.held: dict[str, tuple[str, str]] = {}  # id of a target or machine: state, reason
        self.calls: list[str] = []
        self._launching = threading.Lock()  # EC2 answers a token once, however many ask at the same time
        self._tokens: dict[str, tuple[str, Answer]] = {}
        self._launched: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._registered: dict[str, float] = {}
        self._draining: dict[str, float] = {}

    def answer(self, service: str, body: bytes, headers: Mapping[str, str], forward: Forward) -> Answer:
        """What the account answers to this request; `forward` asks moto."""
        action, values = _parsed(body, headers)
        self.calls.append(action)
        failure = self._failing(action)
        if failure is None:
            return self._known(service, action, values, body, forward)
        if failure.took_effect:
            self._known(service, action, values, body, forward)
        return error(service, failure.code, failure.status)._replace(retry_after=failure.retry_after)

    def _failing(self, action: str) -> Failure | None:
        for failure in self.failures:
            if failure.action in {"", action} and self._random.random() < failure.rate:
                return failure
        return None

    def _known(self, service: str, action: str, values: dict[str, str], body: bytes, forward: Forward) -> Answer:
        match action:
            case "RunInstances":
                with self._launching:
                    return self._run(values, body, forward)
            case "DescribeInstances":
                status, text = forward(body)
                return Answer(status, self._listed(text.decode()).encode())
            case "TerminateInstances":
                return self._terminated(values, body, forward)
            case "StartInstances":
                self._started |= dict.fromkeys(_machines(values), self._now())
            case "RegisterTargets":
                for name in _targets(values):
                    self._registered.setdefault(name, self._now())
                    self._draining.pop(name, None)
            case "DeregisterTargets":
                return self._deregistered(values, forward)
            case "DescribeLaunchTemplateVersions":
                status, text = forward(body)
                return Answer(status, _OWN_TAGS.sub("", text.decode()).encode())
            case "DescribeTargetHealth":
                status, text = forward(body)
                return Answer(status, self._health(text.decode(), values).encode())
            case _:
                pass
        return Answer(*forward(body))

    def _run(self, values: dict[str, str], body: bytes, forward: Forward) -> Answer:
        token = values.get("ClientToken", "")
        asked = json.dumps({key: value for key, value in sorted(values.items()) if key != "ClientToken"})
        if token in self._tokens:
            first, answer = self._tokens[token]
            if first == asked:
                return answer
            return error("ec2", "IdempotentParameterMismatch", 400, "the client token was used with other parameters")
        zone = values.get("Placement.AvailabilityZone", "") or self._zone_of(values.get("SubnetId", ""), forward)
        wanted = int(values["MaxCount"])
        count = min(wanted, self.room.get(zone, wanted))
        if count < int(values["MinCount"]):
            told = f"We currently do not have sufficient capacity in the Availability Zone you requested ({zone})."
            return error("ec2", "InsufficientInstanceCapacity", 500, told)
        # moto launches MinCount machines; EC2 as many as it can, up to MaxCount.
        body = urllib.parse.urlencode({**values, "MinCount": str(count), "MaxCount": str(count)}).encode()
        answer = Answer(*forward(body))
        if answer.status == 200:
            ids = re.findall(r"<instanceId>(i-[0-9a-f]+)</instanceId>", answer.body.decode())
            self._launched |= dict.fromkeys(ids, self._now())
            if zone in self.room:
                self.room[zone] -= count
            self._tokens[token] = (asked, answer)
        return answer

    def _terminated(self, values: dict[str, str], body: bytes, forward: Forward) -> Answer:
        names = _machines(values)
        kept = names & self.protected
        if not kept:
            return Answer(*forward(body))
        _, text = forward(_asking("DescribeInstances", "InstanceId", names))
        zones = {
            item.findtext(f"{_EC2}instanceId"): item.findtext(f"{_EC2}placement/{_EC2}availabilityZone")
            for item in ET.fromstring(text).iterfind(f".//{_EC2}instancesSet/{_EC2}item")
        }
        if others := {one for one in names if zones[one] not in {zones[each] for each in kept}}:
            forward(_asking("TerminateInstances", "InstanceId", others))
        told = f"The instance '{min(kept)}' may not be terminated. Modify its 'disableApiTermination' attribute."
        return error("ec2", "OperationNotPermitted", 400, told)

    def _zone_of(self, subnet: str, forward: Forward) -> str:
        if not subnet or not self.room:
            return ""
        asked = {"Action": "DescribeSubnets", "Version": "2016-11-15", "SubnetId.1": subnet}
        _, text = forward(urllib.parse.urlencode(asked).encode())
        found = re.search(r"<availabilityZone>(.*?)</availabilityZone>", text.decode())
        return found[1] if found else ""

    def _listed(self, text: str) -> str:
        root = ET.fromstring(text)
        for listed in root.iter(f"{_EC2}instancesSet"):
            for item in list(listed):
                name = item.findtext(f"{_EC2}instanceId", "")
                age = self._now() - self._launched.get(name, float("-inf"))
                if age < self.unlisted_s:
                    listed.remove(item)
                elif name in self.held:
                    _set_state(item, *self.held[name])
                elif age < self.pending_s and item.findtext(f"{_EC2}instanceState/{_EC2}name") == "running":
                    _set_state(item, "pending", "")
                if name in self._started:
                    at = datetime.fromtimestamp(self._started[name], UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
                    _set(item, "launchTime", at)
        return ET.tostring(root, encoding="unicode", default_namespace=_EC2[1:-1])

    def _deregistered(self, values: dict[str, str], forward: Forward) -> Answer:
        names = _targets(values)
        there = {name: keys for name, keys in names.items() if name in self._registered}
        for name in there:
            del self._registered[name]
            self._draining[name] = self._now()
        if not there:
            result = "<DeregisterTargetsResult/><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata>"
            return Answer(200, f"<DeregisterTargetsResponse>{result}</DeregisterTargetsResponse>".encode())
        asked = {key: value for key, value in values.items() if not key.startswith("Targets.")}
        for n, keys in enumerate(there.values(), start=1):
            asked |= {f"Targets.member.{n}.{key.rpartition('.')[2]}": values[key] for key in keys if key in values}
        return Answer(*forward(urllib.parse.urlencode(asked).encode()))

    def _health(self, text: str, values: dict[str, str]) -> str:
        group = values["TargetGroupArn"]

        def shown(found: re.Match[str]) -> str:
            target = _inner(found[0], "Id")
            name = f"{group}|{target}|{_inner(found[0], 'Port')}"
            bare = f"{group}|{target}|"
            if target in self.held:
                return _with_health(found[0], *self.held[target])
            since = self._registered.get(name, self._registered.get(bare, float("-inf")))
            if self._now() - since < self.initial_s:
                return _with_health(found[0], "initial", "Elb.RegistrationInProgress")
            return found[0]

        shown_text = _MEMBER.sub(shown, text)
        still = [
            name.split("|")
            for name, since in self._draining.items()
            if name.startswith(f"{group}|") and self._now() - since < self.draining_s
        ]
        asked = {value for key, value in values.items() if re.fullmatch(r"Targets\.member\.\d+\.Id", key)}
        extra = "".join(
            f"<member><HealthCheckPort>{port}</HealthCheckPort><TargetHealth><State>draining</State>"
            "<Reason>Target.DeregistrationInProgress</Reason></TargetHealth>"
            f"<Target><Port>{port or 80}</Port><Id>{target}</Id></Target></member>"
            for _, target, port in still
            if not asked
        )
        if extra and "<TargetHealthDescriptions/>" in shown_text:
            return shown_text.replace(
                "<TargetHealthDescriptions/>", f"<TargetHealthDescriptions>{extra}</TargetHealthDescriptions>"
            )
        return shown_text.replace("</TargetHealthDescriptions>", f"{extra}</TargetHealthDescriptions>")


def _machines(values: dict[str, str]) -> set[str]:
    return {value for key, value in values.items() if key.startswith("InstanceId.")}


def _asking(action: str, key: str, names: set[str]) -> bytes:
    named = {f"{key}.{n}": one for n, one in enumerate(sorted(names), start=1)}
    return urllib.parse.urlencode({"Action": action, "Version": "2016-11-15", **named}).encode()


def _set(item: ET.Element, path: str, value: str) -> None:
    """Make the element at `path` below `item` say `value`."""
    for name in path.split("/"):
        found = item.find(f"{_EC2}{name}")
        item = ET.SubElement(item, f"{_EC2}{name}") if found is None else found
    item.text = value


def _set_state(item: ET.Element, state: str, reason: str) -> None:
    _set(item, "instanceState/name", state)
    if reason:
        _set(item, "stateReason/code", reason)


def _targets(values: dict[str, str]) -> dict[str, list[str]]:
    """`group|id|port` of each target in a request, with the request's own keys for it."""
    found: dict[str, list[str]] = {}
    for key, target in values.items():
        if re.fullmatch(r"Targets\.member\.\d+\.Id", key):
            port = key[:-2] + "Port"
            name = f"{values['TargetGroupArn']}|{target}|{values.get(port, '')}"
            found[name] = [key, port]
    return found


def _inner(text: str, name: str) -> str:
    found = re.search(f"<{name}>(.*?)</{name}>", text)
    return found[1] if found else ""


def _with_health(member: str, state: str, reason: str) -> str:
    health = f"<TargetHealth><State>{state}</State><Reason>{reason}</Reason></TargetHealth>"
    return re.sub(r"<TargetHealth>.*?</TargetHealth>", health, member, flags=re.DOTALL)


def _parsed(body: bytes, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    target = {key.lower(): value for key, value in headers.items()}.get("x-amz-target", "")
    if target:  # the JSON protocols
        return target.rpartition(".")[2], {}
    values = dict(urllib.parse.parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
    return values.get("Action", ""), values


def error(service: str, code: str, status: int, told: str = "made by the test") -> Answer:
    """An error as this service's protocol spells it."""
    if service == "ec2":
        text = f"<Response><Errors><Error><Code>{code}</Code><Message>{told}</Message></Error></Errors></Response>"
    elif service == "sqs":
        text = json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": told})
    else:
        inner = f"<Type>Sender</Type><Code>{code}</Code><Message>{told}</Message>"
        text = f"<ErrorResponse><Error>{inner}</Error></ErrorResponse>"
    return Answer(status, text.encode())


class _Raw:
    """The stream that botocore's answer wants."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, **_: Any) -> Any:
        yield self._body

    def read(self) -> bytes:
        return self._body


def hook(quirks: Quirks) -> Callable[[Any], None]:
    """What Account(configure=) takes: the quirks between this process's SDK and moto."""
    session = URLLib3Session()

    def configure(client: Any) -> None:
        service = client.meta.service_model.service_name

        def before_send(request: AWSPreparedRequest, **_: Any) -> AWSResponse:
            def forward(body: bytes) -> tuple[int, bytes]:
                again = AWSPreparedRequest(
                    request.method,
                    request.url,
                    {**dict(request.headers), "Content-Length": str(len(body))},
                    body,
                    False,
                )
                answer = session.send(again)
                return answer.status_code, answer.content

            body = request.body or b""
            found = quirks.answer(
                service, body.encode() if isinstance(body, str) else body, _text(request.headers), forward
            )
            headers = {"content-type": "text/xml"}
            if found.retry_after:
                headers["retry-after"] = f"{found.retry_after:g}"
            return AWSResponse(request.url, found.status, headers, _Raw(found.body))

        client.meta.events.register(f"before-send.{service}", before_send)

    return configure


def _text(headers: Mapping[str, Any]) -> dict[str, str]:
    return {key: value.decode() if isinstance(value, bytes) else str(value) for key, value in headers.items()}
