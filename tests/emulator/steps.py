"""What each test of a new stack does first: a deploy, calls by alias and over HTTP, and a deploy without a change."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.emulator import stack as stacks
from tests.emulator.stack import Stack, without_unsupported

KEY = "5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11"


@contextmanager
def step(name: str) -> Iterator[list[str]]:
    """Prints how long the block took, with the notes that the block appends to the list."""
    notes: list[str] = []
    started_s = time.monotonic()
    yield notes
    print(f"{name:40}{time.monotonic() - started_s:6.1f} s  {'; '.join(notes)}", flush=True)


def deploy_and_play(stack: Stack, assembly: Path) -> None:
    """Bootstraps and deploys, counts plays, and deploys a second time without a change."""
    with step("cdk bootstrap"):
        stack.bootstrap()
    with step("cdk deploy") as notes:
        notes.append(f"{deploy_and_check_resources(stack, assembly)} resources")
    with step("plays by alias and HTTP; no token: 401"):
        play(stack)
    with step("cdk deploy without changes"):
        deploy = stack.deploy(assembly)
        assert deploy.returncode == 0
        assert "no changes" in deploy.stdout + deploy.stderr


def deploy_and_check_resources(stack: Stack, assembly: Path) -> int:
    """Deploys, and checks that every resource of the template exists. Returns the number of resources."""
    deploy = stack.deploy(assembly)
    assert deploy.returncode == 0, deploy.stdout[-1000:] + deploy.stderr[-3000:]
    resources = without_unsupported(json.loads((assembly / stacks.TEMPLATE).read_text()))["Resources"]
    assert {name: type_ for name, (type_, _) in stack.resources().items()} == {
        name: resource["Type"] for name, resource in resources.items()
    }
    return len(resources)


def play(stack: Stack) -> None:
    """Counts a play by the alias, with a retry, and a play over HTTP. Puts a post, which needs a valid token."""
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
    assert stack.call("GET", "/drift", token=token).status == 403, "the token of a user lacks the scope tally/read"
