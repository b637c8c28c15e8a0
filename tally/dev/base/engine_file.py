"""Keeps the engine's writes fast: indexes the stream records in its file, and deletes records that are consumed.

A write of dynoxide 1.2.1 takes time in proportion to all stream records of the table, consumed or not. Without this
module, each write of a long run would be slower than the last. Writes of DynamoDB do not slow down.

The file's schema is private to dynoxide. So no other module touches the file, and this module trims only the schema
version that it knows. If a new dynoxide (package.json) changes the schema, tests of this module fail, and `make dev` is
slow but right. If dynoxide ever deletes its stream records after a day, as DynamoDB does, delete this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

SCHEMA_VERSION = "9"  # of dynoxide 1.2.1
TRIM_EVERY_S = 1.0
STEP_ROWS = 500  # one step takes about 2 ms, and blocks the engine's writes
STEPS_MAX = 20  # in a round: 10,000 records a second, several times the engine's rate
STEP_PAUSE_S = 0.01  # lets the engine write
BUSY_S_MAX = 0.2  # the longest wait for the file; the next round tries again
INDEX_BUSY_S_MAX = 5.0  # longer, because the index is tried only once, when the engine starts
_VERSION = "SELECT value FROM _config WHERE key = 'schema_version'"
_INDEX = (
    "CREATE INDEX IF NOT EXISTS tally_stream_order ON _stream_records (table_name, CAST(sequence_number AS INTEGER))"
)
# The engine numbers a new record after the highest record in the file. Keep the highest, or numbers would repeat.
_DELETE = """
DELETE FROM _stream_records WHERE id IN (
    SELECT id FROM _stream_records
    WHERE table_name = :table AND CAST(sequence_number AS INTEGER) <= :passed AND CAST(sequence_number AS INTEGER) < (
        SELECT MAX(CAST(sequence_number AS INTEGER)) FROM _stream_records WHERE table_name = :table
    )
    ORDER BY CAST(sequence_number AS INTEGER) LIMIT :rows
)"""


def index_stream_records(db_path: Path) -> None:
    """Index the stream records. Does nothing if the schema has no such table, or if the file stays busy."""
    with closing(sqlite3.connect(db_path, timeout=INDEX_BUSY_S_MAX)) as database:
        try:
            database.execute(_INDEX)
            database.commit()
        except sqlite3.OperationalError:
            return


async def trim_until_cancelled(db_path: Path, passed: Callable[[], Mapping[str, int]]) -> None:
    """Trim the file's streams until cancelled. `passed`: returns, by table, the last sequence number to delete."""
    trimmed: dict[str, int] = {}
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        to_trim = dict(passed())
        if to_trim != trimmed and await asyncio.to_thread(trim, db_path, to_trim):
            trimmed = to_trim


def trim(db_path: Path, passed: Mapping[str, int]) -> bool:
    """Delete the records up to `passed`, in at most STEPS_MAX steps. Returns False if the next round has to go on. With
    another schema version, deletes nothing and returns True."""
    with contextlib.suppress(sqlite3.Error), _opened(db_path) as database:  # a busy file, or no such table
        if database.execute(_VERSION).fetchone() != (SCHEMA_VERSION,):
            return True
        steps = 0
        for table, sequence in passed.items():
            while True:
                if steps == STEPS_MAX:
                    return False
                steps += 1
                arguments = {"table": table, "passed": sequence, "rows": STEP_ROWS}
                deleted = database.execute(_DELETE, arguments).rowcount
                if deleted < STEP_ROWS:
                    break
                time.sleep(STEP_PAUSE_S)
        return True
    return False


@contextlib.contextmanager
def _opened(db_path: Path) -> Iterator[sqlite3.Connection]:
    """Opens the engine's file if it exists. Each statement is a transaction of its own."""
    database = sqlite3.connect(f"{db_path.absolute().as_uri()}?mode=rw", BUSY_S_MAX, isolation_level=None, uri=True)
    try:
        database.execute("PRAGMA synchronous = NORMAL")  # safe with a write-ahead log, without waiting for the disk
        yield database
    finally:
        database.close()
