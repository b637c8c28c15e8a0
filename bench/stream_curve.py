"""What a play costs the embedded engine as its stream grows: as it is, with the index, and with the index and trimming.

    python -m bench.stream_curve --plays 100000

Each play is what `make dev` writes for an EXACT one: a transaction of a receipt and an ADD, on two tables with streams.
The figures are medians of each 10,000 plays, in milliseconds, on a file of their own; one run after the other.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local import tables
from local.engine import Engine
from local.template import Table
from local.trim import TRIM_EVERY_S, trim

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

COUNTS, RECEIPTS = "curve-counts-table", "curve-receipts-table"
STEP = 10_000
BEHIND = 1_000  # records that consumers have not passed yet: what a second or two brings


def _tables() -> list[Table]:
    arguments: dict[str, Any] = {
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        "BillingMode": "PAY_PER_REQUEST",
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    }
    return [Table(name, arguments, None) for name in (COUNTS, RECEIPTS)]


def _play(client: DynamoDBClient, number: int) -> None:
    client.transact_write_items(
        TransactItems=[
            {"Put": {"TableName": RECEIPTS, "Item": {"id": {"S": f"play-{number:09d}"}, "amount": {"N": "1"}}}},
            {
                "Update": {
                    "TableName": COUNTS,
                    "Key": {"id": {"S": "video"}},
                    "UpdateExpression": "ADD plays :one",
                    "ExpressionAttributeValues": {":one": {"N": "1"}},
                }
            },
        ]
    )


def measure(plays: int, *, index: bool, trims: bool, budget_s: float) -> list[float]:
    """The median of each 10,000 plays, until the plays or the seconds are over."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Engine(Path(folder, "engine.db")) as engine:
        assert engine.db_path
        tables.create(_tables(), engine.endpoint)
        if index:
            tables.index_stream_records(engine.db_path)
        client = tables.client(engine.endpoint)
        written = 0
        over = threading.Event()

        def work() -> None:
            while not over.wait(TRIM_EVERY_S):
                passed = max(0, written - BEHIND)
                trim(Path(folder, "engine.db"), {COUNTS: passed, RECEIPTS: passed})

        trimmer = threading.Thread(target=work)
        if trims:
            trimmer.start()
        began_s = time.monotonic()
        try:
            while written < plays and time.monotonic() - began_s < budget_s:
                took_ms = []
                for _ in range(min(STEP, plays - written)):
                    started_s = time.perf_counter()
                    _play(client, written)
                    took_ms.append((time.perf_counter() - started_s) * 1000)
                    written += 1
                found.append(statistics.median(took_ms))
        finally:
            over.set()
            if trims:
                trimmer.join()
            client.close()
    return found


def main() -> None:
    """Print the curve."""
    parser = argparse.ArgumentParser(prog="python -m bench.stream_curve", description=__doc__.split("\n")[0])
    parser.add_argument("--plays", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=240.0, help="at most for each, at the end of a step (240)")
    given = parser.parse_args()
    ways = {"as it is": (False, False), "index": (True, False), "index, trimmed": (True, True)}
    print(f"{'plays':>10}  {'median ms of a play, by steps of ' + format(STEP, ','):<40}")
    for name, (index, trims) in reversed(ways.items()):
        medians = measure(given.plays, index=index, trims=trims, budget_s=given.seconds)
        print(f"{name:>16}  {'  '.join(f'{one:6.2f}' for one in medians)}", flush=True)


if __name__ == "__main__":
    main()
