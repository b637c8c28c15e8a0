"""A Lambda function that counts finished playbacks from an SQS queue: each once, however often SQS delivers it.

The event source mapping has `ReportBatchItemFailures` on. Set TALLY_FUNCTIONS, and attach Tally's InvokePolicy.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from tally.client import Tally, requests
from tally.errors import CallerError, TallyError

logger = logging.getLogger()
tally = Tally.from_environment(caller="playback")  # once, at cold start


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Count the playbacks of one SQS batch. Those that Tally could not count stay in the queue."""
    records = event["Records"]
    plays = [
        # The id names the play: SQS delivers a message again under the same id.
        requests.increment("plays", json.loads(record["body"])["video_id"], idempotency_key=record["messageId"])
        for record in records
    ]
    again = []
    for record, result in zip(records, tally.batch(plays), strict=True):
        if isinstance(result, CallerError):  # Tally would refuse it again: do not return it to the queue
            logger.error("not counted: %s: %s", record["messageId"], result)
        elif isinstance(result, TallyError):
            again.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": again}
