"""What drifts shows and is repaired while people like; a consumer that is stalled is no drift.

A minute of the ledger is a second long here.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tally.dev.stack import tables
from tally.streams import watermark
from tests.e2e.dev import ROOT, Dev
from tests.patience import PATIENCE_S, wait_for

MINUTE_S = 1
LIKERS = 200
LOOK_EVERY_S = 0.5  # a look opens the tables or starts the command
EDITED_BY = 50
STALLED_S = 6.0 * MINUTE_S
PAGE = "https://example.com/stalled"


def tally(dev: Dev, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, against this `make dev`."""
    return subprocess.run(
        [sys.executable, "-m", "tally.cli", *arguments, "--local", "--port", str(dev.port)],
        cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def drifting(dev: Dev) -> dict[tuple[str, str], int]:
    rows = dev.call("GET", "/drift", token=dev.token("operator", scope="tally/read")).body["drift"]
    return {(row["counter"], row["id"]): row["drift"] for row in rows}


def judged_minute(dev: Dev) -> int:
    """The last minute that is judged, from the ledger; 0 before there is one."""
    where, client = dev.call("GET", "/dev/stack").body, tables.client(dev.endpoint)
    item = client.get_item(TableName=where["ledger"], Key=watermark.JUDGE, ConsistentRead=True).get("Item", {})
    client.close()
    return int(item.get("judged", {"N": "0"})["N"])


def watermark_age_s(dev: Dev, consumer: str) -> int:
    """The last value of the metric."""
    metrics = dev.call("GET", "/dev/metrics").body["metrics"]
    [found] = [
        one["last"]
        for one in metrics
        if one["metric"] == "WatermarkAgeSeconds" and one["dimensions"]["consumer"] == consumer
    ]
    return int(found)


def like(dev: Dev, numbers: range) -> None:
    """Each number likes the post, 4 at a time."""

    def one(number: int) -> int:
        return dev.like("p", dev.token(f"user-{number}"))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(one, numbers)) == [200] * len(numbers)


def edit(dev: Dev) -> None:
    """Change the tally around the API."""
    where, client = dev.call("GET", "/dev/stack").body, tables.client(dev.endpoint)
    client.update_item(
        TableName=where["counts"], Key={"PK": {"S": "POST#p"}, "SK": {"S": "META"}},
        UpdateExpression="ADD likeTally :by", ExpressionAttributeValues={":by": {"N": str(EDITED_BY)}},
    )  # fmt: skip
    client.close()


def until_judged(dev: Dev, epoch_s: float, look: Callable[[], object] = lambda: None) -> None:
    """Wait until Tally has judged the minute of a time; look meanwhile."""
    wanted = int(epoch_s // MINUTE_S)

    def done() -> bool:
        look()
        return judged_minute(dev) >= wanted

    wait_for(done, every_s=LOOK_EVERY_S)


@contextmanager
def visitors(dev: Dev) -> Iterator[Callable[[], int]]:
    """Visit the page, and play a video, all the time; how often so far."""
    stop, done = threading.Event(), itertools.count()
    visited = [0]

    def visit() -> None:
        for number in done:
            if stop.is_set():
                return
            key = f"stalled-{number:020}"
            assert (dev.visit(PAGE, key).status, dev.play("stalled", key).status) == (202, 200)
            visited[0] += 1
            time.sleep(0.1)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(visit)
        try:
            yield lambda: visited[0]
        finally:
            stop.set()
            running.result()


@pytest.mark.long
def test_a_stalled_consumer_is_no_drift_and_an_edit_among_200_likes_is_repaired_and_costs_no_like(
    start: Callable[..., Dev],
) -> None:
    """First the one, then the other: the edit is made while the consumer stalls, and shows as soon as all is judged."""
    dev = start(TALLY_MINUTE_S=str(MINUTE_S)).wait_until_ready()
    until_judged(dev, time.time())
    assert dev.call("PUT", "/posts/p", {"body": "hello"}, token=dev.token()).status == 201
    stall_and_edit(dev)
    assert drifting(dev) == {("likes", "p"): EDITED_BY}

    def repaired() -> bool:
        """It is refused until the drift is confirmed."""
        done = tally(dev, "repair", "likes", "p", "--by", "ann", "--why", "edited by hand", "--yes")
        assert done.returncode in (0, 1), done.stderr
        return done.returncode == 0

    wait_for(repaired, every_s=LOOK_EVERY_S)
    assert dev.likes("p") == LIKERS
    [entry] = map(json.loads, tally(dev, "history", "p", "--json").stdout.splitlines())
    assert (entry["by"], entry["why"], entry["amount"]) == ("ann", "edited by hand", -EDITED_BY)
    until_judged(dev, time.time())
    assert drifting(dev) == {}


def stall_and_edit(dev: Dev) -> None:
    """The rollup stalls: `as_of` and judging stop, nothing drifts by that, and all comes right once it goes on."""

    def switch(enabled: bool) -> None:
        answer = dev.call("PATCH", "/dev/mappings/rollup/receipts", {"enabled": enabled})
        assert answer.body == {"consumer": "rollup", "table": "receipts", "enabled": enabled}

    def as_of() -> int:
        return dev.visits(PAGE)[2] or 0

    def no_drift() -> None:
        assert not [id_ for _, id_ in drifting(dev) if "stalled" in id_]

    with visitors(dev) as visited:
        switch(False)
        stalled_s = time.time()

        def stalls() -> bool:
            no_drift()  # nobody knows what the rollup would still move
            return watermark_age_s(dev, "rollup") >= STALLED_S

        wait_for(stalls, every_s=LOOK_EVERY_S)
        assert as_of() <= stalled_s
        wait_for(lambda: watermark_age_s(dev, "bookkeeper") < STALLED_S)  # it passes every record, and waits for nobody
        assert (judged_minute(dev) + 1 + watermark.LATE) * MINUTE_S <= as_of(), "judged without proof"
        like(dev, range(LIKERS // 2))
        edit(dev)
        like(dev, range(LIKERS // 2, LIKERS))
        assert dev.likes("p") == LIKERS + EDITED_BY
        switch(True)
        enabled_s = time.time()
        wait_for(lambda: as_of() > enabled_s)
    until_judged(dev, time.time(), no_drift)
    assert dev.visits(PAGE)[0] == visited()
    wait_for(lambda: watermark_age_s(dev, "rollup") < STALLED_S, every_s=LOOK_EVERY_S)
