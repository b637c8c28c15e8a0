"""Tests that a killed consumer counts each change once, and that a broken record blocks no other record."""

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
KILL_AFTER_S_MAX = 0.15  # about as long as a batch takes
WAIT_FOR_DOUBLE_S = 1.5  # the rollup adds a visit that counts twice with its next batch, within a second


def metric_sum(dev: Dev, name: str, consumer: str) -> float:
    """Returns the sum of a metric of a consumer."""
    metrics: Any = dev.call("GET", "/dev/metrics").body["metrics"]
    found = [metric for metric in metrics if metric["dimensions"].get("consumer") == consumer]
    return sum(metric["sum"] for metric in found if metric["metric"] == name)


def s3_client(endpoint: str) -> Any:
    """Returns a client of the S3 of `make dev`."""
    return boto3.client("s3", endpoint_url=endpoint, config=Config(proxies={}, s3={"addressing_style": "path"}))


def test_a_consumer_that_is_killed_counts_each_change_once(start: Start) -> None:
    """The test kills the rollup twice while 200 visits come: before, in or after a transaction of the rollup."""
    dev, chance = start().wait_until_ready(), random.Random(0)
    for first in range(0, 200, 50):
        entries = [
            {"operation": "visit", "url": KILLED, "idempotency_key": f"{KEY}-{number}"}
            for number in range(first, first + 50)
        ]
        before = processor_ticks(dev)
        answer = dev.call("POST", "/2015-03-31/functions/visits/invocations", {"batch": entries})
        assert {result["status"] for result in answer.body["results"]} == {202}
        if first % 100 == 0:  # in the first and in the third of the four batches
            wait_for(lambda before=before: processor_ticks(dev) != before, every_s=0.01)  # type: ignore[misc]
            time.sleep(chance.uniform(0, KILL_AFTER_S_MAX))
            for pid in dev.workers("rollup"):
                os.kill(pid, signal.SIGKILL)
    wait_for(lambda: dev.visits(KILLED)[0] >= 200, every_s=0.5)
    time.sleep(WAIT_FOR_DOUBLE_S)
    assert dev.visits(KILLED)[0] == 200


def processor_ticks(dev: Dev) -> dict[int, str]:
    """Returns the processor time of each process of the rollup, which changes when the rollup gets a batch."""
    ticks = {}
    for pid in dev.workers("rollup"):
        with suppress(OSError):  # the process has ended
            ticks[pid] = " ".join(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
    return ticks


def redrive(dev: Dev) -> tuple[int, list[str]]:
    """Redrives the dead letters. Returns the exit status and the output, without the list of the dead letters."""
    repair = ["repair", "--only", "dead-letters", "--by", "ann", "--why", "x", "--yes"]
    command = [sys.executable, "-m", "tally.cli", *repair, "--local", "--port", str(dev.port)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.stderr == ""
    return ran.returncode, [line for line in ran.stdout.splitlines() if not line.startswith("waits ")]


@pytest.mark.long
def test_a_broken_receipt_blocks_no_visit_and_applies_once_after_somebody_corrects_it(start: Start) -> None:
    dev = start().wait_until_ready()
    stack = dev.call("GET", "/dev/stack").body
    dynamo, s3 = client(dev.endpoint), s3_client(stack["s3"])
    texts = {"id": "broken", "counter": "visits", "target": BROKEN}
    broken: dict[str, Any] = {name: {"S": value} for name, value in texts.items()}
    broken |= {"at": {"N": str(int(time.time()) // 60)}, "rollup": {"BOOL": True}, "amount": {"S": "lots"}}
    dynamo.put_item(TableName=stack["receipts"], Item=broken)
    dev.visit(BROKEN, KEY)
    wait_for(lambda: dev.visits(BROKEN)[0] == 1)
    wait_for(lambda: all(metric_sum(dev, "DeadLetters", name) == 1 for name in ("rollup", "bookkeeper")))

    keys = sorted(object_["Key"] for object_ in s3.list_objects_v2(Bucket=stack["bucket"])["Contents"])
    assert [key.partition("/")[0] for key in keys] == ["bookkeeper", "rollup"]
    blocked_lines = [f"blocked  {key}: amount cannot be {{'S': 'lots'}}" for key in keys]
    summary = "2 dead letters are not applied. Resolve them first; nothing else was repaired"
    assert redrive(dev) == (1, [*blocked_lines, "0 applied, 0 already gone, 2 blocked", summary])
    assert dev.visits(BROKEN)[0] == 1

    for key in keys:
        letter = json.loads(s3.get_object(Bucket=stack["bucket"], Key=key)["Body"].read())
        assert (f"{letter['consumer']}/", letter["table"]) == (key[: key.index("/") + 1], "receipts")
        assert letter["record"]["dynamodb"]["NewImage"] == broken
        letter["record"]["dynamodb"]["NewImage"]["amount"] = {"N": "3"}  # 1 visit + 3 = 4
        s3.put_object(Bucket=stack["bucket"], Key=key, Body=json.dumps(letter).encode())
    assert redrive(dev) == (0, ["2 applied, 0 already gone, 0 blocked", "all is well: dead-letters"])
    assert dev.visits(BROKEN)[0] == 4
    assert redrive(dev) == (0, ["all is well: dead-letters"])
    assert dev.visits(BROKEN)[0] == 4
    assert s3.list_objects_v2(Bucket=stack["bucket"]).get("Contents", []) == []
    s3.close()
    dynamo.close()
