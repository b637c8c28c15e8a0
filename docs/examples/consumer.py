"""A Lambda function that counts finished playbacks from SQS. If SQS delivers a message twice, the playback counts once.

Switch on `ReportBatchItemFailures` in the event source mapping, and give the queue a dead-letter queue. Set
TALLY_FUNCTIONS, and attach the policy of the output InvokePolicyArn.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from tally.client import Request, Tally, requests
from tally.errors import CallerError, TallyError

logger = logging.getLogger()
tally = Tally.from_environment(caller="playback")  # once, at cold start


def play_request(record: dict[str, Any]) -> Request[requests.Counted]:
    """Return the request that counts the play in a message. Raises ValueError or RecursionError if there is no play.

    The player names each playback. If an event is sent twice, or is moved back from a dead-letter queue, SQS gives
    the second message another id. So the id of the message is the key only for events without a `playback_id`.
    """
    body = json.loads(record["body"])
    if not isinstance(body, dict) or not isinstance(body.get("video_id"), str):
        raise ValueError("the body has no video_id")
    key = body.get("playback_id") or record["messageId"]
    return requests.increment("plays", body["video_id"], idempotency_key=key)


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Count the playbacks of one SQS batch. A playback that could not be counted stays in the queue."""
    plays, failed_ids = {}, []
    for record in event["Records"]:
        try:
            plays[record["messageId"]] = play_request(record)
        except (ValueError, RecursionError) as error:  # only this record fails
            logger.error("no playback: %s: %s", record["messageId"], error)
            failed_ids.append(record["messageId"])
    for id_, result in zip(plays, tally.batch([*plays.values()]), strict=True):
        if isinstance(result, CallerError):  # Tally would refuse a retry, too, so the message leaves the queue
            logger.error("not counted: %s: %s", id_, result)
        elif isinstance(result, TallyError):
            failed_ids.append(id_)
    return {"batchItemFailures": [{"itemIdentifier": id_} for id_ in failed_ids]}
