"""A Lambda function that counts finished playbacks from an SQS queue: each once, however often SQS delivers it.

The event source mapping has `ReportBatchItemFailures` on, and the queue a dead-letter queue. Set TALLY_FUNCTIONS, and
attach Tally's InvokePolicy.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from tally.client import Request, Tally, requests
from tally.errors import CallerError, TallyError

logger = logging.getLogger()
tally = Tally.from_environment(caller="playback")  # once, at cold start


def play(record: dict[str, Any]) -> Request[requests.Counted]:
    """The play that a message tells of. Raises ValueError or RecursionError for a body that tells of none.

    The player names each playback. SQS's own id is of the message alone: an event that is sent again, or is moved back
    from a dead-letter queue, is a message with another id. So it serves only for events without an id.
    """
    body = json.loads(record["body"])
    if not isinstance(body, dict) or not isinstance(body.get("video_id"), str):
        raise ValueError("the body has no video_id")
    key = body.get("playback_id") or record["messageId"]
    return requests.increment("plays", body["video_id"], idempotency_key=key)


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Count the playbacks of one SQS batch. What could not be counted stays in the queue."""
    plays, again = {}, []
    for record in event["Records"]:
        try:
            plays[record["messageId"]] = play(record)
        except (ValueError, RecursionError) as error:  # it fails alone
            logger.error("no playback: %s: %s", record["messageId"], error)
            again.append(record["messageId"])
    for id_, result in zip(plays, tally.batch([*plays.values()]), strict=True):
        if isinstance(result, CallerError):  # Tally would refuse it again: do not return it to the queue
            logger.error("not counted: %s: %s", id_, result)
        elif isinstance(result, TallyError):
            again.append(id_)
    return {"batchItemFailures": [{"itemIdentifier": id_} for id_ in again]}
