"""A manual edit of a tally while 200 people like it: `tally` names it and repairs it, and no like is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from local.stack import tables
from tests.e2e.dev import ROOT, Dev, wait_for

Start = Callable[..., Dev]
LIKERS = 200
EDITED_BY = 7
NAMED_WITHIN_S = 120.0
LOOK_S = 0.5
SANE_LAG_S = 600
NEW_PAGE = "/visits?url=https://example.com/new"


def tally(dev: Dev, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, against this `make dev`."""
    return subprocess.run(
        [sys.executable, "-m", "cli", *arguments, "--local", "--port", str(dev.port)],
        cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def drifting(dev: Dev, token: str) -> Any:
    return dev.call("GET", "/drift", token=token).body["drift"]


def like_from_200_people_and_edit(dev: Dev) -> None:
    """200 likes, 4 at a time. Before the hundredth, edit the tally directly."""
    where = dev.call("GET", "/dev/stack").body
    client = tables.client(dev.endpoint)

    def like(number: int) -> int:
        if number == LIKERS // 2:
            client.update_item(
                TableName=where["counts"], Key={"PK": {"S": "POST#p"}, "SK": {"S": "META"}},
                UpdateExpression="ADD likeTally :by", ExpressionAttributeValues={":by": {"N": str(EDITED_BY)}},
            )  # fmt: skip
        return dev.call("PUT", "/posts/p/like", token=dev.token(f"user-{number}")).status

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(like, range(LIKERS))) == [200] * LIKERS
    client.close()


def test_a_manual_edit_among_200_likes_is_named_and_repaired_and_costs_no_like(start: Start) -> None:
    began_s = time.time()
    dev = start(TALLY_SETTLE_S=os.environ.get("DRIFT_TEST_SETTLE_S", "4")).wait_until_ready()
    reader = dev.token("operator", scope="tally/read")
    assert dev.call("PUT", "/posts/p", {"body": "hello"}, token=dev.token()).status == 201
    assert drifting(dev, reader) == []
    like_from_200_people_and_edit(dev)
    assert dev.call("GET", "/posts/p").body["likeTally"] == LIKERS + EDITED_BY

    def named() -> bool:
        """Meanwhile, a new stack must not report times of 1970."""
        assert began_s - SANE_LAG_S < dev.call("GET", NEW_PAGE).body["as_of"] <= time.time()
        assert_lags_are_sane(dev)
        time.sleep(LOOK_S)
        return bool(drifting(dev, reader))

    wait_for(named, NAMED_WITHIN_S)
    [row] = drifting(dev, reader)
    assert (row["counter"], row["id"], row["drift"]) == ("likes", "p", EDITED_BY)

    looked = tally(dev, "reconcile", "--post", "p")
    line = f"likes p: tally {LIKERS + EDITED_BY} children {LIKERS} difference -{EDITED_BY} drift +{EDITED_BY}"
    assert (looked.returncode, looked.stdout) == (1, f"differs  {line}\n1 differ\n"), looked.stderr
    repaired = tally(dev, "reconcile", "--post", "p", "--repair", "--by", "ann", "--why", "edited by hand")
    assert (repaired.returncode, repaired.stdout) == (0, f"repaired {line}\nall is well\n"), repaired.stderr

    assert drifting(dev, reader) == []
    assert dev.call("GET", "/posts/p").body["likeTally"] == LIKERS
    [entry] = map(json.loads, tally(dev, "history", "p", "--json").stdout.splitlines())
    assert (entry["by"], entry["why"], entry["amount"]) == ("ann", "edited by hand", -EDITED_BY)
    assert (entry["before"], entry["after"]) == (LIKERS + EDITED_BY, LIKERS)
    assert children(dev) == LIKERS
    wait_for(lambda: ledger_is_even(dev), 30)
    again = tally(dev, "reconcile", "--post", "p")
    assert (again.returncode, again.stdout) == (0, "all is well\n"), again.stderr
    assert lags(dev)
    assert_lags_are_sane(dev)


def children(dev: Dev) -> int:
    where, client = dev.call("GET", "/dev/stack").body, tables.client(dev.endpoint)
    found = client.query(
        TableName=where["counts"], Select="COUNT", KeyConditionExpression="PK = :pk AND begins_with(SK, :child)",
        ExpressionAttributeValues={":pk": {"S": "POST#p"}, ":child": {"S": "LIKE#USER#"}},
    )  # fmt: skip
    client.close()
    return int(found["Count"])


def ledger_is_even(dev: Dev) -> bool:
    """Whether no unjudged minute will drift again: the repair books on both sides."""
    where, client = dev.call("GET", "/dev/stack").body, tables.client(dev.endpoint)
    minutes: Counter[str] = Counter()
    for row in client.scan(TableName=where["ledger"])["Items"]:
        if row["PK"]["S"].startswith("LEDGER#"):
            amounts = [int(row.get(side, {"N": "0"})["N"]) for side in ("observed", "expected")]
            minutes[row["minute"]["N"]] += amounts[0] - amounts[1]
    client.close()
    return not any(minutes.values())


def lags(dev: Dev) -> list[Any]:
    metrics = dev.call("GET", "/dev/metrics?format=json").body["metrics"]
    return [one for one in metrics if one["metric"] == "RollupLagSeconds"]


def assert_lags_are_sane(dev: Dev) -> None:
    for lag in lags(dev):
        assert 0 <= lag["min"] <= lag["max"] < SANE_LAG_S, lag
