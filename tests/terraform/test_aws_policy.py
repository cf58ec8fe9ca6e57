"""The module's role and what our AWS adapters call, compared as text: none missing, none unused, none too wide.

moto can show that a list of actions suffices (tests/autoscaler/cli/test_check_aws.py), not that it is tight: it checks
no conditions and no resources. So both sides are read here: the operations from the adapters' source, the statements
from iam.tf by the small reader of tests/support/module_policy.py. Whether IAM means by a condition what we mean by it
is not shown by this; only a real account can.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers._shared.aws_look import action_of
from tests.support.module_policy import Statement, allowed_actions, statements

ROOT = Path(__file__).parents[2]
#: What the config that the module renders can make the daemon call: EC2 machines, one target group, one queue.
SOURCES = (
    *sorted(ROOT.glob("providers/_shared/aws*.py")),
    *sorted(ROOT.glob("providers/compute/aws_ec2/*.py")),
    *sorted(ROOT.glob("providers/balancer/aws_elb/*.py")),
    *sorted(ROOT.glob("providers/telemetry/cloudwatch/*.py")),
)
#: Services of which the module makes nothing: Classic load balancers, Auto Scaling groups.
ELSEWHERE = {"elb", "autoscaling"}
CALLS = {"call", "read", "pages", "may"}
SERVICES = {"ec2", "elb", "elbv2", "sqs", "cloudwatch", "autoscaling"}
#: Batches are allowed by the action for one.
NAMES = {"sqs:DeleteMessageBatch": "sqs:DeleteMessage", "sqs:SendMessageBatch": "sqs:SendMessage"}
#: Allowed and called by nothing under that name.
IMPLIED = {"ec2:CreateTags": "TagSpecifications of RunInstances", "iam:PassRole": "the launch template's own role"}
NOT_GRANTED = {
    # `autoscaler adopt` tags a machine that others made, and what has our tags we may end: with this action the role
    # of the daemon could end any machine of the account. Adopting is done with a person's own credentials.
    "ec2:CreateTags",
    # strategy `weighted` is not one that the module sets up: it makes one group behind one listener.
    "elasticloadbalancing:ModifyListener",
}
CHANGES = re.compile(r":(?!Describe|Get|List|Receive)")


def literal(node: ast.expr) -> str:
    """The text of a literal; "" for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def operations(path: Path) -> Iterator[tuple[str, str]]:
    """(service, operation) of each call in a module; one that is no literal comes as what the module hands on."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS):
            continue
        if len(node.args) < 2 or literal(node.args[0]) not in SERVICES:
            continue
        service, operation = literal(node.args[0]), literal(node.args[1])
        yield from ((service, name) for name in ([operation] if operation else handed_on(tree)))


def handed_on(tree: ast.AST) -> Iterator[str]:
    """Operations that a module hands to a helper of its own (`_each`, `_call`) as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.fullmatch(r".*\b_?(call|change|each)", ast.unparse(node.func)):
            yield from (literal(one) for one in node.args if re.fullmatch(r"[a-z]+(_[a-z]+)+", literal(one)))


def called() -> set[str]:
    found = {action_of(*one) for source in SOURCES for one in operations(source) if one[0] not in ELSEWHERE}
    return {NAMES.get(action, action) for action in found}


def test_the_reader_sees_what_is_there() -> None:
    """Were the source written in another way, an empty list would agree with anything."""
    assert {"ec2:RunInstances", "ec2:TerminateInstances", "ec2:DescribeInstances", "sqs:ReceiveMessage"} <= called()
    assert {"elasticloadbalancing:RegisterTargets", "elasticloadbalancing:DescribeTargetHealth"} <= called()
    assert {one.document for one in statements()} == {"look", "act"}
    text = re.sub(r"#.*|variable +=.*", "", (ROOT / "terraform/modules/aws/iam.tf").read_text())
    written = re.findall(r'"(?:ec2|elasticloadbalancing|sqs|cloudwatch|autoscaling|iam):[A-Z]\w+"', text)
    assert sum(len(one.actions) for one in statements()) == len(written)


def test_no_action_that_the_adapters_call_is_missing() -> None:
    assert called() - allowed_actions() - NOT_GRANTED == set()


def test_no_action_is_allowed_that_nobody_calls() -> None:
    assert allowed_actions() - called() - set(IMPLIED) == set()


def test_in_mode_advise_the_role_changes_nothing() -> None:
    looking = {action for one in statements() if one.document == "look" for action in one.actions}
    # Deleting a notice that concerns no machine is how a queue is read.
    assert {action for action in looking if CHANGES.search(action)} == {"sqs:DeleteMessage"}


#: The variables of which one must bind a change to what is ours; the values are compared below.
OURS = {"aws:RequestTag/autoscaler:installation", "aws:ResourceTag/autoscaler:installation"}


@pytest.mark.parametrize("statement", [one for one in statements() if any(map(CHANGES.search, one.actions))])
def test_what_changes_is_bound_to_our_tags_or_to_one_resource(statement: Statement) -> None:
    one = statement
    narrow = re.fullmatch(r"\[aws_\w+\.\w+\.arn\]", one.resources)
    at_launch = "ec2:CreateAction" in one.variables  # only as part of a launch, which itself is bound to our tags
    passed = (
        set(one.actions) == {"iam:PassRole"} and one.resources == "[data.aws_iam_instance_profile.machine[0].role_arn]"
    )
    template = set(one.actions) == {"ec2:RunInstances"} and "aws_launch_template.machine.arn" in one.resources
    assert set(one.variables) & OURS or narrow or at_launch or template or passed, one
    assert "*" not in one.actions[0]
    if set(one.variables) & OURS or at_launch:
        assert '"*"' not in one.resources


def test_machines_volumes_and_their_tags_are_bound_to_the_installation() -> None:
    """What a launch makes carries our tags; what it is not made with our tags cannot be ended."""
    text = (ROOT / "terraform/modules/aws/iam.tf").read_text()
    for variable in sorted(OURS):
        at = text.index(f'"{variable}"')
        assert text[at:].split("values", 1)[1].lstrip(" =").startswith("[var.installation]")
