"""The ways to count one play: those that teams write, each as its documentation shows it, and Tally's own."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)

import counters
from tally.counting import increments
from tally.counting.increments import Increment
from tally.dynamo.client import Call

from .clients import SETTINGS, Clients

INVOCATION_S = 0.3
"""The time of an invocation. After it, Powertools lets a retry count a play that a crash left in progress. It is short
so that the retries of the bench are short."""
MARKER_TTL_S = 24 * 3600
_ROLLED_UP_PLAYS = replace(counters.PLAYS, visible="soon")
_COUNTER = counters.PLAYS

Play = Callable[[str], None]
"""Counts one play under an idempotency key. Raises the errors of its design."""


@dataclass(frozen=True)
class Design:
    """A way to count. `writes`: how many writes it makes in sequence; it can crash between them."""

    name: str
    title: str
    writes: int
    make: Callable[[Clients, str], Play]
    """Makes it from the clients and the video's id. Several threads may call the result."""


def _key(video_id: str) -> dict[str, Any]:
    return {"PK": {"S": _COUNTER.partition_start + video_id}, "SK": {"S": _COUNTER.sort_key}}


def _add(video_id: str) -> dict[str, Any]:
    return {
        "TableName": SETTINGS.counts_table,
        "Key": _key(video_id),
        "UpdateExpression": f"ADD {_COUNTER.attribute} :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }


def _read_modify_write(clients: Clients, video_id: str) -> Play:
    def play(key: str) -> None:
        found = clients.plain.get_item(TableName=SETTINGS.counts_table, Key=_key(video_id), ConsistentRead=True)
        number = int(found.get("Item", {}).get(_COUNTER.attribute, {"N": "0"})["N"])
        item = {**_key(video_id), _COUNTER.attribute: {"N": str(number + 1)}}
        clients.plain.put_item(TableName=SETTINGS.counts_table, Item=item)

    return play


def _plain_add(clients: Clients, video_id: str) -> Play:
    def play(key: str) -> None:
        clients.plain.update_item(**_add(video_id))

    return play


class _Invocation:
    """The part of a Lambda context that Powertools uses."""

    def get_remaining_time_in_millis(self) -> int:
        return int(INVOCATION_S * 1000)


def _powertools(clients: Clients, video_id: str) -> Play:
    made = threading.local()  # threads must not share a layer

    def make() -> Callable[..., dict[str, Any]]:
        config = IdempotencyConfig(event_key_jmespath="key")
        config.register_lambda_context(_Invocation())  # type: ignore[arg-type]  # Powertools uses this method only
        layer = DynamoDBPersistenceLayer(table_name=SETTINGS.receipts_table, boto3_client=clients.plain)

        def count(*, data: dict[str, str]) -> dict[str, Any]:
            clients.plain.update_item(**_add(data["video_id"]))
            return {"video_id": data["video_id"], "counted": True}

        guarded: Callable[..., dict[str, Any]] = idempotent_function(
            count, data_keyword_argument="data", persistence_store=layer, config=config
        )
        return guarded

    def play(key: str) -> None:
        if not hasattr(made, "count"):
            made.count = make()
        made.count(data={"key": key, "video_id": video_id})

    return play


def _bare_transaction(clients: Clients, video_id: str) -> Play:
    def play(key: str) -> None:
        marker = {"id": {"S": f"{video_id}#{key}"}, "expiration": {"N": str(int(time.time()) + MARKER_TTL_S)}}
        put = {
            "TableName": SETTINGS.receipts_table,
            "Item": marker,
            "ConditionExpression": "attribute_not_exists(id)",
        }
        writes: Any = [{"Put": put}, {"Update": _add(video_id)}]
        try:
            clients.plain.transact_write_items(TransactItems=writes)
        except clients.plain.exceptions.TransactionCanceledException as cancelled:
            if cancelled.response["CancellationReasons"][0].get("Code") != "ConditionalCheckFailed":
                raise
            # else an earlier attempt counted it

    return play


def _exact(clients: Clients, video_id: str) -> Play:
    def play(key: str) -> None:
        body = {"video_id": video_id, "counted": True}
        increments.count(Call(clients.store), Increment(counters.PLAYS, video_id, 1, "play", key, body))

    return play


def _plain_put(clients: Clients, video_id: str) -> Play:
    def play(key: str) -> None:
        item: Any = {
            "id": {"S": f"tally#{hashlib.sha256(key.encode()).hexdigest()}"},
            "status": {"S": "COMPLETED"},
            "data": {"S": json.dumps({"video_id": video_id, "counted": True, "visible": "soon"})},
            "validation": {"S": "0" * 64},
            "expiration": {"N": str(int(time.time()) + MARKER_TTL_S)},
            "nonce": {"S": secrets.token_urlsafe(9)},
            "counter": {"S": "plays"},
            "target": {"S": video_id},
            "amount": {"N": "1"},
            "at": {"N": str(int(time.time() // 60))},
            "rollup": {"BOOL": True},
        }
        clients.plain.put_item(TableName=SETTINGS.receipts_table, Item=item)

    return play


def _rollup(clients: Clients, video_id: str) -> Play:
    def play(key: str) -> None:
        body = {"video_id": video_id, "counted": True}
        increments.count(Call(clients.store), Increment(_ROLLED_UP_PLAYS, video_id, 1, "play", key, body))

    return play


READ_MODIFY_WRITE = Design("read-modify-write", "read-modify-write", 1, _read_modify_write)
PLAIN_ADD = Design("plain-add", "plain ADD", 1, _plain_add)
POWERTOOLS = Design("powertools", "Powertools' layer around an ADD", 3, _powertools)
BARE_TRANSACTION = Design("bare-transaction", "bare transaction with a marker", 1, _bare_transaction)
EXACT = Design("exact", "Tally EXACT", 1, _exact)
DESIGNS = (READ_MODIFY_WRITE, PLAIN_ADD, POWERTOOLS, BARE_TRANSACTION, EXACT)
PLAIN_PUT = Design("plain-put", "plain PutItem of the same size", 1, _plain_put)
ROLLUP = Design("rollup", "Tally ROLLUP", 1, _rollup)
TIMED = (*DESIGNS, PLAIN_PUT, ROLLUP)
"""These also include designs that write a receipt for a stream consumer to count."""
COUNTED = (*DESIGNS, ROLLUP)
"""The designs whose count is compared with the plays. ROLLUP's consumer counts its plays."""
