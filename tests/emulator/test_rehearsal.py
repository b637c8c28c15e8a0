"""`make rehearse` runs the commands of docs/first-deploy.md on the emulator. Each must print what the page says.

The page shows a stack's life as a person sees it: bootstrap, deploy, calls, a first deploy that fails and is repeated,
and destroy. The test delivers the streams and runs the sweep, because the emulator does neither. A minute of the
ledger is short here, and `tally` takes it for 60 s. So `tally status` shows a wrong day for the last judged minute.
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
from tests.emulator.page import ANY, Step, missing_lines, read_steps
from tests.emulator.server import REQUIREMENTS, Emulator
from tests.emulator.stack import MINUTE_S, Stack
from tests.emulator.streams import StreamDelivery, run_sweeps
from tests.emulator.terminal import Terminal
from tests.environments import ROOT, make_environment
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long

PAGE = ROOT / "docs/first-deploy.md"
SHOWN_LINES = 60  # how many lines of an output the test prints, because a deploy prints many hundred
SLEEP = re.compile(r"^sleep \d+; ")
# For SQS, the `aws` command uses the endpoint only if the endpoint is an option.
DEFINE_AWS = 'aws() { command aws --endpoint-url "$AWS_ENDPOINT_URL" "$@"; }'


class Rehearsal:
    """Runs the commands of the page in one shell, as a person does who follows the page."""

    def __init__(self, emulator: Emulator, home: Path) -> None:
        self._emulator, self._home = emulator, home
        inherited = {name: text for name, text in emulator.environment(home).items() if not name.startswith("MAKE")}
        tools = make_environment(REQUIREMENTS).parent
        path = f"{tools}{os.pathsep}{inherited['PATH']}"
        self._terminal = Terminal(inherited | {"CDK_APP": f"{sys.executable} -m {cdk_app.__name__}", "PATH": path})
        self._terminal.run(DEFINE_AWS)
        self._deploy_output: list[str] = []  # of the last `make deploy`
        self._background = ExitStack()  # delivers the streams and runs the sweep after a deploy

    def run_step(self, step: Step) -> str:
        """Runs the command of a step. Returns the first lines of the page that the output lacks; "": no line."""
        command = self._fill_in(step.command)
        if re.search("make (deploy|destroy)", command):
            self._background.close()
        print("\n".join(f"{'$' if not number else '>'} {line}" for number, line in enumerate(command.splitlines())))
        status, printed, missing = self._repeat_until_expected(step, SLEEP.sub("", command))
        lines = printed.splitlines()
        omitted = [f"({len(lines) - SHOWN_LINES} lines)"] if len(lines) > SHOWN_LINES else []
        half = SHOWN_LINES // 2
        print("\n".join([*lines[:half], *omitted, *lines[half:][-half:]]), flush=True)
        if "make deploy" in command and not status:
            self._deploy_output = [line.strip() for line in lines]
            stage = re.search(r"stage=(\w+)", command)
            self._background.enter_context(
                self._run_like_aws(Stack(self._emulator, self._home, stage[1] if stage else "dev"))
            )
        return missing

    def _repeat_until_expected(self, step: Step, command: str) -> tuple[int, str, str]:
        """Returns the exit status, the output, and the lines of the page that the output lacks.

        If the page sleeps before the command, repeats the command until the output is as expected.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        if step.has_fault:
            self._terminal.run(f"export {cdk_app.BREAKS}=1")
        while True:
            status, printed = self._terminal.run(command, step.answers)
            missing = missing_lines(printed, step.expected)
            if not missing or not SLEEP.match(step.command) or time.monotonic() > deadline_s:
                break
            time.sleep(MINUTE_S)
        if step.has_fault:
            self._terminal.run(f"unset {cdk_app.BREAKS}")
        return status, printed, missing

    def _fill_in(self, command: str) -> str:
        """Returns the line that `make deploy` printed, if the command has a `…`."""
        if ANY not in command:
            return command
        matches = [line for line in self._deploy_output if not missing_lines(line, command)]
        assert matches, f"`make deploy` printed no line {command}"
        return matches[0]

    @contextmanager
    def _run_like_aws(self, stack: Stack) -> Iterator[None]:
        """Delivers the streams and runs the sweep until the block ends, as AWS does."""
        streams = StreamDelivery(stack, ROOT / "cdk.out")
        with streams.running(), run_sweeps(stack, streams.failures):
            yield
        assert not streams.failures

    def close(self) -> None:
        """Ends the delivery, the sweeps and the shell."""
        self._background.close()
        self._terminal.close()


def test_each_command_of_the_page_of_the_first_deploy_prints_what_the_page_shows(tmp_path: Path) -> None:
    steps, section = read_steps(PAGE), ""
    skipped = [f"  {step.title}: {step.only_aws}" for step in steps if step.only_aws]
    with ExitStack() as ending:
        emulator = Emulator(tmp_path)
        ending.callback(emulator.stop)
        person = Rehearsal(emulator, tmp_path)
        ending.callback(person.close)
        for step in steps:
            if step.section != section:
                section = step.section
                print(f"\n--- {section}", flush=True)
            if step.only_aws:
                print(f"LEFT OUT: {step.command}\nonly AWS: {step.only_aws}", flush=True)
            else:
                missing = person.run_step(step)
                assert not missing, f"{step.command}\ndid not print what {PAGE.name} shows:\n{missing}"
        assert remaining_resources(emulator) == []
    print(f"\n{len(steps) - len(skipped)} commands printed what {PAGE.name} shows; nothing remains in the account.")
    print("\n".join([f"{len(skipped)} commands were left out, because only AWS can run them:", *skipped]), flush=True)


def remaining_resources(emulator: Emulator) -> list[str]:
    """Returns a line for each service that still has resources in the account."""
    calls = {
        "dynamodb": ("list_tables", "TableNames"), "lambda": ("list_functions", "Functions"),
        "apigatewayv2": ("get_apis", "Items"), "cloudwatch": ("describe_alarms", "MetricAlarms"),
        "events": ("list_rules", "Rules"), "logs": ("describe_log_groups", "logGroups"),
        "sqs": ("list_queues", "QueueUrls"), "sns": ("list_topics", "Topics"), "s3": ("list_buckets", "Buckets"),
        "ecr": ("describe_repositories", "repositories"), "iam": ("list_roles", "Roles"),
    }  # fmt: skip
    resources = {
        service: getattr(emulator.client(service), call)().get(key, []) for service, (call, key) in calls.items()
    }
    resources["cognito-idp"] = emulator.client("cognito-idp").list_user_pools(MaxResults=60)["UserPools"]
    return [
        f"{service}: {len(entries)}, first {str(entries[0])[:120]}" for service, entries in resources.items() if entries
    ]
