"""The stack's stream consumers under `make dev`: visits rolled up, a consumer killed, a broken record."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config

from dev.stack import tables
from tests.e2e.dev import KEY, ROOT, Dev
from tests.e2e.kill_rollup import killed
from tests.patience import PATIENCE_S, wait_for

Start = Callable[..., Dev]


def visit(dev: Dev, page: str, number: int) -> None:
    body = {"url": f"https://example.com/{page}", "key": f"{KEY}-{page}-{number}"}
    assert dev.call("POST", "/visits", body, user_agent="Mozilla/5.0").status == 202


def visits(dev: Dev, page: str) -> int:
    return int(dev.call("GET", f"/visits?url=https://example.com/{page}").body["visits"])


def total(dev: Dev, metric: str, consumer: str) -> float:
    found: Any = dev.call("GET", "/dev/metrics?format=json").body["metrics"]
    return sum(one["sum"] for one in found if one["metric"] == metric and one["dimensions"].get("consumer") == consumer)


def objects(endpoint: str) -> Any:
    """A client of the local S3."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="eu-west-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(proxies={}, s3={"addressing_style": "path"}),
    )


def test_visits_are_rolled_up_within_seconds(dev: Dev) -> None:
    for number in range(20):
        visit(dev, "rolled-up", number)
    wait_for(lambda: visits(dev, "rolled-up") == 20)


def test_a_consumer_that_is_killed_counts_each_change_once(start: Start) -> None:
    outcome = killed(start().wait_until_ready(), plays=600, kills=3)
    assert (outcome.counted, outcome.kills) == (600, 3)


def redrive(dev: Dev) -> tuple[int, list[str]]:
    """The exit status and the lines of `tally redrive`."""
    command = [sys.executable, "-m", "cli", "redrive", "--local", "--port", str(dev.port)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.stderr == ""
    return ran.returncode, ran.stdout.splitlines()


def test_a_broken_receipt_blocks_nothing_and_applies_once_when_it_is_repaired(start: Start) -> None:
    dev = start().wait_until_ready()
    where = dev.call("GET", "/dev/stack").body
    client, store = tables.client(dev.endpoint), objects(where["s3"])
    facts = {"id": "broken", "counter": "visits", "target": "https://example.com/broken"}
    broken: dict[str, Any] = {name: {"S": value} for name, value in facts.items()}
    broken |= {"at": {"N": str(int(time.time()) // 60)}, "rollup": {"BOOL": True}, "amount": {"S": "lots"}}
    client.put_item(TableName=where["receipts"], Item=broken)
    visit(dev, "broken", 1)
    wait_for(lambda: visits(dev, "broken") == 1)
    wait_for(lambda: all(total(dev, "DeadLetters", name) == 1 for name in ("rollup", "drift")))

    keys = sorted(one["Key"] for one in store.list_objects_v2(Bucket=where["bucket"])["Contents"])
    assert [key.partition("/")[0] for key in keys] == ["drift", "rollup"]
    kept = [f"kept     {key}: amount cannot be {{'S': 'lots'}}" for key in keys]
    assert redrive(dev) == (1, [*kept, "0 applied, 0 already gone, 2 kept"])
    assert visits(dev, "broken") == 1

    for key in keys:
        held = json.loads(store.get_object(Bucket=where["bucket"], Key=key)["Body"].read())
        assert (f"{held['consumer']}/", held["table"]) == (key[: key.index("/") + 1], "receipts")
        assert held["record"]["dynamodb"]["NewImage"] == broken
        held["record"]["dynamodb"]["NewImage"]["amount"] = {"N": "3"}
        store.put_object(Bucket=where["bucket"], Key=key, Body=json.dumps(held).encode())
    assert redrive(dev) == (0, ["2 applied, 0 already gone, 0 kept"])
    assert visits(dev, "broken") == 4
    assert redrive(dev) == (0, ["0 applied, 0 already gone, 0 kept"])
    assert visits(dev, "broken") == 4
    assert store.list_objects_v2(Bucket=where["bucket"]).get("Contents", []) == []
    store.close()
    client.close()
