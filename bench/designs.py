"""The ways to count one play: four ways that teams write, as documentation of AWS and Powertools shows them, and
Tally's two ways."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function

import counters
from tally.counter import Counter
from tally.counting import increments
from tally.counting.increments import Increment
from tally.dynamo.client import Call

from .clients import SETTINGS, Clients

INVOCATION_S = 0.3
"""The time limit of an invocation, short so that the bench is short. After a crash, Powertools lets a retry count only
when this time is over."""
MARKER_TTL_S = 24 * 3600
SOON_PLAYS = replace(counters.PLAYS, visible="soon")

Play = Callable[[str], None]
"""Counts one play under an idempotency key. Raises what the design's calls raise."""


class Design(NamedTuple):
    """A way to count. `writes`: how many writes a play makes, in turn. The process can crash between two writes."""

    name: str
    writes: int
    make: Callable[[Clients, str], Play]
    """Returns the `Play` of a video, from the clients and the video's id. Several threads may call the `Play`."""


def _key(video_id: str) -> dict[str, Any]:
    return {"PK": {"S": counters.PLAYS.partition_start + video_id}, "SK": {"S": counters.PLAYS.sort_key}}


def _add(video_id: str) -> dict[str, Any]:
    return {
        "TableName": SETTINGS.counts_table,
        "Key": _key(video_id),
        "UpdateExpression": f"ADD {counters.PLAYS.attribute} :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }


def _read_modify_write(clients: Clients, video_id: str) -> Play:
    attribute = counters.PLAYS.attribute

    def play(key: str) -> None:
        read = clients.boto3_client.get_item(TableName=SETTINGS.counts_table, Key=_key(video_id), ConsistentRead=True)
        number = int(read.get("Item", {}).get(attribute, {"N": "0"})["N"])
        item = {**_key(video_id), attribute: {"N": str(number + 1)}}
        clients.boto3_client.put_item(TableName=SETTINGS.counts_table, Item=item)

    return play


def _plain_add(clients: Clients, video_id: str) -> Play:
    def play(key: str) -> None:
        clients.boto3_client.update_item(**_add(video_id))

    return play


class _PowertoolsContext:
    """The part of a Lambda context that Powertools uses."""

    def get_remaining_time_in_millis(self) -> int:
        return int(INVOCATION_S * 1000)


def _powertools(clients: Clients, video_id: str) -> Play:
    of_thread = threading.local()  # threads must not share Powertools' layer

    def make() -> Callable[..., dict[str, Any]]:
        config = IdempotencyConfig(event_key_jmespath="key")
        config.register_lambda_context(_PowertoolsContext())  # type: ignore[arg-type]  # Powertools uses this method only
        layer = DynamoDBPersistenceLayer(table_name=SETTINGS.receipts_table, boto3_client=clients.boto3_client)

        def count(*, data: dict[str, str]) -> dict[str, Any]:
            clients.boto3_client.update_item(**_add(data["video_id"]))
            return {"video_id": data["video_id"], "counted": True}

        guarded: Callable[..., dict[str, Any]] = idempotent_function(
            count, data_keyword_argument="data", persistence_store=layer, config=config
        )
        return guarded

    def play(key: str) -> None:
        if not hasattr(of_thread, "count"):
            of_thread.count = make()
        of_thread.count(data={"key": key, "video_id": video_id})

    return play


def _bare_transaction(clients: Clients, video_id: str) -> Play:
    def play(key: str) -> None:
        marker = {"id": {"S": f"{video_id}#{key}"}, "expiration": {"N": str(int(time.time()) + MARKER_TTL_S)}}
        put = {"TableName": SETTINGS.receipts_table, "Item": marker, "ConditionExpression": "attribute_not_exists(id)"}
        writes: Any = [{"Put": put}, {"Update": _add(video_id)}]
        try:
            clients.boto3_client.transact_write_items(TransactItems=writes)
        except clients.boto3_client.exceptions.TransactionCanceledException as cancelled:
            if cancelled.response["CancellationReasons"][0].get("Code") != "ConditionalCheckFailed":
                raise
            # else an earlier attempt counted the play

    return play


def _tally(counter: Counter) -> Callable[[Clients, str], Play]:
    def make(clients: Clients, video_id: str) -> Play:
        def play(key: str) -> None:
            body = {"video_id": video_id, "counted": True}
            increments.count(Call(clients.store), Increment(counter, video_id, 1, "play", key, body))

        return play

    return make


PLAIN_ADD = Design("plain ADD", 1, _plain_add)
POWERTOOLS = Design("Powertools' layer around an ADD", 3, _powertools)  # mark as in progress, ADD, mark as completed
BARE_TRANSACTION = Design("bare transaction with a marker", 1, _bare_transaction)
NOW = Design("Tally, visible now", 1, _tally(counters.PLAYS))
SOON = Design("Tally, visible soon", 1, _tally(SOON_PLAYS))
DESIGNS = (
    Design("read-modify-write", 1, _read_modify_write), PLAIN_ADD, POWERTOOLS, BARE_TRANSACTION, NOW, SOON,
)  # fmt: skip
