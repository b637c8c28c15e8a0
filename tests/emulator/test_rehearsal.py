"""`make rehearse`: plays docs/first-deploy.md on the emulator. Every command must print what the page says.

A stack's life as a person sees it: bootstrap, deploy, calls, a first deploy that fails and is done again, the end.
What the emulator lacks is done in its place: the streams are delivered, and the sweep runs. The minutes of the ledger
are short, which `tally` does not know: so `tally status` names a day far away as that of the last judged minute.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.emulator import cdk_app
from tests.emulator.page import ANY, Step, differs, steps
from tests.emulator.server import REQUIREMENTS, Emulator
from tests.emulator.stack import MINUTE_S, Stack
from tests.emulator.streams import Streams, run_sweeps
from tests.emulator.terminal import Terminal
from tests.environments import ROOT, make_environment
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long

PAGE = ROOT / "docs/first-deploy.md"
SHOWN_LINES = 60  # of an output: a deploy prints many hundred
SLEEP = re.compile(r"^sleep \d+; ")
# The command `aws` of Python asks no other endpoint for queues, unless it is an option.
BEGIN = 'aws() { command aws --endpoint-url "$AWS_ENDPOINT_URL" "$@"; }'


class Rehearsal:
    """A person who follows the page: one shell, and what `make deploy` printed to paste."""

    def __init__(self, emulator: Emulator, home: Path) -> None:
        self._emulator, self._home = emulator, home
        inherited = {name: text for name, text in emulator.environment(home).items() if not name.startswith("MAKE")}
        tools = make_environment(REQUIREMENTS).parent
        self._terminal = Terminal(
            inherited
            | {
                "CDK_APP": f"{sys.executable} -m {cdk_app.__name__}",
                "PATH": f"{tools}{os.pathsep}{inherited['PATH']}",
            }
        )
        self._terminal.run(BEGIN)
        self._pasted: list[str] = []
        self._working = ExitStack()

    def play(self, step: Step) -> str:
        """Do what the page says; what is not as it says, empty if all is."""
        command = self._spelled_out(step.command)
        if re.search("make (deploy|destroy)", command):
            self._working.close()
        print("\n".join(f"{'$' if not number else '>'} {line}" for number, line in enumerate(command.splitlines())))
        status, printed, wrong = self._until_shown(step, SLEEP.sub("", command))
        lines = printed.splitlines()
        hidden = [f"({len(lines) - SHOWN_LINES} lines)"] if len(lines) > SHOWN_LINES else []
        print(
            "\n".join([*lines[: SHOWN_LINES // 2], *hidden, *lines[SHOWN_LINES // 2 :][-SHOWN_LINES // 2 :]]),
            flush=True,
        )
        if "make deploy" in command and not status:
            self._pasted = [line.strip() for line in lines]
            stage = re.search(r"stage=(\w+)", command)
            self._working.enter_context(self._at_work(Stack(self._emulator, self._home, stage[1] if stage else "dev")))
        return wrong

    def _until_shown(self, step: Step, command: str) -> tuple[int, str, str]:
        """Its status, what it printed and what of the page that lacks. What is to wait for is asked again."""
        deadline_s = time.monotonic() + PATIENCE_S
        if step.broken:
            self._terminal.run(f"export {cdk_app.BREAKS}=1")
        while True:
            status, printed = self._terminal.run(command, step.answers)
            wrong = differs(printed, step.shown)
            if not wrong or not SLEEP.match(step.command) or time.monotonic() > deadline_s:
                break
            time.sleep(MINUTE_S)
        if step.broken:
            self._terminal.run(f"unset {cdk_app.BREAKS}")
        return status, printed, wrong

    def _spelled_out(self, command: str) -> str:
        """A command with `…` is a line that `make deploy` printed."""
        if ANY not in command:
            return command
        found = [line for line in self._pasted if not differs(line, command)]
        assert found, f"`make deploy` printed no line {command}"
        return found[0]

    @contextmanager
    def _at_work(self, stack: Stack) -> Iterator[None]:
        """What AWS does by itself: it delivers the streams and runs the sweep."""
        streams = Streams(stack, ROOT / "cdk.out")
        with streams.running(), run_sweeps(stack, streams.said):
            yield
        assert not streams.said

    def close(self) -> None:
        """End it."""
        self._working.close()
        self._terminal.close()


def test_the_first_hour(tmp_path: Path) -> None:
    found, section = steps(PAGE), ""
    left_out = [f"  {step.title}: {step.only_aws}" for step in found if step.only_aws]
    with ExitStack() as ending:
        emulator = Emulator(tmp_path)
        ending.callback(emulator.stop)
        person = Rehearsal(emulator, tmp_path)
        ending.callback(person.close)
        for step in found:
            if step.section != section:
                section = step.section
                print(f"\n--- {section}", flush=True)
            if step.only_aws:
                print(f"LEFT OUT: {step.command}\nonly AWS: {step.only_aws}", flush=True)
            else:
                lacking = person.play(step)
                assert not lacking, f"{step.command}\nis not as {PAGE.name} says, which shows:\n{lacking}"
        assert left_over(emulator) == []
    print(f"\n{len(found) - len(left_out)} commands of {PAGE.name} printed what it says; nothing is left.")
    print("\n".join([f"{len(left_out)} left out, since only AWS can play them:", *left_out]), flush=True)


def left_over(emulator: Emulator) -> list[str]:
    """What is left in the account, of what costs or counts."""
    listed = {
        "dynamodb": ("list_tables", "TableNames"), "lambda": ("list_functions", "Functions"),
        "apigatewayv2": ("get_apis", "Items"), "cloudwatch": ("describe_alarms", "MetricAlarms"),
        "events": ("list_rules", "Rules"), "logs": ("describe_log_groups", "logGroups"),
        "sqs": ("list_queues", "QueueUrls"), "sns": ("list_topics", "Topics"), "s3": ("list_buckets", "Buckets"),
        "ecr": ("describe_repositories", "repositories"), "iam": ("list_roles", "Roles"),
    }  # fmt: skip
    found = {service: getattr(emulator.client(service), call)().get(key, []) for service, (call, key) in listed.items()}
    found["cognito-idp"] = emulator.client("cognito-idp").list_user_pools(MaxResults=60)["UserPools"]
    return [f"{service}: {len(kept)}, first {str(kept[0])[:120]}" for service, kept in found.items() if kept]
