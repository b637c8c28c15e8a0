"""Single stream records in DynamoDB's wire form, and stores that show what consumers write or lose it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tally.dynamo.client import Store
from tally.streams.fold import StreamPlace
from tests.invariants.processes import Watched
from tests.invariants.streaming import NOW_S, StreamWorld

SHARD = "shardId-1"
MINUTE = int(NOW_S // 60)


def play(sequence: int | str, video: str = "v", amount: object = 1, at: int = MINUTE, **more: Any) -> dict[str, Any]:
    """The record of a play that was written alone."""
    image = {
        "id": {"S": f"tally#{sequence}"}, "counter": {"S": "plays"}, "target": {"S": video},
        "amount": {"N": str(amount)}, "at": {"N": str(at)}, "rollup": {"BOOL": True},
    }  # fmt: skip
    return record(sequence, "INSERT", {"NewImage": image | more})


def record(sequence: int | str, name: str, change: dict[str, Any], created_s: float = NOW_S) -> dict[str, Any]:
    stamped = {**change, "SequenceNumber": str(sequence), "ApproximateCreationDateTime": created_s}
    return {"eventName": name, "dynamodb": stamped}


def like(sequence: int, user: str, name: str = "INSERT", **more: Any) -> dict[str, Any]:
    keys = {"PK": {"S": "POST#p"}, "SK": {"S": f"LIKE#USER#{user}"}}
    image = {**keys, "likedAt": {"N": "1"}, "at": {"N": str(MINUTE)}, "rollup": {"BOOL": True}} | more
    return record(sequence, name, {"Keys": keys, "OldImage" if name == "REMOVE" else "NewImage": image})


def heartbeat(sequence: int, key: str = "7", rolled_s: int = 60, created_s: float = NOW_S) -> dict[str, Any]:
    """A heartbeat in the receipts."""
    keys = {"id": {"S": f"heartbeat#{key}"}}
    image = {**keys, "at": {"N": "1"}, "rolled": {"N": str(rolled_s)}}
    return record(sequence, "MODIFY", {"Keys": keys, "NewImage": image}, created_s)


BAD = play(50, amount="x")


def bucket(shard: str) -> int:
    """The bucket of a stream shard."""
    return StreamPlace("receipts", shard).bucket


class Writes(Watched):
    """Keeps the writes that a client sends."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.sent: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)
        if name not in ("transact_write_items", "update_item", "put_item"):
            return real

        def write(**parameters: Any) -> Any:
            self.sent.append((name, parameters))
            return real(**parameters)

        return write


def recording(world: StreamWorld) -> tuple[Store, Writes]:
    client = Writes(world.store.client)
    return replace(world.store, client=client), client  # type: ignore[arg-type]
