"""CloudWatch over moto, which stores and sums up; and, where moto has no answer, over answers made here.

moto has no percentiles (run), no statuses but Complete (run) and no second page (run): `Emulated` below makes them.
"""

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from autoscaler.domain.base import InstanceId, replica_id
from autoscaler.domain.faults import PortFault, Refused, Throttled, Unreachable
from autoscaler.domain.load import Kind, LoadSample, ReadingState, Signal
from autoscaler.domain.replica import Endpoint
from providers._shared.aws import Account
from providers.telemetry.cloudwatch import CloudWatch, Metric, Settings, build
from providers.telemetry.cloudwatch.source import _SOURCES, Source
from tests.support import moto
from tests.support.raw_http import HandClock, a_context

GROUP = "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/g/0123456789abcdef"
BALANCER = "arn:aws:elasticloadbalancing:us-east-1:123456789012:loadbalancer/app/l/0123456789abcdef"
#: The start of a minute of this hour, so that moto, which stores by real time, takes it.
MINUTE = float(int(datetime.now(UTC).timestamp()) // 60 * 60 - 1800)
RATE = frozenset({Signal.REQUEST_RATE})
TIMES = frozenset({Signal.E2E_S_P95})


def settings(**changed: Any) -> Settings:
    return Settings(**{"region": "us-east-1", "target_group": GROUP, "load_balancer": BALANCER, **changed})


def replicas(count: int) -> list[Endpoint]:
    names = [InstanceId(f"i-{n}") for n in range(count)]
    return [Endpoint(replica=replica_id(one, 80), instance=one, host=f"h{one}", port=80) for one in names]


class Emulated:
    """GetMetricData as its own description has it: points by (metric, statistic), one page or several."""

    def __init__(self) -> None:
        self.points: dict[tuple[str, str], dict[float, float]] = {}  # start of a period to value
        self.status: dict[str, str] = {}
        self.messages: list[dict[str, str]] = []
        self.calls: list[list[str]] = []
        self.error: tuple[str, int] | None = None
        self.page = 10_000
        self._here = threading.local()

    def configure(self, client: Any) -> None:
        events = client.meta.events
        events.register("provide-client-params.cloudwatch.GetMetricData", self._keep)
        events.register("before-call.cloudwatch.GetMetricData", self._answer)

    def _keep(self, params: dict[str, Any], **_: Any) -> None:
        self._here.params = params

    def _answer(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        params = self._here.params
        queries = params["MetricDataQueries"]
        first = int(params.get("NextToken", "0"))
        self.calls.append([one["MetricStat"]["Metric"]["MetricName"] for one in queries])
        if self.error is not None:
            code, status = self.error
            return _Http(status), {
                "Error": {"Code": code, "Message": "m"},
                "ResponseMetadata": {"HTTPStatusCode": status},
            }
        results = [self._result(one, params) for one in queries[first : first + self.page]]
        answer: dict[str, Any] = {"MetricDataResults": results, "Messages": self.messages, "ResponseMetadata": {}}
        if first + self.page < len(queries):
            answer["NextToken"] = str(first + self.page)
        return _Http(200), answer

    def _result(self, query: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        metric, stat = query["MetricStat"]["Metric"], query["MetricStat"]["Stat"]
        machine = {one["Name"]: one["Value"] for one in metric["Dimensions"]}.get("InstanceId", "")
        name = f"{metric['MetricName']}{machine}"
        found = self.points.get((name, stat), {})
        start, end = params["StartTime"].timestamp(), params["EndTime"].timestamp()
        inside = sorted(((at, value) for at, value in found.items() if start <= at < end), reverse=True)
        return {
            "Id": query["Id"],
            "Timestamps": [datetime.fromtimestamp(at, UTC) for at, _ in inside],
            "Values": [value for _, value in inside],
            "StatusCode": self.status.get(name, "Complete"),
        }


class _Http:
    def __init__(self, status: int) -> None:
        self.status_code = status


@pytest.fixture
def clock() -> HandClock:
    return HandClock(MINUTE + 130.0)


@contextlib.asynccontextmanager
async def reading(
    clock: HandClock, configure: Callable[[Any], None] | None = None, *each: Settings
) -> AsyncIterator[list[CloudWatch]]:
    """A telemetry for each of the settings, on one source."""
    source = Source(Account("us-east-1", "", configure), clock)
    source.users = len(each)
    made = [CloudWatch(one, source, clock) for one in each]
    try:
        yield made
    finally:
        for one in made:
            await one.aclose()
            await one.aclose()


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    for name, value in {**moto.CREDENTIALS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    return Emulated()


async def one_sample(
    clock: HandClock, emulated: Emulated, signals: frozenset[Signal], count: int = 0, **changed: Any
) -> LoadSample:
    async with reading(clock, emulated.configure, settings(**changed)) as (telemetry,):
        return await telemetry.sample(signals, replicas(count))


# --- over moto ---


def put(url: str, name: str, at: float, *values: float, namespace: str, **dimensions: str) -> None:
    # moto takes two dimensions for the same only in the same order (run); the adapter names them sorted.
    shown = [{"Name": key, "Value": value} for key, value in sorted(dimensions.items())]
    data = [
        {"MetricName": name, "Dimensions": shown, "Timestamp": datetime.fromtimestamp(at, UTC), "Value": value}
        for value in values
    ]
    moto.client(url, "cloudwatch").put_metric_data(Namespace=namespace, MetricData=data)


async def test_requests_of_a_group_are_a_rate_of_its_newest_complete_period(
    aws_environment: str, clock: HandClock
) -> None:
    name = uuid.uuid4().hex[:16]
    where = {"TargetGroup": f"targetgroup/{name}/0123456789abcdef", "LoadBalancer": f"app/{name}/0123456789abcdef"}
    for at, count in ((MINUTE - 60, 30.0), (MINUTE, 120.0), (MINUTE + 60, 600.0), (MINUTE + 120, 9.0)):
        put(aws_environment, "RequestCount", at + 5, count, namespace="AWS/ApplicationELB", **where)
    wanted = settings(
        target_group=GROUP.replace("/g/", f"/{name}/"), load_balancer=BALANCER.replace("/l/", f"/{name}/")
    )
    async with reading(clock, None, wanted) as (telemetry,):
        reading_ = (await telemetry.sample(RATE, replicas(3))).readings[Signal.REQUEST_RATE]
        # 130 s into it: the period that ended 10 s ago may still grow, the one before is settled.
        assert (reading_.value, reading_.at, reading_.kind) == (2.0, MINUTE + 60, Kind.TOTAL)
        assert (reading_.covered, reading_.expected) == (0, 0)  # counted by the balancer, whoever answered
        clock.at += 60
        assert (await telemetry.sample(RATE, replicas(3))).readings[Signal.REQUEST_RATE].value == 10.0


async def test_gpus_are_asked_for_each_replica_and_a_missing_one_shows(aws_environment: str, clock: HandClock) -> None:
    namespace = f"n-{uuid.uuid4().hex}"
    gpu = Metric(
        namespace=namespace, name="nvidia_smi_utilization_gpu", dimensions={"InstanceId": "{machine}"}, scale=0.01
    )
    for machine, values in (("i-0", (90.0, 70.0)), ("i-1", (40.0,))):
        put(aws_environment, gpu.name, MINUTE + 5, *values, namespace=namespace, InstanceId=machine)
    wanted = settings(metrics={Signal.GPU_UTILIZATION: gpu})
    async with reading(clock, None, wanted) as (telemetry,):
        signals = frozenset({Signal.GPU_UTILIZATION})
        found = (await telemetry.sample(signals, replicas(3))).readings[Signal.GPU_UTILIZATION]
        assert found.value == pytest.approx((0.8 + 0.4) / 2)
        assert (found.kind, found.covered, found.expected, found.at) == (Kind.MEAN, 2, 3, MINUTE + 60)
        gone = (await telemetry.sample(signals, replicas(3)[2:])).readings[Signal.GPU_UTILIZATION]
        assert (gone.state, gone.value, gone.expected) == (ReadingState.ABSENT, None, 1)


# --- over answers made here ---


async def test_a_percentile_needs_enough_samples_of_its_own_period(clock: HandClock, emulated: Emulated) -> None:
    emulated.points[("TargetResponseTime", "p95")] = {MINUTE: 1.5, MINUTE - 60: 9.0}
    emulated.points[("TargetResponseTime", "SampleCount")] = {MINUTE: 19.0, MINUTE - 60: 400.0}
    quiet = (await one_sample(clock, emulated, TIMES)).readings[Signal.E2E_S_P95]
    assert (quiet.state, quiet.value, quiet.samples) == (ReadingState.QUIET, None, 19)
    emulated.points[("TargetResponseTime", "SampleCount")][MINUTE] = 20.0
    found = (await one_sample(clock, emulated, TIMES)).readings[Signal.E2E_S_P95]
    assert (found.state, found.value, found.samples, found.kind) == (ReadingState.OK, 1.5, 20, Kind.QUANTILE)


async def test_no_points_are_absence_and_no_requests_are_zero_only_where_health_was_reported(
    clock: HandClock, emulated: Emulated
) -> None:
    sample = await one_sample(clock, emulated, RATE | TIMES)
    assert {one.state for one in sample.readings.values()} == {ReadingState.ABSENT}
    assert not sample.idleness.families_present
    emulated.points[("HealthyHostCount", "Maximum")] = {MINUTE: 2.0}
    emulated.points[("RequestCount", "Sum")] = {MINUTE - 300: 60.0}
    assert (await one_sample(clock, emulated, RATE)).readings[Signal.REQUEST_RATE].at == MINUTE - 240
    emulated.points[("HealthyHostCount", "Maximum")][MINUTE - 60] = 2.0
    sample = await one_sample(clock, emulated, RATE | TIMES)
    rate, times = sample.readings[Signal.REQUEST_RATE], sample.readings[Signal.E2E_S_P95]
    assert (rate.state, rate.value, rate.at) == (ReadingState.OK, 0.0, MINUTE)
    assert (times.state, times.samples, times.at) == (ReadingState.QUIET, 0, MINUTE)
    assert sample.idleness.families_present


async def test_requests_for_each_target_are_a_mean(clock: HandClock, emulated: Emulated) -> None:
    emulated.points[("RequestCountPerTarget", "Sum")] = {MINUTE: 180.0}
    found = (await one_sample(clock, emulated, RATE, per_target=True)).readings[Signal.REQUEST_RATE]
    assert (found.value, found.kind) == (3.0, Kind.MEAN)


@pytest.mark.parametrize(("kind", "value"), [(Kind.TOTAL, 9.0), (Kind.MEAN, 4.5), (Kind.MAX, 7.0)])
async def test_replicas_values_become_one_and_a_late_one_is_not_covered(
    clock: HandClock, emulated: Emulated, kind: Kind, value: float
) -> None:
    queue = Metric(namespace="n", name="waiting", dimensions={"InstanceId": "{machine}"}, kind=kind)
    for n, points in enumerate(({MINUTE: 2.0}, {MINUTE: 7.0}, {MINUTE - 60: 50.0}, {})):
        emulated.points[(f"waitingi-{n}", "Average")] = points
    signals = frozenset({Signal.QUEUE_LENGTH})
    found = (await one_sample(clock, emulated, signals, 4, metrics={Signal.QUEUE_LENGTH: queue})).readings
    assert found[Signal.QUEUE_LENGTH].value == value
    assert (found[Signal.QUEUE_LENGTH].covered, found[Signal.QUEUE_LENGTH].expected) == (2, 4)


async def test_what_is_not_configured_is_absent_in_words(clock: HandClock, emulated: Emulated) -> None:
    found = (await one_sample(clock, emulated, frozenset({Signal.RUNNING}))).readings[Signal.RUNNING]
    assert (found.state, found.detail) == (ReadingState.ABSENT, "telemetry has no metrics.running")
    assert emulated.calls == []


@pytest.mark.parametrize("status", ["PartialData", "InternalError", "Forbidden"])
async def test_an_answer_that_may_not_be_all_is_told(clock: HandClock, emulated: Emulated, status: str) -> None:
    emulated.points[("RequestCount", "Sum")] = {MINUTE: 60.0}
    emulated.status["RequestCount"] = status
    sample = await one_sample(clock, emulated, RATE)
    assert sample.partial == status
    emulated.points.clear()
    assert status in (await one_sample(clock, emulated, RATE)).readings[Signal.REQUEST_RATE].detail


async def test_a_message_about_the_whole_answer_is_told(clock: HandClock, emulated: Emulated) -> None:
    emulated.points[("RequestCount", "Sum")] = {MINUTE: 60.0}
    emulated.messages = [{"Code": "MaxMetricsExceeded", "Value": "too many"}]
    assert "MaxMetricsExceeded: too many" in (await one_sample(clock, emulated, RATE)).partial


async def test_all_pages_are_read(clock: HandClock, emulated: Emulated) -> None:
    emulated.page = 1
    emulated.points[("RequestCount", "Sum")] = {MINUTE: 60.0}
    emulated.points[("TargetResponseTime", "p95")] = {MINUTE: 1.5}
    emulated.points[("TargetResponseTime", "SampleCount")] = {MINUTE: 60.0}
    sample = await one_sample(clock, emulated, RATE | TIMES)
    assert {one.value for one in sample.readings.values()} == {1.0, 1.5}
    assert len(emulated.calls) == 4


async def test_one_call_serves_many_pools_and_then_each_for_a_while(clock: HandClock, emulated: Emulated) -> None:
    pools = [settings(target_group=GROUP.replace("/g/", f"/g{n}/")) for n in range(100)]
    async with reading(clock, emulated.configure, *pools) as made:
        await asyncio.gather(*(one.sample(RATE, ()) for one in made))
        assert [len(call) for call in emulated.calls] == [200]  # with the health of each group
        clock.at += 15
        await asyncio.gather(*(one.sample(RATE, ()) for one in made))
        assert len(emulated.calls) == 1
        clock.at += 15
        for one in made:  # one after the other: what all asked a moment ago is asked along with the first
            await one.sample(RATE, ())
        assert [len(call) for call in emulated.calls] == [200, 200]


async def test_more_than_500_metrics_are_asked_in_several_calls(clock: HandClock, emulated: Emulated) -> None:
    queue = Metric(namespace="n", name="waiting", dimensions={"InstanceId": "{machine}"})
    signals = frozenset({Signal.QUEUE_LENGTH})
    await one_sample(clock, emulated, signals, 1201, metrics={Signal.QUEUE_LENGTH: queue})
    assert sorted(len(call) for call in emulated.calls) == [201, 500, 500]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(("Throttling", 400), Throttled), (("InternalServiceFault", 500), Unreachable), (("AccessDenied", 403), Refused)],
)
async def test_a_call_that_fails_is_a_fault_of_all_pools_and_one_call(
    clock: HandClock, emulated: Emulated, error: tuple[str, int], kind: type[PortFault]
) -> None:
    emulated.error = error
    pools = [settings(target_group=GROUP.replace("/g/", f"/g{n}/")) for n in range(10)]
    async with reading(clock, emulated.configure, *pools) as made:
        found = await asyncio.gather(*(one.sample(RATE, ()) for one in made), return_exceptions=True)
        assert {type(one) for one in found} == {kind}
        assert len(emulated.calls) == 1
        emulated.error, clock.at = None, clock.at + 15
        assert (await made[0].sample(RATE, ())).readings[Signal.REQUEST_RATE].state is ReadingState.ABSENT


async def test_it_says_what_it_lacks(clock: HandClock, emulated: Emulated) -> None:
    async with reading(clock, emulated.configure, settings()) as (telemetry,):
        found = await telemetry.lacks(frozenset({Signal.REQUEST_RATE, Signal.RUNNING}))
    where = "LoadBalancer=app/l/0123456789abcdef, TargetGroup=targetgroup/g/0123456789abcdef"
    assert [one.what for one in found] == [
        "nothing gives running",
        f"request_rate: AWS/ApplicationELB RequestCount with {where} has no points of 20 min",
    ]


async def test_pools_of_a_region_share_a_source_until_the_last_one_closes() -> None:
    context = a_context(HandClock())
    one, other = build(settings(), context), build(settings(period=120.0), context)
    elsewhere = build(settings(region="eu-west-1"), context)
    assert one._source is other._source is not elsewhere._source
    await one.aclose()
    assert one._source in _SOURCES.values()
    for each in (other, elsewhere):
        await each.aclose()
    assert not [key for key in _SOURCES if key[2] == id(context.clock)]


A_METRIC = Metric(namespace="n", name="m")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"region": "europe"}, "region: found 'europe'"),
        ({"target_group": "", "load_balancer": ""}, "target_group: found none and no metrics"),
        ({"load_balancer": ""}, "load_balancer: found without its other half"),
        ({"target_group": "tg"}, "target_group: found 'tg'"),
        ({"load_balancer": BALANCER.replace("app/", "net/")}, "a network one counts no requests"),
        ({"period": 90.0}, "period: found 90 s"),
        ({"settle": 601.0}, "settle: found 601 s"),
        ({"reuse": 61.0}, "reuse: found 61 s"),
        ({"metrics": {Signal.RUNNING: Metric(namespace="", name="m")}}, "metrics.running.namespace: found nothing"),
        ({"metrics": {Signal.RUNNING: Metric(namespace="n", name="m", stat="Mean")}}, "metrics.running.stat: found"),
        ({"metrics": {Signal.TTFT_S_P95: A_METRIC}}, "metrics.ttft_s_p95.kind: found mean"),
        ({"metrics": {Signal.GPU_UTILIZATION: A_METRIC}}, "cannot show that one is missing"),
        (
            {"metrics": {Signal.RUNNING: Metric(namespace="n", name="m", stat="p95")}},
            "metrics.running.kind: found mean",
        ),
        ({"metrics": {Signal.RUNNING: Metric(namespace="n", name="m", dimensions={"a": "{zone}"})}}, "in braces"),
    ],
)
def test_what_cannot_be_is_refused_with_what_is_allowed(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=r"^[a-z_.0-9]+: ") as refused:
        settings(**changed)
    assert says in str(refused.value)


def test_its_readings_are_younger_than_the_delay_that_it_states() -> None:
    assert settings().delay == 180.0
    assert settings(period=300.0).delay == 420.0
