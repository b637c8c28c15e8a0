"""Each log line, text, command, option and operation of AWS that docs/runbook.md quotes exists."""

from __future__ import annotations

import ast
import builtins
import re
import shlex
from collections.abc import Iterator

import botocore.session
import pytest
from botocore import xform_name

import counters
from tally.cli import commands
from tests.unit.test_docs import ROOT

PAGE = (ROOT / "docs/runbook.md").read_text()
FENCES = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SPANS = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL).replace("\n", " "))
AWS_WORDS = {  # states, metrics, codes and fields of AWS and of Powertools, which Tally's code does not name
    "OK", "INSUFFICIENT_DATA", "Disabled", "Enabled", "ReadThrottleEvents", "IntegrationLatency",
    "ValidationException", "AccessDenied…", "correlation_id", "x-cache: Error from cloudfront",
    "requestPayload", "responsePayload", "No data was returned",
}  # fmt: skip
INSIGHTS_WORDS = {"filter", "stats", "count", "avg", "pct", "by"}
GLOBAL_OPTIONS = {"query", "output"}  # of every command `aws`


def texts() -> Iterator[str]:
    """Yields the texts in the code without docstrings, and the names of classes and of annotated variables."""
    for module in sorted((ROOT / "tally").rglob("*.py")):
        tree = ast.parse(module.read_text())
        docstring_ids = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstring_ids:
                yield node.value
            elif isinstance(node, ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id
                yield re.sub("_(.)", lambda letter: letter[1].upper(), node.target.id)  # the spelling in cdk.json


def log_messages() -> set[str]:
    """Returns the messages that the code logs."""
    modules = [module.read_text() for module in (ROOT / "tally").rglob("*.py")]
    return {message for text in modules for message in re.findall(r'logger\.\w+\(\s*"([^"]+)"', text)}


CODE = "\n".join([*texts(), *vars(builtins)])


def is_in_code(quotation: str) -> bool:
    """Whether the code has each part of a quoted text as whole words. `…` and `<…>` separate the parts."""
    parts = [part.strip() for part in re.split(r"…|<[^>]*>", quotation) if re.search(r"\w", part)]
    return all(re.search(rf"(?<!\w){re.escape(part)}(?!\w)", CODE) for part in parts)


def command_lines() -> list[str]:
    """Returns the commands of the page, in code blocks and in backquotes."""
    blocks = [line.partition("  #")[0] for fence in FENCES for line in fence.replace("\\\n", "").splitlines()]
    return [line for line in (*blocks, *SPANS) if line.startswith(("tally ", "aws ", "curl "))]


@pytest.mark.parametrize("line", command_lines())
def test_each_command_of_the_runbook_exists(line: str) -> None:
    program, *words = shlex.split(line)
    if program == "tally" and len(words) == 1:  # a sentence names the command
        assert words[0] in commands.COMMAND_SUMMARIES
    elif program == "tally":
        assert commands.parse_arguments(words, commands.parser(counters.COUNTERS)).command == words[0]
    elif program == "curl":
        [address] = [word for word in words if "/" in word]
        assert address.endswith(">/health")
    else:
        service = botocore.session.get_session().get_service_model(words[0])
        [operation] = [name for name in service.operation_names if xform_name(name, "-") == words[1]]
        input_shape = service.operation_model(operation).input_shape
        assert input_shape is not None
        options = {xform_name(member, "-") for member in input_shape.members}
        assert {word[2:] for word in words if word.startswith("--")} <= options | GLOBAL_OPTIONS


@pytest.mark.parametrize("quoted", sorted({*SPANS} - AWS_WORDS - {*command_lines()}))
def test_each_text_that_the_runbook_quotes_is_in_the_code(quoted: str) -> None:
    if quoted.startswith("make "):
        assert f"\n{quoted[5:]}:" in (ROOT / "Makefile").read_text()
    elif quoted.startswith(("stats ", "filter ")):
        assert [word for word in {*re.findall(r"[a-z]+", quoted)} - INSIGHTS_WORDS if not is_in_code(word)] == []
    elif "/" in quoted or not (ROOT / "lambdas" / quoted).is_file():
        # Of an option `-c throttle=0.5` or an assignment, only the name is in the code.
        assert is_in_code(quoted.removeprefix("-c ").split("=")[0])


def test_each_log_line_of_the_runbook_is_logged() -> None:
    quoted = re.findall(r"(?:log line|The line|The warning|sweep's log) `([^`]+)`", PAGE.replace("\n", " "))
    assert len(quoted) > 5
    assert {*quoted} - log_messages() == set()


def test_the_fields_in_the_log_queries_of_the_runbook_are_in_the_code() -> None:
    queried_words = {word for fence in FENCES if "stats" in fence for word in re.findall(r"\b[a-z]+_?[a-z]+\b", fence)}
    assert queried_words
    assert [word for word in queried_words - INSIGHTS_WORDS if not is_in_code(word)] == []
