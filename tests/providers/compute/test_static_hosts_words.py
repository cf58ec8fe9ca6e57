"""What static_hosts reads: statuses in all the ways in which commands tell them, lists in all formats, and mistakes."""

import string
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.domain.faults import Unreachable
from providers.compute.static_hosts import Host, Settings
from providers.compute.static_hosts.commands import Answer
from providers.compute.static_hosts.inventory import parse
from providers.compute.static_hosts.settings import fill
from providers.compute.static_hosts.state import from_tag
from providers.compute.static_hosts.status import Power, judge

STATUSES = [
    ("active\n", 0, Power.RUNNING),
    ("inactive\n", 3, Power.STOPPED),
    ("failed\n", 3, Power.STOPPED),
    ("activating\n", 3, Power.STARTING),
    ("deactivating\n", 3, Power.STOPPING),
    ("unknown\n", 4, Power.UNKNOWN),
    ("Chassis Power is on\n", 0, Power.RUNNING),
    ("Chassis Power is off\n", 0, Power.STOPPED),
    ("shut off\n\n", 0, Power.STOPPED),
    ("RUNNING\n", 0, Power.RUNNING),
    ("VM deallocated\n", 0, Power.STOPPED),
    ("ActiveState=active\nInvocationID=ab12\n", 0, Power.RUNNING),
    ('{"state": "running", "boot": "ab12"}', 0, Power.RUNNING),
    ('{"state": "running"', 0, Power.UNKNOWN),
    ("[]", 0, Power.UNKNOWN),
    ("", 0, Power.UNKNOWN),
    ("", 255, Power.UNKNOWN),
    ("A=1\n", 0, Power.UNKNOWN),
    ("maintenance\n", 0, Power.UNKNOWN),
]


@pytest.mark.parametrize(("out", "code", "power"), STATUSES)
def test_a_status_is_read_as_it_was_meant(out: str, code: int, power: Power) -> None:
    status = judge(Answer(code, out, "ssh: no route"), 5.0)
    assert status.power is power
    assert status.boot == ("ab12" if "ab12" in out else "")
    assert bool(status.detail) == (power is Power.UNKNOWN)


def test_a_status_command_that_was_killed_tells_nothing() -> None:
    assert judge(Answer(-9, "stopped\n", "", late=True), 5.0).power is Power.UNKNOWN


@given(st.text())
def test_any_text_is_a_status_and_a_tag_or_none(text: str) -> None:
    judge(Answer(0, text, ""), 5.0)
    from_tag(text, Host(name="h"), "{}")


THREE = (Host(name="a", address="10.0.0.1", zone="z"), Host(name="b", ports=(1, 2)), Host(name="c", vars={"k": "v"}))
LISTS = [
    "a address=10.0.0.1 zone=z  # the first\n\nb ports=1,2\nc k=v\n",
    "- {name: a, address: 10.0.0.1, zone: z}\n- {name: b, ports: [1, 2]}\n- {name: c, vars: {k: v}}\n",
    '[{"name":"a","address":"10.0.0.1","zone":"z"},{"name":"b","ports":[1,2]},{"name":"c","vars":{"k":"v"}}]',
]


@pytest.mark.parametrize("text", LISTS, ids=["lines", "yaml", "json"])
def test_a_list_is_read_in_each_of_its_formats(text: str) -> None:
    assert parse(text, "here") == THREE


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\na\n", "a is there twice"),
        ("-x\n", "name"),
        ("a address=-oProxyCommand=x\n", "address"),
        ("a address=x;reboot\n", "address"),
        ("a k=$(reboot)\n", "may not stand in a command"),
        ("a name2\n", "allowed: key=value"),
        ("a ports=http\n", "here: "),
        ("a ports=70000\n", "1 to 65535"),
        ("a tag=x\n", "none of"),
        ("[1, 2]", "host 1"),
        ("[{", "here: "),
        ("- {name: a, host: x}", "unknown field `host`"),
    ],
)
def test_one_bad_entry_makes_the_whole_list_a_fault(text: str, told: str) -> None:
    with pytest.raises(Unreachable, match=r"^here: ") as caught:
        parse(text, "here")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text())
def test_any_text_is_a_list_or_a_fault(text: str) -> None:
    try:
        hosts = parse(text, "here")
    except Unreachable:
        return
    allowed = set(string.ascii_letters + string.digits + "._-")
    assert all(set(host.name) <= allowed and not host.name.startswith("-") for host in hosts)


GOOD: dict[str, Any] = {"start": ["a"], "stop": ["b"], "hosts": [{"name": "h"}]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hosts": []}, "hosts: found 0 lists"),
        ({"hosts_file": "/x"}, "hosts: found 2 lists"),
        ({"hosts": [], "hosts_file": "x"}, "an absolute path"),
        ({"start": []}, "start: found nothing"),
        ({"pass_env": ["AUTOSCALER_ADMIN_TOKEN"]}, "none of AUTOSCALER_"),
        ({"pass_env": ["A=b"]}, "pass_env"),
        ({"deadline": 60.0}, "deadline: found 60 s, allowed: more than 0 s, at most 25 s"),
        ({"status_deadline": 0.0}, "status_deadline: found 0 s"),
        ({"hosts": [{"name": "h"}, {"name": "h"}]}, "h is there twice"),
    ],
)
def test_a_mistake_in_the_settings_is_one_clear_line(change: dict[str, Any], told: str) -> None:
    msgspec.convert(GOOD, Settings)
    with pytest.raises(msgspec.ValidationError, match=told):
        msgspec.convert({**GOOD, **change}, Settings)


def test_a_value_is_not_filled_in_twice() -> None:
    assert fill(("{a}{b}",), {"a": "{b}", "b": "x"}) == ("{b}x",)
