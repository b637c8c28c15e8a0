"""A Lambda function that counts finished playbacks from an SQS queue, each once however often SQS delivers it.

The event source mapping has `ReportBatchItemFailures` on. Set TALLY_FUNCTIONS, and attach Tally's InvokePolicy.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from tally import requests
from tally.client import Tally
from tally.errors import RetryableError, TallyError

logger = logging.getLogger()
tally = Tally.from_environment(caller="playback")  # once, at cold start


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Count the playbacks of one SQS batch; those that could not be counted stay in the queue."""
    records = event["Records"]
    plays = [
        # A message keeps its id when SQS delivers it again: it names the play.
        requests.play(json.loads(record["body"])["video_id"], idempotency_key=record["messageId"])
        for record in records
    ]
    again = []
    for record, result in zip(records, tally.batch(plays), strict=True):
        if isinstance(result, RetryableError):
            again.append({"itemIdentifier": record["messageId"]})
        elif isinstance(result, TallyError):  # it would be refused again: not back into the queue
            logger.error("not counted: %s: %s", record["messageId"], result)
    return {"batchItemFailures": again}
