"""A Lambda function that counts each play once by its id. Terraform, SAM and Serverless deploy it (docs/adopt.md).

The folder `layer/` beside this file has Tally's client.
"""

from __future__ import annotations

from typing import Any

from tally.client import Tally

tally = Tally.from_environment(caller="player")  # once, at cold start


def handler(event: dict[str, str], context: object) -> dict[str, Any]:
    """Count one play. `event`: the `video`, and the `id` of this play. The same id never counts twice."""
    counted = tally.increment("plays", event["video"], idempotency_key=event["id"])
    return {"video": event["video"], "replayed": counted["replayed"]}
