"""Tests the stream consumers under `make dev`: a consumer that is killed, and a broken record."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.e2e.dev import KEY, ROOT, Dev, client
from tests.patience import PATIENCE_S, wait_for

Start = Callable[..., Dev]
KILLED, BROKEN = "https://example.com/killed", "https://example.com/broken"
KILL_AFTER_S_MAX = 0.15  # a batch takes about this time
WAIT_FOR_DOUBLE_S = 1.5  # a double count would come with the next batch, a second later


def total(dev: Dev, metric: str, consumer: str) -> float:
    found: Any = dev.call("GET", "/dev/metrics").body["metrics"]
    return sum(one["sum"] for one in found if one["metric"] == metric and one["dimensions"].get("consumer") == consumer)


def s3_client(endpoint: str) -> Any:
    """Returns a client of the local S3."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="eu-west-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(proxies={}, s3={"addressing_style": "path"}),
    )


def test_a_consumer_that_is_killed_counts_each_change_once(start: Start) -> None:
    """The consumer is killed twice while 200 visits come: before, in or after a transaction."""
    dev, chance = start().wait_until_ready(), random.Random(0)
    for first in range(0, 200, 50):
        entries = [
            {"operation": "visit", "url": KILLED, "idempotency_key": f"{KEY}-{number}"}
            for number in range(first, first + 50)
        ]
        before = processor_ticks(dev)
        answer = dev.call("POST", "/2015-03-31/functions/visits/invocations", {"batch": entries})
        assert {result["status"] for result in answer.body["results"]} == {202}
        if first % 100 == 0:
            wait_for(lambda before=before: processor_ticks(dev) != before, every_s=0.01)  # type: ignore[misc]
            time.sleep(chance.uniform(0, KILL_AFTER_S_MAX))
            for pid in dev.workers("rollup"):
                os.kill(pid, signal.SIGKILL)
    wait_for(lambda: dev.visits(KILLED)[0] >= 200, every_s=0.5)
    time.sleep(WAIT_FOR_DOUBLE_S)
    assert dev.visits(KILLED)[0] == 200


def processor_ticks(dev: Dev) -> dict[int, str]:
    """Returns the processor time of the rollup's processes. When it changes, the rollup has got a batch."""
    ticks = {}
    for pid in dev.workers("rollup"):
        with suppress(OSError):  # the process has ended
            ticks[pid] = " ".join(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
    return ticks


def redrive(dev: Dev) -> tuple[int, list[str]]:
    """Redrives the dead letters. Returns the exit status and the lines, without the lines that list the letters."""
    repair = ["repair", "--only", "dead-letters", "--by", "ann", "--why", "x", "--yes"]
    command = [sys.executable, "-m", "tally.cli", *repair, "--local", "--port", str(dev.port)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.stderr == ""
    return ran.returncode, [line for line in ran.stdout.splitlines() if not line.startswith("waits ")]


@pytest.mark.long
def test_a_broken_receipt_blocks_nothing_and_applies_once_when_it_is_repaired(start: Start) -> None:
    dev = start().wait_until_ready()
    stack = dev.call("GET", "/dev/stack").body
    dynamo, store = client(dev.endpoint), s3_client(stack["s3"])
    facts = {"id": "broken", "counter": "visits", "target": BROKEN}
    broken: dict[str, Any] = {name: {"S": value} for name, value in facts.items()}
    broken |= {"at": {"N": str(int(time.time()) // 60)}, "rollup": {"BOOL": True}, "amount": {"S": "lots"}}
    dynamo.put_item(TableName=stack["receipts"], Item=broken)
    dev.visit(BROKEN, KEY)
    wait_for(lambda: dev.visits(BROKEN)[0] == 1)
    wait_for(lambda: all(total(dev, "DeadLetters", name) == 1 for name in ("rollup", "bookkeeper")))

    keys = sorted(one["Key"] for one in store.list_objects_v2(Bucket=stack["bucket"])["Contents"])
    assert [key.partition("/")[0] for key in keys] == ["bookkeeper", "rollup"]
    blocked_lines = [f"blocked  {key}: amount cannot be {{'S': 'lots'}}" for key in keys]
    summary = "2 dead letters are not applied. Resolve them first; nothing else was repaired"
    assert redrive(dev) == (1, [*blocked_lines, "0 applied, 0 already gone, 2 blocked", summary])
    assert dev.visits(BROKEN)[0] == 1

    for key in keys:
        letter = json.loads(store.get_object(Bucket=stack["bucket"], Key=key)["Body"].read())
        assert (f"{letter['consumer']}/", letter["table"]) == (key[: key.index("/") + 1], "receipts")
        assert letter["record"]["dynamodb"]["NewImage"] == broken
        letter["record"]["dynamodb"]["NewImage"]["amount"] = {"N": "3"}
        store.put_object(Bucket=stack["bucket"], Key=key, Body=json.dumps(letter).encode())
    assert redrive(dev) == (0, ["2 applied, 0 already gone, 0 blocked", "all is well: dead-letters"])
    assert dev.visits(BROKEN)[0] == 4
    assert redrive(dev) == (0, ["all is well: dead-letters"])
    assert dev.visits(BROKEN)[0] == 4
    assert store.list_objects_v2(Bucket=stack["bucket"]).get("Contents", []) == []
    store.close()
    dynamo.close()
