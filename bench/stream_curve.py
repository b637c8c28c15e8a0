"""What a play costs the embedded engine as its stream grows: as it is, with the index, and with the index and trimming.

    python -m bench.stream_curve --plays 100000

Each play is what `make dev` writes for an EXACT one: a transaction of a receipt and an ADD, on two tables with streams.
The figures are medians of 300 plays in milliseconds at each 10,000, on a file of their own; the records between are put
into the engine's stream as copies of a play's, which is what it would hold after so many plays.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
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
MEASURED = 300
BEHIND = 1_000  # records that consumers have not passed yet: what a second or two brings
_FILL = """
WITH RECURSIVE more(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM more WHERE number < :records),
last AS (
    SELECT * FROM _stream_records WHERE table_name = :table ORDER BY CAST(sequence_number AS INTEGER) DESC LIMIT 1
)
INSERT INTO _stream_records
    (table_name, event_name, keys_json, new_image, old_image, sequence_number, shard_id, created_at)
SELECT table_name, event_name, keys_json, new_image, old_image,
    CAST(CAST(sequence_number AS INTEGER) + number AS TEXT), shard_id, created_at
FROM last, more"""


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


def measure(plays: int, *, index: bool, trims: bool) -> list[float]:
    """The median of the plays measured at each 10,000."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Engine(Path(folder, "engine.db")) as engine:
        path = Path(folder, "engine.db")
        tables.create(_tables(), engine.endpoint)
        if index:
            tables.index_stream_records(path)
        client = tables.client(engine.endpoint)
        for streamed in range(0, plays + 1, STEP):
            found.append(_median(client, streamed))
            _stream(path, STEP - MEASURED)
            while trims and not trim(path, dict.fromkeys((COUNTS, RECEIPTS), streamed + STEP - BEHIND)):
                time.sleep(TRIM_EVERY_S / 100)
        client.close()
    return found


def _median(client: DynamoDBClient, first: int) -> float:
    """The median milliseconds of some plays in turn."""
    took_ms = []
    for number in range(first, first + MEASURED):
        started_s = time.perf_counter()
        _play(client, number)
        took_ms.append((time.perf_counter() - started_s) * 1000)
    return statistics.median(took_ms)


def _stream(path: Path, records: int) -> None:
    """Put so many records more into each table's stream, as plays would: copies of the last, numbered on."""
    with closing(sqlite3.connect(path, timeout=10)) as database:
        for table in (COUNTS, RECEIPTS):
            database.execute(_FILL, {"table": table, "records": records})
        database.commit()


def main() -> None:
    """Print the curve."""
    parser = argparse.ArgumentParser(prog="python -m bench.stream_curve", description=__doc__.split("\n")[0])
    parser.add_argument("--plays", type=int, default=100_000)
    given = parser.parse_args()
    ways = {"as it is": (False, False), "index": (True, False), "index, trimmed": (True, True)}
    print(f"{'plays':>10}  {'median ms of a play, by steps of ' + format(STEP, ','):<40}")
    for name, (index, trims) in reversed(ways.items()):
        medians = measure(given.plays, index=index, trims=trims)
        print(f"{name:>16}  {'  '.join(f'{one:6.2f}' for one in medians)}", flush=True)


if __name__ == "__main__":
    main()
