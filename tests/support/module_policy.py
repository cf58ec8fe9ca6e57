"""The statements of terraform/modules/aws/iam.tf, read as text.

A small reader of the shape in which that file is written, not of HCL: blocks by their braces, lists of quoted strings.
What it cannot read (an action that is not a literal) it refuses, so that nothing slips by.
"""

import re
from pathlib import Path
from typing import NamedTuple

MODULE = Path(__file__).parents[2] / "terraform/modules/aws"
_DATA = re.compile(r'^data "aws_iam_policy_document" "(\w+)" \{$', re.MULTILINE)
_STATEMENT = re.compile(r"^\s*(?:statement|content) \{$", re.MULTILINE)
_CONDITION = re.compile(r"^\s*condition \{$", re.MULTILINE)
_ACTIONS = re.compile(r"\bactions\s*=\s*\[(.*?)\]", re.DOTALL)
_RESOURCES = re.compile(r"\bresources\s*=\s*(.*?)(?=^\s*(?:condition|principals) \{|\Z)", re.DOTALL | re.MULTILINE)
_VARIABLE = re.compile(r'\bvariable\s*=\s*"([^"]+)"')
_LITERAL = re.compile(r'"([a-z0-9-]+:[A-Za-z*]+)"')


class Statement(NamedTuple):
    """One statement: which document it is in, its actions, its resources as written, and its conditions' variables."""

    document: str
    actions: tuple[str, ...]
    resources: str
    variables: tuple[str, ...]


def block(text: str, opens: int) -> str:
    """What stands between the brace at or after `opens` and its partner."""
    start = depth = text.index("{", opens)
    depth = 0
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start + 1 : index]
    raise ValueError("a brace is not closed")


def statements() -> list[Statement]:
    """All statements of the role's documents, those of its trust excepted."""
    text = re.sub(r"#.*", "", (MODULE / "iam.tf").read_text())
    found = []
    for document in _DATA.finditer(text):
        if document[1] == "assume":
            continue
        inside = block(text, document.start())
        found += [_statement(document[1], block(inside, each.start())) for each in _STATEMENT.finditer(inside)]
    return found


def _statement(document: str, text: str) -> Statement:
    listed = _ACTIONS.search(text)
    if listed is None:
        raise ValueError(f"a statement of {document} has no list of actions")
    actions = tuple(_LITERAL.findall(listed[1]))
    if re.sub(r'"[^"]*"|[\s,]', "", listed[1]) or not actions:
        raise ValueError(f"a statement of {document} lists what is no literal action: {listed[1]}")
    resources = _RESOURCES.search(text)
    variables = [found[1] for one in _CONDITION.finditer(text) if (found := _VARIABLE.search(block(text, one.start())))]
    return Statement(document, actions, resources[1].strip() if resources else "", tuple(variables))


def allowed_actions() -> set[str]:
    """Everything that the role may do in mode act."""
    return {action for statement in statements() for action in statement.actions}
