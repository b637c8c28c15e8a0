"""Keeps the embedded engine's stream short: deletes the records that every event source mapping has passed.

Each write to a table costs the engine time in proportion to what its stream holds. An index cures most of that
(tables.py); this keeps the file and the index small as well. It is the engine's private schema: only the version whose
schema is known is touched, and only a file that is ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

SCHEMA_VERSION = "9"  # of dynoxide 1.2.1
TRIM_EVERY_S = 1.0
STEP_ROWS = 500  # deleted in about 2 ms, while which the engine's writes wait
STEPS_MAX = 20  # of a round: 10,000 records a second, several times what the engine writes
STEP_PAUSE_S = 0.01  # for the writes that waited
BUSY_S_MAX = 0.2  # waited for the file; then the next round tries again
_VERSION = "SELECT value FROM _config WHERE key = 'schema_version'"
# The engine numbers a record one more than the highest that is there: that one stays, or numbers would come again.
_DELETE = """
DELETE FROM _stream_records WHERE id IN (
    SELECT id FROM _stream_records
    WHERE table_name = :table AND CAST(sequence_number AS INTEGER) <= :passed AND CAST(sequence_number AS INTEGER) < (
        SELECT MAX(CAST(sequence_number AS INTEGER)) FROM _stream_records WHERE table_name = :table
    )
    ORDER BY CAST(sequence_number AS INTEGER) LIMIT :rows
)"""


async def trimming(db_path: Path, passed: Callable[[], Mapping[str, int]]) -> None:
    """Trim the file's streams until cancelled; `passed` tells how far, by table."""
    done: dict[str, int] = {}
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        wanted = dict(passed())
        if wanted != done and await asyncio.to_thread(trim, db_path, wanted):
            done = wanted


def trim(db_path: Path, passed: Mapping[str, int]) -> bool:
    """Delete what is passed, in steps, at most so many. Whether nothing is left to delete."""
    with contextlib.suppress(sqlite3.Error), _opened(db_path) as database:  # busy, or another schema: left as it is
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
    """The engine's file, each statement a transaction of its own. Never made if it is not there."""
    database = sqlite3.connect(f"{db_path.absolute().as_uri()}?mode=rw", BUSY_S_MAX, isolation_level=None, uri=True)
    try:
        database.execute("PRAGMA synchronous = NORMAL")  # safe with a write-ahead log, and no wait for the disk
        yield database
    finally:
        database.close()
