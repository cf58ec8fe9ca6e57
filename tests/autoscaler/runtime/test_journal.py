"""The journal: one line a record, its styles and its level."""

import io
import json

import msgspec

from autoscaler.domain.base import PoolName, Token
from autoscaler.domain.decision import Capacity, Decision, Launch, Outcome, OutcomeStatus, Reason
from autoscaler.domain.faults import Throttled
from autoscaler.domain.load import Trust, TrustVerdict
from autoscaler.domain.memory import Memory
from autoscaler.domain.pool import Placement
from autoscaler.runtime.journal import open_journal
from tests.support.virtual_time import START

DECISION = Decision(
    pool=PoolName("p"),
    at=START,
    sequence=1,
    trust=TrustVerdict(level=Trust.TRUST, why=""),
    opinions=(),
    capacity=Capacity(),
    wanted=None,
    target=0,
    reason=Reason(code="test"),
    blocks=(),
    alarms=(),
    plan=(),
    replicas=(),
    sentence="",
    memory=Memory(),
)
LAUNCH = Launch(
    token=Token("t"), placement=Placement(offer="gpu", zone="local"), count=1, total_after=1, request='{"key": "hush"}'
)


def test_only_outcomes_that_did_not_go_as_asked_are_told_and_without_the_request() -> None:
    out = io.StringIO()
    journal = open_journal(stream=out)
    journal.outcome(PoolName("p"), Outcome(action=LAUNCH, status=OutcomeStatus.DONE, at=START))
    assert out.getvalue() == ""
    fault = Throttled("slow down").fault
    journal.outcome(PoolName("p"), Outcome(action=LAUNCH, status=OutcomeStatus.FAULT, at=START, fault=fault))
    journal.outcome(PoolName("p"), Outcome(action=LAUNCH, status=OutcomeStatus.DROPPED, at=START, detail="no time"))
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["action"], first["fault"], first["detail"]) == ("launch:t", "throttled", "slow down")
    assert (second["status"], second["detail"]) == ("dropped", "no time")
    assert "hush" not in out.getvalue()


def test_the_level_leaves_out_what_is_below_it() -> None:
    out = io.StringIO()
    journal = open_journal(stream=out, level="warning")
    journal.event("started")
    journal.trouble("lease", why="gone")
    (record,) = (json.loads(line) for line in out.getvalue().splitlines())
    assert (record["event"], record["level"], record["why"]) == ("lease", "warning", "gone")


def test_a_crash_has_its_traceback_in_one_line_of_json() -> None:
    out = io.StringIO()
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        open_journal(stream=out).crash("pool crashed", pool="p")
    (line,) = out.getvalue().splitlines()
    assert "ZeroDivisionError" in json.loads(line)["exception"]


def test_the_console_style_is_for_reading() -> None:
    out = io.StringIO()
    open_journal("console", out).event("started", pools=2)
    assert "started" in out.getvalue()
    assert "pools=2" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_an_alarm_is_told_when_it_begins_and_again_when_it_comes_back() -> None:
    out = io.StringIO()
    journal = open_journal(stream=out)
    for count in (1, 1, 0, 1):
        alarms = tuple(Reason(code="no_capacity", facts={"placement": "gpu/a"}) for _ in range(count))
        journal.decision(msgspec.structs.replace(DECISION, alarms=alarms), saved=True)
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [record["event"] for record in records] == [
        *("decision", "alarm", "decision", "decision", "decision", "alarm"),
    ]
    assert records[1]["facts"] == {"placement": "gpu/a"}
