"""What docs/runbook.md quotes is there: log lines, other texts of Tally's, commands, options, operations of AWS."""

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
from tally.dev.gateway.site import MAPPINGS
from tests.unit.test_docs import ROOT

PAGE = (ROOT / "docs/runbook.md").read_text()
FENCES = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SPANS = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL).replace("\n", " "))
OF_AWS = {  # states, metrics, codes and fields of its services and of Powertools, which no code of Tally's names
    "OK", "INSUFFICIENT_DATA", "Disabled", "Enabled", "ReadThrottleEvents", "IntegrationLatency",
    "ValidationException", "AccessDenied…", "correlation_id", "x-cache: Error from cloudfront",
    "requestPayload", "responsePayload", "No data was returned",
}  # fmt: skip
OF_INSIGHTS = {"filter", "stats", "count", "avg", "pct", "by"}
GLOBAL = {"query", "output"}  # options of every command of AWS's


def texts() -> Iterator[str]:
    """The texts and the names in the code, without docstrings and comments."""
    for module in sorted((ROOT / "tally").rglob("*.py")):
        tree = ast.parse(module.read_text())
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
                yield node.value
            elif isinstance(node, ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id
                yield re.sub("_(.)", lambda of: of[1].upper(), node.target.id)  # as an option of a deployment


def logged() -> set[str]:
    """The messages of the log."""
    modules = [module.read_text() for module in (ROOT / "tally").rglob("*.py")]
    return {message for text in modules for message in re.findall(r'logger\.\w+\(\s*"([^"]+)"', text)}


CODE = "\n".join([*texts(), *vars(builtins)])


def stands(quoted: str) -> bool:
    """Whether the parts of a quoted text, between `…` and `<…>`, stand in the code as whole words."""
    parts = [part.strip() for part in re.split(r"…|<[^>]*>", quoted) if re.search(r"\w", part)]
    return all(re.search(rf"(?<!\w){re.escape(part)}(?!\w)", CODE) for part in parts)


def command_lines() -> list[str]:
    """Those in blocks, and those in a line that have more than a name."""
    blocks = [line.partition("  #")[0] for fence in FENCES for line in fence.replace("\\\n", "").splitlines()]
    return [line for line in (*blocks, *SPANS) if line.startswith(("tally ", "aws ", "curl "))]


@pytest.mark.parametrize("line", command_lines())
def test_each_command_of_the_runbook_exists(line: str) -> None:
    program, *words = shlex.split(line)
    if program == "tally" and len(words) == 1:  # its name alone, in a sentence
        assert words[0] in commands.COMMANDS
    elif program == "tally":
        assert commands.parse_arguments(words, commands.parser(counters.COUNTERS)).command == words[0]
    elif program == "curl":
        [address] = [word for word in words if "/" in word]
        assert address.endswith(">/health") or address.startswith(f"localhost:8080{MAPPINGS}/rollup/receipts")
    else:
        service = botocore.session.get_session().get_service_model(words[0])
        [operation] = [name for name in service.operation_names if xform_name(name, "-") == words[1]]
        given = service.operation_model(operation).input_shape
        assert given is not None
        known = {xform_name(member, "-") for member in given.members}
        assert {word[2:] for word in words if word.startswith("--")} <= known | GLOBAL


@pytest.mark.parametrize("quoted", sorted({*SPANS} - OF_AWS - {*command_lines()}))
def test_what_the_runbook_quotes_stands_in_the_code(quoted: str) -> None:
    if quoted.startswith("make "):
        assert f"\n{quoted[5:]}:" in (ROOT / "Makefile").read_text()
    elif quoted.startswith(("stats ", "filter ")):
        assert [word for word in {*re.findall(r"[a-z]+", quoted)} - OF_INSIGHTS if not stands(word)] == []
    elif "/" not in quoted and (ROOT / "lambdas" / quoted).is_file():
        pass
    else:
        assert stands(quoted.removeprefix("-c ").split("=")[0])


def test_each_log_line_of_the_runbook_is_logged() -> None:
    found = re.findall(r"(?:log line|The line|The warning|sweep's log) `([^`]+)`", PAGE.replace("\n", " "))
    assert len(found) > 5
    assert {*found} - logged() == set()


def test_the_fields_that_the_runbook_asks_logs_for_are_logged() -> None:
    asked = {word for fence in FENCES if "stats" in fence for word in re.findall(r"\b[a-z]+_?[a-z]+\b", fence)}
    assert asked
    assert [word for word in asked - OF_INSIGHTS if not stands(word)] == []
