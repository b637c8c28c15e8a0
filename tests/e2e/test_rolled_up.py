"""The stack's stream consumers under `make dev`: visits rolled up, a consumer killed, a restart, a poison record."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config

from local.stack import tables
from tests.e2e.dev import KEY, ROOT, Dev, running, wait_for
from tests.e2e.kill_rollup import killed

Start = Callable[..., Dev]
WITHIN_S = 30.0  # two on a machine that does nothing else


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
    started_s = time.monotonic()
    wait_for(lambda: visits(dev, "rolled-up") == 20, WITHIN_S)
    assert time.monotonic() - started_s < WITHIN_S
    assert total(dev, "RecordsApplied", "rollup") >= 20


def test_a_consumer_that_is_killed_counts_each_change_once(start: Start) -> None:
    outcome = killed(start().wait_until_ready(), plays=2_000, kills=5)
    assert (outcome.counted, outcome.kills) == (2_000, 5)


def test_what_was_not_rolled_up_before_a_kill_is_after_it(start: Start) -> None:
    first = start().wait_until_ready()
    for number in range(10):
        visit(first, "restarted", number)
    first.process.kill()
    first.process.wait()
    again = start().wait_until_ready()
    visit(again, "restarted", 10)
    wait_for(lambda: visits(again, "restarted") == 11, WITHIN_S)
    assert again.stop() == 0
    (again.data / "streams.json").unlink()
    last = start().wait_until_ready()
    visit(last, "restarted", 11)
    wait_for(lambda: visits(last, "restarted") == 12, WITHIN_S)
    time.sleep(1.5)  # what is replayed comes with it
    assert visits(last, "restarted") == 12


def test_a_poison_record_is_set_aside_and_blocks_nothing(start: Start) -> None:
    dev = start().wait_until_ready()
    where = dev.call("GET", "/dev/stack").body
    visit(dev, "poisoned", 0)
    client = tables.client(dev.endpoint)
    poison = {
        "id": {"S": "poison"},
        "counter": {"S": "no such counter"},
        "target": {"S": "x"},
        "amount": {"N": "1"},
        "at": {"N": str(int(time.time()) // 60)},
        "rollup": {"BOOL": True},
    }
    client.put_item(TableName=where["receipts"], Item=poison)
    visit(dev, "poisoned", 1)
    wait_for(lambda: visits(dev, "poisoned") == 2, WITHIN_S)
    wait_for(lambda: total(dev, "RecordsSetAside", "rollup") == 1, WITHIN_S)

    def markers() -> list[Any]:
        wanted = {":pk": {"S": "SETASIDE"}, ":sk": {"S": "rollup#"}}
        found = client.query(
            TableName=where["ledger"],
            KeyConditionExpression="PK = :pk AND begins_with(SK, :sk)",
            ExpressionAttributeValues=wanted,
        )
        return list(found["Items"])

    [marker] = markers()
    s3 = objects(where["s3"])
    kept = json.loads(s3.get_object(Bucket=where["bucket"], Key=marker["object"]["S"])["Body"].read())
    assert (kept["consumer"], kept["table"]) == ("rollup", "receipts")
    assert kept["record"]["dynamodb"]["NewImage"] == poison
    s3.close()
    client.close()


def redrive(dev: Dev) -> tuple[int, list[str]]:
    """The exit status of `tally redrive`, and its lines."""
    command = [sys.executable, "-m", "cli", "redrive", "--local", "--port", str(dev.port)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.stderr == ""
    return ran.returncode, ran.stdout.splitlines()


def test_a_broken_receipt_is_kept_until_it_is_mended_and_then_applied_once(start: Start) -> None:
    dev = start().wait_until_ready()
    where = dev.call("GET", "/dev/stack").body
    client, store = tables.client(dev.endpoint), objects(where["s3"])
    facts = {"id": "broken", "counter": "visits", "target": "https://example.com/broken"}
    broken: dict[str, Any] = {name: {"S": value} for name, value in facts.items()}
    broken |= {"at": {"N": str(int(time.time()) // 60)}, "rollup": {"BOOL": True}, "amount": {"S": "lots"}}
    client.put_item(TableName=where["receipts"], Item=broken)
    visit(dev, "broken", 1)
    wait_for(lambda: visits(dev, "broken") == 1, WITHIN_S)
    wait_for(lambda: all(total(dev, "RecordsSetAside", name) == 1 for name in ("rollup", "drift")), WITHIN_S)

    keys = sorted(one["Key"] for one in store.list_objects_v2(Bucket=where["bucket"])["Contents"])
    assert [key.partition("/")[0] for key in keys] == ["drift", "rollup"]
    kept = [f"kept     {key}: amount is no number, but {{'S': 'lots'}}" for key in keys]
    assert redrive(dev) == (1, [*kept, "0 applied, 0 already gone, 2 kept"])
    assert visits(dev, "broken") == 1

    for key in keys:
        held = json.loads(store.get_object(Bucket=where["bucket"], Key=key)["Body"].read())
        held["record"]["dynamodb"]["NewImage"]["amount"] = {"N": "3"}
        store.put_object(Bucket=where["bucket"], Key=key, Body=json.dumps(held).encode())
    assert redrive(dev) == (0, ["2 applied, 0 already gone, 0 kept"])
    assert visits(dev, "broken") == 4
    assert redrive(dev) == (0, ["0 applied, 0 already gone, 0 kept"])
    assert visits(dev, "broken") == 4
    assert store.list_objects_v2(Bucket=where["bucket"]).get("Contents", []) == []
    store.close()
    client.close()


def test_it_stops_at_once_while_consumers_work(start: Start) -> None:
    dev = start().wait_until_ready()
    for place in range(30):
        visit(dev, "stopped", place)
    below = dev.descendants()
    started_s = time.monotonic()
    assert dev.stop(signal.SIGINT) == 0
    assert time.monotonic() - started_s < 10
    assert "Traceback" not in dev.text
    assert not running(below)
