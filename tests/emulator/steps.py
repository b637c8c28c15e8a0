"""The first steps of a stack: deployed, called in every way, and deployed again without a change."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.emulator import stack as stacks
from tests.emulator.stack import Stack, bridged
from tests.patience import PATIENCE_S

KEY = "5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11"
PLAY_TWICE = """
import importlib, json, sys, types
sys.path[:0] = [sys.argv[1]]
import boto3
before = set(sys.modules)
handler = importlib.import_module("serve").increments
event = {"operation": "increment", "counter": "plays", "id": "bundle", "idempotency_key": "0123456789abcdefghijkl"}
context = types.SimpleNamespace(aws_request_id="r", get_remaining_time_in_millis=lambda: 10_000)
answers = [handler(event, context)["replayed"] for _ in range(2)]
files = [getattr(sys.modules[name], "__file__", None) or "" for name in set(sys.modules) - before]
print("RESULT" + json.dumps({"answers": answers, "files": files}))
"""
RUNTIME = ("boto3", "snapshot_restore_py", "botocore", "s3transfer", "dateutil", "urllib3", "six")


@contextmanager
def step(name: str) -> Iterator[list[str]]:
    """Log a step with its time. What is appended to the list is its result."""
    notes: list[str] = []
    started_s = time.monotonic()
    yield notes
    print(f"{name:40}{time.monotonic() - started_s:6.1f} s  {'; '.join(notes)}", flush=True)


def begin(stack: Stack, assembly: Path) -> None:
    """Bootstrap, deploy, count, and deploy again without a change."""
    with step("cdk bootstrap"):
        stack.bootstrap()
    with step("cdk deploy") as notes:
        notes.append(f"{deployed(stack, assembly)} resources")
    with step("plays by alias and HTTP; no token: 401"):
        play(stack)
    with step("plays from the uploaded bundle alone"):
        play_from_the_bundle(stack, stack.home / "bundle")
    with step("cdk deploy without changes"):
        again = stack.deploy(assembly)
        assert again.returncode == 0
        assert "no changes" in again.stdout + again.stderr


def deployed(stack: Stack, assembly: Path) -> int:
    """Deploy, and compare: every resource of the template is there. How many."""
    done = stack.deploy(assembly)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    wanted = bridged(json.loads((assembly / stacks.TEMPLATE).read_text()))["Resources"]
    assert {name: type_ for name, (type_, _) in stack.resources().items()} == {
        name: found["Type"] for name, found in wanted.items()
    }
    return len(wanted)


def play(stack: Stack) -> None:
    """Through the alias, again, and over HTTP; without a token nobody writes, with one a person does."""
    event = {"operation": "increment", "counter": "plays", "id": "9f3a", "idempotency_key": KEY}
    alias = stack.outputs["IncrementsFunctionArn"]
    assert [stack.invoke(alias, event)["replayed"] for _ in range(2)] == [False, True]
    assert stack.call("POST", "/videos/9f3a/plays", Idempotency_Key=KEY[::-1]).body["counted"] is True
    assert stack.call("GET", "/videos/9f3a/plays").body == {"counter": "plays", "id": "9f3a", "value": 2}
    post = {"body": "Counting is easy."}
    assert stack.call("PUT", "/posts/a91f", post).status == 401
    assert stack.call("PUT", "/posts/a91f", post, "e30.e30.forged").status == 401
    token = stack.user_token()
    assert stack.call("PUT", "/posts/a91f", post, token).status == 201
    assert stack.call("GET", "/drift", token=token).status == 403, "a person's token has no scope of the counters"


def play_from_the_bundle(stack: Stack, folder: Path) -> None:
    """The handler from the uploaded zip, with the deployed environment: beside it only what Lambda's runtime brings."""
    function = stack.client("lambda").get_function(FunctionName=stack.outputs["IncrementsFunctionArn"])
    with (
        urllib.request.urlopen(function["Code"]["Location"]) as code,
        zipfile.ZipFile(io.BytesIO(code.read())) as zipped,
    ):
        zipped.extractall(folder)
    variables = {**stack.environment, **function["Configuration"]["Environment"]["Variables"]}
    run = subprocess.run(
        [sys.executable, "-P", "-B", "-c", PLAY_TWICE, str(folder)], env=variables, cwd=folder, capture_output=True,
        text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    [line] = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    result = json.loads(line.removeprefix("RESULT"))
    assert result["answers"] == [False, True]
    packages = [Path(file).parts for file in result["files"] if "site-packages" in file]
    beside = {parts[parts.index("site-packages") + 1].removesuffix(".py") for parts in packages}
    assert beside <= set(RUNTIME), beside - set(RUNTIME)
